-- Version of the rules that filled the columns of the facts of a row. A server with newer rules requests the facts from the node
-- again.
ALTER TABLE node_states ADD COLUMN facts_version smallint NOT NULL DEFAULT 0;
