//! Communication with the server: requests, answers and errors.

mod channel;
mod connect_error;
mod floor;
mod grpc;
mod pin;
pub(crate) mod proxy;
mod token;
mod trust;
mod wire;

use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_kit::Secret;
use uuid::Uuid;

use crate::facts::Facts;
use crate::identity::Identity;
use crate::journal::JournalEntry;
use crate::model::Decision;
use crate::node::{CertificateRequests, IssuedCertificates};
use crate::os::{BootedImage, OsRelease};

pub use self::floor::TimeFloor;
pub use self::grpc::GrpcLink;
pub use self::proxy::{BadProxy, Proxy};
pub use self::token::{JoinToken, TokenError};
pub use self::trust::{Trust, TrustError};
pub(crate) use self::trust::{floor_verifier, system_roots};
pub use self::wire::facts_digest;

/// A call failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No answer, or an answer that asks for a retry.
    #[error("the server cannot be reached: {0}")]
    Unavailable(String),
    /// The server is overloaded and asks for a later retry. The text is the same for every answer.
    #[error("the server is overloaded")]
    Busy {
        /// Earliest time of a retry.
        retry_after: Duration,
        /// The server's message.
        message: String,
    },
    /// The server cannot identify the caller: the certificate or the bearer token is missing, expired or invalid.
    #[error("the server does not accept this node: {0}")]
    Unauthenticated(String),
    /// The server does not trust or know the host, does not renew its certificate, or does not accept the join token.
    #[error("the server does not accept this node: {0}")]
    Denied(String),
    /// The server does not accept the request.
    #[error("the server refuses the request: {0}")]
    Refused(String),
    #[error("the server's answer is invalid: {0}")]
    InvalidAnswer(&'static str),
    /// The server's address or a certificate cannot be used.
    #[error("cannot set up the connection to the server: {0}")]
    Setup(String),
}

/// A machine that requests to become a node.
#[derive(Debug)]
pub struct Applicant {
    /// The join token from the operator.
    pub token: Secret,
    /// Identity of the machine.
    pub identity: Identity,
    /// Operating system of the machine.
    pub os_release: OsRelease,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// Certificate requests for its keys.
    pub requests: CertificateRequests,
    /// The booted image, if the machine has image slots. `None` for a machine with packages, even if it was once created
    /// from an image.
    pub booted_image: Option<BootedImage>,
}

/// The server's answer to an enrollment.
#[derive(Debug)]
pub struct Enrollment {
    /// The certificates for the node's keys.
    pub certificates: IssuedCertificates,
    /// The bearer token for every later call; `None` unless the server permits it.
    pub credential: Option<Secret>,
    /// When the bearer token expires.
    pub credential_expires: Option<DateTime<Utc>>,
    /// For example `host-0a1b2c3d`.
    pub host_id: String,
    /// For example `inst-0a1b2c3d`.
    pub instance_id: String,
    /// Name of the project.
    pub project: String,
    /// The server's time; older servers do not send it.
    pub server_time: Option<DateTime<Utc>>,
}

/// Input of a poll.
#[derive(Clone, Copy, Debug)]
pub struct PollQuery<'a> {
    /// Facts about the node. Their digest is always sent.
    pub facts: &'a Facts,
    /// Whether the facts themselves are sent.
    pub send_facts: bool,
    /// The list of packages, if it is sent.
    pub packages: Option<&'a str>,
    /// The open attempt and its last sequence number.
    pub attempt: Option<(Uuid, u32)>,
    /// Why the node does not let a prepared change begin; empty if it does or nothing is prepared.
    pub waiting_reason: &'a str,
    /// Tag of the decision that the node follows; 0 if it follows none.
    pub decision_tag: u64,
    /// How long the server may hold the poll until something changes; zero for an immediate answer.
    pub max_hold: Duration,
}

#[derive(Clone, Debug)]
pub struct PollAnswer {
    /// The server requests the facts, at once.
    pub want_facts: bool,
    /// The server requests the list of packages, at once.
    pub want_packages: bool,
    /// The server's time.
    pub server_time: Option<DateTime<Utc>>,
    /// Time until the next poll.
    pub next_poll: Duration,
    /// What the node must do.
    pub decision: Decision,
    /// New bearer token that replaces the present one, from this answer or from a renewal before it.
    pub credential: Option<Secret>,
    /// Tag of the decision; 0 if the server does not support tags.
    pub decision_tag: u64,
    /// How long the next poll may be held; zero if it must not be a long poll.
    pub max_hold: Duration,
    /// After a lost connection, reconnect after a random time up to this.
    pub reconnect_spread: Duration,
}

/// The answer to a request to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartPermit {
    /// The node may start now, once.
    Granted {
        /// Latest time of the start.
        start_deadline: Option<DateTime<Utc>>,
    },
    /// The node must not start now.
    Refused {
        /// Reason, for a person.
        reason: String,
    },
}

/// Connection to the server. Calls have deadlines and are retried where that may help. A long poll has its own deadline and
/// is not retried. The connection renews the node's certificates when the server asks for it or no longer accepts them
/// or the bearer token.
#[async_trait::async_trait]
pub trait ServerLink: Send + Sync {
    /// Enrols this machine as a node.
    async fn enroll(&self, applicant: &Applicant) -> Result<Enrollment, LinkError>;
    /// Sends the state of the node and gets the decision.
    async fn poll(&self, query: PollQuery<'_>) -> Result<PollAnswer, LinkError>;
    /// Requests permission to change the node now.
    async fn request_start(&self, entry: &JournalEntry) -> Result<StartPermit, LinkError>;
    /// Sends the unacknowledged events. Returns the sequence number up to which all events are stored.
    async fn report(&self, entry: &JournalEntry) -> Result<u32, LinkError>;
    /// Sets the bearer token for further calls.
    fn set_credential(&self, credential: &Secret) -> Result<(), LinkError>;
}
