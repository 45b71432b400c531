-- As upward.
LOCK TABLE update_runs, instances, hosts IN ACCESS EXCLUSIVE MODE;

DROP INDEX update_runs_instance;
CREATE INDEX update_runs_instance ON update_runs (tenant_id, instance_id, started_at DESC);

DROP INDEX instances_host;
CREATE UNIQUE INDEX instances_host ON instances (tenant_id, host_id);

DROP INDEX hosts_by_site;
CREATE INDEX hosts_by_site ON hosts (tenant_id, site_id);
