//! A node as a small state machine: what it says next, and when. It has no task of its own.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use evenkeel_proto::agent::{Decision, Facts, OsRelease, PollRequest, PollResponse};
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, UpdateStatus};
use evenkeel_simulator::chance::Chance;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use tonic::{Code, Status};

/// In which metadata a server says after how many milliseconds a refused call may come again.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// How often the ancestor's agent makes a call in all that fails, and how long it waits before the first repetition; each
/// further one waits half as long again.
const EIM_TRIES: u32 = 4;
const EIM_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How long one of ours waits at most before its first repetition; each further one waits up to twice as long.
const OWN_AGAIN_WITHIN: Duration = Duration::from_millis(500);

/// Within this time one of ours calls again whose held call has come to its end.
const HELD_AGAIN_WITHIN: Duration = Duration::from_millis(200);

/// How nodes live.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between two calls, as it is planned.
    pub interval: Duration,
    /// In how many of a thousand calls there is news.
    pub news: u16,
    /// Whether nodes call again when the server says.
    pub obey: bool,
    /// For how long one of ours lets itself be held at most, in milliseconds.
    pub hold: u32,
}

/// What a node says.
#[derive(Clone, Debug)]
pub enum Words {
    /// One of ours.
    Own(Box<PollRequest>),
    /// One of the ancestor's.
    Eim(PlatformUpdateStatusRequest),
}

/// What a node says now.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The message.
    pub words: Words,
    /// Whether it brings news.
    pub has_news: bool,
    /// For how long it may be held, in milliseconds.
    pub hold: u32,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// When.
    pub at: Instant,
    /// How long it took.
    pub waited: Duration,
    /// For how long it might have been held, in milliseconds.
    pub hold: u32,
}

/// What a node hears.
#[derive(Clone, Debug)]
pub enum Heard {
    /// One of ours.
    Own(Box<PollResponse>),
    /// One of the ancestor's.
    Eim,
    /// The server refused, and said after how long to come back.
    Refused(Duration),
    /// No answer, or another refusal.
    Failed,
}

impl Heard {
    /// Whether the server answered.
    pub const fn is_answer(&self) -> bool {
        matches!(self, Self::Own(_) | Self::Eim)
    }

    /// What a status means.
    pub fn status(status: &Status) -> Self {
        let hint = status.metadata().get(PUSHBACK);
        let hint = hint.and_then(|hint| hint.to_str().ok()?.parse().ok());
        match (status.code(), hint) {
            (Code::Unavailable | Code::ResourceExhausted, Some(millis)) => {
                Self::Refused(Duration::from_millis(millis))
            }
            _ => Self::Failed,
        }
    }
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// When it means to call next.
    pub planned: Instant,
    failures: u32,
    speaks: Speaks,
}

#[derive(Debug)]
enum Speaks {
    Own(Own),
    Eim(Eim),
}

/// What one of ours remembers.
#[derive(Debug)]
struct Own {
    number: u32,
    digest: [u8; 32],
    /// How often it was booted: each boot is news.
    boots: u32,
    /// Its facts go along until they were taken.
    tells_facts: bool,
    /// The tag of the decision that it goes by, as the server gave it.
    tag: u64,
    /// What the decision says, in our own sum: also of a server that gives no tags. 0 before the first.
    decision: u64,
    may_hold: u32,
    /// Whether it was held already. The first time is of any length: else all of them would end together for ever.
    was_held: bool,
    spread: u32,
}

/// What one of the ancestor's remembers.
#[derive(Debug)]
struct Eim {
    uuid: String,
    /// How often what could be updated has changed.
    lists: u32,
    /// The tick that the present call belongs to.
    tick: Instant,
}

impl Node {
    /// One of ours that was filled into the database with these facts.
    pub fn own(number: u32, digest: [u8; 32], planned: Instant) -> Self {
        Self {
            planned,
            failures: 0,
            speaks: Speaks::Own(Own {
                number,
                digest,
                boots: 0,
                tells_facts: false,
                tag: 0,
                decision: 0,
                may_hold: 0,
                was_held: false,
                spread: 0,
            }),
        }
    }

    /// One of the ancestor's.
    pub fn eim(uuid: &str, planned: Instant) -> Self {
        Self {
            planned,
            failures: 0,
            speaks: Speaks::Eim(Eim {
                uuid: uuid.to_owned(),
                lists: 0,
                tick: planned,
            }),
        }
    }

    /// Has its first call at an instant, also if it was away. That call is answered at once: the node was not told yet
    /// whether it may be held.
    pub fn begin(&mut self, at: Instant) {
        self.planned = at;
        match &mut self.speaks {
            Speaks::Own(own) => own.may_hold = 0,
            Speaks::Eim(eim) => eim.tick = at,
        }
    }

    /// Means to do all of it later by so much.
    pub fn postpone(&mut self, by: Duration) {
        self.planned += by;
        if let Speaks::Eim(eim) = &mut self.speaks {
            eim.tick += by;
        }
    }

    /// What it says now.
    pub fn ask(&mut self, pace: &Pace, chance: &mut Chance) -> Ask {
        // What is said once more is not new once more.
        let is_changed = self.failures == 0 && chance.hits(pace.news);
        match &mut self.speaks {
            Speaks::Own(own) => own.ask(pace, is_changed, chance),
            Speaks::Eim(eim) => {
                eim.lists += u32::from(is_changed);
                Ask {
                    words: Words::Eim(eim.words()),
                    has_news: is_changed,
                    hold: 0,
                }
            }
        }
    }

