CREATE OR REPLACE FUNCTION set_tenant_scope(project_name text, project_id uuid) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_id uuid;
BEGIN
    PERFORM set_config('evenkeel.tenant', '*', true);
    IF project_name IS NOT NULL THEN
        SELECT tenant_id INTO found_id FROM projects WHERE name = project_name;
    ELSE
        SELECT tenant_id INTO found_id FROM projects WHERE tenant_id = project_id;
    END IF;
    PERFORM set_config('evenkeel.tenant', coalesce(found_id::text, ''), true);
    RETURN found_id;
END
$$;

DROP INDEX projects_removed;
DROP INDEX projects_name_key;
ALTER TABLE projects ADD CONSTRAINT projects_name_key UNIQUE (name);
ALTER TABLE projects DROP COLUMN removed_at;
