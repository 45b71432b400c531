DROP TRIGGER raise_epoch_deleted ON change_log;
DROP TRIGGER raise_epoch_truncated ON change_log;
DROP FUNCTION raise_epoch();
DROP TABLE log_state;
DROP TRIGGER record_change ON brake_slots;

-- As step 17 made it.
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

ALTER TABLE change_log
    DROP CONSTRAINT scope_is_whole,
    DROP CONSTRAINT scope_has_a_level,
    DROP COLUMN scope_id,
    DROP COLUMN scope_level;
