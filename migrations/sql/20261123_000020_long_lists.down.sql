-- As upward.
LOCK TABLE update_runs, node_states, instances, hosts IN ACCESS EXCLUSIVE MODE;

DROP TRIGGER tally_emptied ON update_runs;
DROP TRIGGER tally_emptied ON instances;
DROP TRIGGER tally_emptied ON hosts;
DROP FUNCTION forget_all_tallies();
DROP TRIGGER forget_tallies ON projects;
DROP FUNCTION forget_tallies();
DROP TRIGGER tally_removed ON update_runs;
DROP TRIGGER tally_added ON update_runs;
DROP TRIGGER tally_removed ON instances;
DROP TRIGGER tally_added ON instances;
DROP TRIGGER tally_removed ON hosts;
DROP TRIGGER tally_added ON hosts;
DROP FUNCTION keep_tally();
DROP TABLE tallies;

DROP INDEX update_runs_order;
DROP INDEX instances_order;
DROP INDEX hosts_order;
DROP TRIGGER record_change ON update_runs;
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON update_runs
    FOR EACH ROW EXECUTE FUNCTION record_change('run', 'id');
DROP TRIGGER record_change ON instances;
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON instances
    FOR EACH ROW EXECUTE FUNCTION record_change('instance', 'id');
DROP TRIGGER record_change ON hosts;
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON hosts
    FOR EACH ROW EXECUTE FUNCTION record_change('host', 'id');
ALTER TABLE update_runs DROP COLUMN name_folded;
ALTER TABLE instances DROP COLUMN name_folded;
ALTER TABLE hosts DROP COLUMN name_folded;

-- As step 15 made them.
CREATE INDEX update_runs_order ON update_runs (tenant_id, (id < 0), id);
CREATE INDEX instances_order ON instances (tenant_id, (id < 0), id);
CREATE INDEX hosts_order ON hosts (tenant_id, (id < 0), id);

DROP FUNCTION enter_project(text, uuid);
