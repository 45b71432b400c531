-- The whole schema. There was no release before it, so there is no data to convert.
--
-- First projects, locations, hosts, operating systems, instances, policies and schedules, nodes, runs and the operating system
-- catalogue; then what spans them: the change log, tallies, row-level security.

-- IDs. The program converts each number into an ID by a bijection of 32 bits. Numbers are unique in the whole fleet.
CREATE SEQUENCE custom_config_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE host_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE instance_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE join_token_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE local_account_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE os_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE policy_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE provider_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE region_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE repeated_schedule_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE run_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE single_schedule_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE site_numbers AS bigint MAXVALUE 4294967295;
-- Every hardware report takes numbers for IP addresses, and nothing looks an address up by its ID. So these may repeat.
CREATE SEQUENCE ip_address_numbers AS bigint MAXVALUE 4294967295 CYCLE;


-- Projects
--
-- A project is a tenant. Its ID leads every other key and nearly every index, so that the schema can be sharded by it.

CREATE TABLE projects (
    tenant_id   uuid PRIMARY KEY,
    name        text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    description text NOT NULL,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

-- Sets the scope of the transaction to a project, by its name or else by its ID. Without such a project the transaction sees
-- nothing. The function changes no row, so a read-only transaction may call it.
CREATE FUNCTION set_tenant_scope(project_name text, project_id uuid) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id uuid;
BEGIN
    PERFORM set_config('evenkeel.tenant', '*', true);
    IF project_name IS NOT NULL THEN
        SELECT tenant_id INTO found_id FROM projects WHERE name = project_name;
    ELSE
        SELECT tenant_id INTO found_id FROM projects WHERE tenant_id = project_id;
    END IF;
    PERFORM set_config('evenkeel.tenant', coalesce(found_id::text, ''), true);
    RETURN found_id;
END
$$;

CREATE TABLE project_settings (
    tenant_id           uuid PRIMARY KEY REFERENCES projects ON DELETE CASCADE,
    -- Days for which runs are stored after their end. 0 keeps them forever; null is the default of the server.
    retention_days      integer CHECK (retention_days BETWEEN 0 AND 36500),
    any_schedule_status boolean NOT NULL
);

-- Texts that many nodes share, such as lists of installed packages: one row per distinct text of a project.
CREATE TABLE contents (
    tenant_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    digest    bytea NOT NULL CHECK (length(digest) = 32),
    body      text NOT NULL,
    -- When the text was last stored or used. A new text may not have references yet, so cleanup waits.
    used_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, digest)
);
CREATE INDEX contents_used ON contents (tenant_id, used_at);

-- Versions of packages that the nodes of a project have reported. A policy may require that a version is known for some
-- days, so first_seen never changes. last_seen is written once a day at most.
CREATE TABLE package_versions (
    tenant_id    uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    name         text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 128),
    architecture text NOT NULL CHECK (octet_length(architecture) BETWEEN 1 AND 32),
    version      text NOT NULL CHECK (octet_length(version) BETWEEN 1 AND 256),
    first_seen   timestamptz NOT NULL,
    last_seen    timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, name, architecture, version),
    CONSTRAINT first_seen_is_first CHECK (first_seen <= last_seen)
);
CREATE INDEX package_versions_last_seen ON package_versions (tenant_id, last_seen);

-- The digest is that of the secret. A machine presents the secret before its project is known.
CREATE TABLE join_tokens (
    tenant_id        uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    id               integer NOT NULL,
    name             text NOT NULL,
    digest           bytea NOT NULL CHECK (length(digest) = 32),
    expires_at       timestamptz NOT NULL,
    one_time         boolean NOT NULL,
    may_create_hosts boolean NOT NULL,
    used             integer NOT NULL,
    last_used_at     timestamptz,
    revoked_at       timestamptz,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    CONSTRAINT one_time_is_used_once CHECK (NOT one_time OR used <= 1)
);
CREATE UNIQUE INDEX join_tokens_digest ON join_tokens (digest);


-- Locations
--
-- Lists are ordered by ID, as an unsigned number. IDs are signed integers here and the negative ones come last, so the indexes
-- for lists (*_order, *_by_letter) have (id < 0) before the ID.

-- A region has at most one parent. The program checks the depth, and that there is no cycle, under the lock of the project.
CREATE TABLE regions (
    tenant_id  uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id         integer NOT NULL,
    name       text NOT NULL,
    parent_id  integer,
    metadata   jsonb NOT NULL CHECK (jsonb_typeof(metadata) = 'array'),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    CONSTRAINT regions_parent FOREIGN KEY (tenant_id, parent_id) REFERENCES regions ON DELETE RESTRICT,
    CONSTRAINT a_region_is_not_its_own_parent CHECK (parent_id <> id)
);
CREATE INDEX regions_by_parent ON regions (tenant_id, parent_id);
CREATE INDEX regions_name ON regions (tenant_id, name);

-- Latitude and longitude are degrees times 10,000,000.
CREATE TABLE sites (
    tenant_id  uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id         integer NOT NULL,
    name       text NOT NULL,
    region_id  integer,
    latitude   integer NOT NULL CHECK (latitude BETWEEN -900000000 AND 900000000),
    longitude  integer NOT NULL CHECK (longitude BETWEEN -1800000000 AND 1800000000),
    metadata   jsonb NOT NULL CHECK (jsonb_typeof(metadata) = 'array'),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    CONSTRAINT sites_region FOREIGN KEY (tenant_id, region_id) REFERENCES regions ON DELETE RESTRICT
);
CREATE INDEX sites_by_region ON sites (tenant_id, region_id);
CREATE INDEX sites_name ON sites (tenant_id, name);
CREATE INDEX sites_order ON sites (tenant_id, (id < 0), id);


-- Hosts

-- EIM's clients create providers, custom configurations and local accounts before a node is installed. They are created, read
-- and deleted, never changed, and cannot be deleted while they are in use.
CREATE TABLE providers (
    tenant_id       uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id              integer NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('unspecified', 'baremetal')),
    vendor          text NOT NULL CHECK (vendor IN ('unspecified', 'lenovo_lxca', 'lenovo_loca')),
    name            text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 40),
    api_endpoint    text NOT NULL CHECK (char_length(api_endpoint) <= 500),
    api_credentials text[] NOT NULL CHECK (cardinality(api_credentials) <= 100),
    config          text NOT NULL CHECK (char_length(config) <= 2000),
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
);
CREATE UNIQUE INDEX providers_name ON providers (tenant_id, name);

