-- The second wall between tenants. A transaction sees one tenant's rows, all rows with the scope '*', and none without a
-- scope. Forced, because the owner of a table would pass otherwise. The sub-selects are evaluated once a statement.
DO $$
DECLARE
    one text;
BEGIN
    FOREACH one IN ARRAY ARRAY['projects', 'hosts', 'os_profiles', 'instances', 'join_tokens', 'update_policies',
        'assignments', 'single_schedules', 'node_states', 'last_contacts', 'update_runs', 'run_events', 'change_log']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', one);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', one);
        EXECUTE format('CREATE POLICY tenant ON %I USING ('
            '(SELECT current_setting(''evenkeel.tenant'', true)) = ''*'' '
            'OR tenant_id = (SELECT nullif(nullif(current_setting(''evenkeel.tenant'', true), ''''), ''*'')::uuid))', one);
    END LOOP;
END
$$;
