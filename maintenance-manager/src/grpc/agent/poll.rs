//! A poll: reports the state of the node and asks for a decision.

use std::time::{Duration, Instant};

use evenkeel_auth::KeyFingerprint;
use evenkeel_domain::Time;
use evenkeel_domain::decide::AgentProtocol;
use evenkeel_domain::id::{HostId, scatter};
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::run::{RunEvent, RunEventRecord};
use evenkeel_kit::{OffloadShare, offload};
use evenkeel_proto::agent::{Facts, PollRequest, PollResponse};
use evenkeel_store::nodes::MachineKey;
use evenkeel_store::runs::Subject;
use evenkeel_store::{StoreError, package_versions};
use tonic::Status;

use crate::admission::concurrency::CallKind;
use crate::admission::connection::ConnectionState;
use crate::admission::daily_limits::LimitedAmount;
use crate::evaluate::agent::{self as evaluate, RequestedData};
use crate::evaluate::{Answer, AnswerPayload, OwnAnswer, OwnPayload, check_node, version_ages};
use crate::grpc::agent::facts::ParsedFacts;
use crate::grpc::agent::long_poll::{self, LongPollOptions, LongPollResult};
use crate::grpc::agent::packages::PackageList;
use crate::grpc::agent::{begin, credentials, facts, packages, waiting};
use crate::grpc::caller::{Node, NodeProof, RENEWAL_AGE};
use crate::manager::MaintenanceManager;
use crate::node_transaction::{NodeTransaction, WritePermit};
use crate::poll::batch::{BatchResult, PollContext, PollPayload, PollProtocol, Priority};
use crate::poll::cache::{CachedAnswer, NodeKey};
use crate::run_spans::{CallSpan, decision_name};
use crate::status;
use crate::wire::agent::timestamp;

/// The minimum delay, and the minimum spread of delays, for nodes that must reconnect because the
/// server stops.
const MIN_RECONNECT_DELAY: Duration = Duration::from_secs(1);
const MIN_RECONNECT_SPREAD: Duration = Duration::from_secs(2);

/// The input of a poll: facts, packages and the open attempt of the node.
pub struct PollInput {
    facts: Option<Box<Facts>>,
    packages: String,
    payload: OwnPayload,
    /// The long poll options of the node.
    long_poll: LongPollOptions,
    /// When the poll arrived.
    received_at: Instant,
}

/// The input of a poll that writes, in the form in which it is stored.
struct WriteInput {
    facts: Option<Result<ParsedFacts, Invalid>>,
    packages: Option<PackageList>,
    payload: OwnPayload,
    /// The bytes of the facts and the packages.
    bytes: usize,
}

impl PollInput {
    /// The bytes of the facts and the packages.
    fn bytes(&self) -> usize {
        self.facts.as_ref().map_or(0, prost::Message::encoded_len) + self.packages.len()
    }

    /// Converts the facts and the packages before the transaction of the node begins.
    async fn into_write_input(self) -> WriteInput {
        let bytes = self.bytes();
        let Self { facts, packages, payload, .. } = self;
        let digest = payload.facts_digest.clone();
        offload(OffloadShare::Nodes, bytes, || WriteInput {
            facts: facts.map(|reported| facts::parse(*reported, digest)),
            packages: PackageList::parse(packages),
            payload,
            bytes,
        })
        .await
    }
}

pub fn parse(
    request: PollRequest,
    key: &KeyFingerprint,
    connection: Option<ConnectionState>,
    received_at: Instant,
) -> Result<Box<PollInput>, Status> {
    let attempt = request.attempt.as_ref();
    let attempt = attempt.map(|attempt| begin::parse_attempt_id(&attempt.id));
    Ok(Box::new(PollInput {
        payload: OwnPayload {
            key: key.clone(),
            attempt: attempt.transpose()?,
            waiting_for: waiting::normalize(&request.waiting),
            facts_digest: request.facts_digest,
        },
        facts: request.facts.map(Box::new),
        packages: request.packages,
        long_poll: LongPollOptions {
            max_millis: request.long_poll_millis,
            decision_tag: request.decision_tag,
            connection,
        },
        received_at,
    }))
}

/// Answers a poll. A new decision about an open attempt is a span of its run.
pub async fn poll(
    manager: &MaintenanceManager,
    node: &Node,
    input: Box<PollInput>,
) -> Result<PollResponse, Status> {
    let begin_span = |attempt| CallSpan::begin((node.tenant, node.host), attempt, manager.now());
    let span = input.payload.attempt.and_then(begin_span);
    let known_tag = input.long_poll.decision_tag;
    let answer = answer_poll(manager, node, input).await;
    if let (Some(span), Ok(response)) = (span, &answer)
        && response.decision_tag != known_tag
    {
        let decision = decision_name(response).to_owned();
        span.end("decision", ("evenkeel.decision", decision), false, manager.now());
    }
    answer
}

