ALTER TABLE node_states DROP COLUMN facts_version;
