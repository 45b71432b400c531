-- Keys and indexes that differ in their age alone stay as they are.
DROP INDEX update_runs_policy;
CREATE INDEX update_runs_policy ON update_runs (tenant_id, policy_id);
