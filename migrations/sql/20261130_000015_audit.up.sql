-- The audit lists the changes of users: from which address they came, and an index over them. The triggers of the log leave the
-- address out, so it is the default of its column.
-- part: transaction
ALTER TABLE change_log ADD COLUMN client_address text;
ALTER TABLE change_log ALTER COLUMN client_address SET DEFAULT nullif(current_setting('evenkeel.address', true), '');
-- part: index change_log_by_users
CREATE INDEX CONCURRENTLY change_log_by_users ON change_log (tenant_id, xid, seq) WHERE actor IS NOT NULL;
