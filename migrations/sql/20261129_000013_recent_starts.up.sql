-- The last starts of the agent of a node, the latest one last: objects with the ID of the boot and of the process. A node that
-- returns to an earlier start shares its identity with another machine.
ALTER TABLE node_states ADD COLUMN recent_starts jsonb NOT NULL DEFAULT '[]';
