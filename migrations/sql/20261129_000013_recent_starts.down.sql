ALTER TABLE node_states DROP COLUMN recent_starts;
