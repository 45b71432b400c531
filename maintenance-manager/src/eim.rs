//! The door for the ancestor's agents: `maintmgr.v1` (southbound section 1).

mod wire;

use evenkeel_domain::decide::{Protocol, Target, target};
use evenkeel_domain::eim::{self, Sample, SampleKind};
use evenkeel_domain::host::parse_uuid;
use evenkeel_domain::id::{HostId, RunId};
use evenkeel_domain::os::OsKind;
use evenkeel_domain::run::{AbandonCause, Happening, RunEvent, RunState, UpdateRun};
use evenkeel_domain::status::Status as Shown;
use evenkeel_domain::tenant::TenantId;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, PlatformUpdateStatusResponse};
use evenkeel_store::runs::Subject;
use evenkeel_store::{StoreError, hosts, runs};
use tonic::{Request, Response, Status};

use crate::caller;
use crate::manager::MaintenanceManager;
use crate::progress::Scene;
use crate::status;

#[tonic::async_trait]
impl MaintmgrService for MaintenanceManager {
    async fn platform_update_status(
        &self,
        request: Request<PlatformUpdateStatusRequest>,
    ) -> Result<Response<PlatformUpdateStatusResponse>, Status> {
        let (tenant, bound) = caller::agent(&self.authority, request.metadata(), self.now())?;
        let answer = self.sampled(tenant, bound, request.into_inner()).await;
        let outcome = status::outcome(&answer);
        metrics::counter!("evenkeel_eim_polls_total", "outcome" => outcome).increment(1);
        answer.map(Response::new)
    }
}

impl MaintenanceManager {
    /// Takes a sample and answers with what the node may do. `bound` is the host that the token names, if it names one.
    async fn sampled(
        &self,
        tenant: TenantId,
        bound: Option<HostId>,
        request: PlatformUpdateStatusRequest,
    ) -> Result<PlatformUpdateStatusResponse, Status> {
        let uuid = parse_uuid("host_guid", &request.host_guid).map_err(status::invalid)?;
        let uuid = uuid.ok_or_else(|| Status::invalid_argument("host_guid: must not be empty"))?;
        let said = request.update_status;
        let said = said.ok_or_else(|| Status::invalid_argument("update_status: is required"))?;

        let tx = self.store.tenant(tenant).await.map_err(status::store)?;
        let host = hosts::find_by_uuid(&tx, uuid)
            .await
            .map_err(status::store)?
            .id;
        drop(tx);
        if bound.is_some_and(|bound| bound != host) {
            return Err(Status::permission_denied(
                "the token is that of another host",
            ));
        }
        let scene = Scene::open(self, tenant, host, false)
            .await
            .map_err(status::store)?;
        if !scene.host.is_trusted() {
            return Err(Status::unauthenticated("the host was invalidated"));
        }
        self.answer(scene, wire::sample(&said), wire::available(said))
            .await
            .map_err(status::store)
    }

    async fn answer(
        &self,
        mut scene: Scene<'_>,
        sample: Sample,
        available: Option<String>,
    ) -> Result<PlatformUpdateStatusResponse, StoreError> {
        let kind = scene.world.known.os_kind;
        // Our own agent has taken over: what the other one says proves nothing any more, and it gets no window.
        if !scene.host.public_key.is_empty() {
            scene.commit().await?;
            return Ok(wire::answer(eim::Answer::default(), kind));
        }
        take(&mut scene, &sample).await?;
        if let Some(available) = available.filter(|_| kind == OsKind::Mutable) {
            scene.node.os_update_available = available;
        }
        scene.node.protocol = Protocol::Eim;
        scene.world.known.speaks = Protocol::Eim;
        scene.world.known.provisioned = true;
        scene.world.known.last_end.clone_from(&scene.node.last_end);

        let decision = scene.world.decide(scene.now);
        let wish = wish(&scene);
        let rendered = eim::answer(
            &decision,
            wish.as_ref(),
            &scene.world.wanted,
            &scene.node.delivered,
            scene.now,
        );
        scene.node.delivered = rendered.delivered.clone();
        scene.commit().await?;
        Ok(wire::answer(rendered, kind))
    }
}

/// Brings what the sample proves to the node's runs, and remembers the sample.
async fn take(scene: &mut Scene<'_>, sample: &Sample) -> Result<(), StoreError> {
    let open = scene.world.run.as_ref().and_then(UpdateRun::as_open);
    let proved = eim::evidence(
        scene.node.seen.as_ref(),
        &scene.node.delivered,
        sample,
        open.as_ref(),
        scene.now,
    );
    let silent = proved.is_empty();
    for happening in proved {
        bring(scene, &happening).await?;
    }
    // What cannot be understood says nothing about the sample before it either.
    if sample.kind != SampleKind::Unspecified {
        scene.node.seen = Some(sample.seen());
    }
    // What moves no run is shown all the same.
    if silent && scene.world.run.is_none() {
        let (text, indication) = sample.kind.status();
        let shown = Shown::new(text, indication, scene.now);
        scene.node.update_status = shown.since(Some(&scene.node.update_status));
    }
    Ok(())
}

/// A sampled event has no attempt of its own: it belongs to the open run, or to the one that was given up for lack of
/// news, or opens one.
async fn bring(scene: &mut Scene<'_>, happening: &Happening) -> Result<(), StoreError> {
    if let Some(open) = scene.world.run.as_ref().map(|run| run.id) {
        return scene.bring(Subject::Run(open), happening).await.map(drop);
    }
    if let Some(silent) = timed_out(scene, &happening.event).await? {
        return scene.bring(Subject::Run(silent), happening).await.map(drop);
    }
    scene.begin_attempt(None, None, happening).await.map(drop)
}

/// The run that was given up for lack of news, if this is the news of its end.
async fn timed_out(scene: &Scene<'_>, event: &RunEvent) -> Result<Option<RunId>, StoreError> {
    let is_end = matches!(event, RunEvent::Finished | RunEvent::Failed(_));
    let Some(last) = scene.node.last_end.as_ref().filter(|_| is_end) else {
        return Ok(None);
    };
    let run = match runs::find(&scene.tx, last.run).await {
        Ok(run) => run,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_silent = matches!(
        run.state,
        RunState::Abandoned {
            cause: AbandonCause::TimedOut,
            ..
        }
    );
    Ok((is_silent && run.attempt.is_none()).then_some(run.id))
}

/// The wish as such an agent is told it: that of the open run, because a target is frozen, else the one that applies.
fn wish(scene: &Scene<'_>) -> Option<Target> {
    let frozen = scene.world.run.as_ref();
    let frozen = frozen.and_then(|run| run.origin.target.clone());
    frozen.or_else(|| target(&scene.world.known, &scene.world.wanted).ok())
}