CREATE TABLE hosts (
    tenant_id         uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id                integer NOT NULL,
    name              text NOT NULL,
    uuid              uuid,
    serial            text,
    hostname          text NOT NULL,
    site_id           integer,
    provider_id       integer,
    metadata          jsonb NOT NULL DEFAULT '[]'
        CONSTRAINT hosts_metadata_is_a_list CHECK (jsonb_typeof(metadata) = 'array'),
    -- Gigabytes, as registered.
    user_lvm_size     integer NOT NULL DEFAULT 0 CONSTRAINT hosts_user_lvm_size_is_a_size CHECK (user_lvm_size >= 0),
    desired_state     text NOT NULL CHECK (desired_state IN ('unspecified', 'registered', 'onboarded', 'untrusted', 'deleted')),
    current_state     text NOT NULL CHECK (current_state IN ('unspecified', 'registered', 'onboarded', 'untrusted', 'deleted')),
    note              text NOT NULL,
    public_key        bytea NOT NULL,
    status            text NOT NULL,
    status_indication text NOT NULL CHECK (status_indication IN ('unspecified', 'error', 'in_progress', 'idle')),
    status_at         timestamptz NOT NULL,
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    -- Lower case, as ILIKE compares. The index for lists includes it, so a search for a part of a name reads only that index.
    name_folded       text COLLATE "C" GENERATED ALWAYS AS (lower(name)) STORED,
    PRIMARY KEY (tenant_id, id),
    CONSTRAINT hosts_site FOREIGN KEY (tenant_id, site_id) REFERENCES sites ON DELETE RESTRICT,
    CONSTRAINT hosts_provider FOREIGN KEY (tenant_id, provider_id) REFERENCES providers ON DELETE RESTRICT
);
-- A machine is registered once in a project: by its UUID, or by its serial number while it has no UUID.
CREATE UNIQUE INDEX hosts_uuid ON hosts (tenant_id, uuid);
CREATE UNIQUE INDEX hosts_serial ON hosts (tenant_id, serial) WHERE uuid IS NULL;
CREATE INDEX hosts_serial_any ON hosts (tenant_id, serial) WHERE serial IS NOT NULL;
CREATE INDEX hosts_name ON hosts (tenant_id, name);
CREATE INDEX hosts_by_provider ON hosts (tenant_id, provider_id);
-- Names letter by letter, whatever the language of the database.
CREATE INDEX hosts_by_letter ON hosts (tenant_id, name COLLATE "C", (id < 0), id);
CREATE INDEX hosts_order ON hosts (tenant_id, (id < 0), id) INCLUDE (name_folded);
-- The hosts of a site, their instances and their runs are found in three indexes alone, because these include the IDs.
CREATE INDEX hosts_by_site ON hosts (tenant_id, site_id) INCLUDE (id);

-- Hardware as JSON in the form of the REST API: without spaces, members in the order of the API's types, times in
-- milliseconds. The functions that a column calls keep their search path, because a restored dump has none.

CREATE FUNCTION time_json(stored jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(regexp_replace(stored::text, '(\.\d{3})\d+', '\1'), '.000Z', 'Z')
$$;

CREATE FUNCTION timestamps_json(stored jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE jsonb_typeof(stored) WHEN 'object' THEN '{"createdAt":' || time_json(stored -> 'createdAt')
        || ',"updatedAt":' || time_json(stored -> 'updatedAt') || '}' ELSE 'null' END
$$;

CREATE FUNCTION storages_json(stored jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg('{"wwid":' || (e -> 'wwid')::text
            || ',"serial":' || (e -> 'serial')::text
            || ',"vendor":' || (e -> 'vendor')::text
            || ',"model":' || (e -> 'model')::text
            || ',"capacityBytes":' || (e -> 'capacityBytes')::text
            || ',"deviceName":' || (e -> 'deviceName')::text
            || ',"timestamps":' || timestamps_json(e -> 'timestamps') || '}', ',' ORDER BY position), '') || ']'
        FROM jsonb_array_elements(stored) WITH ORDINALITY AS parts (e, position)
    );
END
$$;

CREATE FUNCTION addresses_json(stored jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg('{"resourceId":' || CASE jsonb_typeof(e -> 'resourceId')
                WHEN 'string' THEN (e -> 'resourceId')::text ELSE '""' END
            || ',"address":' || (e -> 'address')::text
            || ',"status":' || (e -> 'status')::text
            || ',"statusDetail":' || (e -> 'statusDetail')::text
            || ',"configMethod":' || (e -> 'configMethod')::text
            || ',"timestamps":' || timestamps_json(e -> 'timestamps') || '}', ',' ORDER BY position), '') || ']'
        FROM jsonb_array_elements(stored) WITH ORDINALITY AS parts (e, position)
    );
END
$$;

CREATE FUNCTION nics_json(stored jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg('{"deviceName":' || (e -> 'deviceName')::text
            || ',"pciIdentifier":' || (e -> 'pciIdentifier')::text
            || ',"macAddr":' || (e -> 'macAddr')::text
            || ',"sriovEnabled":' || (e -> 'sriovEnabled')::text
            || ',"sriovVfsNum":' || (e -> 'sriovVfsNum')::text
            || ',"sriovVfsTotal":' || (e -> 'sriovVfsTotal')::text
            || ',"mtu":' || (e -> 'mtu')::text
            || ',"linkState":{"type":' || (e -> 'linkState' -> 'type')::text
            || ',"timestamps":' || timestamps_json(e -> 'linkState' -> 'timestamps')
            || '},"bmcInterface":' || (e -> 'bmcInterface')::text
            || ',"ipaddresses":' || addresses_json(e -> 'ipaddresses')
            || ',"timestamps":' || timestamps_json(e -> 'timestamps') || '}', ',' ORDER BY position), '') || ']'
        FROM jsonb_array_elements(stored) WITH ORDINALITY AS parts (e, position)
    );
END
$$;

CREATE FUNCTION usbs_json(stored jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg('{"idVendor":' || (e -> 'idVendor')::text
            || ',"idProduct":' || (e -> 'idProduct')::text
            || ',"bus":' || (e -> 'bus')::text
            || ',"addr":' || (e -> 'addr')::text
            || ',"class":' || (e -> 'class')::text
            || ',"serial":' || (e -> 'serial')::text
            || ',"deviceName":' || (e -> 'deviceName')::text
            || ',"timestamps":' || timestamps_json(e -> 'timestamps') || '}', ',' ORDER BY position), '') || ']'
        FROM jsonb_array_elements(stored) WITH ORDINALITY AS parts (e, position)
    );
END
$$;

CREATE FUNCTION texts_json(stored jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg(e::text, ',' ORDER BY position), '') || ']'
        FROM jsonb_array_elements(stored) WITH ORDINALITY AS parts (e, position)
    );
END
$$;

CREATE FUNCTION gpus_json(stored jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (
        SELECT '[' || coalesce(string_agg('{"pciId":' || (e -> 'pciId')::text
            || ',"product":' || (e -> 'product')::text
            || ',"vendor":' || (e -> 'vendor')::text
            || ',"description":' || (e -> 'description')::text
            || ',"deviceName":' || (e -> 'deviceName')::text
            || ',"capabilities":' || texts_json(e -> 'capabilities')
            || ',"timestamps":' || timestamps_json(e -> 'timestamps') || '}', ',' ORDER BY position), '') || ']'
        FROM jsonb_array_elements(stored) WITH ORDINALITY AS parts (e, position)
    );
END
$$;

-- Hardware that a machine has reported. One row per host, so that a list of hosts reads it in one statement.
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
    -- Digest of the report: the same report again changes nothing.
    digest            bytea NOT NULL CHECK (length(digest) = 32),
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    -- The four lists as the REST API shows them, so that no answer has to parse them. Filters read the lists. It is one column,
    -- because the change log leaves out at most one column of a table.
    parts_json        text NOT NULL GENERATED ALWAYS AS (
        '{"storages":' || storages_json(storages) || ',"nics":' || nics_json(nics) || ',"usbs":' || usbs_json(usbs)
        || ',"gpus":' || gpus_json(gpus) || '}'
    ) STORED,
    PRIMARY KEY (tenant_id, host_id),
    CONSTRAINT host_hardware_host FOREIGN KEY (tenant_id, host_id) REFERENCES hosts ON DELETE CASCADE
);

-- Hosts for which the tokens of EIM's nodes speak. An external issuer signs such a token, and it names no host of ours: it
-- belongs to the host that used it first. The digest is that of the signed part. It is stored until the token expires. Tokens
-- change every hour and users do not see them, so the change log leaves them out.
CREATE TABLE node_tokens (
    tenant_id     uuid NOT NULL,
    digest        bytea NOT NULL CHECK (length(digest) = 32),
    host_id       integer NOT NULL,
    first_used_at timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, digest),
    CONSTRAINT node_tokens_host FOREIGN KEY (tenant_id, host_id) REFERENCES hosts ON DELETE CASCADE
);
CREATE INDEX node_tokens_host ON node_tokens (tenant_id, host_id);
CREATE INDEX node_tokens_expired ON node_tokens (tenant_id, expires_at);


