//! Errors of the store.

use evenkeel_domain::run::InvalidTransition;
use sea_orm::{DbErr, RuntimeErr};

use crate::check::IncompatibleDatabase;
use crate::shares::{ConnectionShare, ShareLimit};

/// Errors of the store.
///
/// The first group is for the caller to handle, the second for the operator.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The scope has no such row.
    #[error("{what} not found")]
    NotFound {
        /// The resource kind, in the singular.
        what: &'static str,
    },
    /// The change violates a rule of the data.
    #[error("{0}")]
    Conflict(Conflict),
    /// Another transaction changed it meanwhile.
    #[error("this {what} was changed by someone else meanwhile")]
    Stale {
        /// The resource kind, in the singular.
        what: &'static str,
    },
    /// The event does not fit the run.
    #[error(transparent)]
    Refused(#[from] InvalidTransition),

    /// A row that the program cannot have written.
    #[error("row {row} of {table} is corrupt: invalid {column}")]
    Corrupt {
        table: &'static str,
        row: i32,
        /// The invalid column.
        column: &'static str,
    },
    /// The database is reachable, but a lock was not free in time or a statement took too long.
    #[error("the database is busy: a lock or a statement timed out")]
    Busy(#[source] DbErr),
    /// Other requests use all connections that this one may use.
    #[error("no connection of the share {} came free in time", .share.name())]
    ShareInUse { share: ConnectionShare, limit: ShareLimit },
    /// The database is down or read-only, or no connection of the pool came free in time: the client
    /// cannot tell these apart.
    #[error("the database cannot be reached or written, or no connection to it came free in time")]
    Unreachable(#[source] DbErr),
    /// The program refuses to use the database.
    #[error(transparent)]
    Incompatible(#[from] IncompatibleDatabase),
    /// The database is reachable and answers with an error.
    #[error("the database answered with an error")]
    Database(#[source] DbErr),
}

/// A rule of the data that forbids a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// A unique value is already taken.
    #[error("{what} with this {field} exists already")]
    AlreadyExists {
        /// The resource kind, in the singular.
        what: &'static str,
        /// The unique field.
        field: &'static str,
    },
    /// It is still referred to, so it cannot be deleted.
    #[error("{what} is in use by {by}")]
    InUse {
        /// The resource kind, in the singular.
        what: &'static str,
        /// What refers to it.
        by: &'static str,
    },
    /// The project has no such resource to refer to.
    #[error("{field} refers to a {what} that does not exist")]
    MissingReference {
        /// The kind of the missing resource.
        what: &'static str,
        /// The referring field.
        field: &'static str,
    },
    /// It would contain itself.
    #[error("{what} cannot contain itself, directly or indirectly")]
    Cyclic {
        /// The resource kind, in the singular.
        what: &'static str,
    },
    /// It would be nested too deeply.
    #[error("{what} can be nested at most {limit} levels deep")]
    TooDeep {
        /// The resource kind, in the singular.
        what: &'static str,
        /// The greatest depth.
        limit: usize,
    },
    /// The state cannot be reached from the current state.
    #[error("{what} is {from} and cannot become {to}")]
    Transition {
        /// The resource kind, in the singular.
        what: &'static str,
        /// The current state.
        from: &'static str,
        /// The requested state.
        to: &'static str,
    },
    /// A constraint without a message of its own.
    #[error("a rule of the database forbids it: {rule}")]
    Rule {
        /// The name of the constraint.
        rule: String,
    },
}

impl StoreError {
    /// Whether a statement took too long, as opposed to a lock that was not free.
    #[must_use]
    pub fn is_statement_timeout(&self) -> bool {
        let Self::Busy(
            DbErr::Exec(RuntimeErr::SqlxError(cause)) | DbErr::Query(RuntimeErr::SqlxError(cause)),
        ) = self
        else {
            return false;
        };
        let answer = cause.as_database_error();
        answer.is_some_and(|answer| answer.code().as_deref() == Some(STATEMENT_CANCELLED))
    }
}

impl From<Conflict> for StoreError {
    fn from(conflict: Conflict) -> Self {
        Self::Conflict(conflict)
    }
}

impl From<DbErr> for StoreError {
    fn from(error: DbErr) -> Self {
        let (DbErr::Exec(RuntimeErr::SqlxError(cause))
        | DbErr::Query(RuntimeErr::SqlxError(cause))
        | DbErr::Conn(RuntimeErr::SqlxError(cause))) = &error
        else {
            return match error {
                DbErr::Conn(_) | DbErr::ConnectionAcquire(_) => Self::Unreachable(error),
                _ => Self::Database(error),
            };
        };
        // Whatever the database answers to a new connection, it cannot be used now.
        if matches!(error, DbErr::Conn(_)) || is_unreachable(cause) {
            return Self::Unreachable(error);
        }
        match cause.as_database_error() {
            Some(answer) if is_busy(answer.code().as_deref()) => Self::Busy(error),
            Some(answer) if is_constraint_violation(answer.code().as_deref()) => {
                let name = answer.constraint().unwrap_or("unnamed");
                Self::Conflict(conflict(name, answer.message()))
            }
            _ => Self::Database(error),
        }
    }
}

/// Whether the database is down, starting or stopping, or the pool has no free connection. The pool
/// waits the same time for a free connection as for a server that refuses connections.
fn is_unreachable(error: &sqlx::Error) -> bool {
    use sqlx::Error as E;
    match error {
        E::Io(_)
        | E::Tls(_)
        | E::PoolTimedOut
        | E::PoolClosed
        | E::WorkerCrashed
        | E::Protocol(_) => true,
        E::Database(answer) => answer.code().is_some_and(|code| {
            // Class 08 connection, 57 operator intervention, 53 resources, 25P03 idle in transaction,
            // 25006 read-only: a standby, or a primary that was demoted.
            let classes = ["08", "57", "53"];
            let is_one = classes.iter().any(|class| code.starts_with(class))
                || matches!(&*code, "25P03" | READ_ONLY_TRANSACTION);
            is_one && !is_busy(Some(&code))
        }),
        _ => false,
    }
}

/// The code of a write in a transaction that only reads.
const READ_ONLY_TRANSACTION: &str = "25006";

/// The error of a transaction in a database that cannot be written.
pub(crate) fn read_only_error() -> StoreError {
    let text = "the database is read-only: it is a standby, or default_transaction_read_only is on";
    StoreError::Unreachable(DbErr::Custom(text.to_owned()))
}

/// The code of a statement that was ended by `statement_timeout`.
const STATEMENT_CANCELLED: &str = "57014";

/// 55P03 `lock_timeout`, 57014 `statement_timeout`, class 40 rollback: deadlock and serialization.
fn is_busy(code: Option<&str>) -> bool {
    code.is_some_and(|code| matches!(code, "55P03" | STATEMENT_CANCELLED) || code.starts_with("40"))
}

/// Class 23: an integrity constraint.
fn is_constraint_violation(code: Option<&str>) -> bool {
    code.is_some_and(|code| code.starts_with("23"))
}

/// The conflict for a constraint of the schema. `message` tells a missing target from one that is
/// still in use.
fn conflict(name: &str, message: &str) -> Conflict {
    if let Some((_, what, field)) = UNIQUE.iter().find(|(rule, ..)| *rule == name) {
        return Conflict::AlreadyExists { what, field };
    }
    let matching = REFERENCES.iter().find(|reference| reference.rule == name);
    let to_project = || name.ends_with(PROJECT_REFERENCE.rule).then_some(PROJECT_REFERENCE);
    let Some(reference) = matching.or_else(to_project) else {
        let rule = name.to_owned();
        return Conflict::Rule { rule };
    };
    let what = reference.what;
    if message.contains("update or delete") {
        let by = reference.by;
        Conflict::InUse { what, by }
    } else {
        let field = reference.field;
        Conflict::MissingReference { what, field }
    }
}

/// Unique constraints: constraint, resource kind, field.
const UNIQUE: &[(&str, &str, &str)] = &[
    ("projects_name_key", "project", "name"),
    ("hosts_uuid", "host_resource", "uuid"),
    ("hosts_serial", "host_resource", "serialNumber"),
    ("os_profiles_name", OS, "name"),
    ("os_profiles_image", OS, "profileName and imageId"),
    ("instances_host", "instance_resource", "hostID"),
    ("providers_name", PROVIDER, "name"),
    ("custom_configs_name", CUSTOM_CONFIG, "name"),
    ("local_accounts_username", LOCAL_ACCOUNT, "username"),
];

/// A foreign key.
struct Reference {
    rule: &'static str,
    /// The kind that is referred to.
    what: &'static str,
    /// The kind that refers to it.
    by: &'static str,
    /// The referring field.
    field: &'static str,
}

const fn reference(
    rule: &'static str,
    what: &'static str,
    by: &'static str,
    field: &'static str,
) -> Reference {
    Reference { rule, what, by, field }
}

/// The reference of each project table to its project, which may have been deleted meanwhile. The
/// constraint names have different prefixes.
const PROJECT_REFERENCE: &Reference =
    &reference("_tenant_id_fkey", "project", "resources in it", "projectName");

const HOST: &str = "host_resource";
const OS: &str = "operating_system_resource";
const REGION: &str = "region_resource";
const SITE: &str = "site_resource";
const PROVIDER: &str = "provider_resource";
const CUSTOM_CONFIG: &str = "custom_config_resource";
const LOCAL_ACCOUNT: &str = "local_account_resource";
const CONTENT: &str = "content";
const INSTANCE: &str = "an instance";
const SCHEDULE: &str = "a schedule";

const REFERENCES: &[Reference] = &[
    reference("instances_tenant_id_host_id_fkey", HOST, INSTANCE, "hostID"),
    reference("node_states_tenant_id_os_id_fkey", OS, INSTANCE, "osID"),
    reference("update_policies_tenant_id_target_os_id_fkey", OS, "an update policy", "targetOsId"),
    reference(
        "assignments_tenant_id_policy_id_fkey",
        "os_update_policy_resource",
        "an instance or assignment",
        "osUpdatePolicyID",
    ),
    reference("regions_parent", REGION, "a region that lies in it", "parentId"),
    reference("sites_region", REGION, "a site", "regionId"),
    reference("hosts_site", SITE, "a host", "siteId"),
    reference("hosts_provider", PROVIDER, "a host", "provider"),
    reference("host_hardware_host", HOST, "its hardware", "host"),
    reference("node_tokens_host", HOST, "a token of its node", "host"),
    reference("node_subjects_host", HOST, "a subject of its node", "host"),
    reference("instances_local_account", LOCAL_ACCOUNT, INSTANCE, "localAccountID"),
    reference("instance_custom_configs_config", CUSTOM_CONFIG, INSTANCE, "customConfigID"),
    reference("single_schedules_tenant_id_target_host_id_fkey", HOST, SCHEDULE, "targetHostId"),
    reference("single_schedules_site", SITE, SCHEDULE, "targetSiteId"),
    reference("single_schedules_region", REGION, SCHEDULE, "targetRegionId"),
    reference("repeated_schedules_host", HOST, SCHEDULE, "targetHostId"),
    reference("repeated_schedules_site", SITE, SCHEDULE, "targetSiteId"),
    reference("repeated_schedules_region", REGION, SCHEDULE, "targetRegionId"),
    reference("os_details_os", OS, "its packages and CVEs", "osID"),
    reference("os_details_packages", CONTENT, OS, "packages"),
    reference("os_details_existing_cves", CONTENT, OS, "existingCves"),
    reference("os_details_fixed_cves", CONTENT, OS, "fixedCves"),
    reference("node_states_packages", CONTENT, INSTANCE, "packages"),
    reference("update_runs_packages", CONTENT, "a run", "packages"),
];
