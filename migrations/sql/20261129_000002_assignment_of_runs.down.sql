DROP TRIGGER record_removed_failure ON update_runs;
DROP TRIGGER record_failure_at_once ON update_runs;
DROP TRIGGER record_failure ON update_runs;

CREATE OR REPLACE FUNCTION record_failure() RETURNS trigger LANGUAGE plpgsql AS $$
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

DROP INDEX update_runs_failures;
CREATE INDEX update_runs_failures ON update_runs (tenant_id, granted_kind, granted_id, ended_at)
    WHERE granted_kind IS NOT NULL AND state IN ('failed', 'reverted', 'abandoned');

ALTER TABLE update_runs
    DROP CONSTRAINT assignment_is_whole,
    DROP COLUMN assigned_kind,
    DROP COLUMN assigned_id;
