-- Which versions of packages the nodes of a project told of, and when the server first heard of each: a policy may ask
-- for what has been seen for some days. The first time never changes; the last one is written once a day at most.
CREATE TABLE package_versions (
    tenant_id    uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    name         text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 128),
    architecture text NOT NULL CHECK (octet_length(architecture) BETWEEN 1 AND 32),
    version      text NOT NULL CHECK (octet_length(version) BETWEEN 1 AND 256),
    first_seen   timestamptz NOT NULL,
    last_seen    timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, name, architecture, version),
    CONSTRAINT the_first_time_comes_first CHECK (first_seen <= last_seen)
);
CREATE INDEX package_versions_last_seen ON package_versions (tenant_id, last_seen);

-- The same wall as around the first tables (step 6).
ALTER TABLE package_versions ENABLE ROW LEVEL SECURITY;
ALTER TABLE package_versions FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON package_versions USING (
    (SELECT current_setting('evenkeel.tenant', true)) = '*'
    OR tenant_id = (SELECT nullif(nullif(current_setting('evenkeel.tenant', true), ''), '*')::uuid)
);
