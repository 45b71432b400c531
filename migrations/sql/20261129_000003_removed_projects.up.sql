-- A project is deleted in two steps: first it is marked as removed, so that nobody sees it any more, then housekeeping removes
-- its rows in batches. Its name is free at once.
ALTER TABLE projects ADD COLUMN removed_at timestamptz;
ALTER TABLE projects DROP CONSTRAINT projects_name_key;
CREATE UNIQUE INDEX projects_name_key ON projects (name) WHERE removed_at IS NULL;
CREATE INDEX projects_removed ON projects (removed_at) WHERE removed_at IS NOT NULL;

CREATE OR REPLACE FUNCTION set_tenant_scope(project_name text, project_id uuid) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id uuid;
BEGIN
    PERFORM set_config('evenkeel.tenant', '*', true);
    IF project_name IS NOT NULL THEN
        SELECT tenant_id INTO found_id FROM projects WHERE name = project_name AND removed_at IS NULL;
    ELSE
        SELECT tenant_id INTO found_id FROM projects WHERE tenant_id = project_id AND removed_at IS NULL;
    END IF;
    PERFORM set_config('evenkeel.tenant', coalesce(found_id::text, ''), true);
    RETURN found_id;
END
$$;
