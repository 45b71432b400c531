DROP TABLE users;
DROP INDEX operator_tokens_project;
DROP TRIGGER record_change ON operator_tokens;
ALTER TABLE operator_tokens DROP COLUMN name, DROP COLUMN project_id, DROP COLUMN last_used_at;
DROP FUNCTION record_access_change;
