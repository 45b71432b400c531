CREATE SEQUENCE region_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE site_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE repeated_schedule_numbers AS bigint MAXVALUE 4294967295;

-- A region lies in at most one other. How deep they may lie, and that none lies in itself, is checked under the
-- project's lock.
CREATE TABLE regions (
    tenant_id  uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id         integer NOT NULL,
    name       text NOT NULL,
    parent_id  integer,
    metadata   jsonb NOT NULL CHECK (jsonb_typeof(metadata) = 'array'),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    CONSTRAINT regions_parent FOREIGN KEY (tenant_id, parent_id) REFERENCES regions ON DELETE RESTRICT,
    CONSTRAINT a_region_is_not_its_own_parent CHECK (parent_id <> id)
);
CREATE INDEX regions_by_parent ON regions (tenant_id, parent_id);
CREATE INDEX regions_name ON regions (tenant_id, name);

-- Latitude and longitude are degrees times 10,000,000.
CREATE TABLE sites (
    tenant_id  uuid NOT NULL REFERENCES projects ON DELETE RESTRICT,
    id         integer NOT NULL,
    name       text NOT NULL,
    region_id  integer,
    latitude   integer NOT NULL CHECK (latitude BETWEEN -900000000 AND 900000000),
    longitude  integer NOT NULL CHECK (longitude BETWEEN -1800000000 AND 1800000000),
    metadata   jsonb NOT NULL CHECK (jsonb_typeof(metadata) = 'array'),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    CONSTRAINT sites_region FOREIGN KEY (tenant_id, region_id) REFERENCES regions ON DELETE RESTRICT
);
CREATE INDEX sites_by_region ON sites (tenant_id, region_id);
CREATE INDEX sites_name ON sites (tenant_id, name);

ALTER TABLE hosts
    ADD COLUMN site_id integer,
    ADD CONSTRAINT hosts_site FOREIGN KEY (tenant_id, site_id) REFERENCES sites ON DELETE RESTRICT;
CREATE INDEX hosts_by_site ON hosts (tenant_id, site_id);
