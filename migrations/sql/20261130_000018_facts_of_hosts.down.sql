ALTER TABLE host_hardware DROP COLUMN product_vendor;
ALTER TABLE node_states
    DROP COLUMN boot_time,
    DROP COLUMN reboot_required_by;
