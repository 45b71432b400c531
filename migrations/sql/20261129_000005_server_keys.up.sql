-- Fingerprints of the keys that all servers on this database share: the key that signs tokens and the certificate authority of the
-- node listeners. A server with other keys would issue tokens and certificates that the other servers and the nodes do not accept.
CREATE TABLE server_keys (
    kind        text PRIMARY KEY CHECK (kind IN ('signing', 'authority')),
    fingerprint text NOT NULL CHECK (char_length(fingerprint) BETWEEN 1 AND 100),
    recorded_at timestamptz NOT NULL
);

ALTER TABLE server_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE server_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY fleet ON server_keys USING ((SELECT current_setting('evenkeel.tenant', true)) = '*');