-- Operating systems

-- Every poll reads this table, so what polls do not need is in os_details.
CREATE TABLE os_profiles (
    tenant_id              uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id                     integer NOT NULL,
    name                   text NOT NULL,
    kind                   text NOT NULL CHECK (kind IN ('mutable', 'immutable')),
    provider               text NOT NULL CHECK (provider IN ('unspecified', 'infra', 'lenovo')),
    architecture           text NOT NULL,
    profile_name           text NOT NULL,
    image_id               text NOT NULL,
    image_url              text NOT NULL,
    sha256                 text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    image_signatures       text[] NOT NULL DEFAULT '{}' CHECK (cardinality(image_signatures) <= 8),
    security_feature       text NOT NULL
        CHECK (security_feature IN ('unspecified', 'none', 'secure_boot_and_full_disk_encryption')),
    description            text NOT NULL,
    metadata               text NOT NULL,
    repo_url               text NOT NULL,
    tls_ca_cert            text NOT NULL,
    installed_packages_url text NOT NULL,
    existing_cves_url      text NOT NULL,
    fixed_cves_url         text NOT NULL,
    created_at             timestamptz NOT NULL,
    updated_at             timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
);
CREATE UNIQUE INDEX os_profiles_name ON os_profiles (tenant_id, name);
CREATE UNIQUE INDEX os_profiles_image ON os_profiles (tenant_id, profile_name, image_id);

-- Contents and origin of an operating system that was imported from a registry.
CREATE TABLE os_details (
    tenant_id            uuid NOT NULL,
    os_id                integer NOT NULL,
    registry             text NOT NULL,
    repository           text NOT NULL,
    revision             text NOT NULL,
    artifact             bytea NOT NULL CHECK (length(artifact) = 32),
    platform_bundle      text NOT NULL CHECK (octet_length(platform_bundle) <= 10000),
    signature            jsonb CHECK (jsonb_typeof(signature) = 'object'),
    files                jsonb NOT NULL CHECK (jsonb_typeof(files) = 'array'),
    packages_digest      bytea,
    existing_cves_digest bytea,
    fixed_cves_digest    bytea,
    refreshed_at         timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, os_id),
    CONSTRAINT os_details_os FOREIGN KEY (tenant_id, os_id) REFERENCES os_profiles ON DELETE CASCADE,
    CONSTRAINT os_details_packages FOREIGN KEY (tenant_id, packages_digest) REFERENCES contents,
    CONSTRAINT os_details_existing_cves FOREIGN KEY (tenant_id, existing_cves_digest) REFERENCES contents,
    CONSTRAINT os_details_fixed_cves FOREIGN KEY (tenant_id, fixed_cves_digest) REFERENCES contents
);
CREATE INDEX os_details_by_packages ON os_details (tenant_id, packages_digest) WHERE packages_digest IS NOT NULL;
CREATE INDEX os_details_by_existing_cves ON os_details (tenant_id, existing_cves_digest)
    WHERE existing_cves_digest IS NOT NULL;
CREATE INDEX os_details_by_fixed_cves ON os_details (tenant_id, fixed_cves_digest) WHERE fixed_cves_digest IS NOT NULL;

-- Series of images: the images of one profile. `change_count` counts the changes of the series. `applied_count` is the count up
-- to which the nodes that run one of its images have been updated.
CREATE TABLE image_series (
    tenant_id     uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    profile_name  text NOT NULL,
    change_count  bigint NOT NULL,
    applied_count bigint NOT NULL,
    PRIMARY KEY (tenant_id, profile_name)
);
CREATE INDEX image_series_outdated ON image_series (tenant_id, profile_name) WHERE change_count > applied_count;

-- Counts a change of the old and of the new series of an image. The deletion of an image creates no row, because the project
-- may be deleted with it.
CREATE FUNCTION record_series_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        UPDATE image_series SET change_count = change_count + 1
        WHERE tenant_id = OLD.tenant_id AND profile_name = OLD.profile_name;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO image_series AS s (tenant_id, profile_name, change_count, applied_count)
        VALUES (NEW.tenant_id, NEW.profile_name, 1, 0)
        ON CONFLICT (tenant_id, profile_name) DO UPDATE SET change_count = s.change_count + 1;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER image_series_created AFTER INSERT ON os_profiles FOR EACH ROW
    WHEN (NEW.kind = 'immutable') EXECUTE FUNCTION record_series_change();
CREATE TRIGGER image_series_changed AFTER UPDATE OF name, kind, profile_name, image_id ON os_profiles FOR EACH ROW
    WHEN (OLD.kind = 'immutable' OR NEW.kind = 'immutable') EXECUTE FUNCTION record_series_change();
-- Each architecture has its own newest image.
CREATE TRIGGER image_series_architecture_changed AFTER UPDATE OF architecture ON os_profiles FOR EACH ROW
    WHEN (NEW.kind = 'immutable' AND OLD.architecture <> NEW.architecture) EXECUTE FUNCTION record_series_change();
CREATE TRIGGER image_series_deleted AFTER DELETE ON os_profiles FOR EACH ROW
    WHEN (OLD.kind = 'immutable') EXECUTE FUNCTION record_series_change();


-- Instances

CREATE TABLE local_accounts (
    tenant_id  uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id         integer NOT NULL,
    username   text NOT NULL CHECK (username ~ '^[a-z][a-z0-9-]{0,31}$'),
    ssh_key    text NOT NULL CHECK (char_length(ssh_key) BETWEEN 1 AND 800),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
);
CREATE UNIQUE INDEX local_accounts_username ON local_accounts (tenant_id, username);

CREATE TABLE custom_configs (
    tenant_id   uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id          integer NOT NULL,
    name        text NOT NULL CHECK (name ~ '^[a-z][a-z0-9-]{0,31}$'),
    description text NOT NULL CHECK (char_length(description) <= 256),
    config      text NOT NULL CHECK (char_length(config) BETWEEN 1 AND 16384),
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
);
CREATE UNIQUE INDEX custom_configs_name ON custom_configs (tenant_id, name);

CREATE TABLE instances (
    tenant_id        uuid NOT NULL,
    id               integer NOT NULL,
    host_id          integer NOT NULL,
    name             text NOT NULL,
    kind             text NOT NULL CHECK (kind IN ('unspecified', 'metal')),
    desired_state    text NOT NULL CHECK (desired_state IN ('unspecified', 'running', 'untrusted', 'deleted')),
    current_state    text NOT NULL CHECK (current_state IN ('unspecified', 'running', 'untrusted', 'deleted')),
    security_feature text NOT NULL
        CHECK (security_feature IN ('unspecified', 'none', 'secure_boot_and_full_disk_encryption')),
    local_account_id integer,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    name_folded      text COLLATE "C" GENERATED ALWAYS AS (lower(name)) STORED,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, host_id) REFERENCES hosts ON DELETE RESTRICT,
    CONSTRAINT instances_local_account FOREIGN KEY (tenant_id, local_account_id) REFERENCES local_accounts
        ON DELETE RESTRICT
);
CREATE INDEX instances_by_local_account ON instances (tenant_id, local_account_id);
CREATE INDEX instances_name ON instances (tenant_id, name);
CREATE INDEX instances_by_letter ON instances (tenant_id, name COLLATE "C", (id < 0), id);
CREATE INDEX instances_order ON instances (tenant_id, (id < 0), id) INCLUDE (name_folded);
CREATE UNIQUE INDEX instances_host ON instances (tenant_id, host_id) INCLUDE (id);

