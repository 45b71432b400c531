//! A request for leave to change the node. Judged inside the transaction that gives it.

use evenkeel_domain::Time;
use evenkeel_domain::run::AttemptId;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::{BeginRequest, BeginResponse, Granted, Refused};
use evenkeel_store::nodes::Machine;
use evenkeel_store::runs;
use tonic::Status;
use uuid::Uuid;

use crate::agent::report;
use crate::agent::wire::timestamp;
use crate::caller::Node;
use crate::load::CallKind;
use crate::manager::MaintenanceManager;
use crate::progress::{Scene, Turn};
use crate::status;

/// Gives leave, or says why not.
pub async fn begin(
    manager: &MaintenanceManager,
    node: &Node,
    request: BeginRequest,
) -> Result<BeginResponse, Status> {
    let attempt = attempt(&request.attempt_id)?;
    let judged = manager.in_turn(CallKind::News, |turn| judge(turn, node, attempt, request));
    judged.await
}

async fn judge(
    turn: Turn<'_>,
    node: &Node,
    attempt: AttemptId,
    request: BeginRequest,
) -> Result<BeginResponse, Status> {
    let machine = (node.tenant, Machine::Host(node.host));
    let scene = Scene::open(turn, machine, true).await;
    let mut scene = scene.map_err(status::store)?;
    report::trusted(&scene.host, &scene.world)?;
    let now = scene.now;
    let run = scene.run_of(attempt).await.map_err(status::store)?;
    let told = run
        .as_ref()
        .is_some_and(|run| run.sequence >= request.last_sequence);
    if !told {
        return Ok(refused("report what happened so far first", None, now));
    }
    let mut decision = scene.world.decide(now);
    let is_counted = scene.world.applies().is_some_and(|a| a.limits.any());
    if is_counted && decision.leave(&request.target_digest).is_some() {
        // Counted where it is judged, and only by who would begin: the others need not wait for each other.
        scene.count().await.map_err(status::store)?;
        decision = scene.world.decide(now);
    }
    let open = scene
        .world
        .run
        .as_ref()
        .filter(|open| open.attempt == Some(attempt));
    let (Some(open), Some(before)) = (open, decision.leave(&request.target_digest)) else {
        return Ok(refused(&decision.because.to_string(), decision.next, now));
    };
    let under = scene.world.applies().map(|assigned| assigned.scope);
    runs::grant(&scene.tx, open, under, now)
        .await
        .map_err(status::store)?;
    scene.commit().await.map_err(status::store)?;
    Ok(BeginResponse {
        answer: Some(Answer::Granted(Granted {
            before: Some(timestamp(before)),
        })),
        now: Some(timestamp(now)),
    })
}

fn refused(reason: &str, next: Option<Time>, now: Time) -> BeginResponse {
    BeginResponse {
        answer: Some(Answer::Refused(Refused {
            reason: reason.to_owned(),
            next: next.map(timestamp),
        })),
        now: Some(timestamp(now)),
    }
}

/// Reads the id of an attempt.
pub fn attempt(text: &str) -> Result<AttemptId, Status> {
    let parsed =
        Uuid::try_parse(text).map_err(|_| Status::invalid_argument("attempt_id: not a UUID"))?;
    Ok(AttemptId(parsed))
}
