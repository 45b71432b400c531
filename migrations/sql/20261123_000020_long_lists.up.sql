-- Lists of projects with a hundred thousand hosts: entered in one statement, counted without looking at each row, and
-- searched for a part of a name without reading all that a row holds.

-- All at once: whoever reads goes from runs to hosts, and would wait in a circle if they were locked one after the other.
LOCK TABLE update_runs, node_states, instances, hosts IN ACCESS EXCLUSIVE MODE;

-- Enters a project, by its name or else by its id: the transaction sees that project from here on, and nothing if there is
-- none. It changes no row, so a transaction that only reads may call it.
CREATE FUNCTION enter_project(wanted_name text, wanted_id uuid) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    entered uuid;
BEGIN
    PERFORM set_config('evenkeel.tenant', '*', true);
    IF wanted_name IS NOT NULL THEN
        SELECT tenant_id INTO entered FROM projects WHERE name = wanted_name;
    ELSE
        SELECT tenant_id INTO entered FROM projects WHERE tenant_id = wanted_id;
    END IF;
    PERFORM set_config('evenkeel.tenant', coalesce(entered::text, ''), true);
    RETURN entered;
END
$$;

-- Names in small letters, as ILIKE compares them, beside the ids in the order of lists (step 15): a part of a name is found
-- in the index alone. The change log does not repeat them.
DROP INDEX hosts_order;
DROP INDEX instances_order;
DROP INDEX update_runs_order;
ALTER TABLE hosts ADD COLUMN name_folded text COLLATE "C" GENERATED ALWAYS AS (lower(name)) STORED;
ALTER TABLE instances ADD COLUMN name_folded text COLLATE "C" GENERATED ALWAYS AS (lower(name)) STORED;
ALTER TABLE update_runs ADD COLUMN name_folded text COLLATE "C" GENERATED ALWAYS AS (lower(name)) STORED;
DROP TRIGGER record_change ON hosts;
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON hosts
    FOR EACH ROW EXECUTE FUNCTION record_change('host', 'id', 'name_folded');
DROP TRIGGER record_change ON instances;
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON instances
    FOR EACH ROW EXECUTE FUNCTION record_change('instance', 'id', 'name_folded');
DROP TRIGGER record_change ON update_runs;
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON update_runs
    FOR EACH ROW EXECUTE FUNCTION record_change('run', 'id', 'name_folded');
CREATE INDEX hosts_order ON hosts (tenant_id, (id < 0), id) INCLUDE (name_folded);
CREATE INDEX instances_order ON instances (tenant_id, (id < 0), id) INCLUDE (name_folded);
CREATE INDEX update_runs_order ON update_runs (tenant_id, (id < 0), id) INCLUDE (name_folded);

-- By how much the lists of a project grew and shrank: each is as long as the sum of its differences. They are only added,
-- so that writers do not wait for each other, and added up now and then. They follow from other rows and have no place in
-- the change log. A foreign key would lock the row of the project for every run that is opened.
CREATE TABLE tallies (
    tenant_id uuid NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('host', 'instance', 'run')),
    n         bigint NOT NULL,
    seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY
);
CREATE INDEX tallies_sum ON tallies (tenant_id, kind) INCLUDE (n);

-- The same wall as around the first tables (step 6).
ALTER TABLE tallies ENABLE ROW LEVEL SECURITY;
ALTER TABLE tallies FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON tallies USING (
    (SELECT current_setting('evenkeel.tenant', true)) = '*'
    OR tenant_id = (SELECT nullif(nullif(current_setting('evenkeel.tenant', true), ''), '*')::uuid)
);

-- Argument of the trigger: the kind of what is listed. No row ever moves to another project.
CREATE FUNCTION keep_tally() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tallies (tenant_id, kind, n)
    SELECT tenant_id, TG_ARGV[0], CASE TG_OP WHEN 'DELETE' THEN -count(*) ELSE count(*) END
    FROM changed GROUP BY tenant_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER tally_added AFTER INSERT ON hosts
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION keep_tally('host');
CREATE TRIGGER tally_removed AFTER DELETE ON hosts
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION keep_tally('host');
CREATE TRIGGER tally_added AFTER INSERT ON instances
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION keep_tally('instance');
CREATE TRIGGER tally_removed AFTER DELETE ON instances
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION keep_tally('instance');
CREATE TRIGGER tally_added AFTER INSERT ON update_runs
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION keep_tally('run');
CREATE TRIGGER tally_removed AFTER DELETE ON update_runs
    REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION keep_tally('run');

CREATE FUNCTION forget_tallies() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM tallies WHERE tenant_id = OLD.tenant_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER forget_tallies AFTER DELETE ON projects FOR EACH ROW EXECUTE FUNCTION forget_tallies();

-- Nothing is left in any project. Sums that are being put together are waited for.
CREATE FUNCTION forget_all_tallies() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE TRIGGER tally_emptied AFTER TRUNCATE ON hosts FOR EACH STATEMENT EXECUTE FUNCTION forget_all_tallies('host');
CREATE TRIGGER tally_emptied AFTER TRUNCATE ON instances FOR EACH STATEMENT EXECUTE FUNCTION forget_all_tallies('instance');
CREATE TRIGGER tally_emptied AFTER TRUNCATE ON update_runs FOR EACH STATEMENT EXECUTE FUNCTION forget_all_tallies('run');

-- What is there already. The tables are locked since the step began, so nothing is missed or counted twice.
INSERT INTO tallies (tenant_id, kind, n)
SELECT tenant_id, 'host', count(*) FROM hosts GROUP BY tenant_id
UNION ALL
SELECT tenant_id, 'instance', count(*) FROM instances GROUP BY tenant_id
UNION ALL
SELECT tenant_id, 'run', count(*) FROM update_runs GROUP BY tenant_id;

-- What is known of the new columns and indexes decides about plans.
ANALYZE hosts, instances, update_runs;
