-- Nodes that are looked at in passing: what a node said at length is known by its digest and need not be read, and a node
-- whose call is held open is not expected before it is due.

-- In the order in which most take them: the runs and the state of a node, then when it was heard.
LOCK TABLE update_runs, node_states, last_contacts IN ACCESS EXCLUSIVE MODE;

-- The list of installed packages that a node said last, by its digest, and the digest of what could be updated. The
-- program writes both; the default is that of a node which said nothing yet.
ALTER TABLE node_states
    ADD COLUMN said_packages_digest bytea CHECK (length(said_packages_digest) = 32),
    ADD COLUMN available_digest bytea NOT NULL DEFAULT sha256('') CHECK (length(available_digest) = 32);

CREATE FUNCTION said_packages(facts jsonb) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(facts -> 'packagesDigest') = 'string'
        AND facts ->> 'packagesDigest' ~ '^[0-9a-fA-F]{64}$'
        THEN decode(facts ->> 'packagesDigest', 'hex') END
$$;

-- What follows from a row is no change of it, so the change log is not told of every node.
ALTER TABLE node_states DISABLE TRIGGER record_change;
UPDATE node_states SET
    said_packages_digest = said_packages(facts),
    available_digest = sha256(convert_to(os_update_available, 'UTF8'))
WHERE os_update_available <> '' OR said_packages(facts) IS NOT NULL;
ALTER TABLE node_states ENABLE TRIGGER record_change;

-- A server of the last release may still write rows beside this one, and knows of no digests.
CREATE FUNCTION keep_digests() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.said_packages_digest := said_packages(NEW.facts);
    NEW.available_digest := sha256(convert_to(NEW.os_update_available, 'UTF8'));
    RETURN NEW;
END
$$;

CREATE TRIGGER keep_digests BEFORE UPDATE OF facts, os_update_available ON node_states FOR EACH ROW
    WHEN ((OLD.facts <> NEW.facts AND OLD.said_packages_digest IS NOT DISTINCT FROM NEW.said_packages_digest)
        OR (OLD.os_update_available <> NEW.os_update_available AND OLD.available_digest = NEW.available_digest))
    EXECUTE FUNCTION keep_digests();

-- Until when a node is not silent, whatever is not heard of it; none if it was not told to wait.
ALTER TABLE last_contacts ADD COLUMN due_at timestamptz;

-- A failure counts for all who go by the same limits, also if the slot of its node was let go before. The rows of the log say
-- it as they say that a slot is free.
CREATE FUNCTION record_failure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO change_log (tenant_id, kind, id, operation, scope_level, scope_id)
    VALUES (NEW.tenant_id, 'slot', NEW.granted_id, 'update', NEW.granted_kind, NEW.granted_id);
    RETURN NULL;
END
$$;

CREATE TRIGGER record_failure AFTER UPDATE ON update_runs FOR EACH ROW
    WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND NEW.granted_kind IS NOT NULL
        AND NEW.state IN ('failed', 'reverted', 'abandoned'))
    EXECUTE FUNCTION record_failure();
