DROP TRIGGER refuse_change ON change_log;
DROP INDEX change_log_by_number;
DROP FUNCTION remove_sealed_changes;
DROP FUNCTION remove_old_seals;
DROP TABLE change_seal_state;
DROP TABLE change_seals;
DROP FUNCTION refuse_change;
