ALTER TABLE hosts DROP COLUMN uuid_text;
