-- The change log: a proof that a reader sees changes, and an order that only writers of the log can delay.

-- One number that every server counts up every few seconds. It is visible with the scope of all projects only, like the changes
-- of all projects: a reader that sees the number which its process has committed could have seen every earlier change.
CREATE TABLE log_heartbeat (
    is_single_row boolean PRIMARY KEY DEFAULT true CHECK (is_single_row),
    number        bigint NOT NULL
);
INSERT INTO log_heartbeat (number) VALUES (0);
ALTER TABLE log_heartbeat ENABLE ROW LEVEL SECURITY;
ALTER TABLE log_heartbeat FORCE ROW LEVEL SECURITY;
CREATE POLICY fleet ON log_heartbeat USING ((SELECT current_setting('evenkeel.tenant', true)) = '*');

-- Counts up the number and returns it. Sets the scope itself, so that one statement without a transaction is enough.
CREATE FUNCTION send_log_heartbeat() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    outer_scope text := coalesce(current_setting('evenkeel.tenant', true), '');
    sent        bigint;
BEGIN
    PERFORM set_config('evenkeel.tenant', '*', true);
    UPDATE log_heartbeat SET number = number + 1 RETURNING number INTO sent;
    PERFORM set_config('evenkeel.tenant', outer_scope, true);
    RETURN sent;
END
$$;

-- Transactions below the barrier must not begin to write the log: readers no longer wait for them. A sequence, because its value
-- is visible to every transaction at once.
CREATE SEQUENCE log_barrier MINVALUE 0 START 0;

-- The transaction id for a row of the log. The lock marks the transaction as a writer of the log until it ends. It is taken
-- before the barrier is read: whoever raises the barrier and then looks at the locks finds the lock, or the transaction reads
-- the new barrier. A barrier above all transactions comes from the backup of another server. The setting remembers the lock:
-- a rollback to a savepoint releases the lock and resets the setting.
CREATE FUNCTION log_xid() RETURNS xid8 LANGUAGE plpgsql AS $$
DECLARE
    own     xid8 := pg_current_xact_id();
    barrier xid8;
BEGIN
    IF current_setting('evenkeel.log_writer', true) = own::text THEN
        RETURN own;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(7031);
    SELECT last_value::text::xid8 INTO barrier FROM log_barrier;
    IF own < barrier AND (barrier <= pg_snapshot_xmax(pg_current_snapshot())
        OR current_setting('transaction_isolation') <> 'read committed') THEN
        RAISE 'this transaction is too old for its first change in the change log; begin a new one'
            USING ERRCODE = 'serialization_failure';
    END IF;
    PERFORM set_config('evenkeel.log_writer', own::text, true);
    RETURN own;
END
$$;
ALTER TABLE change_log ALTER COLUMN xid SET DEFAULT log_xid();
