DROP INDEX one_open_run_per_instance;
DROP INDEX update_runs_permitted;
DROP INDEX update_runs_open;
CREATE INDEX update_runs_open ON update_runs (tenant_id, state_since) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX one_open_run_per_instance ON update_runs (tenant_id, instance_id) WHERE ended_at IS NULL;
