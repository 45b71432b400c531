DROP TABLE node_daily_usage, project_daily_usage;
