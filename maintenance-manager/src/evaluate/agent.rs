//! Evaluates a poll of our own agent without locks and writes: decides whether a write is needed,
//! and builds the answer.

use evenkeel_domain::Time;
use evenkeel_domain::decide::{AgentProtocol, Decision, Reason};
use evenkeel_domain::host::Host;
use evenkeel_domain::instance::FactsSummary;
use evenkeel_domain::package::ObservedVersion;
use evenkeel_domain::run::AttemptId;
use evenkeel_proto::agent as wire;
use evenkeel_proto::agent::decision::Act;
use evenkeel_store::contents::ContentDigest;
use evenkeel_store::decisions::DecisionInput;
use evenkeel_store::nodes::{NodeBrief, NodeState};
use evenkeel_store::{StoreError, Tx};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::evaluate::{
    Answer, AnswerPayload, Evaluation, OwnAnswer, OwnPayload, check_node, version_ages,
};
use crate::wire::agent as agent_wire;
use crate::{derived_state, status};

/// Evaluates a poll without facts and packages.
pub fn own_poll(
    host: &Host,
    node: &NodeBrief,
    input: &DecisionInput,
    payload: &OwnPayload,
    now: Time,
) -> Evaluation {
    if let Err(refused) = check_node(host, input, &payload.key) {
        return Evaluation::Refused(refused);
    }
    if needs_write(host, node, input, payload, now) {
        return Evaluation::NeedsWrite;
    }
    let decision = input.decide(now);
    if version_ages::required_age_days(&decision).is_some() {
        return Evaluation::NeedsSingleRead;
    }
    let requested = RequestedData::from_node(node, payload);
    Evaluation::Unchanged {
        valid_until: input.steady_until(now),
        answer: Box::new(build_answer(input, payload, requested, (decision, &[]))),
    }
}

/// Evaluates a poll whose answer depends on the age of package versions, which are loaded for this
/// poll alone.
pub async fn own_poll_with_version_ages(
    tx: &Tx,
    (host, node): (&Host, &NodeState),
    input: &DecisionInput,
    payload: &OwnPayload,
    now: Time,
) -> Result<Evaluation, StoreError> {
    if let Err(refused) = check_node(host, input, &payload.key) {
        return Ok(Evaluation::Refused(refused));
    }
    let brief = node.brief();
    let decision = input.decide(now);
    if needs_write(host, &brief, input, payload, now)
        || version_ages::has_unrecorded(tx, node, &decision, now).await?
    {
        return Ok(Evaluation::NeedsWrite);
    }
    let settled = version_ages::load_settled(tx, node, &decision, now).await?;
    let until = [input.steady_until(now), settled.valid_until];
    let requested = RequestedData::from_node(&brief, payload);
    Ok(Evaluation::Unchanged {
        valid_until: until.into_iter().flatten().min(),
        answer: Box::new(build_answer(input, payload, requested, (decision, &settled.versions))),
    })
}

/// Whether the poll needs a write.
pub fn needs_write(
    host: &Host,
    node: &NodeBrief,
    input: &DecisionInput,
    payload: &OwnPayload,
    now: Time,
) -> bool {
    !node.provisioned
        || !matches!(node.protocol, AgentProtocol::Own { .. })
        || node.waiting != payload.waiting_for
        || host.status.text != status::RUNNING
        || forgotten_at(input, payload.attempt, now).is_some()
        || input.superseded_run(now).is_some()
        || derived_state::is_outdated(node, input, now)
}

/// The data that the node should send with its next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedData {
    /// The node should send its facts.
    pub facts: bool,
    /// The node should send its list of installed packages.
    pub packages: bool,
}

impl RequestedData {
    /// Requests the data whose reported digest differs from the stored one.
    pub fn from_node(node: &NodeBrief, payload: &OwnPayload) -> Self {
        Self {
            facts: are_facts_outdated(&node.facts_digest, node.facts_version, payload),
            packages: should_request(node.reported_packages, node.packages_digest),
        }
    }
}

