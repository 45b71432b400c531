DROP TRIGGER record_change ON host_hardware;
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON host_hardware
    FOR EACH ROW EXECUTE FUNCTION record_change('host_hardware', 'host_id');

ALTER TABLE host_hardware DROP COLUMN told;
DROP FUNCTION told_gpus(jsonb);
DROP FUNCTION told_texts(jsonb);
DROP FUNCTION told_usbs(jsonb);
DROP FUNCTION told_nics(jsonb);
DROP FUNCTION told_addresses(jsonb);
DROP FUNCTION told_storages(jsonb);
DROP FUNCTION told_times(jsonb);
DROP FUNCTION told_time(jsonb);
