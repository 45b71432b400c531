-- What a node last said, one row an instance. Written by the maintenance manager only.
CREATE TABLE node_states (
    tenant_id                uuid NOT NULL,
    instance_id              integer NOT NULL,
    os_id                    integer NOT NULL,
    provisioned              boolean NOT NULL,
    protocol                 text NOT NULL CHECK (protocol IN ('unknown', 'eim', 'own')),
    modules                  text[] NOT NULL,
    agent_version            text NOT NULL,
    boot_id                  text NOT NULL,
    facts_digest             bytea NOT NULL,
    facts                    jsonb NOT NULL,
    status                   text NOT NULL,
    status_indication        text NOT NULL CHECK (status_indication IN ('unspecified', 'error', 'in_progress', 'idle')),
    status_at                timestamptz NOT NULL,
    update_status            text NOT NULL,
    update_status_indication text NOT NULL
        CHECK (update_status_indication IN ('unspecified', 'error', 'in_progress', 'idle')),
    update_status_at         timestamptz NOT NULL,
    os_update_available      text COMPRESSION lz4 NOT NULL,
    -- How its last attempt ended.
    last_end_run_id          integer,
    last_end_target          text,
    last_end_at              timestamptz,
    last_end_verdict         text CHECK (last_end_verdict IN ('good', 'bad', 'open')),
    -- The last sample and the last delivery of one of the ancestor's agents.
    sample_kind              text,
    sample_detail_digest     text,
    delivered_start_at       timestamptz,
    delivered_end_at         timestamptz,
    delivered_policy_id      integer,
    delivery_cleared_at      timestamptz,
    PRIMARY KEY (tenant_id, instance_id),
    FOREIGN KEY (tenant_id, instance_id) REFERENCES instances ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, os_id) REFERENCES os_profiles ON DELETE RESTRICT,
    CONSTRAINT last_end_is_whole CHECK (num_nulls(last_end_run_id, last_end_at, last_end_verdict) IN (0, 3)),
    CONSTRAINT sample_is_whole CHECK (num_nulls(sample_kind, sample_detail_digest) IN (0, 2)),
    CONSTRAINT delivery_is_whole CHECK (num_nulls(delivered_start_at, delivered_end_at) IN (0, 2))
);
CREATE INDEX node_states_os ON node_states (tenant_id, os_id);

-- When a node was last heard. Narrow and unindexed but for its key, so that it is updated in place.
CREATE TABLE last_contacts (
    tenant_id   uuid NOT NULL,
    instance_id integer NOT NULL,
    heard_at    timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, instance_id),
    FOREIGN KEY (tenant_id, instance_id) REFERENCES instances ON DELETE CASCADE
) WITH (fillfactor = 70);

-- What happened. A run is moved by one function of the store only.
CREATE TABLE update_runs (
    tenant_id     uuid NOT NULL,
    id            integer NOT NULL,
    instance_id   integer NOT NULL,
    name          text NOT NULL,
    description   text NOT NULL,
    attempt       uuid,
    -- Names the policy also when it is gone: a run keeps a frozen copy of it in its origin, so history loses nothing.
    policy_id     integer,
    origin        jsonb NOT NULL,
    target_digest text,
    state         text NOT NULL CHECK (state IN ('downloading', 'staged', 'applying', 'rebooting', 'verifying',
        'reverting', 'succeeded', 'failed', 'reverted', 'cancelled', 'abandoned')),
    state_since   timestamptz NOT NULL,
    changed       boolean,
    cause         text,
    failure_kind  text,
    failure       text,
    packages      jsonb NOT NULL,
    log           text COMPRESSION lz4 NOT NULL,
    sequence      integer NOT NULL CHECK (sequence >= 0),
    generation    bigint NOT NULL CHECK (generation > 0),
    granted_at    timestamptz,
    started_at    timestamptz NOT NULL,
    ended_at      timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, instance_id) REFERENCES instances ON DELETE CASCADE,
    CONSTRAINT success_says_whether_it_changed CHECK ((state = 'succeeded') = (changed IS NOT NULL)),
    CONSTRAINT giving_up_has_a_cause CHECK ((state IN ('cancelled', 'abandoned')) = (cause IS NOT NULL)),
    CONSTRAINT failure_has_a_reason CHECK ((state IN ('failed', 'reverted')) = (failure_kind IS NOT NULL)
        AND (failure_kind IS NULL) = (failure IS NULL)),
    CONSTRAINT an_end_has_a_time CHECK ((ended_at IS NULL) = (state IN ('downloading', 'staged', 'applying', 'rebooting',
        'verifying', 'reverting')))
);
-- An instance does one thing at a time; the database holds us to it.
CREATE UNIQUE INDEX one_open_run_per_instance ON update_runs (tenant_id, instance_id) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX update_runs_attempt ON update_runs (tenant_id, instance_id, attempt) WHERE attempt IS NOT NULL;
CREATE INDEX update_runs_instance ON update_runs (tenant_id, instance_id, started_at DESC);
CREATE INDEX update_runs_policy ON update_runs (tenant_id, policy_id);
CREATE INDEX update_runs_open ON update_runs (tenant_id, state_since) WHERE ended_at IS NULL;

CREATE TABLE run_events (
    tenant_id uuid NOT NULL,
    run_id    integer NOT NULL,
    position  integer NOT NULL CHECK (position > 0),
    event     text NOT NULL,
    state     text NOT NULL,
    sequence  integer,
    boot_id   text NOT NULL,
    node_time timestamptz,
    at        timestamptz NOT NULL,
    detail    text COMPRESSION lz4 NOT NULL,
    PRIMARY KEY (tenant_id, run_id, position),
    FOREIGN KEY (tenant_id, run_id) REFERENCES update_runs ON DELETE CASCADE
);
-- An event that the agent numbered is stored once.
CREATE UNIQUE INDEX run_events_sequence ON run_events (tenant_id, run_id, sequence) WHERE sequence IS NOT NULL;
