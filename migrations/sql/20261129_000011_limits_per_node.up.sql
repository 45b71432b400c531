-- How far nodes and projects have used up their daily limits (docs/adr/0034). A limit is a bucket that fills up within a day; a row
-- says when the bucket is full again, so a row in the past is the same as no row.

-- Written together with what is counted, by the transaction that has locked the node.
CREATE TABLE node_daily_usage (
    tenant_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    host_id   integer NOT NULL,
    amount    text NOT NULL CHECK (amount IN ('bytes', 'package_lists', 'versions', 'runs')),
    full_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, host_id, amount)
);
CREATE INDEX node_daily_usage_full ON node_daily_usage (tenant_id, full_at);

-- Written by each process every few seconds, for what its nodes have stored meanwhile.
CREATE TABLE project_daily_usage (
    tenant_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    amount    text NOT NULL CHECK (amount IN ('bytes', 'package_lists', 'versions', 'runs')),
    full_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, amount)
);

DO $$
DECLARE
    name  text;
    fleet text := '(SELECT current_setting(''evenkeel.tenant'', true)) = ''*''';
    own   text := 'tenant_id = (SELECT nullif(nullif(current_setting(''evenkeel.tenant'', true), ''''), ''*'')::uuid)';
BEGIN
    FOREACH name IN ARRAY ARRAY['node_daily_usage', 'project_daily_usage']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY tenant ON %I USING (%s OR %s)', name, fleet, own);
    END LOOP;
END
$$;

-- A version of a package counts as known for other nodes since a second node reported it. Otherwise one node could name versions
-- before they exist, or name so many that others find no real ones. Both columns are null for versions of before this step.
ALTER TABLE package_versions
    -- The instance that reported the version first.
    ADD COLUMN reported_by  integer,
    -- When another instance reported it first.
    ADD COLUMN confirmed_at timestamptz;
