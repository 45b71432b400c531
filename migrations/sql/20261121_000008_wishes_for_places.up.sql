ALTER TABLE update_policies
    ADD COLUMN allow_downgrade boolean NOT NULL DEFAULT false,
    -- For how many days a grant ahead holds; 0 gives none.
    ADD COLUMN offline_days integer NOT NULL DEFAULT 7 CHECK (offline_days >= 0);
ALTER TABLE update_policies
    ALTER COLUMN allow_downgrade DROP DEFAULT,
    ALTER COLUMN offline_days DROP DEFAULT;

-- A limit that is null is none. Failures count from since_at on: when the row was last written, or resumed.
ALTER TABLE assignments
    DROP CONSTRAINT assignments_target_kind_check,
    ADD CONSTRAINT assignments_target_kind_check
        CHECK (target_kind IN ('instance', 'host', 'site', 'region', 'project')),
    ADD COLUMN max_concurrent integer CHECK (max_concurrent > 0),
    ADD COLUMN stop_after_failures integer CHECK (stop_after_failures > 0),
    ADD COLUMN since_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE assignments ALTER COLUMN since_at DROP DEFAULT;

ALTER TABLE single_schedules
    DROP CONSTRAINT single_schedules_status_check,
    ADD CONSTRAINT single_schedules_status_check CHECK (status IN ('unspecified', 'maintenance', 'shipping', 'os_update', 'firmware_update',
        'cluster_update')),
    ADD COLUMN target_site_id integer,
    ADD COLUMN target_region_id integer,
    ADD CONSTRAINT single_schedules_site FOREIGN KEY (tenant_id, target_site_id) REFERENCES sites ON DELETE CASCADE,
    ADD CONSTRAINT single_schedules_region FOREIGN KEY (tenant_id, target_region_id) REFERENCES regions ON DELETE CASCADE,
    ADD CONSTRAINT a_single_schedule_has_one_target
        CHECK (num_nonnulls(target_host_id, target_site_id, target_region_id) <= 1);
CREATE INDEX single_schedules_by_site ON single_schedules (tenant_id, target_site_id, start_at);
CREATE INDEX single_schedules_by_region ON single_schedules (tenant_id, target_region_id, start_at);

-- The fields of cron as they were given; they mean local time in the zone (IANA's name).
CREATE TABLE repeated_schedules (
    tenant_id        uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id               integer NOT NULL,
    name             text NOT NULL,
    status           text NOT NULL CHECK (status IN ('unspecified', 'maintenance', 'shipping', 'os_update', 'firmware_update',
                         'cluster_update')),
    duration_seconds integer NOT NULL CHECK (duration_seconds BETWEEN 1 AND 86400),
    cron_minutes     text NOT NULL CHECK (cron_minutes <> ''),
    cron_hours       text NOT NULL CHECK (cron_hours <> ''),
    cron_day_month   text NOT NULL CHECK (cron_day_month <> ''),
    cron_month       text NOT NULL CHECK (cron_month <> ''),
    cron_day_week    text NOT NULL CHECK (cron_day_week <> ''),
    time_zone        text NOT NULL CHECK (time_zone <> ''),
    target_host_id   integer,
    target_site_id   integer,
    target_region_id integer,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    CONSTRAINT repeated_schedules_host FOREIGN KEY (tenant_id, target_host_id) REFERENCES hosts ON DELETE CASCADE,
    CONSTRAINT repeated_schedules_site FOREIGN KEY (tenant_id, target_site_id) REFERENCES sites ON DELETE CASCADE,
    CONSTRAINT repeated_schedules_region FOREIGN KEY (tenant_id, target_region_id) REFERENCES regions ON DELETE CASCADE,
    CONSTRAINT a_repeated_schedule_has_one_target
        CHECK (num_nonnulls(target_host_id, target_site_id, target_region_id) <= 1)
);
CREATE INDEX repeated_schedules_by_host ON repeated_schedules (tenant_id, target_host_id);
CREATE INDEX repeated_schedules_by_site ON repeated_schedules (tenant_id, target_site_id);
CREATE INDEX repeated_schedules_by_region ON repeated_schedules (tenant_id, target_region_id);

-- Where nothing new starts. The row goes with what it is about, in the same transaction.
CREATE TABLE pauses (
    tenant_id  uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    scope_kind text NOT NULL CHECK (scope_kind IN ('project', 'site', 'policy')),
    scope_id   integer NOT NULL,
    reason     text NOT NULL,
    made_by    text NOT NULL,
    since_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, scope_kind, scope_id),
    CONSTRAINT a_pause_of_the_project_has_no_id CHECK (scope_kind <> 'project' OR scope_id = 0)
);

-- The latest order of an instance.
CREATE TABLE update_orders (
    tenant_id   uuid NOT NULL,
    instance_id integer NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('now', 'cancel')),
    given_at    timestamptz NOT NULL,
    until_at    timestamptz NOT NULL,
    reason      text NOT NULL,
    made_by     text NOT NULL,
    PRIMARY KEY (tenant_id, instance_id),
    FOREIGN KEY (tenant_id, instance_id) REFERENCES instances ON DELETE CASCADE,
    CONSTRAINT an_order_ends_after_it_was_given CHECK (until_at >= given_at)
);

CREATE TABLE project_settings (
    tenant_id           uuid PRIMARY KEY REFERENCES projects ON DELETE CASCADE,
    -- For how many days runs are kept after their end; 0 is for ever, null is as the server has it.
    retention_days      integer CHECK (retention_days BETWEEN 0 AND 36500),
    any_schedule_status boolean NOT NULL
);
