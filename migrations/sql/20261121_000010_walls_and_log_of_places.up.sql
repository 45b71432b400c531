-- The same wall as around the first tables (step 6).
DO $$
DECLARE
    one text;
BEGIN
    FOREACH one IN ARRAY ARRAY['regions', 'sites', 'repeated_schedules', 'pauses', 'update_orders', 'project_settings',
        'brake_slots', 'contents']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', one);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', one);
        EXECUTE format('CREATE POLICY tenant ON %I USING ('
            '(SELECT current_setting(''evenkeel.tenant'', true)) = ''*'' '
            'OR tenant_id = (SELECT nullif(nullif(current_setting(''evenkeel.tenant'', true), ''''), ''*'')::uuid))', one);
    END LOOP;
END
$$;

CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON regions
    FOR EACH ROW EXECUTE FUNCTION record_change('region', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON sites
    FOR EACH ROW EXECUTE FUNCTION record_change('site', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON repeated_schedules
    FOR EACH ROW EXECUTE FUNCTION record_change('repeated_schedule', 'id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON pauses
    FOR EACH ROW EXECUTE FUNCTION record_change('pause', 'scope_id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON update_orders
    FOR EACH ROW EXECUTE FUNCTION record_change('update_order', 'instance_id');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON project_settings
    FOR EACH ROW EXECUTE FUNCTION record_change('project_settings');
