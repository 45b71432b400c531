-- While a table is new, every index that begins with the project looks equally good to the planner, and of equal ones it takes
-- the newest: the check of each event's foreign key read all runs of the project (docs/adr/0023). So the key is made once more,
-- after what is of all runs. What is of some runs and looked for by a node is newer still: where it cannot be used it is in
-- nobody's way.

-- In the order in which most take them: a run, then its events.
LOCK TABLE update_runs, run_events IN ACCESS EXCLUSIVE MODE;

ALTER TABLE run_events DROP CONSTRAINT run_events_tenant_id_run_id_fkey;
ALTER TABLE update_runs DROP CONSTRAINT update_runs_pkey;
ALTER TABLE update_runs ADD PRIMARY KEY (tenant_id, id);
ALTER TABLE run_events ADD FOREIGN KEY (tenant_id, run_id) REFERENCES update_runs ON DELETE CASCADE;

-- Of runs under the same policies this one is so small that it looked better than the key, whatever its age.
DROP INDEX update_runs_policy;
CREATE INDEX update_runs_policy ON update_runs (tenant_id, policy_id) WHERE policy_id IS NOT NULL;

DROP INDEX update_runs_attempt;
CREATE UNIQUE INDEX update_runs_attempt ON update_runs (tenant_id, instance_id, attempt) WHERE attempt IS NOT NULL;

DROP INDEX one_open_run_per_instance;
CREATE UNIQUE INDEX one_open_run_per_instance ON update_runs (tenant_id, instance_id) WHERE ended_at IS NULL;
