//! Errors as gRPC statuses.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_auth::AuthError;
use evenkeel_domain::invalid::Invalid;
use evenkeel_store::{Conflict, StoreError};
use tonic::{Code, Status};

/// What a host shows that was heard lately.
pub const RUNNING: &str = "Running";

/// How long work with the database may take: a line to it that is cut says nothing.
const WITHIN: Duration = Duration::from_secs(10);

/// Gives work with the database up that is not done in time. Nobody knows then whether it was: the caller asks again.
pub async fn within<T>(work: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let away = |_| Status::unavailable("the database does not answer in time; try again");
    tokio::time::timeout(WITHIN, work).await.map_err(away)?
}

/// How a call ended, for the metrics.
pub fn outcome<T>(answer: &Result<T, Status>) -> &'static str {
    match answer {
        Ok(_) => "ok",
        Err(status) if matches!(status.code(), Code::Internal | Code::Unavailable) => "error",
        Err(_) => "refused",
    }
}

/// Every error of the store has its row here.
pub fn store(error: StoreError) -> Status {
    use StoreError as E;
    let code = match &error {
        E::NotFound { .. } => Code::NotFound,
        E::Stale { .. } => Code::Aborted,
        E::Conflict(Conflict::Taken { .. }) => Code::AlreadyExists,
        E::Conflict(_) | E::Refused(_) => Code::FailedPrecondition,
        E::Busy(_) | E::Unreachable(_) => Code::Unavailable,
        E::Corrupt { .. } | E::Database(_) => Code::Internal,
    };
    if matches!(code, Code::Unavailable | Code::Internal) {
        // Nothing about the inside leaves the house; the log has the whole chain (see `crate::outage`).
        let text = match error {
            E::Busy(_) => "the database is busy with this; try again",
            E::Unreachable(_) => "the database is away or overloaded; try again",
            _ => "something went wrong on the server's side",
        };
        let mut status = Status::new(code, text);
        status.set_source(Arc::new(error));
        return status;
    }
    Status::new(code, error.to_string())
}

/// A value that cannot be: names the field.
pub fn invalid(error: Invalid) -> Status {
    Status::invalid_argument(error.to_string())
}

/// Somebody who is not let in.
pub fn auth(error: AuthError) -> Status {
    let code = match error {
        // The token may be a good one: who signed it has not been heard of yet.
        AuthError::KeysAway => Code::Unavailable,
        _ => Code::Unauthenticated,
    };
    Status::new(code, error.to_string())
}
