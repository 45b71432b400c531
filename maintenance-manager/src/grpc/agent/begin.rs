//! A request for permission to change the node. It is decided in the transaction that grants it.

use evenkeel_domain::Time;
use evenkeel_domain::run::AttemptId;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::{BeginRequest, BeginResponse, Granted, Refused};
use evenkeel_store::nodes::MachineKey;
use evenkeel_store::runs;
use tonic::Status;
use uuid::Uuid;

use crate::admission::concurrency::CallKind;
use crate::evaluate::check_node;
use crate::grpc::caller::Node;
use crate::manager::MaintenanceManager;
use crate::node_transaction::{NodeTransaction, WritePermit};
use crate::run_spans::{CallSpan, permit_name};
use crate::status;
use crate::wire::agent::timestamp;

/// Grants the start of an attempt, or refuses it with a reason.
pub async fn begin(
    manager: &MaintenanceManager,
    node: &Node,
    request: BeginRequest,
) -> Result<BeginResponse, Status> {
    let attempt = parse_attempt_id(&request.attempt_id)?;
    let span = CallSpan::begin((node.tenant, node.host), attempt, manager.now());
    let granted = manager.node_writer.with_write_permit((node.tenant, CallKind::Write), |permit| {
        try_begin(permit, node, attempt, request)
    });
    let granted = granted.await;
    if let Some(span) = span {
        let answer = granted.as_ref().ok().and_then(|response| response.answer.as_ref());
        let permit = ("evenkeel.permit", permit_name(answer).to_owned());
        span.end("begin", permit, granted.is_err(), manager.now());
    }
    granted
}

async fn try_begin(
    permit: WritePermit<'_>,
    node: &Node,
    attempt: AttemptId,
    request: BeginRequest,
) -> Result<BeginResponse, Status> {
    let machine = (node.tenant, MachineKey::Host(node.host));
    let node_tx = NodeTransaction::open(permit, machine, true).await;
    let mut node_tx = node_tx.map_err(status::from_store_error)?;
    check_node(&node_tx.host, &node_tx.input, &node.key)?;
    let now = node_tx.now;
    if node_tx.input.unreadable_run.is_some() {
        return Ok(refusal(&node_tx.input.decide(now).reason.to_string(), None, now));
    }
    let run = node_tx.find_run(attempt).await.map_err(status::from_store_error)?;
    let is_reported = run.as_ref().is_some_and(|run| run.sequence >= request.last_sequence);
    if !is_reported {
        return Ok(refusal("report the earlier events of the attempt first", None, now));
    }
    let mut decision = node_tx.input.decide(now);
    let is_counted = node_tx.input.applicable_policy().is_some_and(|a| a.limits.is_limited());
    if is_counted && decision.start_deadline(&request.target_digest).is_some() {
        // Slots are counted only if the node would begin, so that other nodes do not wait for the
        // lock.
        node_tx.count_slots().await.map_err(status::from_store_error)?;
        decision = node_tx.input.decide(now);
    }
    let open = node_tx.input.run.as_ref().filter(|open| open.attempt == Some(attempt));
    let (Some(open), Some(start_before)) = (open, decision.start_deadline(&request.target_digest))
    else {
        return Ok(refusal(&decision.reason.to_string(), decision.next_change, now));
    };
    let scope = node_tx.input.applicable_policy().map(|assigned| assigned.scope);
    runs::grant(&node_tx.tx, open, scope, now).await.map_err(status::from_store_error)?;
    node_tx.commit().await.map_err(status::from_store_error)?;
    Ok(BeginResponse {
        answer: Some(Answer::Granted(Granted { start_deadline: Some(timestamp(start_before)) })),
        now: Some(timestamp(now)),
    })
}

fn refusal(reason: &str, next: Option<Time>, now: Time) -> BeginResponse {
    BeginResponse {
        answer: Some(Answer::Refused(Refused {
            reason: reason.to_owned(),
            retry_at: next.map(timestamp),
        })),
        now: Some(timestamp(now)),
    }
}

pub fn parse_attempt_id(text: &str) -> Result<AttemptId, Status> {
    let parsed =
        Uuid::try_parse(text).map_err(|_| Status::invalid_argument("attempt_id: not a UUID"))?;
    Ok(AttemptId(parsed))
}
