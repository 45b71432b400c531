//! Evaluates polls from data that was only read: decides whether a write is needed, and builds the
//! answer. No locks, no writes.

pub mod agent;
pub mod eim;
pub mod version_ages;

use evenkeel_auth::KeyFingerprint;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::host::Host;
use evenkeel_domain::run::AttemptId;
use evenkeel_proto::agent::Decision;
use evenkeel_proto::maintmgr::PlatformUpdateStatusResponse;
use evenkeel_store::decisions::DecisionInput;
use tonic::Status;

/// The payload of a poll of our own agent without facts and packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPayload {
    /// The key that the node authenticates with.
    pub key: KeyFingerprint,
    pub facts_digest: Vec<u8>,
    /// Its open attempt.
    pub attempt: Option<AttemptId>,
    /// The reason why it delays a change, as stored.
    pub waiting_for: String,
}

/// The evaluation of a poll, made from read data only.
#[derive(Debug)]
pub enum Evaluation {
    /// No write is needed.
    Unchanged {
        answer: Box<Answer>,
        /// When the answer may change by time alone; `None` if never.
        valid_until: Option<Time>,
    },
    NeedsWrite,
    /// The evaluation needs data that a batch does not load.
    NeedsSingleRead,
    /// The node is refused.
    Refused(Status),
}

/// The answer for our own agent, without times and the credential.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnAnswer {
    pub decision: Decision,
    /// When the decision may change by time alone.
    pub next: Option<Time>,
    /// Whether the agent should send its facts.
    pub want_facts: bool,
    /// Whether the agent should send its packages.
    pub want_packages: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum AnswerPayload {
    /// For our own agent.
    Own(OwnAnswer),
    /// For one of EIM's agents.
    Eim(PlatformUpdateStatusResponse),
}

/// An answer that can be sent again.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub payload: AnswerPayload,
    /// Identifies the decision, equally on all replicas.
    pub tag: u64,
    /// Whether the answer must be up to date when it is sent, because it permits or starts
    /// something.
    pub requires_fence: bool,
    /// The assignment whose limits the answer depends on.
    pub limit_scope: Option<Scope>,
    /// Whether the node waits only for a slot of that assignment.
    pub waits_for_slot: bool,
}

/// Rejects a node of ours whose host or instance was invalidated, or whose host was enrolled with
/// another key than the node has.
pub fn check_node(host: &Host, input: &DecisionInput, key: &KeyFingerprint) -> Result<(), Status> {
    check_key(host, key)?;
    if input.facts.trusted {
        return Ok(());
    }
    Err(Status::permission_denied(format!("{} was invalidated", host.id)))
}

/// Rejects a node whose host was enrolled with another key. Ids of hosts can repeat after a restore
/// of the database, so the id alone does not identify a machine.
pub fn check_key(host: &Host, key: &KeyFingerprint) -> Result<(), Status> {
    if key.matches(&host.public_key) {
        return Ok(());
    }
    Err(Status::permission_denied("the host was enrolled again with another key"))
}
