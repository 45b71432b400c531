-- Images on the wire: who vouches for one, how it may be fetched, which ran before and after a run, and which failed on
-- a node. All keep their defaults: a server of the last release may still write rows beside this one.

-- In the order in which most take them: the state of a node and its run, then what is wanted.
LOCK TABLE node_states, update_runs, update_policies, os_profiles, os_inside IN ACCESS EXCLUSIVE MODE;

-- Who vouches for an image stands where the image does, for polls tell it. What os_inside has of it is written by
-- servers of the last release alone, and read by nobody else any more; a later step removes it. It goes over without a
-- word in the change log: nobody remembers an answer yet that would be another one with it.
ALTER TABLE os_profiles
    ADD COLUMN image_signatures text[] NOT NULL DEFAULT '{}' CHECK (cardinality(image_signatures) <= 8);
ALTER TABLE os_inside ALTER COLUMN image_signatures SET DEFAULT '{}';
ALTER TABLE os_profiles DISABLE TRIGGER record_change;
UPDATE os_profiles p SET image_signatures = i.image_signatures FROM os_inside i
WHERE i.tenant_id = p.tenant_id AND i.os_id = p.id AND cardinality(i.image_signatures) > 0;
ALTER TABLE os_profiles ENABLE TRIGGER record_change;

-- What a server of the last release takes of a registry goes over as well. The same profile once more does not: a
-- person may have said something else since.
CREATE FUNCTION keep_image_signatures() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE os_profiles SET image_signatures = NEW.image_signatures
    WHERE tenant_id = NEW.tenant_id AND id = NEW.os_id AND image_signatures <> NEW.image_signatures;
    RETURN NULL;
END
$$;

CREATE TRIGGER image_signatures_made AFTER INSERT ON os_inside FOR EACH ROW
    WHEN (cardinality(NEW.image_signatures) > 0) EXECUTE FUNCTION keep_image_signatures();
CREATE TRIGGER image_signatures_changed AFTER UPDATE OF image_signatures ON os_inside FOR EACH ROW
    WHEN (OLD.artifact <> NEW.artifact) EXECUTE FUNCTION keep_image_signatures();

-- What is newest is newest for an architecture.
CREATE TRIGGER image_line_fits AFTER UPDATE OF architecture ON os_profiles FOR EACH ROW
    WHEN (NEW.kind = 'immutable' AND OLD.architecture <> NEW.architecture) EXECUTE FUNCTION note_image_line();

-- How images may be fetched; an empty object is the usual rules.
ALTER TABLE update_policies
    ADD COLUMN image_rules jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(image_rules) = 'object'),
    ADD CONSTRAINT packages_exclude_image_rules
        CHECK (mode = 'latest' OR target_os_id IS NOT NULL OR image_rules = '{}');

ALTER TABLE update_runs ADD COLUMN image jsonb CHECK (jsonb_typeof(image) = 'object');

-- Digests of files that failed, and since when that is known. What else is known of them is among the facts.
ALTER TABLE node_states
    ADD COLUMN bad_images jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(bad_images) = 'array');

-- Their agents may have said more than was understood: they are asked once more. No resource changes by that.
ALTER TABLE node_states DISABLE TRIGGER record_change;
UPDATE node_states SET facts_digest = '' WHERE 'image' = ANY (modules);
ALTER TABLE node_states ENABLE TRIGGER record_change;

-- So are those whose facts a server of the last release takes beside this one: what it kept is without the images that
-- failed.
CREATE FUNCTION forget_facts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.facts_digest := '';
    RETURN NEW;
END
$$;

CREATE TRIGGER forget_facts BEFORE UPDATE OF facts ON node_states FOR EACH ROW
    WHEN ('image' = ANY (NEW.modules) AND NEW.facts_digest <> '' AND NEW.facts -> 'badImages' IS NULL)
    EXECUTE FUNCTION forget_facts();
