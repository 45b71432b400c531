DO $$
DECLARE
    one text;
BEGIN
    FOREACH one IN ARRAY ARRAY['projects', 'hosts', 'os_profiles', 'instances', 'join_tokens', 'update_policies',
        'assignments', 'single_schedules', 'node_states', 'last_contacts', 'update_runs', 'run_events', 'change_log']
    LOOP
        EXECUTE format('DROP POLICY tenant ON %I', one);
        EXECUTE format('ALTER TABLE %I DISABLE ROW LEVEL SECURITY', one);
        EXECUTE format('ALTER TABLE %I NO FORCE ROW LEVEL SECURITY', one);
    END LOOP;
END
$$;
