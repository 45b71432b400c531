-- EIM's clients compare the UUID of a host as text, so it is returned as it was given.
ALTER TABLE hosts
    -- Empty if it was given as `uuid` is rendered, in lower case.
    ADD COLUMN uuid_text text NOT NULL DEFAULT ''
        CONSTRAINT hosts_uuid_text_is_the_uuid CHECK (uuid_text = '' OR lower(uuid_text) = uuid::text);