async fn answer_poll(
    manager: &MaintenanceManager,
    node: &Node,
    input: Box<PollInput>,
) -> Result<PollResponse, Status> {
    let input = if input.facts.is_none() && input.packages.is_empty() {
        match try_without_write(manager, node, input).await? {
            PollResult::Answered(response) => return Ok(*response),
            PollResult::NeedsWrite(input) => input,
        }
    } else {
        input
    };
    manager.poll_answers.counters(PollProtocol::Own).write.increment(1);
    let bytes = input.bytes();
    manager.daily_limits.charge((node.tenant, node.host), LimitedAmount::Bytes, bytes as u64)?;
    let input = input.into_write_input().await;
    let (answer, now) = manager
        .node_writer
        .with_write_permit((node.tenant, CallKind::Query), |permit| {
            write_and_answer(permit, node, input)
        })
        .await?;
    build_response((manager, now), node, &answer, None)
}

/// The result of the fast path.
enum PollResult {
    Answered(Box<PollResponse>),
    /// The poll needs a write; this is its input.
    NeedsWrite(Box<PollInput>),
}

/// Fast path for almost all polls: no locks, no writes. Returns the input if a write is needed.
async fn try_without_write(
    manager: &MaintenanceManager,
    node: &Node,
    input: Box<PollInput>,
) -> Result<PollResult, Status> {
    let payload = &input.payload;
    let cache = &manager.answer_cache;
    let context = PollContext {
        node: NodeKey::Host(node.tenant, node.host),
        cache_key: cache.key_for_own_poll(
            &payload.key,
            &payload.facts_digest,
            payload.attempt,
            &payload.waiting_for,
        ),
        payload: PollPayload::Own(payload.clone()),
        priority: Priority::Poll,
    };
    // The copy is made only if the node accepts a long poll.
    let long_poll_context = (input.long_poll.max_millis > 0).then(|| context.clone());
    let cached = match manager.poll_answers.answer(context, input.received_at).await? {
        BatchResult::Unchanged(cached) => cached,
        BatchResult::NeedsWrite => return Ok(PollResult::NeedsWrite(input)),
    };
    let now = manager.now();
    let due = manager.node_writer.next_contact_due(now);
    manager.contacts.record(node.tenant, cached.instance, now, due);
    let long_poll_context =
        long_poll_context.filter(|_| may_long_poll(manager, node, &input.long_poll, &cached));
    let Some(context) = long_poll_context else {
        return build_response((manager, now), node, &cached.answer, None)
            .map(|response| PollResult::Answered(Box::new(response)));
    };
    let options =
        LongPollOptions { connection: input.long_poll.connection.clone(), ..input.long_poll };
    let started = Instant::now();
    let result = long_poll::wait_for_change(manager, node, context, options, cached).await?;
    if started.elapsed() >= manager.settings.long_poll.min_query_interval {
        manager.poll_answers.counters(PollProtocol::Own).long_poll.increment(1);
    }
    match result {
        LongPollResult::Answer(cached) => {
            build_response((manager, manager.now()), node, &cached.answer, None)
                .map(|response| PollResult::Answered(Box::new(response)))
        }
        LongPollResult::Draining(cached) => {
            let spread = manager.load.spread().max(MIN_RECONNECT_SPREAD);
            let now = manager.now();
            let pause = random_millis(node.host, now, MIN_RECONNECT_DELAY, spread);
            build_response((manager, now), node, &cached.answer, Some(pause))
                .map(|response| PollResult::Answered(Box::new(response)))
        }
        LongPollResult::NeedsWrite => Ok(PollResult::NeedsWrite(input)),
    }
}

/// Whether the poll may wait: the node already has this decision, and the answer requests nothing
/// from it and contains no new credential. A certificate that is due for renewal does not prevent
/// it: the answer at the end requests the renewal as well, and if renewals fail, the whole fleet
/// would poll at short intervals.
fn may_long_poll(
    manager: &MaintenanceManager,
    node: &Node,
    options: &LongPollOptions,
    cached: &CachedAnswer,
) -> bool {
    let AnswerPayload::Own(answer) = &cached.answer.payload else {
        return false;
    };
    options.max_millis > 0
        && options.decision_tag == cached.answer.tag
        && !answer.want_facts
        && !answer.want_packages
        && !credentials::is_renewal_due(manager, node, manager.now())
}

