-- Webhooks of projects, and the queue of their deliveries. Triggers queue a delivery in the transaction of its event, so that no
-- event is lost, and only if the project has a target for it.
-- part: transaction
CREATE SEQUENCE notification_target_numbers AS bigint MAXVALUE 4294967295;

CREATE TABLE notification_targets (
    tenant_id  uuid NOT NULL,
    id         integer NOT NULL,
    name       text NOT NULL,
    url        text NOT NULL,
    events     text[] NOT NULL,
    enabled    boolean NOT NULL,
    -- Key of the signatures. The change log leaves it out.
    secret     bytea NOT NULL CHECK (length(secret) BETWEEN 24 AND 64),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
);
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON notification_targets
    FOR EACH ROW EXECUTE FUNCTION record_change('notification_target', 'id', 'secret');

-- The state of the delivery to each target. It changes with every failure, so it is no part of the target.
CREATE TABLE notification_queues (
    tenant_id   uuid NOT NULL,
    target_id   integer NOT NULL,
    -- Failed attempts since the last success.
    failures    integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    -- No attempt before this time.
    retry_at    timestamptz,
    -- The last claim, so that targets take turns.
    claimed_at  timestamptz,
    -- The lease: the replica that delivers, and the end of the lease.
    holder      uuid,
    lease_until timestamptz,
    PRIMARY KEY (tenant_id, target_id),
    FOREIGN KEY (tenant_id, target_id) REFERENCES notification_targets ON DELETE CASCADE,
    CONSTRAINT a_lease_is_whole CHECK (num_nulls(holder, lease_until) IN (0, 2))
);

-- Deliveries have no foreign key: it would let a node's transaction lock the target, and fail if the target is deleted meanwhile.
CREATE TABLE notification_deliveries (
    tenant_id    uuid NOT NULL,
    -- The order of the deliveries to a target.
    number       bigint GENERATED ALWAYS AS IDENTITY,
    target_id    integer NOT NULL,
    -- The ID for receivers: the same in all attempts and replays.
    message_id   uuid NOT NULL DEFAULT gen_random_uuid(),
    event        text NOT NULL,
    event_at     timestamptz NOT NULL,
    details      jsonb NOT NULL CHECK (jsonb_typeof(details) = 'object'),
    state        text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'dead')),
    attempts     integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    -- No attempt after this time.
    retry_until  timestamptz NOT NULL,
    attempted_at timestamptz,
    ended_at     timestamptz,
    last_error   text NOT NULL DEFAULT '' CHECK (octet_length(last_error) <= 1000),
    PRIMARY KEY (tenant_id, number),
    CONSTRAINT an_end_has_a_time CHECK ((state = 'pending') = (ended_at IS NULL))
);
CREATE INDEX notification_deliveries_by_target ON notification_deliveries (tenant_id, target_id, number);
CREATE INDEX notification_deliveries_pending ON notification_deliveries (tenant_id, target_id, number) WHERE state = 'pending';
CREATE INDEX notification_deliveries_overdue ON notification_deliveries (retry_until) WHERE state = 'pending';
CREATE INDEX notification_deliveries_ended ON notification_deliveries (ended_at) WHERE ended_at IS NOT NULL;

