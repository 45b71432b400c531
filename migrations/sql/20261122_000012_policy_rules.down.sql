ALTER TABLE update_policies
    DROP CONSTRAINT image_excludes_rules,
    DROP COLUMN rules;
