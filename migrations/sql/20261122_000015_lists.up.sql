-- The order of lists. An id is a signed number here and is shown as an unsigned one: so the negative ones come last.
CREATE INDEX hosts_order ON hosts (tenant_id, (id < 0), id);
CREATE INDEX instances_order ON instances (tenant_id, (id < 0), id);
CREATE INDEX sites_order ON sites (tenant_id, (id < 0), id);
CREATE INDEX update_runs_order ON update_runs (tenant_id, (id < 0), id);

-- Orders that people ask for most: names letter by letter, whatever the language of the database, and runs by time.
CREATE INDEX hosts_by_letter ON hosts (tenant_id, name COLLATE "C");
CREATE INDEX update_runs_started ON update_runs (tenant_id, started_at);
