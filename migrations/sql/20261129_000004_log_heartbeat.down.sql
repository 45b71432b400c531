ALTER TABLE change_log ALTER COLUMN xid SET DEFAULT pg_current_xact_id();
DROP FUNCTION log_xid();
DROP SEQUENCE log_barrier;
DROP FUNCTION send_log_heartbeat();
DROP TABLE log_heartbeat;
