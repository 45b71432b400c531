-- What is reported once: security updates that a node can install, and certificates of the server that expire soon.
-- part: transaction
-- The trigger on node_states adds rows, and a pass queues a delivery for those that are not queued. A trigger cannot queue it: no
-- column of a node state has the time of the event.
CREATE TABLE notified_security_updates (
    tenant_id   uuid NOT NULL,
    instance_id integer NOT NULL,
    package     text NOT NULL,
    version     text NOT NULL,
    is_queued   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant_id, instance_id, package, version),
    FOREIGN KEY (tenant_id, instance_id) REFERENCES node_states ON DELETE CASCADE
);
CREATE INDEX notified_security_updates_new ON notified_security_updates (tenant_id, instance_id, package) WHERE NOT is_queued;

-- Few rows: certificates are renewed long before their end, so most are never reported.
CREATE TABLE notified_certificates (
    tenant_id   uuid NOT NULL,
    certificate text NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, certificate, expires_at)
);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['notified_security_updates', 'notified_certificates']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY tenant ON %I USING ((SELECT current_setting(''evenkeel.tenant'', true)) = ''*'' '
            'OR tenant_id = (SELECT nullif(nullif(current_setting(''evenkeel.tenant'', true), ''''), ''*'')::uuid))', name);
    END LOOP;
END
$$;

-- Remembers the security updates among the available updates of a node, and forgets those that are no longer available. What a
-- security update is, evenkeel_domain::package::is_security_update decides in the same way.
CREATE FUNCTION note_security_updates() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    updates jsonb;
BEGIN
    IF NOT has_notification_target(NEW.tenant_id, 'security-update-pending') THEN
        RETURN NULL;
    END IF;
    BEGIN
        updates = NEW.os_update_available::jsonb;
    EXCEPTION WHEN data_exception THEN
        RETURN NULL;
    END;
    WITH pending AS MATERIALIZED (
        SELECT DISTINCT left(p.entry ->> 'name', 128) AS package, left(p.entry ->> 'available_version', 128) AS version
        FROM jsonb_array_elements(CASE jsonb_typeof(updates) WHEN 'array' THEN updates ELSE '[]' END) p(entry)
        WHERE p.entry ->> 'name' <> '' AND p.entry ->> 'available_version' <> ''
        AND (jsonb_path_exists(p.entry, '$.suites[*] ? (@ like_regex "(-security|/updates)$" flag "i")')
            OR p.entry -> 'origins' ?| ARRAY['Debian-Security', 'UbuntuESM', 'UbuntuESMApps'])),
    gone AS (DELETE FROM notified_security_updates n WHERE n.tenant_id = NEW.tenant_id AND n.instance_id = NEW.instance_id
        AND NOT EXISTS (SELECT FROM pending p WHERE p.package = n.package AND p.version = n.version))
    INSERT INTO notified_security_updates (tenant_id, instance_id, package, version)
    SELECT NEW.tenant_id, NEW.instance_id, p.package, p.version FROM pending p
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
-- part: transaction
CREATE TRIGGER note_security_updates AFTER UPDATE ON node_states FOR EACH ROW
    WHEN (NEW.security_updates > 0 AND NEW.available_digest <> OLD.available_digest)
    EXECUTE FUNCTION note_security_updates();
