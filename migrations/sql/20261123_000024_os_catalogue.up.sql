-- What registries have of operating systems, what each project takes of it, and which lines of images changed. A registry
-- is asked once for the fleet: what it has belongs to no project, and only who sees all projects sees it.
LOCK TABLE projects, os_profiles, contents IN SHARE ROW EXCLUSIVE MODE;

-- wanted counts the wishes for a cycle, done those that are met; claimed is the one that somebody is about to meet.
CREATE TABLE os_cycles (
    registry text PRIMARY KEY CHECK (char_length(registry) BETWEEN 1 AND 63),
    wanted bigint NOT NULL,
    done bigint NOT NULL DEFAULT 0,
    claimed bigint,
    holder uuid,
    lease_until timestamptz,
    not_before timestamptz,
    started_at timestamptz,
    ended_at timestamptz,
    good_at timestamptz,
    step text NOT NULL DEFAULT 'idle' CHECK (step IN ('idle', 'listing', 'fetching', 'sides', 'applying')),
    finished integer NOT NULL DEFAULT 0 CHECK (finished >= 0),
    total integer NOT NULL DEFAULT 0 CHECK (total >= 0),
    outcome text CHECK (outcome IN ('good', 'partly', 'failed')),
    message text NOT NULL DEFAULT '' CHECK (octet_length(message) <= 1000),
    CONSTRAINT a_claim_is_whole CHECK (num_nulls(claimed, holder, lease_until) IN (0, 3)),
    CONSTRAINT what_is_done_was_wanted CHECK (done <= wanted AND coalesce(claimed, done) BETWEEN done AND wanted)
);

-- What a tag led to when it was last looked at; seen is the cycle that found it there last.
CREATE TABLE os_artifacts (
    registry text NOT NULL REFERENCES os_cycles ON DELETE CASCADE,
    repository text NOT NULL CHECK (char_length(repository) BETWEEN 1 AND 255),
    tag text NOT NULL CHECK (char_length(tag) BETWEEN 1 AND 128),
    digest bytea NOT NULL CHECK (length(digest) = 32),
    moved_from bytea CHECK (length(moved_from) = 32),
    title text,
    manifest text COMPRESSION lz4,
    document text COMPRESSION lz4,
    findings jsonb NOT NULL CHECK (jsonb_typeof(findings) = 'array'),
    trust text NOT NULL CHECK (trust IN ('good', 'unsigned', 'bad', 'off')),
    signature jsonb CHECK (jsonb_typeof(signature) = 'object'),
    files jsonb NOT NULL CHECK (jsonb_typeof(files) = 'array'),
    seen bigint NOT NULL,
    gone_at timestamptz,
    PRIMARY KEY (registry, repository, tag)
);

-- The documents beside profiles, as they are shown. filtered_by is the digest of the list of packages that one was cut
-- down to; empty if to none. What was good last stays when a later one is not.
CREATE TABLE os_sides (
    registry text NOT NULL REFERENCES os_cycles ON DELETE CASCADE,
    place text NOT NULL CHECK (octet_length(place) BETWEEN 1 AND 1500),
    kind text NOT NULL CHECK (kind IN ('packages', 'cves')),
    filtered_by bytea NOT NULL CHECK (length(filtered_by) IN (0, 32)),
    digest bytea CHECK (length(digest) = 32),
    body text COMPRESSION lz4,
    etag text CHECK (octet_length(etag) <= 1024),
    findings jsonb NOT NULL CHECK (jsonb_typeof(findings) = 'array'),
    fetched_at timestamptz NOT NULL,
    PRIMARY KEY (registry, place, kind, filtered_by),
    CONSTRAINT a_body_has_a_digest CHECK (num_nulls(digest, body) IN (0, 2))
);

-- What a project wants of the catalogue; where it says nothing, as the server has it.
CREATE TABLE os_settings (
    tenant_id uuid PRIMARY KEY REFERENCES projects ON DELETE CASCADE,
    registry text CHECK (char_length(registry) BETWEEN 1 AND 63),
    revision text CHECK (octet_length(revision) BETWEEN 1 AND 128),
    enabled text[] CHECK (cardinality(enabled) <= 200),
    default_profile text CHECK (octet_length(default_profile) <= 128)
);

