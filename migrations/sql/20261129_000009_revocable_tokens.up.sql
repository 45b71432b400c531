-- Tokens of operators have a signing key of their own, and can be revoked. Servers read the revoked ones every half second, so
-- there are few: housekeeping removes tokens that have expired. Tokens of logins live for minutes and are not listed.
ALTER TABLE server_keys DROP CONSTRAINT server_keys_kind_check;
ALTER TABLE server_keys ADD CONSTRAINT server_keys_kind_check CHECK (kind IN ('signing', 'operators', 'authority'));

CREATE TABLE operator_tokens (
    id         uuid PRIMARY KEY,
    subject    text NOT NULL,
    roles      text[] NOT NULL,
    issued_at  timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    revoked_by text
);
CREATE INDEX operator_tokens_expired ON operator_tokens (expires_at);
CREATE INDEX operator_tokens_subject ON operator_tokens (subject);
CREATE INDEX operator_tokens_revoked ON operator_tokens (id) WHERE revoked_at IS NOT NULL;

-- Tokens of a subject that were issued up to a time are revoked. The issuer is empty for our own tokens. The rows stay: an
-- external issuer does not say for how long its tokens live.
CREATE TABLE revoked_subjects (
    issuer        text NOT NULL,
    subject       text NOT NULL,
    revoked_until timestamptz NOT NULL,
    revoked_by    text NOT NULL,
    PRIMARY KEY (issuer, subject)
);

-- Logins with a password. Each refresh of a login replaces its refresh token and counts up the generation, so that a server can
-- tell a replaced token from the current one. No token is stored.
CREATE TABLE logins (
    id           uuid PRIMARY KEY,
    subject      text NOT NULL,
    generation   integer NOT NULL CHECK (generation >= 0),
    refreshed_at timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    revoked_at   timestamptz
);
CREATE INDEX logins_expired ON logins (expires_at);
CREATE INDEX logins_subject ON logins (subject);

-- Hosts for which the subjects of EIM's node tokens speak: a subject belongs to the host that used it first, so that a node does
-- not speak for another host with its next token. The digest is that of the issuer and the subject.
CREATE TABLE node_subjects (
    tenant_id     uuid NOT NULL,
    digest        bytea NOT NULL CHECK (length(digest) = 32),
    host_id       integer NOT NULL,
    first_used_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, digest),
    CONSTRAINT node_subjects_host FOREIGN KEY (tenant_id, host_id) REFERENCES hosts ON DELETE CASCADE
);
CREATE INDEX node_subjects_host ON node_subjects (tenant_id, host_id);

-- Whether a machine with an agent of EIM may enrol with the token.
ALTER TABLE join_tokens ADD COLUMN may_replace_eim_agents boolean NOT NULL DEFAULT false;

DO $$
DECLARE
    name  text;
    fleet text := '(SELECT current_setting(''evenkeel.tenant'', true)) = ''*''';
    own   text := 'tenant_id = (SELECT nullif(nullif(current_setting(''evenkeel.tenant'', true), ''''), ''*'')::uuid)';
BEGIN
    FOREACH name IN ARRAY ARRAY['operator_tokens', 'revoked_subjects', 'logins', 'node_subjects'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        IF name = 'node_subjects' THEN
            EXECUTE format('CREATE POLICY tenant ON %I USING (%s OR %s)', name, fleet, own);
        ELSE
            EXECUTE format('CREATE POLICY fleet ON %I USING (%s)', name, fleet);
        END IF;
    END LOOP;
END
$$;
