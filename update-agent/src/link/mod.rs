//! What the agent says to the server and what it hears.

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
use crate::journal::Entry;
use crate::model::Decision;
use crate::os::{BootedImage, OsRelease};

pub use self::floor::Floor;
pub use self::grpc::GrpcLink;
pub use self::proxy::{BadProxy, Proxy};
pub use self::token::{JoinToken, TokenError};
pub use self::trust::{Trust, TrustError};
pub(crate) use self::trust::{above_floor, system_roots};
pub use self::wire::facts_digest;

/// A call did not bring an answer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No answer, or one that says to try again.
    #[error("the server cannot be reached: {0}")]
    Unavailable(String),
    /// The server has too much to do and says when to ask again. In words that do not change with every answer.
    #[error("the server has too much to do for now")]
    Busy {
        /// Not before this time has passed.
        again: Duration,
        /// In the server's words.
        why: String,
    },
    /// The credential or the join token is not accepted.
    #[error("the server does not accept this node: {0}")]
    Denied(String),
    /// The request is not accepted.
    #[error("the server refuses the request: {0}")]
    Refused(String),
    /// The answer makes no sense.
    #[error("the server's answer makes no sense: {0}")]
    Nonsense(&'static str),
    /// The address or a certificate cannot be used.
    #[error("the way to the server cannot be used: {0}")]
    Setup(String),
}

/// Who wants to become a node.
#[derive(Debug)]
pub struct Applicant {
    /// The join token as the operator gave it.
    pub token: Secret,
    /// Who the machine is.
    pub identity: Identity,
    /// What runs on it.
    pub os_release: OsRelease,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// `SubjectPublicKeyInfo` (DER).
    pub public_key: Vec<u8>,
    /// The image that runs, if the machine has slots for images. None of a machine with packages, also if it was made as
    /// an image once.
    pub booted_image: Option<BootedImage>,
}

/// What a new node is told.
#[derive(Debug)]
pub struct Enrolled {
    /// The bearer token for every later call.
    pub credential: Secret,
    /// When it ends.
    pub credential_expires: Option<DateTime<Utc>>,
    /// Such as `host-0a1b2c3d`.
    pub host_id: String,
    /// Such as `inst-0a1b2c3d`.
    pub instance_id: String,
    /// Name of the project.
    pub project: String,
}

/// What the agent says when it asks what to do.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// What is known about the node. Their digest is always told.
    pub facts: &'a Facts,
    /// Whether the facts themselves go along.
    pub whole: bool,
    /// The list of packages, if it is to go along.
    pub packages: Option<&'a str>,
    /// The open attempt and its last sequence number.
    pub attempt: Option<(Uuid, u32)>,
    /// Why the node itself does not let a prepared change begin; empty if it does or nothing is to begin.
    pub waiting: &'a str,
    /// The tag of the decision that the node goes by; 0 if it goes by none.
    pub tag: u64,
    /// The server may keep the call open so long, until it has something new to say; zero to be answered at once.
    pub hold: Duration,
}

/// The answer to a poll.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The server wants the facts themselves, at once.
    pub want_facts: bool,
    /// The server wants the list of packages, at once.
    pub want_packages: bool,
    /// The server's clock.
    pub now: Option<DateTime<Utc>>,
    /// When to poll again.
    pub next_poll: Duration,
    /// What to do.
    pub decision: Decision,
    /// A new credential in place of the present one.
    pub credential: Option<Secret>,
    /// The tag of the decision; 0 from a server that has none.
    pub tag: u64,
    /// The next poll may let itself be held so long; zero if it is not to ask for that.
    pub hold: Duration,
    /// After losing the connection, come back after a random time up to this.
    pub spread: Duration,
}

/// The answer to the question whether to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Now, once.
    Granted {
        /// Not later than this.
        before: Option<DateTime<Utc>>,
    },
    /// Not now.
    Refused {
        /// For a person.
        reason: String,
    },
}

/// The way to the server. Calls have deadlines and try again by themselves where that may help. A poll that the server may
/// keep open has its own deadline and is not tried again by itself.
#[async_trait::async_trait]
pub trait Link: Send + Sync {
    /// Makes this machine a node.
    async fn enroll(&self, applicant: &Applicant) -> Result<Enrolled, LinkError>;
    /// Says what is known and asks what to do.
    async fn poll(&self, question: Question<'_>) -> Result<Answer, LinkError>;
    /// Asks for leave to change the node now.
    async fn begin(&self, entry: &Entry) -> Result<Leave, LinkError>;
    /// Tells what is not acknowledged. The answer is up to where everything is stored.
    async fn report(&self, entry: &Entry) -> Result<u32, LinkError>;
    /// Uses another credential from now on.
    fn renew(&self, credential: &Secret) -> Result<(), LinkError>;
}
