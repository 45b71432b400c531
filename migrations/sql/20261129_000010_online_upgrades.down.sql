DROP FUNCTION protect_ids(boolean);
DROP FUNCTION current_database_identity();
DROP TABLE database_identity, migration_progress, schema_compatibility;
