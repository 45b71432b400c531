//! Privileges of a service whose role does not own the tables: it can only add rows to the change log.

use std::time::Duration;

use sea_orm::ConnectionTrait;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::pool::Store;
use crate::session::await_answers;

/// The advisory lock of the session that grants privileges, because Postgres refuses concurrent changes of them.
const GRANT_LOCK: i64 = 7033;

/// Before a step: a table that a step creates has its privileges at once, because triggers of older servers may write it.
const DEFAULT_PRIVILEGES: &str = "
    EXECUTE format('ALTER DEFAULT PRIVILEGES IN SCHEMA %I GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO %I',
        current_schema(), service);
    EXECUTE format('ALTER DEFAULT PRIVILEGES IN SCHEMA %I GRANT USAGE, SELECT, UPDATE ON SEQUENCES TO %I',
        current_schema(), service);
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), service);";

/// After the last step. Rows of the log and of seals are only added. The numbers of changes cannot be set back. Old changes
/// and seals are removed by functions that run with the privileges of the owner, in its own schema. Only the service may call
/// them: by default each role may, such as one that only reads.
const PRIVILEGES: &str = "
    FOR relation IN SELECT oid::regclass AS name, relkind FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'S')
        AND pg_has_role(current_user, relowner, 'USAGE')
    LOOP
        IF relation.relkind = 'r' THEN
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I', relation.name, service);
        ELSE
            EXECUTE format('GRANT USAGE, SELECT, UPDATE ON SEQUENCE %s TO %I', relation.name, service);
        END IF;
    END LOOP;
    EXECUTE format('REVOKE UPDATE, DELETE, TRUNCATE ON change_log, change_seals FROM %I', service);
    EXECUTE format('REVOKE USAGE, UPDATE ON SEQUENCE change_log_seq_seq FROM %I', service);
    EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON change_seal_state, seaql_migrations, migration_progress, schema_compatibility FROM %I', service);
    EXECUTE format('GRANT UPDATE (sealed_to) ON change_seal_state TO %I', service);
    EXECUTE format('ALTER FUNCTION remove_sealed_changes(boolean, timestamptz, bigint) SECURITY DEFINER '
        'SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION remove_old_seals(timestamptz, bigint) SECURITY DEFINER '
        'SET search_path = %I, pg_temp', current_schema());
    REVOKE EXECUTE ON FUNCTION remove_sealed_changes(boolean, timestamptz, bigint), remove_old_seals(timestamptz, bigint) FROM PUBLIC;
    EXECUTE format('GRANT EXECUTE ON FUNCTION remove_sealed_changes(boolean, timestamptz, bigint), '
        'remove_old_seals(timestamptz, bigint) TO %I', service);";

/// The role that acts as the owner of the tables may not be the role of the service, or one that it is a member of.
const CHECK_OWNER: &str = "
    IF pg_has_role(service, current_user, 'MEMBER') THEN
        RAISE 'the role % of the service is the role % of the migration, or a member of it', service, current_user
            USING HINT = 'Let database.url and database.migration_url name two roles that are not members of each other.';
    END IF;
    SELECT pg_get_userbyid(relowner) INTO owner FROM pg_class
    WHERE oid = to_regclass('change_log') AND NOT pg_has_role(current_user, relowner, 'USAGE');
    IF owner IS NOT NULL THEN
        RAISE 'the tables belong to the role %, not to the role % of the migration', owner, current_user
            USING HINT = format('Let a superuser run in this database: REASSIGN OWNED BY %I TO %I', owner, current_user);
    END IF;";

impl Store {
    /// Migrates the schema as [`Store::migrate_within`] does, with the role that owns the tables, and grants the role of the
    /// services what they need: of the change log and its seals, only to read and to add rows.
    ///
    /// # Errors
    /// As those of [`Store::migrate_within`]; or the role of the services acts as the owner, or another role owns the tables.
    pub async fn migrate_for_service(
        &self,
        service_role: &str,
        limit: Duration,
    ) -> Result<(), StoreError> {
        self.grant(service_role, &[CHECK_OWNER, DEFAULT_PRIVILEGES]).await?;
        self.migrate_within(limit).await?;
        self.grant(service_role, &[CHECK_OWNER, PRIVILEGES]).await
    }

    /// Runs statements of a `DO` block that know the role as `service`, in one transaction.
    async fn grant(&self, service_role: &str, statements: &[&str]) -> Result<(), StoreError> {
        let service = service_role.replace('\'', "''");
        let sql = format!(
            "DO $grants$ DECLARE service text := '{service}'; owner text; relation record; BEGIN \
             PERFORM pg_advisory_xact_lock({GRANT_LOCK}); {} END $grants$",
            statements.concat()
        );
        let granting = self.db().execute_unprepared(&sql);
        let deadline = Instant::now() + self.answer_timeout;
        let granted = await_answers(deadline, "grant the privileges of the service", granting);
        granted.await.map(drop)
    }
}
