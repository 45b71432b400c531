-- How an attempt went, and why a node itself does not begin. Both keep their defaults: a server of the last release may
-- still write rows beside this one.
ALTER TABLE update_runs
    ADD COLUMN account jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(account) = 'object');
ALTER TABLE node_states
    ADD COLUMN waiting text NOT NULL DEFAULT '' CHECK (octet_length(waiting) <= 1000);
