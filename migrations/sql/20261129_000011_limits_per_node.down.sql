ALTER TABLE package_versions
    DROP COLUMN reported_by,
    DROP COLUMN confirmed_at;
DROP TABLE node_daily_usage, project_daily_usage;
