-- The assignment that was in effect when a run opened. A run that fails before it gets a start permit counts as a failure of
-- this assignment. A permit may be granted under another assignment, which then counts the run.
ALTER TABLE update_runs
    ADD COLUMN assigned_kind text CHECK (assigned_kind IN ('instance', 'host', 'site', 'region', 'project')),
    ADD COLUMN assigned_id   integer,
    ADD CONSTRAINT assignment_is_whole CHECK (num_nulls(assigned_kind, assigned_id) IN (0, 2));

-- Older runs have no assignment of their own, so the index and the queries fall back to the permit.
DROP INDEX update_runs_failures;
CREATE INDEX update_runs_failures ON update_runs
    (tenant_id, coalesce(granted_kind, assigned_kind), coalesce(granted_id, assigned_id), ended_at)
    WHERE coalesce(granted_kind, assigned_kind) IS NOT NULL AND state IN ('failed', 'reverted', 'abandoned');

-- A failure counts for all nodes under the same limits, even if its node held no slot. So the log gets the same row as for a
-- released slot. The same applies to a failure that is removed, or that turns out to be something else.
CREATE OR REPLACE FUNCTION record_failure() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    run update_runs%ROWTYPE;
BEGIN
    IF TG_OP = 'DELETE' THEN
        run := OLD;
    ELSE
        run := NEW;
    END IF;
    INSERT INTO change_log (tenant_id, kind, id, operation, scope_level, scope_id)
    VALUES (run.tenant_id, 'slot', coalesce(run.granted_id, run.assigned_id), 'update',
        coalesce(run.granted_kind, run.assigned_kind), coalesce(run.granted_id, run.assigned_id));
    RETURN NULL;
END
$$;

DROP TRIGGER record_failure ON update_runs;
CREATE TRIGGER record_failure AFTER UPDATE ON update_runs FOR EACH ROW
    WHEN (NEW.ended_at IS NOT NULL AND coalesce(NEW.granted_kind, NEW.assigned_kind) IS NOT NULL
        AND (OLD.state, OLD.cause) IS DISTINCT FROM (NEW.state, NEW.cause)
        AND (NEW.state IN ('failed', 'reverted', 'abandoned') OR OLD.state IN ('failed', 'reverted', 'abandoned')))
    EXECUTE FUNCTION record_failure();
CREATE TRIGGER record_failure_at_once AFTER INSERT ON update_runs FOR EACH ROW
    WHEN (coalesce(NEW.granted_kind, NEW.assigned_kind) IS NOT NULL AND NEW.state IN ('failed', 'reverted', 'abandoned'))
    EXECUTE FUNCTION record_failure();
CREATE TRIGGER record_removed_failure AFTER DELETE ON update_runs FOR EACH ROW
    WHEN (coalesce(OLD.granted_kind, OLD.assigned_kind) IS NOT NULL AND OLD.state IN ('failed', 'reverted', 'abandoned'))
    EXECUTE FUNCTION record_failure();
