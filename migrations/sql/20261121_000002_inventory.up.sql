CREATE TABLE hosts (
    tenant_id         uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id                integer NOT NULL,
    name              text NOT NULL,
    uuid              uuid,
    serial            text,
    hostname          text NOT NULL,
    desired_state     text NOT NULL CHECK (desired_state IN ('unspecified', 'registered', 'onboarded', 'untrusted', 'deleted')),
    current_state     text NOT NULL CHECK (current_state IN ('unspecified', 'registered', 'onboarded', 'untrusted', 'deleted')),
    note              text NOT NULL,
    public_key        bytea NOT NULL,
    status            text NOT NULL,
    status_indication text NOT NULL CHECK (status_indication IN ('unspecified', 'error', 'in_progress', 'idle')),
    status_at         timestamptz NOT NULL,
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
);
-- A machine is known once in a project: by its UUID, or by its serial number while it has no UUID.
CREATE UNIQUE INDEX hosts_uuid ON hosts (tenant_id, uuid);
CREATE UNIQUE INDEX hosts_serial ON hosts (tenant_id, serial) WHERE uuid IS NULL;
CREATE INDEX hosts_serial_any ON hosts (tenant_id, serial) WHERE serial IS NOT NULL;
CREATE INDEX hosts_name ON hosts (tenant_id, name);

CREATE TABLE os_profiles (
    tenant_id              uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id                     integer NOT NULL,
    name                   text NOT NULL,
    kind                   text NOT NULL CHECK (kind IN ('mutable', 'immutable')),
    provider               text NOT NULL CHECK (provider IN ('unspecified', 'infra', 'lenovo')),
    architecture           text NOT NULL,
    profile_name           text NOT NULL,
    image_id               text NOT NULL,
    image_url              text NOT NULL,
    sha256                 text NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    security_feature       text NOT NULL
        CHECK (security_feature IN ('unspecified', 'none', 'secure_boot_and_full_disk_encryption')),
    description            text NOT NULL,
    metadata               text NOT NULL,
    repo_url               text NOT NULL,
    tls_ca_cert            text NOT NULL,
    installed_packages_url text NOT NULL,
    existing_cves_url      text NOT NULL,
    fixed_cves_url         text NOT NULL,
    created_at             timestamptz NOT NULL,
    updated_at             timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
);
CREATE UNIQUE INDEX os_profiles_name ON os_profiles (tenant_id, name);
CREATE UNIQUE INDEX os_profiles_image ON os_profiles (tenant_id, profile_name, image_id);

CREATE TABLE instances (
    tenant_id        uuid NOT NULL,
    id               integer NOT NULL,
    host_id          integer NOT NULL,
    name             text NOT NULL,
    kind             text NOT NULL CHECK (kind IN ('unspecified', 'metal')),
    desired_state    text NOT NULL CHECK (desired_state IN ('unspecified', 'running', 'untrusted', 'deleted')),
    current_state    text NOT NULL CHECK (current_state IN ('unspecified', 'running', 'untrusted', 'deleted')),
    security_feature text NOT NULL
        CHECK (security_feature IN ('unspecified', 'none', 'secure_boot_and_full_disk_encryption')),
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, host_id) REFERENCES hosts ON DELETE RESTRICT
);
CREATE UNIQUE INDEX instances_host ON instances (tenant_id, host_id);

CREATE TABLE join_tokens (
    tenant_id        uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    id               integer NOT NULL,
    name             text NOT NULL,
    digest           bytea NOT NULL CHECK (length(digest) = 32),
    expires_at       timestamptz NOT NULL,
    one_time         boolean NOT NULL,
    may_create_hosts boolean NOT NULL,
    used             integer NOT NULL,
    last_used_at     timestamptz,
    revoked_at       timestamptz,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    CONSTRAINT one_time_is_used_once CHECK (NOT one_time OR used <= 1)
);
-- A machine shows the secret before anybody knows its project.
CREATE UNIQUE INDEX join_tokens_digest ON join_tokens (digest);