-- What is inside an operating system, and where it came from: beside os_profiles, which every poll reads.
CREATE TABLE os_inside (
    tenant_id uuid NOT NULL,
    os_id integer NOT NULL,
    registry text NOT NULL,
    repository text NOT NULL,
    revision text NOT NULL,
    artifact bytea NOT NULL CHECK (length(artifact) = 32),
    platform_bundle text NOT NULL CHECK (octet_length(platform_bundle) <= 10000),
    image_signatures text[] NOT NULL CHECK (cardinality(image_signatures) <= 8),
    signature jsonb CHECK (jsonb_typeof(signature) = 'object'),
    files jsonb NOT NULL CHECK (jsonb_typeof(files) = 'array'),
    packages_digest bytea,
    existing_cves_digest bytea,
    fixed_cves_digest bytea,
    refreshed_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, os_id),
    CONSTRAINT os_inside_os FOREIGN KEY (tenant_id, os_id) REFERENCES os_profiles ON DELETE CASCADE,
    CONSTRAINT os_inside_packages FOREIGN KEY (tenant_id, packages_digest) REFERENCES contents,
    CONSTRAINT os_inside_existing_cves FOREIGN KEY (tenant_id, existing_cves_digest) REFERENCES contents,
    CONSTRAINT os_inside_fixed_cves FOREIGN KEY (tenant_id, fixed_cves_digest) REFERENCES contents
);
CREATE INDEX os_inside_by_packages ON os_inside (tenant_id, packages_digest) WHERE packages_digest IS NOT NULL;
CREATE INDEX os_inside_by_existing_cves ON os_inside (tenant_id, existing_cves_digest)
    WHERE existing_cves_digest IS NOT NULL;
CREATE INDEX os_inside_by_fixed_cves ON os_inside (tenant_id, fixed_cves_digest) WHERE fixed_cves_digest IS NOT NULL;

-- How the last sync of a project went. One without has yet to be looked at.
CREATE TABLE os_sync_reports (
    tenant_id uuid PRIMARY KEY REFERENCES projects ON DELETE CASCADE,
    registry text NOT NULL,
    revision text NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('good', 'partly', 'failed')),
    message text NOT NULL CHECK (octet_length(message) <= 1000),
    cycle bigint NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    made integer NOT NULL,
    refreshed integer NOT NULL,
    same integer NOT NULL,
    refused integer NOT NULL
);

CREATE TABLE os_sync_findings (
    tenant_id uuid NOT NULL REFERENCES os_sync_reports ON DELETE CASCADE,
    number integer NOT NULL CHECK (number BETWEEN 1 AND 1000),
    repository text NOT NULL,
    tag text NOT NULL,
    kind text NOT NULL CHECK (char_length(kind) BETWEEN 1 AND 40),
    field text,
    message text NOT NULL CHECK (octet_length(message) <= 1000),
    os_id integer,
    since_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, number)
);

-- How often the images of a line changed, and up to where the nodes that run one of them were told.
CREATE TABLE image_lines (
    tenant_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    profile_name text NOT NULL,
    changed bigint NOT NULL,
    followed bigint NOT NULL,
    PRIMARY KEY (tenant_id, profile_name)
);
CREATE INDEX image_lines_behind ON image_lines (tenant_id, profile_name) WHERE changed > followed;

-- The same wall as around the first tables (step 6); what is the fleet's is seen with the scope '*' alone.
DO $$
DECLARE
    one text;
    fleet text := '(SELECT current_setting(''evenkeel.tenant'', true)) = ''*''';
    own text := 'tenant_id = (SELECT nullif(nullif(current_setting(''evenkeel.tenant'', true), ''''), ''*'')::uuid)';
BEGIN
    FOREACH one IN ARRAY ARRAY['os_cycles', 'os_artifacts', 'os_sides', 'os_settings', 'os_inside', 'os_sync_reports',
        'os_sync_findings', 'image_lines']
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', one);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', one);
        IF one IN ('os_cycles', 'os_artifacts', 'os_sides') THEN
            EXECUTE format('CREATE POLICY fleet ON %I USING (%s)', one, fleet);
        ELSE
            EXECUTE format('CREATE POLICY tenant ON %I USING (%s OR %s)', one, fleet, own);
        END IF;
    END LOOP;
END
$$;

-- Neither says what a node is to do: who remembers decisions passes them over.
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON os_settings
    FOR EACH ROW EXECUTE FUNCTION record_change('os_settings');
CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON os_inside
    FOR EACH ROW EXECUTE FUNCTION record_change('os_inside', 'os_id', 'signature');

-- When an image goes, only a line that is noted is counted: the project may be going.
CREATE FUNCTION note_image_line() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        UPDATE image_lines SET changed = changed + 1
        WHERE tenant_id = OLD.tenant_id AND profile_name = OLD.profile_name;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO image_lines AS line (tenant_id, profile_name, changed, followed)
        VALUES (NEW.tenant_id, NEW.profile_name, 1, 0)
        ON CONFLICT (tenant_id, profile_name) DO UPDATE SET changed = line.changed + 1;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER image_line_made AFTER INSERT ON os_profiles FOR EACH ROW
    WHEN (NEW.kind = 'immutable') EXECUTE FUNCTION note_image_line();
CREATE TRIGGER image_line_changed AFTER UPDATE OF name, kind, profile_name, image_id ON os_profiles FOR EACH ROW
    WHEN (OLD.kind = 'immutable' OR NEW.kind = 'immutable') EXECUTE FUNCTION note_image_line();
CREATE TRIGGER image_line_gone AFTER DELETE ON os_profiles FOR EACH ROW
    WHEN (OLD.kind = 'immutable') EXECUTE FUNCTION note_image_line();
