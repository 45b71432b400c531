//! A report: what happened in an attempt, at least once and in order.

use evenkeel_domain::host::Host;
use evenkeel_domain::run::{AttemptId, Happening, RunEvent, UpdateRun};
use evenkeel_proto::agent::{ReportRequest, ReportResponse};
use evenkeel_store::StoreError;
use evenkeel_store::decisions::World;
use evenkeel_store::nodes::Machine;
use evenkeel_store::runs::Subject;
use tonic::Status;

use crate::agent::wire::{self, timestamp};
use crate::agent::{account, begin};
use crate::caller::Node;
use crate::load::CallKind;
use crate::manager::MaintenanceManager;
use crate::progress::{Beginning, Scene, Turn};
use crate::status;

/// The most events of one report.
const MAX_EVENTS: usize = 1_000;

/// Stores what happened and says up to where.
pub async fn report(
    manager: &MaintenanceManager,
    node: &Node,
    request: ReportRequest,
) -> Result<ReportResponse, Status> {
    let attempt = begin::attempt(&request.attempt_id)?;
    if request.events.len() > MAX_EVENTS {
        return Err(Status::invalid_argument(format!(
            "events: more than {MAX_EVENTS}"
        )));
    }
    let mut events = Vec::with_capacity(request.events.len());
    for mut event in request.events {
        let account = event.account.take().map(account::account);
        let mut happening = wire::happening(event).map_err(status::invalid)?;
        happening.evidence.account = account;
        events.push(happening);
    }
    let digest = request.target_digest;
    let kept = manager.in_turn(CallKind::News, |turn| {
        keep(turn, node, attempt, &digest, events)
    });
    kept.await
}

async fn keep(
    turn: Turn<'_>,
    node: &Node,
    attempt: AttemptId,
    digest: &str,
    events: Vec<Happening>,
) -> Result<ReportResponse, Status> {
    let machine = (node.tenant, Machine::Host(node.host));
    let scene = Scene::open(turn, machine, false).await;
    let mut scene = scene.map_err(status::store)?;
    trusted(&scene.host, &scene.world)?;
    let says_something = !events.is_empty();
    let stored = store(&mut scene, attempt, digest, events).await;
    let (run, acknowledged) = stored.map_err(status::store)?;
    let now = scene.now;
    // Whoever only tries the way says nothing about when the next word of the node is due: its poll may be held.
    let kept = if says_something {
        scene.commit().await
    } else {
        scene.keep().await
    };
    kept.map_err(status::store)?;
    Ok(ReportResponse {
        acknowledged,
        run_id: run.map(|run| run.id.to_string()).unwrap_or_default(),
        now: Some(timestamp(now)),
    })
}

/// Stores the events that come next. After a gap nothing more is taken: the agent sends it again from there.
async fn store(
    scene: &mut Scene<'_>,
    attempt: AttemptId,
    digest: &str,
    events: Vec<Happening>,
) -> Result<(Option<UpdateRun>, u32), StoreError> {
    let run = scene.run_of(attempt).await?;
    let stored = run.as_ref().map_or(0, |run| run.sequence);
    let mut next = in_turn(events, stored);
    if run.is_none() {
        // An attempt that was given up before anything happened leaves no run.
        let is_nothing = |happening: &Happening| matches!(happening.event, RunEvent::Cancelled(_));
        let begins = next.iter().position(|happening| !is_nothing(happening));
        let nothing: Vec<_> = next.drain(..begins.unwrap_or(next.len())).collect();
        if next.is_empty() {
            let last = nothing.last().and_then(|happening| happening.sequence);
            return Ok((None, last.unwrap_or(stored)));
        }
    }
    let Some((first, rest)) = next.split_first() else {
        return Ok((run, stored));
    };
    let last = rest.last().unwrap_or(first).sequence.unwrap_or(stored);
    let run = if let Some(run) = run {
        scene.bring_all(Subject::Run(run.id), first, rest).await?
    } else {
        let beginning = Beginning {
            attempt: Some(attempt),
            origin: scene.named(digest).await?,
            follows: None,
        };
        scene.begin_attempt(beginning, first, rest).await?
    };
    Ok((Some(run), last))
}

/// The events that come next after those that are stored, up to the first gap.
fn in_turn(events: Vec<Happening>, mut stored: u32) -> Vec<Happening> {
    let mut next = Vec::with_capacity(events.len());
    for happening in events {
        let number = happening.sequence.unwrap_or(0);
        if stored.saturating_add(1) < number {
            break;
        }
        if stored < number {
            stored = number;
            next.push(happening);
        }
    }
    next
}

/// A host that was invalidated, or whose instance was, is not listened to.
pub fn trusted(host: &Host, world: &World) -> Result<(), Status> {
    if world.known.trusted {
        return Ok(());
    }
    Err(Status::permission_denied(format!(
        "{} was invalidated",
        host.id
    )))
}
