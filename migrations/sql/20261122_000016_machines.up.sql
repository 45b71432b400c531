CREATE SEQUENCE ip_address_numbers AS bigint MAXVALUE 4294967295;

-- Labels as those of regions and sites; who brought the host (the rule for it comes with the table of providers); and
-- the size of the users' volume in gigabytes, as it was registered. The defaults stay: a server of the release before may
-- still register hosts beside this one.
ALTER TABLE hosts
    ADD COLUMN metadata jsonb NOT NULL DEFAULT '[]'
        CONSTRAINT hosts_metadata_is_a_list CHECK (jsonb_typeof(metadata) = 'array'),
    ADD COLUMN provider_id integer,
    ADD COLUMN user_lvm_size integer NOT NULL DEFAULT 0
        CONSTRAINT hosts_user_lvm_size_is_a_size CHECK (user_lvm_size >= 0);
CREATE INDEX hosts_by_provider ON hosts (tenant_id, provider_id);

-- What a machine said that it is made of. One row a host, so that a list of hosts reads it in one statement. The lists
-- hold their parts as the REST API shows them. The digest is that of what was said: the same once more changes nothing.
CREATE TABLE host_hardware (
    tenant_id         uuid NOT NULL,
    host_id           integer NOT NULL,
    serial_number     text NOT NULL,
    memory_bytes      bigint NOT NULL CHECK (memory_bytes >= 0),
    cpu_model         text NOT NULL,
    cpu_capabilities  text NOT NULL,
    cpu_architecture  text NOT NULL,
    cpu_topology      text NOT NULL,
    cpu_sockets       bigint NOT NULL CHECK (cpu_sockets BETWEEN 0 AND 4294967295),
    cpu_cores         bigint NOT NULL CHECK (cpu_cores BETWEEN 0 AND 4294967295),
    cpu_threads       bigint NOT NULL CHECK (cpu_threads BETWEEN 0 AND 4294967295),
    product_name      text NOT NULL,
    bios_version      text NOT NULL,
    bios_release_date text NOT NULL,
    bios_vendor       text NOT NULL,
    bmc_kind          text NOT NULL CHECK (bmc_kind IN ('unspecified', 'none', 'ipmi', 'vpro', 'pdu')),
    bmc_ip            text NOT NULL,
    storages          jsonb NOT NULL CHECK (jsonb_typeof(storages) = 'array'),
    nics              jsonb NOT NULL CHECK (jsonb_typeof(nics) = 'array'),
    usbs              jsonb NOT NULL CHECK (jsonb_typeof(usbs) = 'array'),
    gpus              jsonb NOT NULL CHECK (jsonb_typeof(gpus) = 'array'),
    digest            bytea NOT NULL CHECK (length(digest) = 32),
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, host_id),
    CONSTRAINT host_hardware_host FOREIGN KEY (tenant_id, host_id) REFERENCES hosts ON DELETE CASCADE
);

-- The same wall as around the first tables (step 6).
ALTER TABLE host_hardware ENABLE ROW LEVEL SECURITY;
ALTER TABLE host_hardware FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON host_hardware USING (
    (SELECT current_setting('evenkeel.tenant', true)) = '*'
    OR tenant_id = (SELECT nullif(nullif(current_setting('evenkeel.tenant', true), ''), '*')::uuid)
);

CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON host_hardware
    FOR EACH ROW EXECUTE FUNCTION record_change('host_hardware', 'host_id');
