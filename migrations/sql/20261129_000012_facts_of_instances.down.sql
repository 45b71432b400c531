ALTER TABLE node_states
    DROP COLUMN kernel_release,
    DROP COLUMN reboot_required,
    DROP COLUMN package_lists_refreshed_at,
    DROP COLUMN package_lists_error,
    DROP COLUMN security_updates,
    DROP COLUMN held_back_updates,
    DROP COLUMN stale_services;
