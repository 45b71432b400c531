-- How packages may be brought to what a policy wishes for; an empty object is the usual rules. The default stays: a server
-- of the release before knows no rules and may still make policies.
ALTER TABLE update_policies
    ADD COLUMN rules jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(rules) = 'object'),
    ADD CONSTRAINT image_excludes_rules CHECK (target_os_id IS NULL OR rules = '{}');
