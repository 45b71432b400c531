-- The search for runs that have timed out reads only those that are due. The last index must be newer than the others over
-- open runs (docs/adr/0023).
DROP INDEX update_runs_open;
DROP INDEX one_open_run_per_instance;
CREATE INDEX update_runs_open ON update_runs (tenant_id, state, state_since) WHERE ended_at IS NULL;
CREATE INDEX update_runs_permitted ON update_runs (tenant_id, granted_at) WHERE ended_at IS NULL AND granted_at IS NOT NULL;
CREATE UNIQUE INDEX one_open_run_per_instance ON update_runs (tenant_id, instance_id) WHERE ended_at IS NULL;
