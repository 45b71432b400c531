DROP TABLE project_settings, update_orders, pauses, repeated_schedules;
DELETE FROM single_schedules WHERE target_site_id IS NOT NULL OR target_region_id IS NOT NULL
    OR status NOT IN ('unspecified', 'maintenance', 'os_update');
ALTER TABLE single_schedules
    DROP CONSTRAINT single_schedules_status_check,
    ADD CONSTRAINT single_schedules_status_check CHECK (status IN ('unspecified', 'maintenance', 'os_update'));
ALTER TABLE single_schedules DROP COLUMN target_site_id, DROP COLUMN target_region_id;
DELETE FROM assignments WHERE target_kind IN ('site', 'region');
ALTER TABLE assignments
    DROP CONSTRAINT assignments_target_kind_check,
    ADD CONSTRAINT assignments_target_kind_check CHECK (target_kind IN ('instance', 'host', 'project')),
    DROP COLUMN max_concurrent,
    DROP COLUMN stop_after_failures,
    DROP COLUMN since_at;
ALTER TABLE update_policies DROP COLUMN allow_downgrade, DROP COLUMN offline_days;
