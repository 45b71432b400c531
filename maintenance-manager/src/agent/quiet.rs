//! Whether a poll of our own agent says nothing new, and what it is answered: judged by what was read. Nothing is locked
//! and nothing is written.

use evenkeel_domain::Time;
use evenkeel_domain::decide::{Decision, Protocol, Reason};
use evenkeel_domain::host::Host;
use evenkeel_domain::package::FoundVersion;
use evenkeel_domain::run::AttemptId;
use evenkeel_proto::agent as wire;
use evenkeel_proto::agent::decision::Act;
use evenkeel_store::decisions::World;
use evenkeel_store::nodes::{Brief, NodeState};
use evenkeel_store::{StoreError, Tx};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::agent::wire as words_of;
use crate::agent::{ages, packages, report};
use crate::desk::{Looked, OwnWords};
use crate::view::{Answer, OwnAnswer, Said};
use crate::{derived, status};

/// Judges a poll without facts and packages.
pub fn own(host: &Host, node: &Brief, world: &World, words: &OwnWords, now: Time) -> Looked {
    if let Err(refused) = report::trusted(host, world) {
        return Looked::Refused(refused);
    }
    if has_news(host, node, world, words, now) {
        return Looked::News;
    }
    let decision = world.decide(now);
    if ages::asked(&decision).is_some() {
        return Looked::Alone;
    }
    let wants = Wants::of(node, words);
    Looked::Quiet {
        until: world.steady_until(now),
        answer: Box::new(answer(world, words, wants, (decision, &[]))),
    }
}

/// Judges a poll whose answer depends on how old versions are, which is read for it alone.
///
/// # Errors
/// The database cannot be reached.
pub async fn aged(
    tx: &Tx,
    (host, node): (&Host, &NodeState),
    world: &World,
    words: &OwnWords,
    now: Time,
) -> Result<Looked, StoreError> {
    if let Err(refused) = report::trusted(host, world) {
        return Ok(Looked::Refused(refused));
    }
    let brief = node.brief();
    let decision = world.decide(now);
    if has_news(host, &brief, world, words, now)
        || ages::is_unheard(tx, node, &decision, now).await?
    {
        return Ok(Looked::News);
    }
    let settled = ages::settled(tx, node, &decision, now).await?;
    let until = [world.steady_until(now), settled.until];
    let wants = Wants::of(&brief, words);
    Ok(Looked::Quiet {
        until: until.into_iter().flatten().min(),
        answer: Box::new(answer(world, words, wants, (decision, &settled.versions))),
    })
}

/// Whether something is to be written.
pub fn has_news(host: &Host, node: &Brief, world: &World, words: &OwnWords, now: Time) -> bool {
    !node.provisioned
        || !matches!(node.protocol, Protocol::Own { .. })
        || node.waiting != words.waits
        || host.status.text != status::RUNNING
        || forgotten(world, words.attempt, now).is_some()
        || world.outlived(now).is_some()
        || derived::is_outdated(node, world, now)
}

/// What the node is to send with its next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// What it is now.
    pub facts: bool,
    /// Its list of installed packages.
    pub packages: bool,
}

impl Wants {
    /// What is not known yet of what it says that it is.
    pub fn of(node: &Brief, words: &OwnWords) -> Self {
        Self {
            facts: are_unknown(&node.facts_digest, words),
            packages: packages::are_wanted(node.said_packages, node.packages_digest),
        }
    }
}

/// Whether the node has other facts than those that are known.
pub fn are_unknown(known: &[u8], words: &OwnWords) -> bool {
    known.is_empty() || known != words.digest
}

/// What the node is answered, given what it is to do and the versions that are old enough for that.
pub fn answer(
    world: &World,
    words: &OwnWords,
    wants: Wants,
    (decision, settled): (Decision, &[FoundVersion]),
) -> Answer {
    let next = decision.next;
    let in_line = matches!(decision.because, Reason::NoFreeSlot { .. });
    let decision = if is_lost(world, words.attempt) {
        words_of::forget()
    } else if wants.facts {
        words_of::facts_first(world.run.as_ref().map(|run| run.id))
    } else {
        words_of::decision(decision, settled)
    };
    Answer {
        tag: tag(&decision),
        fresh: changes_course(&decision),
        counted: world.counted(),
        in_line,
        said: Said::Own(OwnAnswer {
            decision,
            next,
            want_facts: wants.facts,
            want_packages: wants.packages,
        }),
    }
}

/// Whether a node begins something by a decision, now or later, or gives something up: neither may be told once it holds no
/// longer.
fn changes_course(decision: &wire::Decision) -> bool {
    let act = matches!(
        decision.act,
        Some(Act::Fetch(_) | Act::Apply(_) | Act::Cancel(_))
    );
    act || decision.grant.is_some()
}

/// Identifies a decision, wherever it is given. Never 0.
pub fn tag(decision: &wire::Decision) -> u64 {
    let digest = Sha256::digest(decision.encode_to_vec());
    let first = digest.iter().take(8);
    first
        .fold(0, |tag: u64, byte| (tag << 8) | u64::from(*byte))
        .max(1)
}

/// When the node, which holds no attempt, has forgotten the one that keeps a slot or whose change it began; none if it has
/// not. What it knew is lost with its journal, so nothing more will be heard of it.
pub fn forgotten(world: &World, attempt: Option<AttemptId>, now: Time) -> Option<Time> {
    let run = world.run.as_ref().filter(|_| attempt.is_none())?;
    run.forgotten_at().filter(|limit| *limit <= now)
}

/// Whether the node holds on to an attempt that has no open run: it was called off, given up or removed here. The agent
/// tells everything before it polls, so nothing of it is still under way.
fn is_lost(world: &World, attempt: Option<AttemptId>) -> bool {
    let open = world.run.as_ref().and_then(|run| run.attempt);
    attempt.is_some() && attempt != open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_has_the_same_tag_everywhere_and_another_one_another() {
        let idle = words_of::facts_first(None);
        assert_eq!(tag(&idle), tag(&words_of::facts_first(None)));
        assert_ne!(tag(&idle), tag(&words_of::forget()));
        assert_ne!(tag(&wire::Decision::default()), 0);
    }

    #[test]
    fn what_a_node_begins_or_gives_up_by_is_told_as_it_is_now() {
        let act = |act| wire::Decision {
            act: Some(act),
            ..wire::Decision::default()
        };
        assert!(changes_course(&act(Act::Fetch(wire::Fetch::default()))));
        assert!(changes_course(&act(Act::Apply(wire::Apply::default()))));
        let granted = wire::Decision {
            grant: Some(wire::Grant::default()),
            ..act(Act::Idle(wire::Idle {}))
        };
        assert!(changes_course(&granted));
        assert!(changes_course(&words_of::forget()));
        assert!(!changes_course(&act(Act::Idle(wire::Idle {}))));
        assert!(!changes_course(&act(Act::Continue(
            wire::Continue::default()
        ))));
    }
}
