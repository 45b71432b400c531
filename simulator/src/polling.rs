//! Nodes that only poll, for load: a state machine with the next message and the instant of the
//! next call. Such a node has no task, no clock and no random numbers of its own, so that one thread
//! can drive many thousands.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{Decision, Facts, PollRequest, PollResponse};
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{
    PlatformUpdateStatusRequest, PlatformUpdateStatusResponse, UpdateStatus,
};
use prost::Message as _;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::connection::retry_pushback;
use crate::eim::Pace;
use crate::eim::turn::{MAX_TRIES_PER_TICK, status_request};
use crate::own::{PollSession, wire};
use crate::rng::Rng;

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

#[derive(Clone, Copy, Debug)]
pub struct CallEnd {
    pub at: Instant,
    pub took: Duration,
    /// Requested long-poll duration, in milliseconds.
    pub long_poll_millis: u32,
}

#[derive(Clone, Debug)]
pub enum CallOutcome {
    /// Answer to an own node.
    Own(Box<PollResponse>),
    /// Answer to an EIM node.
    Eim(Box<PlatformUpdateStatusResponse>),
    /// The server refused the call, with a retry hint.
    Refused(Duration),
    /// The call failed, or was refused without a hint.
    Failed,
}

impl CallOutcome {
    /// Whether the server answered.
    #[must_use]
    pub const fn is_answered(&self) -> bool {
        matches!(self, Self::Own(_) | Self::Eim(_))
    }

    /// Classifies a status.
    #[must_use]
    pub fn from_status(status: &Status) -> Self {
        retry_pushback(status).map_or(Self::Failed, Self::Refused)
    }
}

/// Sends the message of a node.
///
/// # Errors
/// The server refused the call, or the call failed on the network.
pub async fn send(
    channel: Channel,
    request: Request<PollPayload>,
) -> Result<Response<CallOutcome>, Status> {
    let (metadata, extensions, payload) = request.into_parts();
    let outcome = match payload {
        PollPayload::Own(message) => {
            let request = Request::from_parts(metadata, extensions, *message);
            let answer = AgentServiceClient::new(channel).poll(request).await?;
            CallOutcome::Own(Box::new(answer.into_inner()))
        }
        PollPayload::Eim(message) => {
            let request = Request::from_parts(metadata, extensions, message);
            let mut client = MaintmgrServiceClient::new(channel);
            let answer = client.platform_update_status(request).await?;
            CallOutcome::Eim(Box::new(answer.into_inner()))
        }
    };
    Ok(Response::new(outcome))
}

/// A node that only polls.
#[derive(Debug)]
pub struct PollingNode {
    /// The instant of the next call.
    pub planned_at: Instant,
    failures: u32,
    protocol: ProtocolState,
}

#[derive(Debug)]
enum ProtocolState {
    Own(OwnPolls),
    Eim(EimPolls),
}

/// State of an own node.
#[derive(Debug)]
struct OwnPolls {
    number: u32,
    digest: [u8; 32],
    /// Number of boots. Each boot changes the facts.
    boots: u32,
    /// Polls include the facts until the server has accepted them.
    session: PollSession,
    /// Hash of the current decision, for servers that give no tags. 0 before the first decision.
    decision_hash: u64,
    /// Whether the node had a long poll. The first one has a random duration; otherwise the long
    /// polls of all nodes would end together.
    had_long_poll: bool,
}

/// State of an EIM node.
#[derive(Debug)]
struct EimPolls {
    uuid: String,
    /// How often the list of available updates has changed.
    list_changes: u32,
    /// The tick of the current call.
    tick: Instant,
}

impl PollingNode {
    /// An own node whose facts with this digest are in the seeded database.
    #[must_use]
    pub fn new_own(number: u32, digest: [u8; 32], planned_at: Instant) -> Self {
        Self {
            planned_at,
            failures: 0,
            protocol: ProtocolState::Own(OwnPolls {
                number,
                digest,
                boots: 0,
                session: PollSession::default(),
                decision_hash: 0,
                had_long_poll: false,
            }),
        }
    }

    #[must_use]
    pub fn new_eim(uuid: &str, planned_at: Instant) -> Self {
        Self {
            planned_at,
            failures: 0,
            protocol: ProtocolState::Eim(EimPolls {
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
            ProtocolState::Own(own) => own.session.max_long_poll_millis = 0,
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
            (ProtocolState::Eim(eim), CallOutcome::Eim(_)) => {
                self.failures = 0;
                eim.next_tick(pace, now)
            }
            (ProtocolState::Eim(eim), _) => {
                self.failures += 1;
                if self.failures < MAX_TRIES_PER_TICK {
                    let first = Pace::REAL.retry_delay;
                    now + (1..self.failures).fold(first, |delay, _| delay * 3 / 2)
                } else {
                    self.failures = 0;
                    eim.next_tick(pace, now)
                }
            }
        };
        changed
    }
}

impl OwnPolls {
    fn prepare_poll(&mut self, pace: &PollPace, is_changed: bool, rng: &mut Rng) -> PreparedPoll {
        if is_changed || (self.session.facts_required && self.boots == 0) {
            self.boots += 1;
            self.digest = wire::digest(&self.facts());
            self.session.facts_required = true;
        }
        let sends_facts = self.session.facts_required;
        let longest = pace.max_long_poll_millis.min(self.session.max_long_poll_millis);
        let long_poll_millis = if sends_facts {
            0
        } else if self.had_long_poll {
            longest
        } else {
            u32::try_from(rng.between(0, longest.into())).unwrap_or(longest)
        };
        self.had_long_poll |= 0 < long_poll_millis;
        PreparedPoll {
            payload: PollPayload::Own(Box::new(PollRequest {
                facts: sends_facts.then(|| self.facts()),
                ..self.session.build_request(&self.digest, long_poll_millis)
            })),
            has_change: sends_facts,
            long_poll_millis,
        }
    }

    /// The facts of the node. Each boot has its own id.
    fn facts(&self) -> Facts {
        wire::basic_facts(format!("{:08x}-0000-4000-8000-{:012x}", self.number, self.boots))
    }

    /// Applies an answer. Returns whether the decision is another one than before.
    fn apply_answer(&mut self, answer: &PollResponse) -> bool {
        self.session.accept(answer);
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
        let spread = Duration::from_millis(self.session.reconnect_spread_millis.into());
        let maximum = if spread.is_zero() || 1 < failures { backoff } else { spread };
        rng.duration((Duration::ZERO, maximum)).max(Duration::from_millis(50))
    }
}

impl EimPolls {
    fn build_request(&self) -> PlatformUpdateStatusRequest {
        let available = match self.list_changes {
            0 => String::new(),
            list_changes => format!(
                "[{{\"name\":\"curl\",\"version\":\"7.88.1-{list_changes}\",\"architecture\":\"amd64\"}}]"
            ),
        };
        let status = UpdateStatus {
            status_type: StatusType::UpToDate.into(),
            os_update_available: available,
            ..UpdateStatus::default()
        };
        status_request(&self.uuid, status)
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
