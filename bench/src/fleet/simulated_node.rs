//! A simulated node as a state machine: its next message, and its next call. It has no task.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use evenkeel_proto::agent::{Decision, Facts, OsRelease, PollRequest, PollResponse};
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, UpdateStatus};
use evenkeel_simulator::rng::Rng;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use tonic::{Code, Status};

/// Metadata with the time after which a refused call may be repeated, in milliseconds.
const PUSHBACK_METADATA: &str = "grpc-retry-pushback-ms";

/// Number of attempts of EIM's agent per call, and the delay before the second attempt. Each
/// further delay is longer by half.
const EIM_MAX_ATTEMPTS: u32 = 4;
const EIM_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Maximum delay of an own node before its first retry. It doubles with each further retry.
const OWN_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Maximum delay of an own node between two long polls.
const MAX_LONG_POLL_GAP: Duration = Duration::from_millis(200);

/// How nodes poll.
#[derive(Clone, Copy, Debug)]
pub struct PollPace {
    /// Planned interval between two calls.
    pub interval: Duration,
    /// Number of calls with changed content, per thousand.
    pub changes_per_mille: u16,
    /// Whether nodes use the interval that the server requests.
    pub follow_server_interval: bool,
    /// Maximum duration of a long poll, in milliseconds.
    pub max_long_poll_millis: u32,
}

/// Message of a node.
#[derive(Clone, Debug)]
pub enum PollPayload {
    /// Message of an own node.
    Own(Box<PollRequest>),
    /// Message of an EIM node.
    Eim(PlatformUpdateStatusRequest),
}

/// The next poll of a node.
#[derive(Clone, Debug)]
pub struct PreparedPoll {
    /// The message.
    pub payload: PollPayload,
    /// Whether the content has changed.
    pub has_change: bool,
    /// Requested long-poll duration, in milliseconds; 0 for a short poll.
    pub long_poll_millis: u32,
}

/// The end of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallEnd {
    /// The instant of the end.
    pub at: Instant,
    /// Duration of the call.
    pub took: Duration,
    /// Requested long-poll duration, in milliseconds.
    pub long_poll_millis: u32,
}

/// Outcome of a call.
#[derive(Clone, Debug)]
pub enum CallOutcome {
    /// Answer to an own node.
    Own(Box<PollResponse>),
    /// Answer to an EIM node.
    Eim,
    /// The server refused the call, with a retry hint.
    Refused(Duration),
    /// The call failed, or was refused without a hint.
    Failed,
}

impl CallOutcome {
    /// Whether the server answered.
    pub const fn is_answered(&self) -> bool {
        matches!(self, Self::Own(_) | Self::Eim)
    }

    /// Classifies a status.
    pub fn from_status(status: &Status) -> Self {
        let hint = status.metadata().get(PUSHBACK_METADATA);
        let hint = hint.and_then(|hint| hint.to_str().ok()?.parse().ok());
        match (status.code(), hint) {
            (Code::Unavailable | Code::ResourceExhausted, Some(millis)) => {
                Self::Refused(Duration::from_millis(millis))
            }
            _ => Self::Failed,
        }
    }
}

/// A simulated node.
#[derive(Debug)]
pub struct SimulatedNode {
    /// The instant of the next call.
    pub planned_at: Instant,
    failures: u32,
    protocol: ProtocolState,
}

#[derive(Debug)]
enum ProtocolState {
    Own(OwnNode),
    Eim(EimNode),
}

/// State of an own node.
#[derive(Debug)]
struct OwnNode {
    number: u32,
    digest: [u8; 32],
    /// Number of boots. Each boot changes the facts.
    boots: u32,
    /// Whether polls include the facts: until the server has accepted them.
    sends_facts: bool,
    /// Tag of the current decision, as given by the server.
    decision_tag: u64,
    /// Hash of the current decision, for servers that give no tags. 0 before the first decision.
    decision_hash: u64,
    allowed_long_poll_millis: u32,
    /// Whether the node had a long poll. The first one has a random duration; otherwise the long
    /// polls of all nodes would end together.
    had_long_poll: bool,
    spread_millis: u32,
}

/// State of an EIM node.
#[derive(Debug)]
struct EimNode {
    uuid: String,
    /// How often the list of available updates has changed.
    list_changes: u32,
    /// The tick of the current call.
    tick: Instant,
}

