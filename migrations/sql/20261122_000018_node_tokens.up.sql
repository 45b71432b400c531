-- Which host a token of one of the ancestor's nodes speaks for. Such a token comes from an issuer outside and names no host
-- of ours: it belongs to the one that used it first. Only the SHA-256 of what is signed in it is kept, until it has expired.
-- The nodes' tokens change every hour or so and are nothing that a person sees: they have no place in the change log.
CREATE TABLE node_tokens (
    tenant_id     uuid NOT NULL,
    digest        bytea NOT NULL CHECK (length(digest) = 32),
    host_id       integer NOT NULL,
    first_used_at timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, digest),
    CONSTRAINT node_tokens_host FOREIGN KEY (tenant_id, host_id) REFERENCES hosts ON DELETE CASCADE
);
CREATE INDEX node_tokens_host ON node_tokens (tenant_id, host_id);
CREATE INDEX node_tokens_expired ON node_tokens (tenant_id, expires_at);

-- The same wall as around the first tables (step 6).
ALTER TABLE node_tokens ENABLE ROW LEVEL SECURITY;
ALTER TABLE node_tokens FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON node_tokens USING (
    (SELECT current_setting('evenkeel.tenant', true)) = '*'
    OR tenant_id = (SELECT nullif(nullif(current_setting('evenkeel.tenant', true), ''), '*')::uuid)
);
