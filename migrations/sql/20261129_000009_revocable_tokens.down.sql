ALTER TABLE join_tokens DROP COLUMN may_replace_eim_agents;
DROP TABLE node_subjects, logins, revoked_subjects, operator_tokens;
DELETE FROM server_keys WHERE kind = 'operators';
ALTER TABLE server_keys DROP CONSTRAINT server_keys_kind_check;
ALTER TABLE server_keys ADD CONSTRAINT server_keys_kind_check CHECK (kind IN ('signing', 'authority'));
