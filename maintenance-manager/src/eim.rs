//! The door for the ancestor's agents: `maintmgr.v1` (southbound section 1).

mod wire;

use evenkeel_domain::decide::{Protocol, TargetKind, target};
use evenkeel_domain::eim::{self, Sample};
use evenkeel_domain::host::parse_uuid;
use evenkeel_domain::id::HostId;
use evenkeel_domain::os::OsKind;
use evenkeel_domain::run::{Happening, UpdateRun};
use evenkeel_domain::status::{Indication, Status as Shown};
use evenkeel_domain::tenant::TenantId;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, PlatformUpdateStatusResponse};
use evenkeel_store::runs::Subject;
use evenkeel_store::{StoreError, hosts};
use tonic::{Code, Request, Response, Status};

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
        let outcome = match &answer {
            Ok(_) => "ok",
            Err(status) if matches!(status.code(), Code::Internal | Code::Unavailable) => "error",
            Err(_) => "refused",
        };
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
        self.take(&mut scene, &sample).await?;
        if let Some(available) = available.filter(|_| scene.world.known.os_kind == OsKind::Mutable)
        {
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
        let kind = scene.world.known.os_kind;
        scene.commit().await?;
        Ok(wire::answer(rendered, kind))
    }

    /// Brings what the sample proves to the node's runs, and remembers the sample.
    async fn take(&self, scene: &mut Scene<'_>, sample: &Sample) -> Result<(), StoreError> {
        let open = scene.world.run.as_ref().and_then(UpdateRun::as_open);
        let proved = eim::evidence(
            scene.node.seen.as_ref(),
            &scene.node.delivered,
            sample,
            open.as_ref(),
            scene.now,
        );
        for happening in proved {
            bring(scene, &happening).await?;
        }
        scene.node.seen = Some(sample.seen());
        // What a run does not say: nothing is going on.
        if sample.kind == eim::SampleKind::UpToDate && scene.world.run.is_none() {
            let idle = Shown::new("No new updates available", Indication::Idle, scene.now);
            scene.node.update_status = idle.since(Some(&scene.node.update_status));
        }
        Ok(())
    }
}

/// A sampled event has no attempt of its own: it belongs to the open run, or opens one.
async fn bring(scene: &mut Scene<'_>, happening: &Happening) -> Result<(), StoreError> {
    match scene.world.run.as_ref().map(|run| run.id) {
        Some(id) => scene.bring(Subject::Run(id), happening).await.map(drop),
        None => scene.begin_attempt(None, None, happening).await.map(drop),
    }
}

/// The wish as such an agent is told it: that of the open run, because a target is frozen, else the one that applies.
fn wish(scene: &Scene<'_>) -> Option<TargetKind> {
    let frozen = scene
        .world
        .run
        .as_ref()
        .and_then(|run| run.origin.target.clone());
    let target = frozen.or_else(|| target(&scene.world.known, &scene.world.wanted).ok());
    target.map(|target| target.wish)
}
