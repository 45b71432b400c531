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
use crate::manager::MaintenanceManager;
use crate::progress::{Beginning, Scene};
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
    let machine = Machine::Host(node.host);
    let scene = Scene::open(manager, node.tenant, machine, false).await;
    let mut scene = scene.map_err(status::store)?;
    trusted(&scene.host, &scene.world)?;
    let stored = store(&mut scene, attempt, &request.target_digest, events).await;
    let (run, acknowledged) = stored.map_err(status::store)?;
    let now = scene.now;
    scene.commit().await.map_err(status::store)?;
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
    let mut run = scene.run_of(attempt).await?;
    let mut stored = run.as_ref().map_or(0, |run| run.sequence);
    for happening in events {
        let number = happening.sequence.unwrap_or(0);
        if number > stored + 1 {
            break;
        }
        if number <= stored {
            continue;
        }
        let subject = run.as_ref().map(|run| Subject::Run(run.id));
        run = match subject {
            Some(subject) => Some(scene.bring(subject, &happening).await?),
            // An attempt that was given up before anything happened leaves no run.
            None if matches!(happening.event, RunEvent::Cancelled(_)) => None,
            None => {
                let beginning = Beginning {
                    attempt: Some(attempt),
                    origin: scene.named(digest).await?,
                    follows: None,
                };
                Some(scene.begin_attempt(beginning, &happening).await?)
            }
        };
        stored = number;
    }
    Ok((run, stored))
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
