DO $$
DECLARE
    one text;
BEGIN
    FOREACH one IN ARRAY ARRAY['regions', 'sites', 'repeated_schedules', 'pauses', 'update_orders', 'project_settings']
    LOOP
        EXECUTE format('DROP TRIGGER record_change ON %I', one);
    END LOOP;
    FOREACH one IN ARRAY ARRAY['regions', 'sites', 'repeated_schedules', 'pauses', 'update_orders', 'project_settings',
        'brake_slots', 'contents']
    LOOP
        EXECUTE format('DROP POLICY tenant ON %I', one);
        EXECUTE format('ALTER TABLE %I DISABLE ROW LEVEL SECURITY', one);
        EXECUTE format('ALTER TABLE %I NO FORCE ROW LEVEL SECURITY', one);
    END LOOP;
END
$$;
