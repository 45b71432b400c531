-- What is at a site is found in three indexes alone: hosts, the instances on them, and their runs. An entry names what it
-- leads to, so no row is visited before it is known which ones are told.

-- All at once: whoever reads goes from runs to hosts, and would wait in a circle if they were locked one after the other.
LOCK TABLE update_runs, instances, hosts IN ACCESS EXCLUSIVE MODE;

DROP INDEX hosts_by_site;
CREATE INDEX hosts_by_site ON hosts (tenant_id, site_id) INCLUDE (id);

DROP INDEX instances_host;
CREATE UNIQUE INDEX instances_host ON instances (tenant_id, host_id) INCLUDE (id);

DROP INDEX update_runs_instance;
CREATE INDEX update_runs_instance ON update_runs (tenant_id, instance_id, started_at DESC) INCLUDE (id);
