//! The door for what the ancestor's node agents say of their machine: `hostmgr_southbound_proto` (southbound section 2).
//!
//! All of it is a sign of life: unmodified nodes log no errors, and their hosts show as running. What a machine says that
//! it is made of is kept beside that, and never in its way.

mod system_info;

use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, InstanceId};
use evenkeel_domain::status::{Indication, Status as Shown};
use evenkeel_proto::hostmgr::hostmgr_server::Hostmgr;
use evenkeel_proto::hostmgr::{
    HostStatusResp, SystemInfo, UpdateHostStatusByHostGuidRequest,
    UpdateHostSystemInfoByGuidRequest, UpdateHostSystemInfoByGuidResponse,
    UpdateInstanceStateStatusByHostGuidRequest, UpdateInstanceStateStatusByHostGuidResponse,
};
use evenkeel_store::nodes::{self, Machine};
use evenkeel_store::{StoreError, Tx, hardware, hosts};
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tonic::{Request, Response, Status};

use crate::caller::{self, Ancestor};
use crate::load::{Busy, CallKind};
use crate::manager::MaintenanceManager;
use crate::status;
use crate::view::Alive;

#[tonic::async_trait]
impl Hostmgr for MaintenanceManager {
    async fn update_host_status_by_host_guid(
        &self,
        request: Request<UpdateHostStatusByHostGuidRequest>,
    ) -> Result<Response<HostStatusResp>, Status> {
        let guid = &request.get_ref().host_guid;
        self.heard(&request, guid, None).await?;
        Ok(Response::new(HostStatusResp::default()))
    }

    async fn update_instance_state_status_by_host_guid(
        &self,
        request: Request<UpdateInstanceStateStatusByHostGuidRequest>,
    ) -> Result<Response<UpdateInstanceStateStatusByHostGuidResponse>, Status> {
        let guid = &request.get_ref().host_guid;
        self.heard(&request, guid, None).await?;
        Ok(Response::new(
            UpdateInstanceStateStatusByHostGuidResponse::default(),
        ))
    }

    async fn update_host_system_info_by_guid(
        &self,
        request: Request<UpdateHostSystemInfoByGuidRequest>,
    ) -> Result<Response<UpdateHostSystemInfoByGuidResponse>, Status> {
        let said = request.get_ref();
        self.heard(&request, &said.host_guid, said.system_info.as_ref())
            .await?;
        Ok(Response::new(UpdateHostSystemInfoByGuidResponse::default()))
    }
}

impl MaintenanceManager {
    /// Takes a sign of life, and what the machine says that it is made of.
    async fn heard<T>(
        &self,
        request: &Request<T>,
        guid: &str,
        info: Option<&SystemInfo>,
    ) -> Result<(), Status> {
        let (peer, called) = self.ancestor(request, guid).await;
        let (answer, ancestor) = match called {
            Ok(ancestor) => {
                let taken = status::within(self.take(&ancestor, info)).await;
                (taken, Some(ancestor))
            }
            Err(refused) => (Err(refused), None),
        };
        let outcome = status::outcome(&answer);
        metrics::counter!("evenkeel_eim_heartbeats_total", "outcome" => outcome).increment(1);
        self.note_ancestor((peer, ancestor.as_ref()), "heartbeat", &answer);
        answer
    }

    /// That the node lives is noted first: it stands, whatever becomes of the rest.
    async fn take(&self, ancestor: &Ancestor, info: Option<&SystemInfo>) -> Result<(), Status> {
        let host = self.alive(ancestor).await?;
        match info {
            None => Ok(()),
            Some(info) => {
                let kept = self.keep(ancestor, host, info).await;
                kept.map_err(status::store)
            }
        }
    }

    /// Notes that a node lives. The heart beats every ten seconds: written only if its host does not show it yet, and not
    /// even looked for while it is remembered that there was nothing to write.
    async fn alive(&self, ancestor: &Ancestor) -> Result<HostId, Status> {
        let (tenant, uuid) = (ancestor.tenant, ancestor.uuid);
        if let Some(known) = self.view.alive(tenant, uuid) {
            caller::of_its_own(ancestor, known.host)?;
            self.contacts
                .heard(tenant, known.instance, self.now(), None);
            return Ok(known.host);
        }
        let one = self.load.to_the_database(CallKind::Eim);
        let _one = one.map_err(Busy::status)?;
        let as_of = self.view.pass();
        let (host, instance) = self.found_alive(ancestor).await?;
        if let Some(instance) = instance {
            let alive = Alive { host, instance };
            self.view.beats(tenant, uuid, alive, as_of);
        }
        Ok(host)
    }

    /// Notes that a node lives that is looked for in the database. Says which instance that is, if there was nothing to
    /// write.
    async fn found_alive(
        &self,
        ancestor: &Ancestor,
    ) -> Result<(HostId, Option<InstanceId>), Status> {
        let tx = self.store.tenant(ancestor.tenant).await;
        let tx = tx.map_err(status::store)?;
        let read = nodes::read(&tx, Machine::Uuid(ancestor.uuid)).await;
        let (host, node) = read.map_err(status::store)?;
        caller::of_host(ancestor, &host)?;
        // What its node shows says so too, and is at hand.
        if node.status.text == hosts::INVALIDATED {
            return Err(Status::unauthenticated("the instance was invalidated"));
        }
        // Where our own agent has taken over, its silence is that of the node, whatever else still runs there.
        if !host.public_key.is_empty() {
            return Ok((host.id, None));
        }
        self.contacts
            .heard(ancestor.tenant, node.instance, self.now(), None);
        if host.status.text == status::RUNNING {
            return Ok((host.id, Some(node.instance)));
        }
        let shown = self.show_running(tx, &host).await;
        shown.map_err(status::store)?;
        Ok((host.id, None))
    }

    /// Keeps what a machine says that it is made of, if it says something else than before.
    async fn keep(
        &self,
        ancestor: &Ancestor,
        host: HostId,
        info: &SystemInfo,
    ) -> Result<(), StoreError> {
        let Some(said) = system_info::hardware(info) else {
            return Ok(());
        };
        let digest: hardware::Digest = Sha256::digest(info.encode_to_vec()).into();
        let tx = self.store.tenant(ancestor.tenant).await?;
        if hardware::keep(&tx, host, said, &digest, self.now()).await? {
            tx.commit().await?;
        }
        Ok(())
    }

    async fn show_running(&self, tx: Tx, host: &Host) -> Result<(), StoreError> {
        // The state of the node comes before its host in the order of locks.
        let mut node = nodes::lock(&tx, host.id).await?;
        // It may have lost our trust before it was locked.
        if node.status.text == hosts::INVALIDATED {
            return Ok(());
        }
        let running = Shown::new(status::RUNNING, Indication::Idle, self.now());
        if node.status.text == nodes::NO_CONNECTION {
            node.status = running.clone();
            nodes::save(&tx, &node).await?;
        }
        hosts::set_status(&tx, host.id, &running).await?;
        tx.commit().await
    }
}
