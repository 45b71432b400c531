DROP INDEX update_runs_started;
DROP INDEX hosts_by_letter;
DROP INDEX update_runs_order;
DROP INDEX sites_order;
DROP INDEX instances_order;
DROP INDEX hosts_order;
