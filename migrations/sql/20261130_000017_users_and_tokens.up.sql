-- Tokens for automation are operator tokens with a name and a project. Their changes are in the change log of the project, those
-- of other operator tokens in that of the nil UUID, which belongs to no project.
-- part: transaction
CREATE FUNCTION record_access_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    acting_user text := nullif(current_setting('evenkeel.actor', true), '');
    old_row     jsonb;
    new_row     jsonb;
    project     uuid;
BEGIN
    IF TG_OP = 'UPDATE' AND OLD IS NOT DISTINCT FROM NEW THEN
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        old_row := to_jsonb(OLD) - 'password_hash';
    END IF;
    IF TG_OP <> 'DELETE' THEN
        new_row := to_jsonb(NEW) - 'password_hash';
    END IF;
    project := (coalesce(new_row, old_row) ->> 'project_id')::uuid;
    IF acting_user IS NULL THEN
        old_row := NULL;
        new_row := NULL;
    END IF;
    INSERT INTO change_log (tenant_id, kind, id, operation, actor, request_id, before, after)
    VALUES (coalesce(project, '00000000-0000-0000-0000-000000000000'), TG_ARGV[0], 0, lower(TG_OP), acting_user,
        nullif(current_setting('evenkeel.request', true), ''), old_row, new_row);
    RETURN NULL;
END
$$;
-- part: transaction
ALTER TABLE operator_tokens
    ADD COLUMN name         text,
    ADD COLUMN project_id   uuid,
    ADD COLUMN last_used_at timestamptz;
-- The last use and the removal of expired tokens are no changes by users.
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OF revoked_at ON operator_tokens
    FOR EACH ROW EXECUTE FUNCTION record_access_change('operator_token');
-- part: index operator_tokens_project
CREATE INDEX CONCURRENTLY operator_tokens_project ON operator_tokens (project_id, name) WHERE project_id IS NOT NULL;
-- part: transaction
-- Users who log in with a password, in addition to the file of users. Roles are those of a token.
CREATE TABLE users (
    name          text PRIMARY KEY,
    password_hash text NOT NULL,
    roles         text[] NOT NULL,
    disabled_at   timestamptz,
    created_at    timestamptz NOT NULL,
    created_by    text NOT NULL,
    updated_at    timestamptz NOT NULL
);
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON users
    FOR EACH ROW EXECUTE FUNCTION record_access_change('user');
ALTER TABLE users ENABLE ROW LEVEL SECURITY;
ALTER TABLE users FORCE ROW LEVEL SECURITY;
CREATE POLICY fleet ON users USING ((SELECT current_setting('evenkeel.tenant', true)) = '*');
