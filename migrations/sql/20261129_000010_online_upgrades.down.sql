DROP FUNCTION protect_ids(boolean, bigint);
DROP FUNCTION is_given_host(bigint);
DROP FUNCTION current_database_identity();
DROP TABLE database_identity, migration_progress, schema_compatibility;
