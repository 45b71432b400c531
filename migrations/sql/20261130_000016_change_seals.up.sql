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
-- Most seals cover no change of a user, so the retention of these changes skips them.
CREATE INDEX change_seals_of_users ON change_seals (up_to) WHERE changes_by_users > 0;

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

-- Refuses a statement that changes or removes rows. Only remove_sealed_changes() and remove_old_seals() remove rows.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND coalesce(current_setting(CASE TG_TABLE_NAME WHEN 'change_log' THEN 'evenkeel.removing_changes'
        ELSE 'evenkeel.removing_seals' END, true), '') = 'on' THEN
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
-- their number; 0 if none is old enough. Waits while another server seals or removes. Readers of the log that have not read
-- them notice. The changes of a backup of another server may have transaction ids that this server has not reached yet. They
-- are removed without notice, because no reader waits for them.
CREATE FUNCTION remove_sealed_changes(of_users boolean, sealed_before timestamptz, max_changes bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    state   change_seal_state%ROWTYPE;
    reached bigint;
    next_to bigint;
    removed bigint := 0;
BEGIN
    SELECT * INTO STRICT state FROM change_seal_state FOR UPDATE;
    IF state.minimum_retention > '0' THEN
        sealed_before := least(sealed_before, now() - state.minimum_retention);
    END IF;
    reached := CASE WHEN of_users THEN state.users_removed_to ELSE state.server_removed_to END;
    PERFORM set_config('evenkeel.removing_changes', 'on', true), set_config('evenkeel.pruning', 'on', true);
    -- One of the two lists is empty and is not read.
    SELECT max(s.up_to) FILTER (WHERE s.total <= max_changes OR s.up_to = s.lowest) INTO next_to
    FROM (
        SELECT n.up_to, min(n.up_to) OVER () AS lowest, sum(n.changes) OVER (ORDER BY n.up_to) AS total,
            bool_and(n.sealed_at < sealed_before) OVER (ORDER BY n.up_to) AS is_old
        FROM (
            (SELECT c.up_to, c.sealed_at, c.changes_by_users AS changes FROM change_seals c
            WHERE of_users AND c.changes_by_users > 0 AND c.up_to > reached ORDER BY c.up_to LIMIT 1000)
            UNION ALL
            (SELECT c.up_to, c.sealed_at, c.changes_by_server FROM change_seals c
            WHERE NOT of_users AND c.changes_by_server > 0 AND c.up_to > reached ORDER BY c.up_to LIMIT 1000)
        ) n
    ) s WHERE s.is_old;
    IF next_to IS NOT NULL THEN
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
    END IF;
    PERFORM set_config('evenkeel.removing_changes', '', true), set_config('evenkeel.pruning', '', true);
    IF of_users THEN
        UPDATE change_seal_state SET users_removed_to = next_to WHERE users_removed_to < next_to;
    ELSE
        UPDATE change_seal_state SET server_removed_to = next_to WHERE server_removed_to < next_to;
    END IF;
    RETURN removed;
END
$$;

-- Removes seals at the beginning of chains that were made before a time and whose changes are removed: oldest first, at most
-- max_seals of them. Returns their number. A chain keeps the last such seal: its time shows that the seals before it were old.
CREATE FUNCTION remove_old_seals(sealed_before timestamptz, max_seals bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    state   change_seal_state%ROWTYPE;
    needed  bigint;
    removed bigint;
BEGIN
    SELECT * INTO STRICT state FROM change_seal_state FOR UPDATE;
    IF state.minimum_retention > '0' THEN
        sealed_before := least(sealed_before, now() - state.minimum_retention);
    END IF;
    -- The first seal whose changes are not removed.
    SELECT least(
        (SELECT c.up_to FROM change_seals c WHERE c.changes_by_users > 0 AND c.up_to > state.users_removed_to
            ORDER BY c.up_to LIMIT 1),
        (SELECT c.up_to FROM change_seals c WHERE c.changes_by_server > 0 AND c.up_to > state.server_removed_to
            ORDER BY c.up_to LIMIT 1)) INTO needed;
    PERFORM set_config('evenkeel.removing_seals', 'on', true);
    DELETE FROM change_seals s USING (
        SELECT c.tenant_id, c.number FROM change_seals c
        JOIN change_seals n ON n.tenant_id = c.tenant_id AND n.number = c.number + 1 AND n.sealed_at < sealed_before
        WHERE c.sealed_at < sealed_before AND c.up_to < coalesce(needed, 9223372036854775807)
        ORDER BY c.up_to LIMIT max_seals
    ) o
    WHERE s.tenant_id = o.tenant_id AND s.number = o.number;
    GET DIAGNOSTICS removed = ROW_COUNT;
    PERFORM set_config('evenkeel.removing_seals', '', true);
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