CREATE TABLE instance_custom_configs (
    tenant_id        uuid NOT NULL,
    instance_id      integer NOT NULL,
    custom_config_id integer NOT NULL,
    PRIMARY KEY (tenant_id, instance_id, custom_config_id),
    CONSTRAINT instance_custom_configs_instance FOREIGN KEY (tenant_id, instance_id) REFERENCES instances
        ON DELETE CASCADE,
    CONSTRAINT instance_custom_configs_config FOREIGN KEY (tenant_id, custom_config_id) REFERENCES custom_configs
        ON DELETE RESTRICT
);
CREATE INDEX instance_custom_configs_by_config ON instance_custom_configs (tenant_id, custom_config_id);


-- Policies, schedules and orders

CREATE TABLE update_policies (
    tenant_id       uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id              integer NOT NULL,
    name            text NOT NULL CHECK (name <> ''),
    description     text NOT NULL,
    mode            text NOT NULL CHECK (mode IN ('latest', 'target')),
    target_os_id    integer,
    packages        text NOT NULL,
    sources         text[] NOT NULL,
    kernel_command  text NOT NULL,
    allow_downgrade boolean NOT NULL,
    -- Days for which an offline grant is valid; 0 gives none.
    offline_days    integer NOT NULL CHECK (offline_days >= 0),
    -- Rules for packages and for images. An empty object is the default rules.
    rules           jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(rules) = 'object'),
    image_rules     jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(image_rules) = 'object'),
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, target_os_id) REFERENCES os_profiles ON DELETE RESTRICT,
    CONSTRAINT latest_names_nothing CHECK (mode = 'target'
        OR (target_os_id IS NULL AND packages = '' AND cardinality(sources) = 0 AND kernel_command = '')),
    CONSTRAINT target_names_something CHECK (mode = 'latest'
        OR target_os_id IS NOT NULL OR packages <> '' OR cardinality(sources) > 0 OR kernel_command <> ''),
    CONSTRAINT image_excludes_packages CHECK (target_os_id IS NULL OR (packages = '' AND cardinality(sources) = 0)),
    CONSTRAINT image_excludes_rules CHECK (target_os_id IS NULL OR rules = '{}'),
    CONSTRAINT packages_exclude_image_rules
        CHECK (mode = 'latest' OR target_os_id IS NOT NULL OR image_rules = '{}')
);
CREATE INDEX update_policies_name ON update_policies (tenant_id, name);
CREATE INDEX update_policies_target_os ON update_policies (tenant_id, target_os_id);

-- Policies assigned to an instance, a host, a site, a region or the whole project (target_id 0). The transaction that deletes
-- the target deletes the row.
CREATE TABLE assignments (
    tenant_id           uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    target_kind         text NOT NULL CHECK (target_kind IN ('instance', 'host', 'site', 'region', 'project')),
    target_id           integer NOT NULL,
    policy_id           integer NOT NULL,
    -- Null is no limit.
    max_concurrent      integer CHECK (max_concurrent > 0),
    stop_after_failures integer CHECK (stop_after_failures > 0),
    -- Failures count from here on: from the last write or resumption.
    since_at            timestamptz NOT NULL,
    -- Set when a user resumes the assignment after failures; reset when the policy is assigned again.
    resumed_at          timestamptz,
    resumed_by          text,
    resume_reason       text,
    PRIMARY KEY (tenant_id, target_kind, target_id),
    FOREIGN KEY (tenant_id, policy_id) REFERENCES update_policies ON DELETE RESTRICT,
    CONSTRAINT project_has_no_id CHECK (target_kind <> 'project' OR target_id = 0),
    CONSTRAINT a_resumption_is_whole CHECK (num_nulls(resumed_at, resumed_by, resume_reason) IN (0, 3))
);
CREATE INDEX assignments_policy ON assignments (tenant_id, policy_id);

CREATE TABLE single_schedules (
    tenant_id        uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id               integer NOT NULL,
    name             text NOT NULL,
    status           text NOT NULL CHECK (status IN ('unspecified', 'maintenance', 'shipping', 'os_update', 'firmware_update',
        'cluster_update')),
    start_at         timestamptz NOT NULL,
    end_at           timestamptz CHECK (end_at > start_at),
    target_host_id   integer,
    target_site_id   integer,
    target_region_id integer,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, target_host_id) REFERENCES hosts ON DELETE CASCADE,
    CONSTRAINT single_schedules_site FOREIGN KEY (tenant_id, target_site_id) REFERENCES sites ON DELETE CASCADE,
    CONSTRAINT single_schedules_region FOREIGN KEY (tenant_id, target_region_id) REFERENCES regions ON DELETE CASCADE,
    CONSTRAINT a_single_schedule_has_one_target
        CHECK (num_nonnulls(target_host_id, target_site_id, target_region_id) <= 1)
);
CREATE INDEX single_schedules_host ON single_schedules (tenant_id, target_host_id, start_at);
CREATE INDEX single_schedules_by_site ON single_schedules (tenant_id, target_site_id, start_at);
CREATE INDEX single_schedules_by_region ON single_schedules (tenant_id, target_region_id, start_at);

-- Cron fields as the client sent them. They are local time in the zone, which is a name of IANA's database.
CREATE TABLE repeated_schedules (
    tenant_id        uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id               integer NOT NULL,
    name             text NOT NULL,
    status           text NOT NULL CHECK (status IN ('unspecified', 'maintenance', 'shipping', 'os_update', 'firmware_update',
        'cluster_update')),
    duration_seconds integer NOT NULL CHECK (duration_seconds BETWEEN 1 AND 86400),
    cron_minutes     text NOT NULL CHECK (cron_minutes <> ''),
    cron_hours       text NOT NULL CHECK (cron_hours <> ''),
    cron_day_month   text NOT NULL CHECK (cron_day_month <> ''),
    cron_month       text NOT NULL CHECK (cron_month <> ''),
    cron_day_week    text NOT NULL CHECK (cron_day_week <> ''),
    time_zone        text NOT NULL CHECK (time_zone <> ''),
    target_host_id   integer,
    target_site_id   integer,
    target_region_id integer,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    CONSTRAINT repeated_schedules_host FOREIGN KEY (tenant_id, target_host_id) REFERENCES hosts ON DELETE CASCADE,
    CONSTRAINT repeated_schedules_site FOREIGN KEY (tenant_id, target_site_id) REFERENCES sites ON DELETE CASCADE,
    CONSTRAINT repeated_schedules_region FOREIGN KEY (tenant_id, target_region_id) REFERENCES regions ON DELETE CASCADE,
    CONSTRAINT a_repeated_schedule_has_one_target
        CHECK (num_nonnulls(target_host_id, target_site_id, target_region_id) <= 1)
);
CREATE INDEX repeated_schedules_by_host ON repeated_schedules (tenant_id, target_host_id);
CREATE INDEX repeated_schedules_by_site ON repeated_schedules (tenant_id, target_site_id);
CREATE INDEX repeated_schedules_by_region ON repeated_schedules (tenant_id, target_region_id);

-- Where no update starts. The transaction that deletes the site or the policy deletes the row.
CREATE TABLE pauses (
    tenant_id  uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    scope_kind text NOT NULL CHECK (scope_kind IN ('project', 'site', 'policy')),
    scope_id   integer NOT NULL,
    reason     text NOT NULL,
    created_by text NOT NULL,
    since_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, scope_kind, scope_id),
    CONSTRAINT a_pause_of_the_project_has_no_id CHECK (scope_kind <> 'project' OR scope_id = 0)
);

