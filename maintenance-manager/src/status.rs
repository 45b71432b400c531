//! Conversion of errors into gRPC statuses.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_auth::AuthError;
use evenkeel_domain::invalid::Invalid;
use evenkeel_store::{Conflict, StoreError};
use tonic::{Code, Status};

/// The status text of a host that made contact recently.
pub const RUNNING: &str = "Running";

/// The time limit for database work. A broken connection may give no error.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits the time of database work. After a timeout the result is unknown, so the caller must try
/// again.
pub async fn with_database_timeout<T>(
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let timed_out = |_| Status::unavailable("the database does not answer in time; try again");
    tokio::time::timeout(DATABASE_TIMEOUT, work).await.map_err(timed_out)?
}

/// The outcome of a call, for metrics.
pub fn outcome<T>(answer: &Result<T, Status>) -> &'static str {
    match answer {
        Ok(_) => "ok",
        Err(status) if matches!(status.code(), Code::Internal | Code::Unavailable) => "error",
        Err(_) => "refused",
    }
}

/// Converts an error of the store.
pub fn from_store_error(error: StoreError) -> Status {
    use StoreError as E;
    if let E::Corrupt { table: "update_runs", column: "state" | "cause", .. } = error {
        // Which events fit the run is unknown. The node repeats the call.
        return Status::unavailable("a newer release of the server wrote the run; try again");
    }
    let code = match &error {
        E::NotFound { .. } => Code::NotFound,
        E::Stale { .. } => Code::Aborted,
        E::Conflict(Conflict::AlreadyExists { .. }) => Code::AlreadyExists,
        E::Conflict(_) | E::Refused(_) => Code::FailedPrecondition,
        E::Busy(_) | E::ShareInUse { .. } | E::Unreachable(_) | E::Incompatible(_) => {
            Code::Unavailable
        }
        E::Corrupt { .. } | E::Database(_) => Code::Internal,
    };
    if matches!(code, Code::Unavailable | Code::Internal) {
        // Internal details are only logged (see `crate::outage`).
        let text = match error {
            E::Busy(_) => "the database is busy with this; try again",
            E::ShareInUse { .. } | E::Unreachable(_) | E::Incompatible(_) => {
                "the database is unreachable or overloaded; try again"
            }
            _ => "internal server error",
        };
        let mut status = Status::new(code, text);
        status.set_source(Arc::new(error));
        return status;
    }
    Status::new(code, error.to_string())
}

/// Converts an invalid value. The message names the field.
pub fn from_invalid(error: Invalid) -> Status {
    Status::invalid_argument(error.to_string())
}

/// Converts a failed authentication.
pub fn from_auth_error(error: AuthError) -> Status {
    let code = match error {
        // The token may be valid: the keys of its issuer are not loaded yet.
        AuthError::KeysUnavailable => Code::Unavailable,
        _ => Code::Unauthenticated,
    };
    Status::new(code, error.to_string())
}
