DROP TRIGGER record_change ON hosts;
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON hosts
    FOR EACH ROW EXECUTE FUNCTION record_change('host', 'id', 'name_folded');
ALTER TABLE hosts DROP COLUMN decryption_certificate;
