-- Upgrades while servers run, and IDs that are never given again.

-- The oldest release that can use this schema. A server that knows fewer steps than the database starts if it is not older. A
-- step that an older release cannot work with raises it.
CREATE TABLE schema_compatibility (
    is_single_row boolean PRIMARY KEY DEFAULT true CHECK (is_single_row),
    min_release   text NOT NULL CHECK (min_release ~ '^\d{1,5}\.\d{1,5}\.\d{1,5}$')
);
INSERT INTO schema_compatibility (min_release) VALUES ('0.1.0');

-- How far the steps of several parts are. `table_file`, `next_block` and `end_block` belong to the batches that are not done.
CREATE TABLE migration_progress (
    step       text PRIMARY KEY,
    parts_done integer NOT NULL DEFAULT 0 CHECK (parts_done >= 0),
    table_file bigint,
    next_block bigint,
    end_block  bigint,
    CONSTRAINT a_range_of_blocks_is_whole CHECK (num_nulls(table_file, next_block, end_block) IN (0, 3))
);

-- The database that has given the IDs so far: one row, written by the first server that connects. A restored dump is in
-- another database, and a promoted standby has another timeline. Both may have lost the IDs that were given last.
CREATE TABLE database_identity (
    is_single_row boolean PRIMARY KEY DEFAULT true CHECK (is_single_row),
    identity      text NOT NULL,
    -- How often the IDs have jumped ahead.
    epoch         integer NOT NULL CHECK (epoch > 0)
);

-- These rows belong to no project and are not secret.
ALTER TABLE schema_compatibility ENABLE ROW LEVEL SECURITY;
ALTER TABLE schema_compatibility FORCE ROW LEVEL SECURITY;
CREATE POLICY all_transactions ON schema_compatibility USING (true);
ALTER TABLE migration_progress ENABLE ROW LEVEL SECURITY;
ALTER TABLE migration_progress FORCE ROW LEVEL SECURITY;
CREATE POLICY all_transactions ON migration_progress USING (true);
ALTER TABLE database_identity ENABLE ROW LEVEL SECURITY;
ALTER TABLE database_identity FORCE ROW LEVEL SECURITY;
CREATE POLICY all_transactions ON database_identity USING (true);

-- The server cluster, its timeline, the database, and a sequence, which a restore creates again. Without the privilege to read
-- the first two, only the others.
CREATE FUNCTION current_database_identity() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    cluster text := '';
BEGIN
    BEGIN
        SELECT system_identifier || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) INTO cluster
        FROM pg_control_system();
    EXCEPTION WHEN insufficient_privilege OR feature_not_supported THEN
        NULL;
    END;
    RETURN concat_ws('/', cluster, (SELECT oid FROM pg_database WHERE datname = current_database()), 'host_numbers'::regclass::oid);
END
$$;

-- Whether this number of a host was given.
CREATE FUNCTION is_given_host(number bigint) RETURNS boolean LANGUAGE sql AS $$
    SELECT number < last_value OR (number = last_value AND is_called) FROM host_numbers
$$;

-- Lets all IDs jump ahead if this is not the database that has given the IDs so far, if it has not given the number of this host
-- yet, or if it is forced. Returns the new epoch, or null if the IDs go on as before. A transaction that fails does not take the
-- numbers back, so they may jump twice.
CREATE FUNCTION protect_ids(forced boolean, given_host bigint DEFAULT NULL) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    current_identity  text;
    recorded_identity text;
    new_epoch         integer;
BEGIN
    IF pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean THEN
        RETURN NULL;
    END IF;
    current_identity := current_database_identity();
    SELECT identity INTO recorded_identity FROM database_identity;
    IF recorded_identity = current_identity AND NOT forced AND (given_host IS NULL OR is_given_host(given_host)) THEN
        RETURN NULL;
    END IF;
    INSERT INTO database_identity (identity, epoch) VALUES (current_identity, 1) ON CONFLICT DO NOTHING;
    -- Another session may have been faster, or this is the first one.
    SELECT identity, epoch + 1 INTO recorded_identity, new_epoch FROM database_identity FOR UPDATE;
    IF recorded_identity = current_identity AND NOT forced AND (given_host IS NULL OR is_given_host(given_host)) THEN
        RETURN NULL;
    END IF;
    -- More numbers than a fleet takes between two backups. All numbers last for 4,095 jumps.
    PERFORM setval(format('%I.%I', schemaname, sequencename)::regclass, least(coalesce(last_value, 0) + 1048576, max_value))
    FROM pg_sequences WHERE schemaname = 'public' AND sequencename LIKE '%\_numbers';
    UPDATE database_identity SET identity = current_identity, epoch = new_epoch;
    RETURN new_epoch;
END
$$;
