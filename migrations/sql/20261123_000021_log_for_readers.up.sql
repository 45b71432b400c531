-- The change log as a program reads it: who is concerned by a change stands in its row, rows that were removed by anybody
-- but the housekeeping are noticed, and a change that nobody acts for is written without a copy of the row.

-- What the change is about, if that is less than the whole project: an instance, a host, or what a wish is for.
-- Rows that are there have neither, so nobody reads through a long log to check them.
ALTER TABLE change_log
    ADD COLUMN scope_level text,
    ADD COLUMN scope_id integer,
    ADD CONSTRAINT scope_has_a_level
        CHECK (scope_level IN ('instance', 'host', 'site', 'region', 'project')) NOT VALID,
    ADD CONSTRAINT scope_is_whole CHECK (num_nulls(scope_level, scope_id) IN (0, 2)) NOT VALID;

-- Arguments of the trigger: the kind of resource, the column that holds its id (none for the project itself), and a column
-- that nobody reads in the log. Two rows that differ only in that one are still a change. The rows themselves are kept only
-- where the transaction says who acts (evenkeel.actor).
CREATE OR REPLACE FUNCTION record_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    who     text := nullif(current_setting('evenkeel.actor', true), '');
    one     record;
    about   integer := 0;
    level   text;
    target  integer;
    old_row jsonb;
    new_row jsonb;
BEGIN
    IF TG_OP = 'UPDATE' AND OLD IS NOT DISTINCT FROM NEW THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' THEN
        one := OLD;
    ELSE
        one := NEW;
    END IF;
    IF TG_NARGS > 1 THEN
        CASE TG_ARGV[1]
            WHEN 'id' THEN about := one.id;
            WHEN 'instance_id' THEN about := one.instance_id;
            WHEN 'target_id' THEN about := one.target_id;
            WHEN 'scope_id' THEN about := one.scope_id;
            ELSE about := (to_jsonb(one) ->> TG_ARGV[1])::integer;
        END CASE;
    END IF;
    CASE TG_ARGV[0]
        WHEN 'instance', 'host', 'site' THEN
            level := TG_ARGV[0];
            target := about;
        WHEN 'update_order' THEN
            level := 'instance';
            target := about;
        WHEN 'run' THEN
            level := 'instance';
            target := one.instance_id;
            -- How many failed under a limited assignment changes for others when a failure goes or is judged anew.
            IF one.granted_kind IS NOT NULL THEN
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
            level := one.target_kind;
            target := about;
        WHEN 'pause' THEN
            IF one.scope_kind IN ('site', 'project') THEN
                level := one.scope_kind;
                target := about;
            END IF;
        WHEN 'single_schedule', 'repeated_schedule' THEN
            target := coalesce(one.target_host_id, one.target_site_id, one.target_region_id);
            IF target IS NOT NULL THEN
                level := CASE
                    WHEN one.target_host_id IS NOT NULL THEN 'host'
                    WHEN one.target_site_id IS NOT NULL THEN 'site'
                    ELSE 'region'
                END;
            END IF;
            -- One that moves is about what it left as well.
            IF TG_OP = 'UPDATE' THEN
                IF (OLD.target_host_id, OLD.target_site_id, OLD.target_region_id)
                    IS DISTINCT FROM (NEW.target_host_id, NEW.target_site_id, NEW.target_region_id) THEN
                    level := NULL;
                    target := NULL;
                END IF;
            END IF;
        ELSE NULL;
    END CASE;
    IF who IS NOT NULL THEN
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
    VALUES (one.tenant_id, TG_ARGV[0], about, lower(TG_OP), level, target, who,
        nullif(current_setting('evenkeel.request', true), ''), old_row, new_row);
    RETURN NULL;
END
$$;

-- How far the limits of an assignment are used up decides about its nodes.
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON brake_slots
    FOR EACH ROW EXECUTE FUNCTION record_change('slot', 'target_id');

-- What readers of the log must know besides its rows. There is one row, of no tenant. The epoch tells that rows were removed
-- which somebody may not have read. The floor is the newest place in the log that the housekeeping has removed.
CREATE TABLE log_state (
    only_one  boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    epoch     integer NOT NULL,
    floor_xid xid8 NOT NULL,
    floor_seq bigint NOT NULL
);
INSERT INTO log_state (epoch, floor_xid, floor_seq) VALUES (1, '0', 0);

-- Nothing in it is of a tenant, and whoever removes rows of the log raises the epoch, whatever else he sees.
ALTER TABLE log_state ENABLE ROW LEVEL SECURITY;
ALTER TABLE log_state FORCE ROW LEVEL SECURITY;
CREATE POLICY everybody ON log_state USING (true);

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
