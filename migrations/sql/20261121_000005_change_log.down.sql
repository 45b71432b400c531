DROP FUNCTION record_change() CASCADE;
DROP TABLE change_log;