-- The latest order for an instance.
CREATE TABLE update_orders (
    tenant_id   uuid NOT NULL,
    instance_id integer NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('now', 'cancel')),
    given_at    timestamptz NOT NULL,
    until_at    timestamptz NOT NULL,
    reason      text NOT NULL,
    created_by  text NOT NULL,
    PRIMARY KEY (tenant_id, instance_id),
    FOREIGN KEY (tenant_id, instance_id) REFERENCES instances ON DELETE CASCADE,
    CONSTRAINT an_order_ends_after_it_was_given CHECK (until_at >= given_at)
);

-- Instances that are being updated under a limited assignment. The transaction that permits a start locks the assignment and
-- takes the slot. The slot is released when the run of the instance ends, or at until_at if no run was opened before. It
-- outlives its assignment, because the node is being updated all the same.
CREATE TABLE update_slots (
    tenant_id   uuid NOT NULL,
    target_kind text NOT NULL CHECK (target_kind IN ('instance', 'host', 'site', 'region', 'project')),
    target_id   integer NOT NULL,
    instance_id integer NOT NULL,
    since_at    timestamptz NOT NULL,
    until_at    timestamptz,
    PRIMARY KEY (tenant_id, target_kind, target_id, instance_id),
    FOREIGN KEY (tenant_id, instance_id) REFERENCES instances ON DELETE CASCADE
);
CREATE INDEX update_slots_instance ON update_slots (tenant_id, instance_id);
CREATE INDEX update_slots_until ON update_slots (tenant_id, until_at) WHERE until_at IS NOT NULL;


-- Nodes

-- The last reports of a node: one row per instance. Only the maintenance manager writes it.
CREATE TABLE node_states (
    tenant_id                uuid NOT NULL,
    instance_id              integer NOT NULL,
    os_id                    integer NOT NULL,
    provisioned              boolean NOT NULL,
    protocol                 text NOT NULL CHECK (protocol IN ('unknown', 'eim', 'own')),
    modules                  text[] NOT NULL,
    agent_version            text NOT NULL,
    boot_id                  text NOT NULL,
    previous_boot_id         text NOT NULL,
    facts_digest             bytea NOT NULL,
    facts                    jsonb NOT NULL,
    status                   text NOT NULL,
    status_indication        text NOT NULL CHECK (status_indication IN ('unspecified', 'error', 'in_progress', 'idle')),
    status_at                timestamptz NOT NULL,
    update_status            text NOT NULL,
    update_status_indication text NOT NULL
        CHECK (update_status_indication IN ('unspecified', 'error', 'in_progress', 'idle')),
    update_status_at         timestamptz NOT NULL,
    os_update_available      text NOT NULL,
    conditions               jsonb NOT NULL CHECK (jsonb_typeof(conditions) = 'array'),
    -- Why the node does not start an update.
    waiting                  text NOT NULL DEFAULT '' CHECK (octet_length(waiting) <= 1000),
    -- Installed packages: the list that is stored, and the digest that the node has reported last.
    packages_digest          bytea,
    reported_packages_digest bytea CHECK (length(reported_packages_digest) = 32),
    -- Digest of os_update_available, which can be compared without reading the text.
    available_digest         bytea NOT NULL DEFAULT sha256('') CHECK (length(available_digest) = 32),
    -- The image that the node has booted, as it reports it, and the images that have failed on it.
    booted_profile           text,
    booted_image             text,
    bad_images               jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(bad_images) = 'array'),
    -- How the last attempt ended.
    last_end_run_id          integer,
    last_end_target          text,
    last_end_at              timestamptz,
    last_end_verdict         text CHECK (last_end_verdict IN ('good', 'bad', 'inconclusive')),
    -- For EIM's agents: the last status report, and the schedules and the policy that were sent last.
    sample                   jsonb CHECK (jsonb_typeof(sample) = 'object'),
    delivered                jsonb NOT NULL CHECK (jsonb_typeof(delivered) = 'object'),
    PRIMARY KEY (tenant_id, instance_id),
    FOREIGN KEY (tenant_id, instance_id) REFERENCES instances ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, os_id) REFERENCES os_profiles ON DELETE RESTRICT,
    CONSTRAINT node_states_packages FOREIGN KEY (tenant_id, packages_digest) REFERENCES contents,
    CONSTRAINT a_booted_image_is_whole CHECK (num_nulls(booted_profile, booted_image) IN (0, 2)),
    CONSTRAINT last_end_is_whole CHECK (num_nulls(last_end_run_id, last_end_at, last_end_verdict) IN (0, 3))
);
CREATE INDEX node_states_os ON node_states (tenant_id, os_id);
CREATE INDEX node_states_by_packages ON node_states (tenant_id, packages_digest) WHERE packages_digest IS NOT NULL;

-- When a node was last heard. The table is narrow and has no index but its key, so that rows are updated in place.
CREATE TABLE last_contacts (
    tenant_id   uuid NOT NULL,
    instance_id integer NOT NULL,
    heard_at    timestamptz NOT NULL,
    -- End of the node's long poll: until then it is not silent.
    due_at      timestamptz,
    PRIMARY KEY (tenant_id, instance_id),
    FOREIGN KEY (tenant_id, instance_id) REFERENCES instances ON DELETE CASCADE
) WITH (fillfactor = 70);


-- Runs

