//! What can go wrong between a service and the database.

use evenkeel_domain::run::Refused;
use sea_orm::{DbErr, RuntimeErr};

/// What can go wrong between a service and the database.
///
/// The first group is for the caller to understand, the second for the operator.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such row in the scope.
    #[error("{what} not found")]
    NotFound {
        /// The table, in the singular.
        what: &'static str,
    },
    /// A rule of the data forbids it.
    #[error("{0}")]
    Conflict(Conflict),
    /// Somebody else changed it meanwhile.
    #[error("this {what} was changed by someone else meanwhile")]
    Stale {
        /// The table, in the singular.
        what: &'static str,
    },
    /// The event does not fit the run.
    #[error(transparent)]
    Refused(#[from] Refused),

    /// A row that the program cannot have written.
    #[error("row {row} of {table} makes no sense: {column}")]
    Corrupt {
        /// Which table.
        table: &'static str,
        /// The row's id.
        row: i32,
        /// What makes no sense.
        column: &'static str,
    },
    /// The database is away.
    #[error("the database cannot be reached")]
    Unreachable(#[source] DbErr),
    /// The database is there and answers with an error.
    #[error("the database answered with an error")]
    Database(#[source] DbErr),
}

/// A rule of the data that forbids a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Something of this kind is there already.
    #[error("{what} with this {field} exists already")]
    Taken {
        /// The table, in the singular.
        what: &'static str,
        /// What must be unique.
        field: &'static str,
    },
    /// It is referred to, so it cannot go.
    #[error("{what} is in use by {by}")]
    InUse {
        /// The table, in the singular.
        what: &'static str,
        /// What refers to it.
        by: &'static str,
    },
    /// What is referred to does not exist in this project.
    #[error("there is no {what} that {field} could mean")]
    Dangling {
        /// The table that was referred to.
        what: &'static str,
        /// What refers to it.
        field: &'static str,
    },
    /// A rule that has no words of its own.
    #[error("a rule of the database forbids it: {rule}")]
    Rule {
        /// The name of the constraint.
        rule: String,
    },
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
        if is_away(cause) {
            return Self::Unreachable(error);
        }
        match cause.as_database_error() {
            Some(answer) if is_rule(answer.code().as_deref()) => {
                let name = answer.constraint().unwrap_or("unnamed");
                Self::Conflict(conflict(name, answer.message()))
            }
            _ => Self::Database(error),
        }
    }
}

/// The database is away, starting, stopping, or took longer than it may.
fn is_away(error: &sea_orm::sqlx::Error) -> bool {
    use sea_orm::sqlx::Error as E;
    match error {
        E::Io(_)
        | E::Tls(_)
        | E::PoolTimedOut
        | E::PoolClosed
        | E::WorkerCrashed
        | E::Protocol(_) => true,
        E::Database(answer) => answer.code().is_some_and(|code| {
            // Class 08 connection, 57 operator intervention (also statement_timeout), 53 resources, 55P03 lock_timeout,
            // 40 rollback (deadlock, serialization), 25P03 idle in transaction.
            ["08", "57", "53", "40"]
                .iter()
                .any(|class| code.starts_with(class))
                || matches!(code.as_ref(), "55P03" | "25P03")
        }),
        _ => false,
    }
}

/// Class 23: an integrity constraint.
fn is_rule(code: Option<&str>) -> bool {
    code.is_some_and(|code| code.starts_with("23"))
}

/// The words for a constraint of the schema. `message` tells a missing target from one that is still referred to.
fn conflict(name: &str, message: &str) -> Conflict {
    let taken = |what, field| Conflict::Taken { what, field };
    let still = message.contains("update or delete");
    match name {
        "projects_name_key" => taken("project", "name"),
        "hosts_uuid" => taken("host_resource", "uuid"),
        "hosts_serial" => taken("host_resource", "serialNumber"),
        "os_profiles_name" => taken("operating_system_resource", "name"),
        "os_profiles_image" => taken("operating_system_resource", "profileName and imageId"),
        "instances_host" => taken("instance_resource", "hostID"),
        "instances_tenant_id_host_id_fkey" if still => Conflict::InUse {
            what: "host_resource",
            by: "an instance",
        },
        "instances_tenant_id_host_id_fkey" => Conflict::Dangling {
            what: "host_resource",
            field: "hostID",
        },
        "node_states_tenant_id_os_id_fkey" if still => Conflict::InUse {
            what: "operating_system_resource",
            by: "an instance",
        },
        "node_states_tenant_id_os_id_fkey" => Conflict::Dangling {
            what: "operating_system_resource",
            field: "osID",
        },
        "update_policies_tenant_id_target_os_id_fkey" if still => Conflict::InUse {
            what: "operating_system_resource",
            by: "an update policy",
        },
        "update_policies_tenant_id_target_os_id_fkey" => Conflict::Dangling {
            what: "operating_system_resource",
            field: "targetOsId",
        },
        "assignments_tenant_id_policy_id_fkey" if still => Conflict::InUse {
            what: "os_update_policy_resource",
            by: "an instance or assignment",
        },
        "assignments_tenant_id_policy_id_fkey" => Conflict::Dangling {
            what: "os_update_policy_resource",
            field: "osUpdatePolicyID",
        },
        "single_schedules_tenant_id_target_host_id_fkey" => Conflict::Dangling {
            what: "host_resource",
            field: "targetHostId",
        },
        rule => Conflict::Rule {
            rule: rule.to_owned(),
        },
    }
}
