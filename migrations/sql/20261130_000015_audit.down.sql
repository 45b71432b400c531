DROP INDEX change_log_by_users;
ALTER TABLE change_log DROP COLUMN client_address;