/// Builds the response. Its times are relative to the current time, by the clock of the decision:
/// that of the database if a transaction made it, otherwise that of the process.
fn build_response(
    (manager, now): (&MaintenanceManager, Time),
    node: &Node,
    answer: &Answer,
    pause: Option<u32>,
) -> Result<PollResponse, Status> {
    let AnswerPayload::Own(own) = &answer.payload else {
        return Err(Status::internal("the cached answer is of another protocol"));
    };
    let next = || next_poll_millis(manager, node.host, own, now);
    Ok(PollResponse {
        facts_required: own.want_facts,
        packages_required: own.want_packages,
        next_poll_millis: pause.unwrap_or_else(next),
        now: Some(timestamp(now)),
        credential: credentials::renew_if_due(manager, node, now)?,
        decision: Some(own.decision.clone()),
        decision_tag: answer.tag,
        next_long_poll_millis: pause
            .map_or_else(|| long_poll_millis(manager, node.host, now), |_| 0),
        reconnect_spread_millis: to_millis(manager.load.spread()),
        renew_certificate: needs_new_certificate(node, now),
    })
}

/// Slow path: stores changes in a transaction, then answers. Also returns the time of the decision.
async fn write_and_answer(
    permit: WritePermit<'_>,
    node: &Node,
    input: WriteInput,
) -> Result<(Answer, Time), Status> {
    let machine = (node.tenant, MachineKey::Host(node.host));
    let node_tx = NodeTransaction::open(permit, machine, false).await;
    let mut node_tx = node_tx.map_err(status::from_store_error)?;
    check_node(&node_tx.host, &node_tx.input, &node.key)?;
    node_tx.write_charge(LimitedAmount::Bytes, input.bytes as u64).await?;
    let payload = input.payload;
    let has_facts = input.facts.is_some();
    let takes_over = has_facts && node_tx.node.protocol == AgentProtocol::Eim;
    if let Some(reported_facts) = input.facts {
        let (node, now) = (&mut node_tx.node, node_tx.now);
        let serial = facts::reported_serial(&node.facts);
        let mut parsed = reported_facts.map_err(status::from_invalid)?;
        let versions = std::mem::take(&mut parsed.versions);
        let hardware = parsed.hardware.take();
        facts::apply(node, parsed, now);
        // The decision input was loaded before these facts. Without this update the answer could
        // send the node back to an image that failed.
        let failed = &node.bad_images;
        node_tx.input.facts.bad_images.clone_from(failed);
        let reporter = node_tx.node.instance;
        let recorded = package_versions::record_seen(&node_tx.tx, reporter, &versions, now).await;
        let recorded = recorded.map_err(status::from_store_error)?;
        node_tx.charge(LimitedAmount::Versions, recorded).await?;
        facts::record_names(&node_tx, serial).await.map_err(status::from_store_error)?;
        facts::store_hardware(&node_tx, hardware).await.map_err(status::from_store_error)?;
        facts::check_booted_image(&mut node_tx).await.map_err(status::from_store_error)?;
    } else {
        let decision = node_tx.input.decide(node_tx.now);
        let recorded =
            version_ages::record(&node_tx.tx, &node_tx.node, &decision, node_tx.now).await;
        recorded.map_err(status::from_store_error)?;
    }
    packages::apply(&mut node_tx, input.packages).await?;
    node_tx.node.waiting.clone_from(&payload.waiting_for);
    node_tx.input.facts.protocol = node_tx.node.protocol.clone();
    node_tx.input.facts.provisioned = true;
    if takes_over {
        node_tx.node.delivered.last_heard_at = Some(node_tx.now);
    }
    cancel_replaced_run(&mut node_tx).await.map_err(status::from_store_error)?;
    if let Some(limit) = evaluate::forgotten_at(&node_tx.input, payload.attempt, node_tx.now) {
        node_tx.time_out(limit).await.map_err(status::from_store_error)?;
    }
    let decision = node_tx.input.decide(node_tx.now);
    let settled =
        version_ages::load_settled(&node_tx.tx, &node_tx.node, &decision, node_tx.now).await;
    let settled = settled.map_err(status::from_store_error)?;
    let (reported, stored) = (node_tx.node.reported_packages(), node_tx.node.packages_digest);
    let (digest, version) = (&node_tx.node.facts_digest, node_tx.node.facts_summary.version);
    let requested = RequestedData {
        facts: !has_facts && evaluate::are_facts_outdated(digest, version, &payload),
        packages: evaluate::should_request(reported, stored),
    };
    let answer =
        evaluate::build_answer(&node_tx.input, &payload, requested, (decision, &settled.versions));
    let now = node_tx.now;
    node_tx.commit().await.map_err(status::from_store_error)?;
    Ok((answer, now))
}

/// Our own agent has replaced EIM's agent. A run that EIM's agent has only downloaded is cancelled
/// unless its window is open. EIM's agent still reports the end of a run that it has begun
/// (see [`crate::grpc::eim`]).
async fn cancel_replaced_run(node_tx: &mut NodeTransaction<'_>) -> Result<(), StoreError> {
    let Some((run, cause)) = node_tx.input.superseded_run(node_tx.now) else {
        return Ok(());
    };
    let cancelled = RunEventRecord::from_event(RunEvent::Cancelled(cause));
    node_tx.apply_event(Subject::Run(run), &cancelled).await?;
    node_tx.reload_input().await
}

