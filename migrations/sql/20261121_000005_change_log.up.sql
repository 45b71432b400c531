-- Every change of a resource, in the transaction that makes it. Caches, watchers and audit read it.
--
-- A reader orders by (xid, seq) and stops below the oldest transaction that still writes. Who changed what, with the
-- state before and after, is kept where the transaction says who acts (evenkeel.actor).
CREATE TABLE change_log (
    tenant_id  uuid NOT NULL,
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq        bigint GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind       text NOT NULL,
    id         integer NOT NULL,
    operation  text NOT NULL CHECK (operation IN ('insert', 'update', 'delete')),
    actor      text,
    request_id text,
    before     jsonb,
    after      jsonb,
    PRIMARY KEY (tenant_id, xid, seq)
);
CREATE INDEX change_log_order ON change_log (xid, seq);
CREATE INDEX change_log_object ON change_log (tenant_id, kind, id, xid, seq);

-- Arguments of the trigger: the kind of resource, and the column that holds its id (none for the project itself).
CREATE FUNCTION record_change() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON projects
    FOR EACH ROW EXECUTE FUNCTION record_change('project');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON hosts
    FOR EACH ROW EXECUTE FUNCTION record_change('host', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON os_profiles
    FOR EACH ROW EXECUTE FUNCTION record_change('os', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON instances
    FOR EACH ROW EXECUTE FUNCTION record_change('instance', 'id');
-- What a node said is part of its instance, as people see it.
CREATE TRIGGER record_change AFTER UPDATE ON node_states
    FOR EACH ROW EXECUTE FUNCTION record_change('instance', 'instance_id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON join_tokens
    FOR EACH ROW EXECUTE FUNCTION record_change('join_token', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON update_policies
    FOR EACH ROW EXECUTE FUNCTION record_change('policy', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON assignments
    FOR EACH ROW EXECUTE FUNCTION record_change('assignment', 'target_id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON single_schedules
    FOR EACH ROW EXECUTE FUNCTION record_change('single_schedule', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON update_runs
    FOR EACH ROW EXECUTE FUNCTION record_change('run', 'id');
