-- As upward.
LOCK TABLE update_runs, node_states, last_contacts IN ACCESS EXCLUSIVE MODE;

DROP TRIGGER record_failure ON update_runs;
DROP FUNCTION record_failure();
ALTER TABLE last_contacts DROP COLUMN due_at;
DROP TRIGGER keep_digests ON node_states;
DROP FUNCTION keep_digests();
DROP FUNCTION said_packages(jsonb);
ALTER TABLE node_states
    DROP COLUMN available_digest,
    DROP COLUMN said_packages_digest;