impl SimulatedNode {
    /// An own node whose facts with this digest are in the seeded database.
    pub fn new_own(number: u32, digest: [u8; 32], planned_at: Instant) -> Self {
        Self {
            planned_at,
            failures: 0,
            protocol: ProtocolState::Own(OwnNode {
                number,
                digest,
                boots: 0,
                sends_facts: false,
                decision_tag: 0,
                decision_hash: 0,
                allowed_long_poll_millis: 0,
                had_long_poll: false,
                spread_millis: 0,
            }),
        }
    }

    /// An EIM node.
    pub fn new_eim(uuid: &str, planned_at: Instant) -> Self {
        Self {
            planned_at,
            failures: 0,
            protocol: ProtocolState::Eim(EimNode {
                uuid: uuid.to_owned(),
                list_changes: 0,
                tick: planned_at,
            }),
        }
    }

    /// Plans the first call, also after a disconnection. It is a short poll, because the server has
    /// not allowed a long poll yet.
    pub fn start_at(&mut self, at: Instant) {
        self.planned_at = at;
        match &mut self.protocol {
            ProtocolState::Own(own) => own.allowed_long_poll_millis = 0,
            ProtocolState::Eim(eim) => eim.tick = at,
        }
    }

    /// Postpones all plans.
    pub fn postpone(&mut self, by: Duration) {
        self.planned_at += by;
        if let ProtocolState::Eim(eim) = &mut self.protocol {
            eim.tick += by;
        }
    }

    /// Prepares the next poll.
    pub fn prepare_poll(&mut self, pace: &PollPace, rng: &mut Rng) -> PreparedPoll {
        // A retry repeats the last change and does not add another one.
        let is_changed = self.failures == 0 && rng.happens(pace.changes_per_mille);
        match &mut self.protocol {
            ProtocolState::Own(own) => own.prepare_poll(pace, is_changed, rng),
            ProtocolState::Eim(eim) => {
                eim.list_changes += u32::from(is_changed);
                PreparedPoll {
                    payload: PollPayload::Eim(eim.build_request()),
                    has_change: is_changed,
                    long_poll_millis: 0,
                }
            }
        }
    }

    /// Handles the outcome of a call, and plans the next call. Returns whether an own node has
    /// another decision than before.
    pub fn handle_outcome(
        &mut self,
        outcome: &CallOutcome,
        end: CallEnd,
        pace: &PollPace,
        rng: &mut Rng,
    ) -> bool {
        let CallEnd { at: now, took, long_poll_millis } = end;
        let mut changed = false;
        self.planned_at = match (&mut self.protocol, outcome) {
            (ProtocolState::Own(own), CallOutcome::Own(answer)) => {
                self.failures = 0;
                changed = own.apply_answer(answer);
                let length = Duration::from_millis(long_poll_millis.into());
                let is_complete = 0 < long_poll_millis && (changed || length * 4 / 5 <= took);
                let requested_at = now + Duration::from_millis(answer.next_poll_millis.into());
                if answer.facts_required {
                    now
                } else if is_complete && 0 < answer.next_long_poll_millis {
                    now + rng.duration((Duration::ZERO, MAX_LONG_POLL_GAP))
                } else if pace.follow_server_interval || 0 < long_poll_millis {
                    requested_at
                } else {
                    let interval = pace.interval * jittered_per_mille(rng) / 1_000;
                    next_after(self.planned_at, interval, now)
                }
            }
            (ProtocolState::Own(own), outcome) => {
                self.failures = self.failures.saturating_add(1);
                now + own.retry_delay(outcome, self.failures, pace, rng)
            }
            (ProtocolState::Eim(eim), CallOutcome::Eim) => {
                self.failures = 0;
                eim.next_tick(pace, now)
            }
            (ProtocolState::Eim(eim), _) => {
                self.failures += 1;
                if self.failures < EIM_MAX_ATTEMPTS {
                    now + EIM_RETRY_DELAY * 3_u32.pow(self.failures - 1)
                        / 2_u32.pow(self.failures - 1)
                } else {
                    self.failures = 0;
                    eim.next_tick(pace, now)
                }
            }
        };
        changed
    }
}

impl OwnNode {
    fn prepare_poll(&mut self, pace: &PollPace, is_changed: bool, rng: &mut Rng) -> PreparedPoll {
        if is_changed || (self.sends_facts && self.boots == 0) {
            self.boots += 1;
            self.digest = Sha256::digest(self.facts().encode_to_vec()).into();
            self.sends_facts = true;
        }
        let longest = pace.max_long_poll_millis.min(self.allowed_long_poll_millis);
        let requested_millis = if self.sends_facts {
            0
        } else if self.had_long_poll {
            longest
        } else {
            u32::try_from(rng.between(0, longest.into())).unwrap_or(longest)
        };
        self.had_long_poll |= 0 < requested_millis;
        PreparedPoll {
            payload: PollPayload::Own(Box::new(PollRequest {
                facts_digest: self.digest.to_vec(),
                facts: self.sends_facts.then(|| self.facts()),
                decision_tag: self.decision_tag,
                long_poll_millis: requested_millis,
                ..PollRequest::default()
            })),
            has_change: self.sends_facts,
            long_poll_millis: requested_millis,
        }
    }