/// The delay until the next poll, in milliseconds.
fn next_poll_millis(
    manager: &MaintenanceManager,
    host: HostId,
    answer: &OwnAnswer,
    now: Time,
) -> u32 {
    let interval = manager.load.poll_interval(manager.settings.poll_interval);
    let is_pressed = manager.load.pressure() >= 1.0;
    poll_delay_millis(interval, host, answer.next, is_pressed, now)
}

/// The delay until the next poll: the interval plus or minus a tenth, so that nodes that started
/// together spread out, or less if the answer changes earlier. Many answers change at the same time
/// (a window opens), so under pressure a random delay is added there, too.
fn poll_delay_millis(
    interval: Duration,
    host: HostId,
    change: Option<Time>,
    is_pressed: bool,
    now: Time,
) -> u32 {
    let interval = i64::try_from(interval.as_millis()).unwrap_or(i64::MAX).clamp(100, 86_400_000);
    let tenth = (interval / 10).max(1);
    let jitter = jitter(host, now);
    let usual = interval - tenth + jitter % (2 * tenth);
    let late = if is_pressed { jitter % tenth } else { 0 };
    let due =
        change.map_or(usual, |change| (change - now).num_milliseconds().saturating_add(1 + late));
    u32::try_from(usual.min(due).max(100)).unwrap_or(u32::MAX)
}

/// How long the next poll may wait, in milliseconds. Varies by a tenth, so that nodes that were
/// woken together spread out.
fn long_poll_millis(manager: &MaintenanceManager, host: HostId, now: Time) -> u32 {
    let settings = &manager.settings.long_poll;
    if settings.max_polls == 0 {
        return 0;
    }
    let tenth = settings.max_duration / 10;
    let least = settings.max_duration.saturating_sub(tenth);
    random_millis(host, now, least, settings.max_duration)
}

/// A pseudo-random number per node and answer.
fn jitter(host: HostId, now: Time) -> i64 {
    i64::from(scatter(host.bits() ^ now.timestamp_subsec_nanos()))
}

/// A random duration between two bounds, in milliseconds.
fn random_millis(host: HostId, now: Time, least: Duration, most: Duration) -> u32 {
    let (least, most) = (to_millis(least), to_millis(most));
    let span = i64::from(most.saturating_sub(least)) + 1;
    least.saturating_add(u32::try_from(jitter(host, now) % span).unwrap_or(0))
}

fn to_millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Whether the certificate is older than a day.
fn needs_new_certificate(node: &Node, now: Time) -> bool {
    match node.proof {
        NodeProof::Certificate { issued_at } => RENEWAL_AGE < now - issued_at,
        NodeProof::Credential { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(20);

    #[test]
    fn nodes_that_started_together_spread_out() {
        let now = DateTime::UNIX_EPOCH;
        let of = |n| poll_delay_millis(INTERVAL, HostId::nth(n), None, false, now);
        let all: std::collections::BTreeSet<u32> = (0..100).map(of).collect();
        assert!(all.len() > 90, "{} of 100 differ", all.len());
        assert!(all.iter().all(|millis| (18_000..22_000).contains(millis)));
    }

    #[test]
    fn a_node_comes_back_when_its_window_opens() {
        let now = DateTime::UNIX_EPOCH;
        let soon = Some(now + TimeDelta::seconds(3));
        assert_eq!(poll_delay_millis(INTERVAL, HostId::nth(1), soon, false, now), 3_001);
    }

    #[test]
    fn nodes_with_one_window_spread_out_under_pressure() {
        let now = DateTime::UNIX_EPOCH;
        let soon = Some(now + TimeDelta::seconds(3));
        let of = |n| poll_delay_millis(INTERVAL, HostId::nth(n), soon, true, now);
        let all: std::collections::BTreeSet<u32> = (0..100).map(of).collect();
        assert!(all.len() > 90, "{} of 100 differ", all.len());
        assert!(all.iter().all(|millis| (3_001..5_001).contains(millis)));
    }

    #[test]
    fn a_random_delay_lies_between_both_bounds_inclusive() {
        let now = DateTime::UNIX_EPOCH;
        let of = |n| {
            let (least, most) = (Duration::from_millis(5), Duration::from_millis(7));
            random_millis(HostId::nth(n), now, least, most)
        };
        let all: std::collections::BTreeSet<u32> = (0..100).map(of).collect();
        assert_eq!(all, [5, 6, 7].into());
        let one = Duration::from_secs(1);
        assert_eq!(random_millis(HostId::nth(1), now, one, one), 1_000);
    }
}
