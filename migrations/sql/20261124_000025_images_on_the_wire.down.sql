-- As upward.
LOCK TABLE node_states, update_runs, update_policies, os_profiles, os_inside IN ACCESS EXCLUSIVE MODE;

-- A server of the release before reads no row with a word that it does not know.
UPDATE node_states SET conditions = (
    SELECT coalesce(jsonb_agg(one ORDER BY place), '[]')
    FROM jsonb_array_elements(conditions) WITH ORDINALITY AS held (one, place)
    WHERE one ->> 'kind' <> 'quarantined'
) WHERE conditions @> '[{"kind": "quarantined"}]';

DROP TRIGGER image_line_fits ON os_profiles;
DROP TRIGGER forget_facts ON node_states;
DROP FUNCTION forget_facts();
ALTER TABLE node_states DROP COLUMN bad_images;
ALTER TABLE update_runs DROP COLUMN image;
ALTER TABLE update_policies DROP CONSTRAINT packages_exclude_image_rules, DROP COLUMN image_rules;

-- Who vouches for an image is looked up in os_inside again. What a person said of one that came from no registry goes.
DROP TRIGGER image_signatures_changed ON os_inside;
DROP TRIGGER image_signatures_made ON os_inside;
DROP FUNCTION keep_image_signatures();
ALTER TABLE os_inside DISABLE TRIGGER record_change;
UPDATE os_inside i SET image_signatures = p.image_signatures FROM os_profiles p
WHERE p.tenant_id = i.tenant_id AND p.id = i.os_id AND p.image_signatures <> i.image_signatures;
ALTER TABLE os_inside ENABLE TRIGGER record_change;
ALTER TABLE os_inside ALTER COLUMN image_signatures DROP DEFAULT;
ALTER TABLE os_profiles DROP COLUMN image_signatures;