-- Attempts to update an instance. One function of the store changes the state of a run.
CREATE TABLE update_runs (
    tenant_id       uuid NOT NULL,
    id              integer NOT NULL,
    instance_id     integer NOT NULL,
    name            text NOT NULL,
    description     text NOT NULL,
    attempt         uuid,
    -- May name a deleted policy. The origin has a copy of the policy, so the history stays complete.
    policy_id       integer,
    origin          jsonb NOT NULL,
    target_digest   text,
    state           text NOT NULL CHECK (state IN ('downloading', 'staged', 'applying', 'rebooting', 'verifying',
        'reverting', 'succeeded', 'failed', 'reverted', 'cancelled', 'abandoned')),
    state_since     timestamptz NOT NULL,
    changed         boolean,
    cause           text,
    failure_kind    text,
    failure         text,
    packages        jsonb NOT NULL,
    image           jsonb CHECK (jsonb_typeof(image) = 'object'),
    -- The report of the attempt.
    report          jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(report) = 'object'),
    log             text NOT NULL,
    sequence        integer NOT NULL CHECK (sequence >= 0),
    generation      bigint NOT NULL CHECK (generation > 0),
    granted_at      timestamptz,
    -- The limited assignment under which the start was permitted.
    granted_kind    text CHECK (granted_kind IN ('instance', 'host', 'site', 'region', 'project')),
    granted_id      integer,
    -- Installed packages when the run was opened.
    packages_digest bytea,
    started_at      timestamptz NOT NULL,
    ended_at        timestamptz,
    name_folded     text COLLATE "C" GENERATED ALWAYS AS (lower(name)) STORED,
    FOREIGN KEY (tenant_id, instance_id) REFERENCES instances ON DELETE CASCADE,
    CONSTRAINT update_runs_packages FOREIGN KEY (tenant_id, packages_digest) REFERENCES contents,
    CONSTRAINT grant_is_whole CHECK (num_nulls(granted_kind, granted_id) IN (0, 2)),
    CONSTRAINT success_has_changed CHECK ((state = 'succeeded') = (changed IS NOT NULL)),
    CONSTRAINT cancellation_has_a_cause CHECK ((state IN ('cancelled', 'abandoned')) = (cause IS NOT NULL)),
    CONSTRAINT failure_has_a_reason CHECK ((state IN ('failed', 'reverted')) = (failure_kind IS NOT NULL)
        AND (failure_kind IS NULL) = (failure IS NULL)),
    CONSTRAINT end_has_a_time CHECK ((ended_at IS NULL) = (state IN ('downloading', 'staged', 'applying', 'rebooting',
        'verifying', 'reverting')))
);
-- The order of these indexes matters: while a table has no statistics, Postgres uses the newest of the indexes that look
-- equally good (docs/adr/0023). The key is newer than all other indexes over all runs, so that the foreign key check of an
-- event uses it. Only indexes over some runs are newer than the key; the one by policy excludes runs without a policy.
CREATE INDEX update_runs_open ON update_runs (tenant_id, state_since) WHERE ended_at IS NULL;
CREATE INDEX update_runs_by_packages ON update_runs (tenant_id, packages_digest) WHERE packages_digest IS NOT NULL;
CREATE INDEX update_runs_ended ON update_runs (tenant_id, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX update_runs_failures ON update_runs (tenant_id, granted_kind, granted_id, ended_at)
    WHERE granted_kind IS NOT NULL AND state IN ('failed', 'reverted', 'abandoned');
CREATE INDEX update_runs_started ON update_runs (tenant_id, started_at);
CREATE INDEX update_runs_order ON update_runs (tenant_id, (id < 0), id) INCLUDE (name_folded);
CREATE INDEX update_runs_instance ON update_runs (tenant_id, instance_id, started_at DESC) INCLUDE (id);
ALTER TABLE update_runs ADD PRIMARY KEY (tenant_id, id);
CREATE INDEX update_runs_policy ON update_runs (tenant_id, policy_id) WHERE policy_id IS NOT NULL;
CREATE UNIQUE INDEX update_runs_attempt ON update_runs (tenant_id, instance_id, attempt) WHERE attempt IS NOT NULL;
-- An instance has one open run at most.
CREATE UNIQUE INDEX one_open_run_per_instance ON update_runs (tenant_id, instance_id) WHERE ended_at IS NULL;

CREATE TABLE run_events (
    tenant_id uuid NOT NULL,
    run_id    integer NOT NULL,
    position  integer NOT NULL CHECK (position > 0),
    event     text NOT NULL,
    state     text NOT NULL,
    sequence  integer,
    boot_id   text NOT NULL,
    node_time timestamptz,
    at        timestamptz NOT NULL,
    detail    text NOT NULL,
    PRIMARY KEY (tenant_id, run_id, position),
    FOREIGN KEY (tenant_id, run_id) REFERENCES update_runs ON DELETE CASCADE
);
-- An event that the agent has numbered is stored once.
CREATE UNIQUE INDEX run_events_sequence ON run_events (tenant_id, run_id, sequence) WHERE sequence IS NOT NULL;


-- Operating system catalogue
--
-- A registry is read once for the whole fleet. Its contents belong to no project, and only a transaction with the scope of the
-- fleet sees them.

-- Read cycles of a registry: `requested` counts the requested cycles, `done` the finished ones; `claimed` is the running one.
CREATE TABLE os_cycles (
    registry        text PRIMARY KEY CHECK (char_length(registry) BETWEEN 1 AND 63),
    requested       bigint NOT NULL,
    done            bigint NOT NULL DEFAULT 0,
    claimed         bigint,
    holder          uuid,
    lease_until     timestamptz,
    not_before      timestamptz,
    started_at      timestamptz,
    ended_at        timestamptz,
    last_success_at timestamptz,
    step            text NOT NULL DEFAULT 'idle' CHECK (step IN ('idle', 'listing', 'fetching', 'attachments', 'applying')),
    finished        integer NOT NULL DEFAULT 0 CHECK (finished >= 0),
    total           integer NOT NULL DEFAULT 0 CHECK (total >= 0),
    outcome         text CHECK (outcome IN ('succeeded', 'partial', 'failed')),
    message         text NOT NULL DEFAULT '' CHECK (octet_length(message) <= 1000),
    CONSTRAINT a_claim_is_whole CHECK (num_nulls(claimed, holder, lease_until) IN (0, 3)),
    CONSTRAINT done_was_requested CHECK (done <= requested AND coalesce(claimed, done) BETWEEN done AND requested)
);

-- The artifact of each tag, as it was read last. `last_cycle` is the last cycle that found the tag.
CREATE TABLE os_artifacts (
    registry   text NOT NULL REFERENCES os_cycles ON DELETE CASCADE,
    repository text NOT NULL CHECK (char_length(repository) BETWEEN 1 AND 255),
    tag        text NOT NULL CHECK (char_length(tag) BETWEEN 1 AND 128),
    digest     bytea NOT NULL CHECK (length(digest) = 32),
    moved_from bytea CHECK (length(moved_from) = 32),
    title      text,
    manifest   text,
    document   text,
    findings   jsonb NOT NULL CHECK (jsonb_typeof(findings) = 'array'),
    trust      text NOT NULL CHECK (trust IN ('valid', 'unsigned', 'invalid', 'unchecked')),
    signature  jsonb CHECK (jsonb_typeof(signature) = 'object'),
    files      jsonb NOT NULL CHECK (jsonb_typeof(files) = 'array'),
    last_cycle bigint NOT NULL,
    gone_at    timestamptz,
    PRIMARY KEY (registry, repository, tag)
);

-- Attachments of profiles (packages, CVEs) as they are shown. `filtered_by` is the digest of the list of packages to which the
-- attachment was reduced; it is empty if it was not reduced. A bad download does not replace the last good body.
CREATE TABLE os_attachments (
    registry    text NOT NULL REFERENCES os_cycles ON DELETE CASCADE,
    location    text NOT NULL CHECK (octet_length(location) BETWEEN 1 AND 1500),
    kind        text NOT NULL CHECK (kind IN ('packages', 'cves')),
    filtered_by bytea NOT NULL CHECK (length(filtered_by) IN (0, 32)),
    digest      bytea CHECK (length(digest) = 32),
    body        text,
    etag        text CHECK (octet_length(etag) <= 1024),
    findings    jsonb NOT NULL CHECK (jsonb_typeof(findings) = 'array'),
    fetched_at  timestamptz NOT NULL,
    PRIMARY KEY (registry, location, kind, filtered_by),
    CONSTRAINT a_body_has_a_digest CHECK (num_nulls(digest, body) IN (0, 2))
);

-- The selection of a project from the catalogue. Null is the default of the server.
CREATE TABLE os_settings (
    tenant_id       uuid PRIMARY KEY REFERENCES projects ON DELETE CASCADE,
    registry        text CHECK (char_length(registry) BETWEEN 1 AND 63),
    revision        text CHECK (octet_length(revision) BETWEEN 1 AND 128),
    enabled         text[] CHECK (cardinality(enabled) <= 200),
    default_profile text CHECK (octet_length(default_profile) <= 128)
);

-- The last synchronisation of a project with the catalogue. A project without a row was not synchronised yet.
CREATE TABLE os_sync_reports (
    tenant_id  uuid PRIMARY KEY REFERENCES projects ON DELETE CASCADE,
    registry   text NOT NULL,
    revision   text NOT NULL,
    outcome    text NOT NULL CHECK (outcome IN ('succeeded', 'partial', 'failed')),
    message    text NOT NULL CHECK (octet_length(message) <= 1000),
    cycle      bigint NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz NOT NULL,
    created    integer NOT NULL,
    updated    integer NOT NULL,
    unchanged  integer NOT NULL,
    refused    integer NOT NULL
);

CREATE TABLE os_sync_findings (
    tenant_id  uuid NOT NULL REFERENCES os_sync_reports ON DELETE CASCADE,
    number     integer NOT NULL CHECK (number BETWEEN 1 AND 1000),
    repository text NOT NULL,
    tag        text NOT NULL,
    kind       text NOT NULL CHECK (char_length(kind) BETWEEN 1 AND 40),
    field      text,
    message    text NOT NULL CHECK (octet_length(message) <= 1000),
    os_id      integer,
    since_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, number)
);


