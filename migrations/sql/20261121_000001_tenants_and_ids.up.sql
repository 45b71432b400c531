-- A project is a tenant. Its id leads every other key and index, so that the schema can be sharded by it.
CREATE TABLE projects (
    tenant_id   uuid PRIMARY KEY,
    name        text NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    description text NOT NULL,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

-- Numbers that the program turns into ids by a bijection of 32 bits. One of a kind in the whole fleet.
CREATE SEQUENCE host_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE instance_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE os_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE policy_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE run_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE single_schedule_numbers AS bigint MAXVALUE 4294967295;
CREATE SEQUENCE join_token_numbers AS bigint MAXVALUE 4294967295;