    /// Takes an answer, and plans the next call. Returns whether one of ours has another decision now than it had.
    pub fn hear(&mut self, heard: &Heard, ended: Ended, pace: &Pace, chance: &mut Chance) -> bool {
        let Ended {
            at: now,
            waited,
            hold,
        } = ended;
        let mut changed = false;
        self.planned = match (&mut self.speaks, heard) {
            (Speaks::Own(own), Heard::Own(answer)) => {
                self.failures = 0;
                changed = own.take(answer);
                let length = Duration::from_millis(hold.into());
                let is_held = 0 < hold && (changed || length * 4 / 5 <= waited);
                let told = now + Duration::from_millis(answer.next_poll_millis.into());
                if answer.want_facts {
                    now
                } else if is_held && 0 < answer.hold_millis {
                    now + chance.length((Duration::ZERO, HELD_AGAIN_WITHIN))
                } else if pace.obey || 0 < hold {
                    told
                } else {
                    let interval = pace.interval * thousandths(chance) / 1_000;
                    following(self.planned, interval, now)
                }
            }
            (Speaks::Own(own), heard) => {
                self.failures = self.failures.saturating_add(1);
                now + own.again_after(heard, self.failures, pace, chance)
            }
            (Speaks::Eim(eim), Heard::Eim) => {
                self.failures = 0;
                eim.next_tick(pace, now)
            }
            (Speaks::Eim(eim), _) => {
                self.failures += 1;
                if self.failures < EIM_TRIES {
                    now + EIM_AGAIN_AFTER * 3_u32.pow(self.failures - 1)
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

impl Own {
    fn ask(&mut self, pace: &Pace, is_changed: bool, chance: &mut Chance) -> Ask {
        if is_changed || (self.tells_facts && self.boots == 0) {
            self.boots += 1;
            self.digest = Sha256::digest(self.facts().encode_to_vec()).into();
            self.tells_facts = true;
        }
        let longest = pace.hold.min(self.may_hold);
        let hold = if self.tells_facts {
            0
        } else if self.was_held {
            longest
        } else {
            u32::try_from(chance.between(0, longest.into())).unwrap_or(longest)
        };
        self.was_held |= 0 < hold;
        Ask {
            words: Words::Own(Box::new(PollRequest {
                facts_digest: self.digest.to_vec(),
                facts: self.tells_facts.then(|| self.facts()),
                decision_tag: self.tag,
                may_hold_millis: hold,
                ..PollRequest::default()
            })),
            has_news: self.tells_facts,
            hold,
        }
    }

    /// What is known about it. Each boot has an id that was never seen before.
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

    /// Takes an answer. Returns whether the decision is another one than before.
    fn take(&mut self, answer: &PollResponse) -> bool {
        self.tells_facts = answer.want_facts;
        self.tag = answer.decision_tag;
        self.may_hold = answer.hold_millis;
        self.spread = answer.spread_millis;
        let decision = sum(answer.decision.as_ref());
        let before = std::mem::replace(&mut self.decision, decision);
        before != 0 && before != decision
    }

    /// How long it waits before it calls again.
    fn again_after(
        &self,
        heard: &Heard,
        failures: u32,
        pace: &Pace,
        chance: &mut Chance,
    ) -> Duration {
        let backoff = OWN_AGAIN_WITHIN * 2_u32.pow((failures - 1).min(10));
        let backoff = backoff.min(pace.interval);
        if let Heard::Refused(hint) = heard {
            let least = *hint;
            return chance.length((least, least * 3 / 2)).max(backoff / 2);
        }
        let spread = Duration::from_millis(self.spread.into());
        let most = if spread.is_zero() || 1 < failures {
            backoff
        } else {
            spread
        };
        chance
            .length((Duration::ZERO, most))
            .max(Duration::from_millis(50))
    }
}

impl Eim {
    fn words(&self) -> PlatformUpdateStatusRequest {
        let available = match self.lists {
            0 => String::new(),
            lists => format!(
                "[{{\"name\":\"curl\",\"version\":\"7.88.1-{lists}\",\"architecture\":\"amd64\"}}]"
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

    /// Ticks come without any jitter.
    fn next_tick(&mut self, pace: &Pace, now: Instant) -> Instant {
        self.tick = following(self.tick, pace.interval, now);
        self.tick
    }
}

/// The interval of one of ours, in thousandths of what is planned: within a tenth.
fn thousandths(chance: &mut Chance) -> u32 {
    u32::try_from(chance.between(900, 1_100)).unwrap_or(1_000)
}

/// The next of the instants that lie an interval apart. Those are left out whose place has passed while a call went on.
fn following(planned: Instant, interval: Duration, now: Instant) -> Instant {
    let next = planned + interval;
    let late = now.saturating_duration_since(next).as_nanos();
    let missed = late / interval.as_nanos().max(1);
    next + interval * u32::try_from(missed).unwrap_or(0)
}

/// What a decision says that a person could have changed.
fn sum(decision: Option<&Decision>) -> u64 {
    let Some(decision) = decision else {
        return 0;
    };
    let mut hasher = DefaultHasher::new();
    decision.reason.hash(&mut hasher);
    let grant = decision.grant.as_ref();
    grant.map(|grant| &grant.target_digest).hash(&mut hasher);
    let act = Decision {
        act: decision.act.clone(),
        ..Decision::default()
    };
    act.encode_to_vec().hash(&mut hasher);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests;