    /// The facts of the node. Each boot has its own id.
    fn facts(&self) -> Facts {
        Facts {
            agent_version: "0.1.0".to_owned(),
            os_release: Some(OsRelease {
                id: "debian".to_owned(),
                version_id: "12".to_owned(),
                pretty_name: "Debian GNU/Linux 12 (bookworm)".to_owned(),
                version_codename: "bookworm".to_owned(),
            }),
            architecture: "amd64".to_owned(),
            kernel_release: "6.1.0-41-amd64".to_owned(),
            boot_id: format!("{:08x}-0000-4000-8000-{:012x}", self.number, self.boots),
            modules: vec!["packages".to_owned()],
            ..Facts::default()
        }
    }

    /// Applies an answer. Returns whether the decision is another one than before.
    fn apply_answer(&mut self, answer: &PollResponse) -> bool {
        self.sends_facts = answer.facts_required;
        self.decision_tag = answer.decision_tag;
        self.allowed_long_poll_millis = answer.next_long_poll_millis;
        self.spread_millis = answer.reconnect_spread_millis;
        let decision = decision_hash(answer.decision.as_ref());
        let before = std::mem::replace(&mut self.decision_hash, decision);
        before != 0 && before != decision
    }

    /// Delay before the next attempt of a failed or refused call.
    fn retry_delay(
        &self,
        outcome: &CallOutcome,
        failures: u32,
        pace: &PollPace,
        rng: &mut Rng,
    ) -> Duration {
        let backoff = OWN_RETRY_DELAY * 2_u32.pow((failures - 1).min(10));
        let backoff = backoff.min(pace.interval);
        if let CallOutcome::Refused(hint) = outcome {
            let least = *hint;
            return rng.duration((least, least * 3 / 2)).max(backoff / 2);
        }
        let spread = Duration::from_millis(self.spread_millis.into());
        let maximum = if spread.is_zero() || 1 < failures { backoff } else { spread };
        rng.duration((Duration::ZERO, maximum)).max(Duration::from_millis(50))
    }
}

impl EimNode {
    fn build_request(&self) -> PlatformUpdateStatusRequest {
        let available = match self.list_changes {
            0 => String::new(),
            list_changes => format!(
                "[{{\"name\":\"curl\",\"version\":\"7.88.1-{list_changes}\",\"architecture\":\"amd64\"}}]"
            ),
        };
        PlatformUpdateStatusRequest {
            host_guid: self.uuid.clone(),
            update_status: Some(UpdateStatus {
                status_type: StatusType::UpToDate.into(),
                os_update_available: available,
                ..UpdateStatus::default()
            }),
        }
    }

    /// The next tick, without jitter.
    fn next_tick(&mut self, pace: &PollPace, now: Instant) -> Instant {
        self.tick = next_after(self.tick, pace.interval, now);
        self.tick
    }
}

/// Random interval of an own node, in thousandths of the planned interval: within a tenth.
fn jittered_per_mille(rng: &mut Rng) -> u32 {
    u32::try_from(rng.between(900, 1_100)).unwrap_or(1_000)
}

/// The next instant on the grid of the interval. Instants that passed during a call are skipped.
fn next_after(planned: Instant, interval: Duration, now: Instant) -> Instant {
    let next = planned + interval;
    let late = now.saturating_duration_since(next).as_nanos();
    let missed = late / interval.as_nanos().max(1);
    next + interval * u32::try_from(missed).unwrap_or(0)
}

/// Hash of the parts of a decision that an operator can change.
fn decision_hash(decision: Option<&Decision>) -> u64 {
    let Some(decision) = decision else {
        return 0;
    };
    let mut hasher = DefaultHasher::new();
    decision.reason.hash(&mut hasher);
    let grant = decision.offline_grant.as_ref();
    grant.map(|grant| &grant.target_digest).hash(&mut hasher);
    let act = Decision { act: decision.act.clone(), ..Decision::default() };
    act.encode_to_vec().hash(&mut hasher);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests;