-- Assignments whose stop is queued, with the time since which their failures count. A resumed assignment has another time.
CREATE TABLE notified_stops (
    tenant_id   uuid NOT NULL,
    target_kind text NOT NULL,
    target_id   integer NOT NULL,
    since_at    timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, target_kind, target_id)
);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['notification_targets', 'notification_queues', 'notification_deliveries', 'notified_stops']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY tenant ON %I USING ((SELECT current_setting(''evenkeel.tenant'', true)) = ''*'' '
            'OR tenant_id = (SELECT nullif(nullif(current_setting(''evenkeel.tenant'', true), ''''), ''*'')::uuid))', name);
    END LOOP;
END
$$;

-- Whether a project has an enabled target for an event.
CREATE FUNCTION has_notification_target(project uuid, event_name text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM notification_targets t
        WHERE t.tenant_id = project AND t.enabled AND event_name = ANY (t.events))
$$;

-- Queues an event for each enabled target of the project that has selected it. Later attempts end 72 hours after the event.
CREATE FUNCTION queue_notification(project uuid, event_name text, event_time timestamptz, event_details jsonb) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO notification_deliveries (tenant_id, target_id, event, event_at, details, retry_until)
    SELECT t.tenant_id, t.id, event_name, event_time, event_details, event_time + interval '72 hours'
    FROM notification_targets t
    WHERE t.tenant_id = project AND t.enabled AND event_name = ANY (t.events)
    ORDER BY t.id
$$;

-- The ID of a resource as the API shows it.
CREATE FUNCTION resource_id_text(prefix text, id integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT prefix || '-' || lpad(to_hex(id), 8, '0')
$$;

-- The node of an instance, for the details of an event.
CREATE FUNCTION notification_node(project uuid, instance integer) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('instanceId', resource_id_text('inst', i.id), 'hostId', resource_id_text('host', h.id),
        'hostName', h.name)
    FROM instances i JOIN hosts h ON h.tenant_id = i.tenant_id AND h.id = i.host_id
    WHERE i.tenant_id = project AND i.id = instance
$$;

CREATE FUNCTION notify_run_failed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF has_notification_target(NEW.tenant_id, 'run-failed') THEN
        PERFORM queue_notification(NEW.tenant_id, 'run-failed', NEW.ended_at,
            coalesce(notification_node(NEW.tenant_id, NEW.instance_id), '{}') || jsonb_build_object(
                'runId', resource_id_text('osupdaterun', NEW.id), 'state', NEW.state,
                'failureKind', NEW.failure_kind, 'reason', left(coalesce(NEW.failure, NEW.cause), 1000)));
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION notify_node_silent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF has_notification_target(NEW.tenant_id, 'node-silent') THEN
        PERFORM queue_notification(NEW.tenant_id, 'node-silent', NEW.status_at,
            coalesce(notification_node(NEW.tenant_id, NEW.instance_id), '{}'));
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION notify_sync_failed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF has_notification_target(NEW.tenant_id, 'sync-failed') THEN
        PERFORM queue_notification(NEW.tenant_id, 'sync-failed', NEW.ended_at,
            jsonb_build_object('registry', NEW.registry, 'revision', NEW.revision, 'reason', NEW.message));
    END IF;
    RETURN NULL;
END
$$;
-- part: transaction
-- A run that times out before its start does not count: nothing was changed on its node. The late report of a run that has timed
-- out is another event.
CREATE TRIGGER notify_run_failed AFTER UPDATE ON update_runs FOR EACH ROW
    WHEN (NEW.state IN ('failed', 'reverted') AND OLD.state NOT IN ('failed', 'reverted')
        OR NEW.state = 'abandoned' AND OLD.state <> 'abandoned' AND NEW.cause = 'timed_out'
        AND (NEW.granted_at IS NOT NULL OR OLD.state NOT IN ('downloading', 'staged')))
    EXECUTE FUNCTION notify_run_failed();
CREATE TRIGGER notify_run_failed_at_once AFTER INSERT ON update_runs FOR EACH ROW
    WHEN (NEW.state IN ('failed', 'reverted')) EXECUTE FUNCTION notify_run_failed();
-- part: transaction
CREATE TRIGGER notify_node_silent AFTER UPDATE ON node_states FOR EACH ROW
    WHEN (NEW.status = 'No Connection' AND OLD.status <> 'No Connection') EXECUTE FUNCTION notify_node_silent();
-- part: transaction
-- Only the first of consecutive failures is an event.
CREATE TRIGGER notify_sync_failed AFTER UPDATE ON os_sync_reports FOR EACH ROW
    WHEN (NEW.outcome = 'failed' AND OLD.outcome <> 'failed') EXECUTE FUNCTION notify_sync_failed();
CREATE TRIGGER notify_first_sync_failed AFTER INSERT ON os_sync_reports FOR EACH ROW
    WHEN (NEW.outcome = 'failed') EXECUTE FUNCTION notify_sync_failed();
