-- Reports of all projects draw from this, and nobody looks these numbers up: it begins again rather than to run dry.
ALTER SEQUENCE ip_address_numbers CYCLE;

-- Whole names, and names in the order of lists, in which the id comes last (step 15).
CREATE INDEX instances_name ON instances (tenant_id, name);
CREATE INDEX instances_by_letter ON instances (tenant_id, name COLLATE "C", (id < 0), id);
DROP INDEX hosts_by_letter;
CREATE INDEX hosts_by_letter ON hosts (tenant_id, name COLLATE "C", (id < 0), id);
