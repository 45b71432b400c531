-- Who is being changed under which assignment. A slot is taken in the transaction that gives leave, after the row of the
-- assignment was locked. It is let go when the instance's run ends; one with until_at also when that is over, unless a
-- run was opened before. A slot outlives its assignment: the node is being changed all the same.
CREATE TABLE brake_slots (
    tenant_id   uuid NOT NULL,
    target_kind text NOT NULL CHECK (target_kind IN ('instance', 'host', 'site', 'region', 'project')),
    target_id   integer NOT NULL,
    instance_id integer NOT NULL,
    since_at    timestamptz NOT NULL,
    until_at    timestamptz,
    PRIMARY KEY (tenant_id, target_kind, target_id, instance_id),
    FOREIGN KEY (tenant_id, instance_id) REFERENCES instances ON DELETE CASCADE
);
CREATE INDEX brake_slots_instance ON brake_slots (tenant_id, instance_id);
CREATE INDEX brake_slots_until ON brake_slots (tenant_id, until_at) WHERE until_at IS NOT NULL;

-- Texts that many nodes share, such as lists of installed packages: one row for each distinct content of a project.
CREATE TABLE contents (
    tenant_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    digest    bytea NOT NULL CHECK (length(digest) = 32),
    body      text COMPRESSION lz4 NOT NULL,
    -- When somebody last offered it: what is new may not be referred to yet.
    used_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, digest)
);
CREATE INDEX contents_used ON contents (tenant_id, used_at);

ALTER TABLE node_states
    ADD COLUMN conditions jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(conditions) = 'array'),
    ADD COLUMN previous_boot_id text NOT NULL DEFAULT '',
    ADD COLUMN packages_digest bytea,
    -- The image that the node says it has booted.
    ADD COLUMN booted_profile text,
    ADD COLUMN booted_image text,
    ADD CONSTRAINT a_booted_image_is_whole CHECK (num_nulls(booted_profile, booted_image) IN (0, 2)),
    ADD CONSTRAINT node_states_packages FOREIGN KEY (tenant_id, packages_digest) REFERENCES contents;
ALTER TABLE node_states
    ALTER COLUMN conditions DROP DEFAULT,
    ALTER COLUMN previous_boot_id DROP DEFAULT;

-- What is remembered for one of the ancestor's agents is read and written as a whole: its last sample, and what was
-- delivered to it.
ALTER TABLE node_states
    ADD COLUMN sample jsonb CHECK (jsonb_typeof(sample) = 'object'),
    ADD COLUMN delivered jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(delivered) = 'object');
UPDATE node_states SET
    sample = CASE WHEN sample_kind IS NOT NULL
        THEN jsonb_build_object('kind', sample_kind, 'detail_digest', sample_detail_digest) END,
    delivered = jsonb_build_object(
        'single', CASE WHEN delivered_start_at IS NOT NULL
            THEN jsonb_build_array(delivered_start_at, delivered_end_at) END,
        'policy', 'osupdatepolicy-' || lpad(to_hex(delivered_policy_id), 8, '0'),
        'cleared_at', delivery_cleared_at);
ALTER TABLE node_states
    DROP COLUMN sample_kind,
    DROP COLUMN sample_detail_digest,
    DROP COLUMN delivered_start_at,
    DROP COLUMN delivered_end_at,
    DROP COLUMN delivered_policy_id,
    DROP COLUMN delivery_cleared_at,
    ALTER COLUMN delivered DROP DEFAULT;
CREATE INDEX node_states_by_packages ON node_states (tenant_id, packages_digest) WHERE packages_digest IS NOT NULL;

ALTER TABLE update_runs
    -- The assignment that it was given leave under.
    ADD COLUMN granted_kind text CHECK (granted_kind IN ('instance', 'host', 'site', 'region', 'project')),
    ADD COLUMN granted_id integer,
    -- What was installed when it was opened.
    ADD COLUMN packages_digest bytea,
    ADD CONSTRAINT leave_is_whole CHECK (num_nulls(granted_kind, granted_id) IN (0, 2)),
    ADD CONSTRAINT update_runs_packages FOREIGN KEY (tenant_id, packages_digest) REFERENCES contents;
CREATE INDEX update_runs_by_packages ON update_runs (tenant_id, packages_digest) WHERE packages_digest IS NOT NULL;
CREATE INDEX update_runs_ended ON update_runs (tenant_id, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX update_runs_failures ON update_runs (tenant_id, granted_kind, granted_id, ended_at)
    WHERE granted_kind IS NOT NULL AND state IN ('failed', 'reverted', 'abandoned');
