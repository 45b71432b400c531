-- The certificate of the RSA key with which a node of ours decrypts secrets, in DER. A node that has no such key has none.
ALTER TABLE hosts ADD COLUMN decryption_certificate bytea;

-- A node renews this certificate each day, and no decision depends on it. A change of it alone is not recorded; otherwise each
-- renewal would invalidate the cached answers of the node.
DROP TRIGGER record_change ON hosts;
CREATE TRIGGER record_change AFTER INSERT OR DELETE OR UPDATE OF
    tenant_id, id, name, uuid, serial, hostname, site_id, provider_id, metadata, user_lvm_size, desired_state, current_state, note,
    public_key, status, status_indication, status_at, created_at, updated_at, uuid_text
    ON hosts FOR EACH ROW EXECUTE FUNCTION record_change('host', 'id', 'name_folded');
