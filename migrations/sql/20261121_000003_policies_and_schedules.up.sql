CREATE TABLE update_policies (
    tenant_id      uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id             integer NOT NULL,
    name           text NOT NULL CHECK (name <> ''),
    description    text NOT NULL,
    mode           text NOT NULL CHECK (mode IN ('latest', 'target')),
    target_os_id   integer,
    packages       text NOT NULL,
    sources        text[] NOT NULL,
    kernel_command text NOT NULL,
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, target_os_id) REFERENCES os_profiles ON DELETE RESTRICT,
    CONSTRAINT latest_names_nothing CHECK (mode = 'target'
        OR (target_os_id IS NULL AND packages = '' AND cardinality(sources) = 0 AND kernel_command = '')),
    CONSTRAINT target_names_something CHECK (mode = 'latest'
        OR target_os_id IS NOT NULL OR packages <> '' OR cardinality(sources) > 0 OR kernel_command <> ''),
    CONSTRAINT image_excludes_packages CHECK (target_os_id IS NULL OR (packages = '' AND cardinality(sources) = 0))
);
CREATE INDEX update_policies_name ON update_policies (tenant_id, name);
CREATE INDEX update_policies_target_os ON update_policies (tenant_id, target_os_id);

-- What people assigned to what. The target is an instance, a host or the whole project (target_id 0); the row goes with
-- its target, in the same transaction.
CREATE TABLE assignments (
    tenant_id   uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    target_kind text NOT NULL CHECK (target_kind IN ('instance', 'host', 'project')),
    target_id   integer NOT NULL,
    policy_id   integer NOT NULL,
    PRIMARY KEY (tenant_id, target_kind, target_id),
    FOREIGN KEY (tenant_id, policy_id) REFERENCES update_policies ON DELETE RESTRICT,
    CONSTRAINT project_has_no_id CHECK (target_kind <> 'project' OR target_id = 0)
);
CREATE INDEX assignments_policy ON assignments (tenant_id, policy_id);

CREATE TABLE single_schedules (
    tenant_id      uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id             integer NOT NULL,
    name           text NOT NULL,
    status         text NOT NULL CHECK (status IN ('unspecified', 'maintenance', 'os_update')),
    start_at       timestamptz NOT NULL,
    end_at         timestamptz CHECK (end_at > start_at),
    target_host_id integer,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, target_host_id) REFERENCES hosts ON DELETE CASCADE
);
CREATE INDEX single_schedules_host ON single_schedules (tenant_id, target_host_id, start_at);
