//! A report: the events of an attempt, delivered at least once and in order.

use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::run::{AttemptId, RunEvent, RunEventRecord, UpdateRun};
use evenkeel_kit::{OffloadShare, offload};
use evenkeel_proto::agent::{Event, ReportRequest, ReportResponse};
use evenkeel_store::nodes::MachineKey;
use evenkeel_store::runs::Subject;
use prost::Message as _;
use tonic::Status;

use crate::admission::concurrency::CallKind;
use crate::admission::daily_limits::LimitedAmount;
use crate::evaluate::check_node;
use crate::grpc::agent::{begin, run_report};
use crate::grpc::caller::Node;
use crate::manager::MaintenanceManager;
use crate::node_transaction::{NewAttempt, NodeTransaction, WritePermit};
use crate::run_spans::CallSpan;
use crate::status;
use crate::wire::agent::{self as wire, timestamp};

/// The maximum number of events in a report.
const MAX_EVENTS_PER_REPORT: usize = 1_000;

/// Stores the events and acknowledges the last stored one.
pub async fn report(
    manager: &MaintenanceManager,
    node: &Node,
    request: ReportRequest,
) -> Result<ReportResponse, Status> {
    let bytes = request.encoded_len();
    let ReportRequest { attempt_id, target_digest: digest, events } = request;
    let attempt = begin::parse_attempt_id(&attempt_id)?;
    if events.len() > MAX_EVENTS_PER_REPORT {
        return Err(Status::invalid_argument(format!("events: more than {MAX_EVENTS_PER_REPORT}")));
    }
    let node_key = (node.tenant, node.host);
    manager.daily_limits.charge(node_key, LimitedAmount::Bytes, bytes as u64)?;
    let span = CallSpan::begin(node_key, attempt, manager.now());
    let events = offload(OffloadShare::Nodes, bytes, || decode_events(events))
        .await
        .map_err(status::from_invalid)?;
    let last_event = events.last().map_or("none", |record| record.event.name());
    let stored = manager.node_writer.with_write_permit((node.tenant, CallKind::Write), |permit| {
        store_report(permit, node, (attempt, digest.as_str()), (events, bytes as u64))
    });
    let stored = stored.await;
    if let Some(span) = span {
        let event = ("evenkeel.event", last_event.to_owned());
        span.end("report", event, stored.is_err(), manager.now());
    }
    stored
}

fn decode_events(events: Vec<Event>) -> Result<Vec<RunEventRecord>, Invalid> {
    let mut records = Vec::with_capacity(events.len());
    for mut event in events {
        let run_report = event.report.take().map(run_report::from_wire);
        let mut record = wire::decode_event(event)?;
        record.evidence.report = run_report;
        records.push(record);
    }
    Ok(records)
}

async fn store_report(
    permit: WritePermit<'_>,
    node: &Node,
    (attempt, digest): (AttemptId, &str),
    (events, bytes): (Vec<RunEventRecord>, u64),
) -> Result<ReportResponse, Status> {
    let machine = (node.tenant, MachineKey::Host(node.host));
    let node_tx = NodeTransaction::open(permit, machine, false).await;
    let mut node_tx = node_tx.map_err(status::from_store_error)?;
    check_node(&node_tx.host, &node_tx.input, &node.key)?;
    node_tx.write_charge(LimitedAmount::Bytes, bytes).await?;
    let has_events = !events.is_empty();
    if has_events {
        node_tx.check_run_readable()?;
    }
    let (run, acknowledged) = store_events(&mut node_tx, attempt, digest, events).await?;
    let now = node_tx.now;
    // A report without events is only a connection check. It must not reset the contact deadline of
    // a long poll.
    let saved = if has_events { node_tx.commit().await } else { node_tx.save().await };
    saved.map_err(status::from_store_error)?;
    Ok(ReportResponse {
        acknowledged,
        run_id: run.map(|run| run.id.to_string()).unwrap_or_default(),
        now: Some(timestamp(now)),
    })
}

/// Stores the next events. Events after a gap are ignored: the agent sends them again.
async fn store_events(
    node_tx: &mut NodeTransaction<'_>,
    attempt: AttemptId,
    digest: &str,
    events: Vec<RunEventRecord>,
) -> Result<(Option<UpdateRun>, u32), Status> {
    let run = node_tx.find_run(attempt).await.map_err(status::from_store_error)?;
    let stored = run.as_ref().map_or(0, |run| run.sequence);
    let mut next = next_events(events, stored);
    if run.is_none() {
        // An attempt that was cancelled before it did anything creates no run.
        let is_cancellation =
            |record: &RunEventRecord| matches!(record.event, RunEvent::Cancelled(_));
        let begins = next.iter().position(|record| !is_cancellation(record));
        let cancellations: Vec<_> = next.drain(..begins.unwrap_or(next.len())).collect();
        if next.is_empty() {
            let last = cancellations.last().and_then(|record| record.sequence);
            return Ok((None, last.unwrap_or(stored)));
        }
    }
    let Some((first, rest)) = next.split_first() else {
        return Ok((run, stored));
    };
    let last = rest.last().unwrap_or(first).sequence.unwrap_or(stored);
    let stored = if let Some(run) = run {
        node_tx.apply_events(Subject::Run(run.id), first, rest).await
    } else {
        node_tx.charge(LimitedAmount::Runs, 1).await?;
        let origin = node_tx.origin_from_digest(digest).await;
        let origin = origin.map_err(status::from_store_error)?;
        let beginning = NewAttempt { attempt: Some(attempt), origin, follows: None };
        node_tx.begin_attempt(beginning, first, rest).await
    };
    Ok((Some(stored.map_err(status::from_store_error)?), last))
}

/// The events that follow the stored ones, up to the first gap.
fn next_events(events: Vec<RunEventRecord>, mut stored: u32) -> Vec<RunEventRecord> {
    let mut next = Vec::with_capacity(events.len());
    for record in events {
        let number = record.sequence.unwrap_or(0);
        if stored.saturating_add(1) < number {
            break;
        }
        if stored < number {
            stored = number;
            next.push(record);
        }
    }
    next
}