-- Change log
--
-- Every change of a resource, written in the transaction that makes the change. Answer caches, watchers and the audit read it.
-- A reader orders by (xid, seq) and stops below the oldest transaction that still writes.

CREATE TABLE change_log (
    tenant_id   uuid NOT NULL,
    xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq         bigint GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind        text NOT NULL,
    id          integer NOT NULL,
    operation   text NOT NULL CHECK (operation IN ('insert', 'update', 'delete')),
    -- What the change affects, if that is less than the whole project.
    scope_level text,
    scope_id    integer,
    -- The row before and after is recorded only if the transaction names its actor (setting evenkeel.actor).
    actor       text,
    request_id  text,
    before      jsonb,
    after       jsonb,
    PRIMARY KEY (tenant_id, xid, seq),
    CONSTRAINT scope_has_a_level CHECK (scope_level IN ('instance', 'host', 'site', 'region', 'project')),
    CONSTRAINT scope_is_whole CHECK (num_nulls(scope_level, scope_id) IN (0, 2))
);
CREATE INDEX change_log_order ON change_log (xid, seq);
CREATE INDEX change_log_object ON change_log (tenant_id, kind, id, xid, seq);

-- Arguments of the trigger: the kind of resource; the column with its ID (none for the project itself); a column that the log
-- leaves out. Two rows that differ only in that column are still a change.
CREATE FUNCTION record_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    acting_user text := nullif(current_setting('evenkeel.actor', true), '');
    changed_row record;
    resource_id integer := 0;
    level       text;
    target      integer;
    old_row     jsonb;
    new_row     jsonb;
BEGIN
    IF TG_OP = 'UPDATE' AND OLD IS NOT DISTINCT FROM NEW THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' THEN
        changed_row := OLD;
    ELSE
        changed_row := NEW;
    END IF;
    IF TG_NARGS > 1 THEN
        CASE TG_ARGV[1]
            WHEN 'id' THEN resource_id := changed_row.id;
            WHEN 'instance_id' THEN resource_id := changed_row.instance_id;
            WHEN 'target_id' THEN resource_id := changed_row.target_id;
            WHEN 'scope_id' THEN resource_id := changed_row.scope_id;
            ELSE resource_id := (to_jsonb(changed_row) ->> TG_ARGV[1])::integer;
        END CASE;
    END IF;
    CASE TG_ARGV[0]
        WHEN 'instance', 'host', 'site' THEN
            level := TG_ARGV[0];
            target := resource_id;
        WHEN 'update_order' THEN
            level := 'instance';
            target := resource_id;
        WHEN 'run' THEN
            level := 'instance';
            target := changed_row.instance_id;
            -- A deleted or changed failure under a limited assignment affects the other nodes of that assignment.
            IF changed_row.granted_kind IS NOT NULL THEN
                IF TG_OP = 'DELETE' THEN
                    level := NULL;
                    target := NULL;
                ELSIF TG_OP = 'UPDATE' THEN
                    IF OLD.ended_at IS NOT NULL AND (OLD.state, OLD.cause) IS DISTINCT FROM (NEW.state, NEW.cause) THEN
                        level := NULL;
                        target := NULL;
                    END IF;
                END IF;
            END IF;
        WHEN 'assignment', 'slot' THEN
            level := changed_row.target_kind;
            target := resource_id;
        WHEN 'pause' THEN
            IF changed_row.scope_kind IN ('site', 'project') THEN
                level := changed_row.scope_kind;
                target := resource_id;
            END IF;
        WHEN 'single_schedule', 'repeated_schedule' THEN
            target := coalesce(changed_row.target_host_id, changed_row.target_site_id, changed_row.target_region_id);
            IF target IS NOT NULL THEN
                level := CASE
                    WHEN changed_row.target_host_id IS NOT NULL THEN 'host'
                    WHEN changed_row.target_site_id IS NOT NULL THEN 'site'
                    ELSE 'region'
                END;
            END IF;
            -- A schedule with a new target affects the old target as well.
            IF TG_OP = 'UPDATE' THEN
                IF (OLD.target_host_id, OLD.target_site_id, OLD.target_region_id)
                    IS DISTINCT FROM (NEW.target_host_id, NEW.target_site_id, NEW.target_region_id) THEN
                    level := NULL;
                    target := NULL;
                END IF;
            END IF;
        ELSE NULL;
    END CASE;
    IF acting_user IS NOT NULL THEN
        IF TG_OP <> 'INSERT' THEN
            old_row := to_jsonb(OLD);
        END IF;
        IF TG_OP <> 'DELETE' THEN
            new_row := to_jsonb(NEW);
        END IF;
        IF TG_NARGS > 2 THEN
            old_row := old_row - TG_ARGV[2];
            new_row := new_row - TG_ARGV[2];
        END IF;
    END IF;
    INSERT INTO change_log (tenant_id, kind, id, operation, scope_level, scope_id, actor, request_id, before, after)
    VALUES (changed_row.tenant_id, TG_ARGV[0], resource_id, lower(TG_OP), level, target, acting_user,
        nullif(current_setting('evenkeel.request', true), ''), old_row, new_row);
    RETURN NULL;
END
$$;

CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON projects
    FOR EACH ROW EXECUTE FUNCTION record_change('project');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON project_settings
    FOR EACH ROW EXECUTE FUNCTION record_change('project_settings');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON join_tokens
    FOR EACH ROW EXECUTE FUNCTION record_change('join_token', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON regions
    FOR EACH ROW EXECUTE FUNCTION record_change('region', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON sites
    FOR EACH ROW EXECUTE FUNCTION record_change('site', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON providers
    FOR EACH ROW EXECUTE FUNCTION record_change('provider', 'id', 'api_credentials');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON hosts
    FOR EACH ROW EXECUTE FUNCTION record_change('host', 'id', 'name_folded');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON host_hardware
    FOR EACH ROW EXECUTE FUNCTION record_change('host_hardware', 'host_id', 'parts_json');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON os_profiles
    FOR EACH ROW EXECUTE FUNCTION record_change('os', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON local_accounts
    FOR EACH ROW EXECUTE FUNCTION record_change('local_account', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON custom_configs
    FOR EACH ROW EXECUTE FUNCTION record_change('custom_config', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON instances
    FOR EACH ROW EXECUTE FUNCTION record_change('instance', 'id', 'name_folded');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON instance_custom_configs
    FOR EACH ROW EXECUTE FUNCTION record_change('instance_custom_config', 'instance_id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON update_policies
    FOR EACH ROW EXECUTE FUNCTION record_change('policy', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON assignments
    FOR EACH ROW EXECUTE FUNCTION record_change('assignment', 'target_id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON single_schedules
    FOR EACH ROW EXECUTE FUNCTION record_change('single_schedule', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON repeated_schedules
    FOR EACH ROW EXECUTE FUNCTION record_change('repeated_schedule', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON pauses
    FOR EACH ROW EXECUTE FUNCTION record_change('pause', 'scope_id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON update_orders
    FOR EACH ROW EXECUTE FUNCTION record_change('update_order', 'instance_id');
-- The use of an assignment's limits decides about its nodes.
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON update_slots
    FOR EACH ROW EXECUTE FUNCTION record_change('slot', 'target_id');
-- Users see the state of a node as a part of its instance.
CREATE TRIGGER record_change AFTER UPDATE ON node_states
    FOR EACH ROW EXECUTE FUNCTION record_change('instance', 'instance_id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON update_runs
    FOR EACH ROW EXECUTE FUNCTION record_change('run', 'id', 'name_folded');
-- The next two do not decide what a node does, so answer caches ignore them.
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON os_settings
    FOR EACH ROW EXECUTE FUNCTION record_change('os_settings');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON os_details
    FOR EACH ROW EXECUTE FUNCTION record_change('os_details', 'os_id', 'signature');

-- A failure counts for all nodes under the same limits, even if the slot of its node was released before. So the log gets the
-- same row as for a released slot.
CREATE FUNCTION record_failure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO change_log (tenant_id, kind, id, operation, scope_level, scope_id)
    VALUES (NEW.tenant_id, 'slot', NEW.granted_id, 'update', NEW.granted_kind, NEW.granted_id);
    RETURN NULL;
END
$$;

CREATE TRIGGER record_failure AFTER UPDATE ON update_runs FOR EACH ROW
    WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND NEW.granted_kind IS NOT NULL
        AND NEW.state IN ('failed', 'reverted', 'abandoned'))
    EXECUTE FUNCTION record_failure();

-- State of the log: one row, of no tenant. A new epoch tells readers that rows were removed which they may not have read. The
-- floor is the newest position that the cleanup has removed.
CREATE TABLE log_state (
    is_single_row boolean PRIMARY KEY DEFAULT true CHECK (is_single_row),
    epoch         integer NOT NULL,
    floor_xid     xid8 NOT NULL,
    floor_seq     bigint NOT NULL
);
INSERT INTO log_state (epoch, floor_xid, floor_seq) VALUES (1, '0', 0);

CREATE FUNCTION raise_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' OR coalesce(current_setting('evenkeel.pruning', true), '') <> 'on' THEN
        UPDATE log_state SET epoch = epoch + 1;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER raise_epoch_truncated BEFORE TRUNCATE ON change_log
    FOR EACH STATEMENT EXECUTE FUNCTION raise_epoch();
CREATE TRIGGER raise_epoch_deleted AFTER DELETE ON change_log
    FOR EACH STATEMENT EXECUTE FUNCTION raise_epoch();


-- Tallies
--
-- The lengths of a project's lists: each is the sum of its differences. Writers only add rows, so that they do not wait for
-- each other, and a task folds the rows from time to time. Tallies follow from other rows, so the change log leaves them out.
-- They have no foreign key, because it would lock the project for every new run.

CREATE TABLE tallies (
    tenant_id uuid NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('host', 'instance', 'run')),
    n         bigint NOT NULL,
    seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY
);
CREATE INDEX tallies_sum ON tallies (tenant_id, kind) INCLUDE (n);

-- Argument of the trigger: the kind of the resource. Rows never move to another project.
CREATE FUNCTION record_tally() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tallies (tenant_id, kind, n)
    SELECT tenant_id, TG_ARGV[0], CASE TG_OP WHEN 'DELETE' THEN -count(*) ELSE count(*) END
    FROM changed GROUP BY tenant_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER tally_added AFTER INSERT ON hosts
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION record_tally('host');
CREATE TRIGGER tally_removed AFTER DELETE ON hosts
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION record_tally('host');
CREATE TRIGGER tally_added AFTER INSERT ON instances
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION record_tally('instance');
CREATE TRIGGER tally_removed AFTER DELETE ON instances
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION record_tally('instance');
CREATE TRIGGER tally_added AFTER INSERT ON update_runs
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION record_tally('run');
CREATE TRIGGER tally_removed AFTER DELETE ON update_runs
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION record_tally('run');

CREATE FUNCTION delete_tallies() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tallies WHERE tenant_id = OLD.tenant_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER delete_tallies AFTER DELETE ON projects FOR EACH ROW EXECUTE FUNCTION delete_tallies();

-- TRUNCATE empties the lists of all projects. The lock waits for a fold that is running.
CREATE FUNCTION delete_all_tallies() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    scope text := coalesce(current_setting('evenkeel.tenant', true), '');
BEGIN
    LOCK TABLE tallies IN SHARE ROW EXCLUSIVE MODE;
    PERFORM set_config('evenkeel.tenant', '*', true);
    DELETE FROM tallies WHERE kind = TG_ARGV[0];
    PERFORM set_config('evenkeel.tenant', scope, true);
    RETURN NULL;
END
$$;

CREATE TRIGGER tally_emptied AFTER TRUNCATE ON hosts FOR EACH STATEMENT EXECUTE FUNCTION delete_all_tallies('host');
CREATE TRIGGER tally_emptied AFTER TRUNCATE ON instances FOR EACH STATEMENT EXECUTE FUNCTION delete_all_tallies('instance');
CREATE TRIGGER tally_emptied AFTER TRUNCATE ON update_runs FOR EACH STATEMENT EXECUTE FUNCTION delete_all_tallies('run');


-- Long texts are compressed with lz4, which takes less time than the default, pglz. A server without lz4 uses its default.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals)) THEN
        ALTER TABLE contents ALTER COLUMN body SET COMPRESSION lz4;
        ALTER TABLE host_hardware ALTER COLUMN parts_json SET COMPRESSION lz4;
        ALTER TABLE node_states ALTER COLUMN os_update_available SET COMPRESSION lz4;
        ALTER TABLE update_runs ALTER COLUMN log SET COMPRESSION lz4;
        ALTER TABLE run_events ALTER COLUMN detail SET COMPRESSION lz4;
        ALTER TABLE os_artifacts
            ALTER COLUMN manifest SET COMPRESSION lz4,
            ALTER COLUMN document SET COMPRESSION lz4;
        ALTER TABLE os_attachments ALTER COLUMN body SET COMPRESSION lz4;
    END IF;
END
$$;

-- Row-level security: a second protection of tenants from each other. A transaction sees the rows of one tenant, all rows with
-- the scope '*', and none without a scope. FORCE is needed because the program owns the tables. Postgres evaluates the
-- sub-selects once per statement.
DO $$
DECLARE
    name  text;
    fleet text := '(SELECT current_setting(''evenkeel.tenant'', true)) = ''*''';
    own   text := 'tenant_id = (SELECT nullif(nullif(current_setting(''evenkeel.tenant'', true), ''''), ''*'')::uuid)';
BEGIN
    FOREACH name IN ARRAY ARRAY['projects', 'project_settings', 'contents', 'package_versions', 'join_tokens', 'regions', 'sites',
        'providers', 'hosts', 'host_hardware', 'node_tokens', 'os_profiles', 'os_details', 'image_series', 'local_accounts',
        'custom_configs', 'instances', 'instance_custom_configs', 'update_policies', 'assignments', 'single_schedules',
        'repeated_schedules', 'pauses', 'update_orders', 'update_slots', 'node_states', 'last_contacts', 'update_runs',
        'run_events', 'os_cycles', 'os_artifacts', 'os_attachments', 'os_settings', 'os_sync_reports', 'os_sync_findings',
        'change_log', 'log_state', 'tallies']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        IF name IN ('os_cycles', 'os_artifacts', 'os_attachments') THEN
            EXECUTE format('CREATE POLICY fleet ON %I USING (%s)', name, fleet);
        ELSIF name = 'log_state' THEN
            -- The table has no tenant, and every transaction that removes rows of the log must be able to raise the epoch.
            EXECUTE format('CREATE POLICY all_transactions ON %I USING (true)', name);
        ELSE
            EXECUTE format('CREATE POLICY tenant ON %I USING (%s OR %s)', name, fleet, own);
        END IF;
    END LOOP;
END
$$;