/// Whether the facts of the node differ from the stored ones, or an older release has summarized them.
pub fn are_facts_outdated(stored: &[u8], version: i16, payload: &OwnPayload) -> bool {
    stored.is_empty() || stored != payload.facts_digest || version < FactsSummary::VERSION
}

/// Builds the answer from a decision and the versions that are old enough for it.
pub fn build_answer(
    input: &DecisionInput,
    payload: &OwnPayload,
    requested: RequestedData,
    (decision, settled): (Decision, &[ObservedVersion]),
) -> Answer {
    let next = decision.next_change;
    let waits_for_slot = matches!(decision.reason, Reason::NoFreeSlot { .. });
    let decision = if is_attempt_lost(input, payload.attempt) {
        agent_wire::forget_decision()
    } else if requested.facts {
        agent_wire::facts_first_decision(input.run.as_ref().map(|run| run.id))
    } else {
        agent_wire::encode_decision(decision, settled)
    };
    Answer {
        tag: decision_tag(&decision),
        requires_fence: requires_fence(&decision),
        limit_scope: input.limited_scope(),
        waits_for_slot,
        payload: AnswerPayload::Own(OwnAnswer {
            decision,
            next,
            want_facts: requested.facts,
            want_packages: requested.packages,
        }),
    }
}

/// Whether the decision lets the node start or cancel something, now or later. Such a decision must
/// be up to date when it is sent.
fn requires_fence(decision: &wire::Decision) -> bool {
    let act = matches!(decision.act, Some(Act::Fetch(_) | Act::Apply(_) | Act::Cancel(_)));
    act || decision.offline_grant.is_some()
}

/// Identifies a decision, equally on all replicas. Never 0.
pub fn decision_tag(decision: &wire::Decision) -> u64 {
    let digest = Sha256::digest(decision.encode_to_vec());
    let first = digest.iter().take(8);
    first.fold(0, |tag: u64, byte| (tag << 8) | u64::from(*byte)).max(1)
}

/// When the run counts as forgotten by a node that has no attempt although its run holds a slot or
/// has begun to change the node. The node lost its journal, so it will not report this run again.
pub fn forgotten_at(input: &DecisionInput, attempt: Option<AttemptId>, now: Time) -> Option<Time> {
    let run = input.run.as_ref().filter(|_| attempt.is_none())?;
    run.forgotten_at().filter(|limit| *limit <= now)
}

/// Whether the node has an attempt without an open run: the run was cancelled, abandoned or
/// removed. The agent sends all reports before it polls, so no report is still on its way. While
/// the open run cannot be read, no attempt counts as lost.
fn is_attempt_lost(input: &DecisionInput, attempt: Option<AttemptId>) -> bool {
    let open = input.run.as_ref().and_then(|run| run.attempt);
    attempt.is_some() && attempt != open && input.unreadable_run.is_none()
}

/// Whether to request the list: the reported digest differs from the stored one.
pub fn should_request(reported: Option<ContentDigest>, stored: Option<ContentDigest>) -> bool {
    reported.is_some() && reported != stored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_decisions_have_equal_tags() {
        let idle = agent_wire::facts_first_decision(None);
        assert_eq!(decision_tag(&idle), decision_tag(&agent_wire::facts_first_decision(None)));
        assert_ne!(decision_tag(&idle), decision_tag(&agent_wire::forget_decision()));
        assert_ne!(decision_tag(&wire::Decision::default()), 0);
    }

    #[test]
    fn a_decision_that_starts_or_cancels_something_requires_the_fence() {
        let act = |act| wire::Decision { act: Some(act), ..wire::Decision::default() };
        assert!(requires_fence(&act(Act::Fetch(wire::Fetch::default()))));
        assert!(requires_fence(&act(Act::Apply(wire::Apply::default()))));
        let granted = wire::Decision {
            offline_grant: Some(wire::OfflineGrant::default()),
            ..act(Act::Idle(wire::Idle {}))
        };
        assert!(requires_fence(&granted));
        assert!(requires_fence(&agent_wire::forget_decision()));
        assert!(!requires_fence(&act(Act::Idle(wire::Idle {}))));
        assert!(!requires_fence(&act(Act::Continue(wire::Continue::default()))));
    }
}
