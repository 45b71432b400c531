DROP TABLE instance_custom_configs;
ALTER TABLE instances DROP COLUMN local_account_id;
ALTER TABLE hosts DROP CONSTRAINT hosts_provider;
-- What refers to nothing any more would not fit when the step comes back.
UPDATE hosts SET provider_id = NULL WHERE provider_id IS NOT NULL;
DROP TABLE local_accounts, custom_configs, providers;
DROP SEQUENCE provider_numbers, custom_config_numbers, local_account_numbers;

-- As step 5 made it.
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
