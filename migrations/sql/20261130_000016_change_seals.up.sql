-- The change log is append-only, and its rows are sealed.
-- part: transaction
CREATE TABLE change_seals (
    tenant_id         uuid NOT NULL,
    -- The number in the chain of the project.
    number            bigint NOT NULL,
    -- The version of the encoding of changes and seals.
    encoding          smallint NOT NULL,
    -- The seal covers the changes of the project with above < seq <= up_to. A pass writes the same up_to in all projects.
    above             bigint NOT NULL,
    up_to             bigint NOT NULL,
    -- Changes with an actor and changes without one are kept for different times, so each class has a digest.
    changes_by_users  integer NOT NULL,
    digest_by_users   bytea NOT NULL,
    changes_by_server integer NOT NULL,
    digest_by_server  bytea NOT NULL,
    -- The times of the first and the last change.
    first_at          timestamptz NOT NULL,
    last_at           timestamptz NOT NULL,
    sealed_at         timestamptz NOT NULL,
    -- The digest of the seal before; null for the first one.
    previous          bytea,
    digest            bytea NOT NULL,
    PRIMARY KEY (tenant_id, number),
    CONSTRAINT change_seal_range CHECK (above < up_to),
    CONSTRAINT change_seal_digests CHECK (length(digest_by_users) = 32 AND length(digest_by_server) = 32
        AND length(previous) = 32 AND length(digest) = 32)
);
CREATE INDEX change_seals_by_position ON change_seals (up_to, tenant_id);

-- One row, of no tenant: how far the log of all projects is sealed, and how far changes of each class were removed. Its lock
-- lets one server at a time seal or remove.
CREATE TABLE change_seal_state (
    is_single_row     boolean PRIMARY KEY DEFAULT true CHECK (is_single_row),
    sealed_to         bigint NOT NULL DEFAULT 0,
    users_removed_to  bigint NOT NULL DEFAULT 0,
    server_removed_to bigint NOT NULL DEFAULT 0,
    -- Changes that were sealed within this time are never removed. Only the owner of the tables can change it, which need not be
    -- the role of the server.
    minimum_retention interval NOT NULL DEFAULT '0'
);
INSERT INTO change_seal_state DEFAULT VALUES;

ALTER TABLE change_seals ENABLE ROW LEVEL SECURITY;
ALTER TABLE change_seals FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON change_seals USING ((SELECT current_setting('evenkeel.tenant', true)) = '*'
    OR tenant_id = (SELECT nullif(nullif(current_setting('evenkeel.tenant', true), ''), '*')::uuid));
ALTER TABLE change_seal_state ENABLE ROW LEVEL SECURITY;
ALTER TABLE change_seal_state FORCE ROW LEVEL SECURITY;
CREATE POLICY all_transactions ON change_seal_state USING (true);

-- Refuses a statement that changes or removes rows. Only remove_sealed_changes() removes rows, and only of the log.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'change_log'
        AND coalesce(current_setting('evenkeel.removing_changes', true), '') = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE '% of % is refused: rows of this table are only added', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege',
            HINT = 'Old changes are removed by the retention of the server (change_log_retention, user_change_retention).';
END
$$;
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON change_seals
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Removes changes of one class, with an actor or without one, that were sealed before a time: oldest first, at most max_changes
-- of them, but at least those of one pass of the sealing. Removes all changes of the class that a seal covers, or none. Returns
-- their number; 0 if none is old enough, or while another server seals or removes. Readers of the log that have not read them
-- notice. The changes of a backup of another server may have transaction ids that this server has not reached yet. They are
-- removed without notice, because no reader waits for them.
CREATE FUNCTION remove_sealed_changes(of_users boolean, sealed_before timestamptz, max_changes bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    state   change_seal_state%ROWTYPE;
    reached bigint;
    next_to bigint;
    removed bigint := 0;
BEGIN
    SELECT * INTO state FROM change_seal_state FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF state.minimum_retention > '0' THEN
        sealed_before := least(sealed_before, now() - state.minimum_retention);
    END IF;
    reached := CASE WHEN of_users THEN state.users_removed_to ELSE state.server_removed_to END;
    PERFORM set_config('evenkeel.removing_changes', 'on', true), set_config('evenkeel.pruning', 'on', true);
    WHILE removed = 0 LOOP
        SELECT max(s.up_to) FILTER (WHERE s.total <= max_changes OR s.up_to = s.lowest) INTO next_to
        FROM (
            SELECT n.up_to, min(n.up_to) OVER () AS lowest, sum(n.changes) OVER (ORDER BY n.up_to) AS total,
                bool_and(n.sealed_at < sealed_before) OVER (ORDER BY n.up_to) AS is_old
            FROM (
                SELECT c.up_to, c.sealed_at, CASE WHEN of_users THEN c.changes_by_users ELSE c.changes_by_server END AS changes
                FROM change_seals c WHERE c.up_to > reached ORDER BY c.up_to LIMIT 1000
            ) n
        ) s WHERE s.is_old;
        EXIT WHEN next_to IS NULL;
        WITH gone AS (
            DELETE FROM change_log c WHERE c.seq > reached AND c.seq <= next_to AND (c.actor IS NOT NULL) = of_users
            RETURNING c.xid, c.seq
        ), newest AS (
            SELECT g.xid, g.seq FROM gone g WHERE g.xid < pg_snapshot_xmax(pg_current_snapshot())
            ORDER BY g.xid DESC, g.seq DESC LIMIT 1
        ), moved AS (
            UPDATE log_state s SET floor_xid = n.xid, floor_seq = n.seq FROM newest n
            WHERE (s.floor_xid, s.floor_seq) < (n.xid, n.seq)
        )
        SELECT count(*) INTO removed FROM gone;
        reached := next_to;
    END LOOP;
    PERFORM set_config('evenkeel.removing_changes', '', true), set_config('evenkeel.pruning', '', true);
    IF of_users THEN
        UPDATE change_seal_state SET users_removed_to = reached WHERE users_removed_to < reached;
    ELSE
        UPDATE change_seal_state SET server_removed_to = reached WHERE server_removed_to < reached;
    END IF;
    RETURN removed;
END
$$;

-- part: index change_log_by_number
-- The order in which changes are sealed, removed and verified. Unlike transaction ids, numbers continue after a dump was
-- restored on another server.
CREATE INDEX CONCURRENTLY change_log_by_number ON change_log (seq);
-- part: transaction
-- From here on, housekeeping of an older release cannot remove changes. It logs the failure of this step; its other steps run.
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON change_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
