DROP TABLE host_hardware;
ALTER TABLE hosts
    DROP COLUMN user_lvm_size,
    DROP COLUMN provider_id,
    DROP COLUMN metadata;
DROP SEQUENCE ip_address_numbers;
