CREATE SEQUENCE provider_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE custom_config_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE local_account_numbers AS bigint MAXVALUE 4294967295;

-- What the ancestor's clients make before a node is installed. It is made, read and deleted, never changed.
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

-- What refers to them. None of them goes while it is in use.
ALTER TABLE hosts
    ADD CONSTRAINT hosts_provider FOREIGN KEY (tenant_id, provider_id) REFERENCES providers ON DELETE RESTRICT;

ALTER TABLE instances
    ADD COLUMN local_account_id integer,
    ADD CONSTRAINT instances_local_account FOREIGN KEY (tenant_id, local_account_id) REFERENCES local_accounts
        ON DELETE RESTRICT;
CREATE INDEX instances_by_local_account ON instances (tenant_id, local_account_id);

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

-- The same wall as around the first tables (step 6).
DO $$
DECLARE
    one text;
BEGIN
    FOREACH one IN ARRAY ARRAY['providers', 'custom_configs', 'local_accounts', 'instance_custom_configs']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', one);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', one);
        EXECUTE format('CREATE POLICY tenant ON %I USING ('
            '(SELECT current_setting(''evenkeel.tenant'', true)) = ''*'' '
            'OR tenant_id = (SELECT nullif(nullif(current_setting(''evenkeel.tenant'', true), ''''), ''*'')::uuid))', one);
    END LOOP;
END
$$;

-- A third argument names a column that nobody reads in the log: what opens something else. Two rows that differ only in
-- it are still a change.
CREATE OR REPLACE FUNCTION record_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    old_row jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
    new_row jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
    one     jsonb := coalesce(new_row, old_row);
    who     text := nullif(current_setting('evenkeel.actor', true), '');
BEGIN
    IF TG_OP = 'UPDATE' AND old_row = new_row THEN
        RETURN NULL;
    END IF;
    IF TG_NARGS > 2 THEN
        old_row := old_row - TG_ARGV[2];
        new_row := new_row - TG_ARGV[2];
    END IF;
    INSERT INTO change_log (tenant_id, kind, id, operation, actor, request_id, before, after)
    VALUES (
        (one ->> 'tenant_id')::uuid,
        TG_ARGV[0],
        CASE WHEN TG_NARGS > 1 THEN (one ->> TG_ARGV[1])::integer ELSE 0 END,
        lower(TG_OP),
        who,
        nullif(current_setting('evenkeel.request', true), ''),
        CASE WHEN who IS NOT NULL THEN old_row END,
        CASE WHEN who IS NOT NULL THEN new_row END
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON providers
    FOR EACH ROW EXECUTE FUNCTION record_change('provider', 'id', 'api_credentials');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON custom_configs
    FOR EACH ROW EXECUTE FUNCTION record_change('custom_config', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON local_accounts
    FOR EACH ROW EXECUTE FUNCTION record_change('local_account', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON instance_custom_configs
    FOR EACH ROW EXECUTE FUNCTION record_change('instance_custom_config', 'instance_id');
