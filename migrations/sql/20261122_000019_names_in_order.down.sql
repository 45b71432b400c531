DROP INDEX hosts_by_letter;
CREATE INDEX hosts_by_letter ON hosts (tenant_id, name COLLATE "C");
DROP INDEX instances_by_letter;
DROP INDEX instances_name;
ALTER SEQUENCE ip_address_numbers NO CYCLE;
