//! The door for what the ancestor's node agents say of their machine: `hostmgr_southbound_proto` (southbound section 2).
//!
//! All of it is taken as one thing, a sign of life: unmodified nodes log no errors, and their hosts show as running.

use evenkeel_domain::host::Host;
use evenkeel_domain::status::{Indication, Status as Shown};
use evenkeel_proto::hostmgr::hostmgr_server::Hostmgr;
use evenkeel_proto::hostmgr::{
    HostStatusResp, UpdateHostStatusByHostGuidRequest, UpdateHostSystemInfoByGuidRequest,
    UpdateHostSystemInfoByGuidResponse, UpdateInstanceStateStatusByHostGuidRequest,
    UpdateInstanceStateStatusByHostGuidResponse,
};
use evenkeel_store::nodes::{self, Machine};
use evenkeel_store::{StoreError, Tx, hosts};
use tonic::{Request, Response, Status};

use crate::caller::{self, Ancestor};
use crate::manager::MaintenanceManager;
use crate::status;

#[tonic::async_trait]
impl Hostmgr for MaintenanceManager {
    async fn update_host_status_by_host_guid(
        &self,
        request: Request<UpdateHostStatusByHostGuidRequest>,
    ) -> Result<Response<HostStatusResp>, Status> {
        let guid = request.get_ref().host_guid.clone();
        self.sign_of_life(&request, &guid).await?;
        Ok(Response::new(HostStatusResp::default()))
    }

    async fn update_instance_state_status_by_host_guid(
        &self,
        request: Request<UpdateInstanceStateStatusByHostGuidRequest>,
    ) -> Result<Response<UpdateInstanceStateStatusByHostGuidResponse>, Status> {
        let guid = request.get_ref().host_guid.clone();
        self.sign_of_life(&request, &guid).await?;
        Ok(Response::new(
            UpdateInstanceStateStatusByHostGuidResponse::default(),
        ))
    }

    async fn update_host_system_info_by_guid(
        &self,
        request: Request<UpdateHostSystemInfoByGuidRequest>,
    ) -> Result<Response<UpdateHostSystemInfoByGuidResponse>, Status> {
        let guid = request.get_ref().host_guid.clone();
        self.sign_of_life(&request, &guid).await?;
        Ok(Response::new(UpdateHostSystemInfoByGuidResponse::default()))
    }
}

impl MaintenanceManager {
    async fn sign_of_life<T>(&self, request: &Request<T>, guid: &str) -> Result<(), Status> {
        let (peer, called) = self.ancestor(request, guid);
        let (answer, ancestor) = match called {
            Ok(ancestor) => (self.alive(&ancestor).await, Some(ancestor)),
            Err(refused) => (Err(refused), None),
        };
        let outcome = status::outcome(&answer);
        metrics::counter!("evenkeel_eim_heartbeats_total", "outcome" => outcome).increment(1);
        self.note_ancestor((peer, ancestor.as_ref()), "heartbeat", &answer);
        answer
    }

    /// Notes that a node lives. Written only if its host does not show it yet: the heart beats every ten seconds.
    async fn alive(&self, ancestor: &Ancestor) -> Result<(), Status> {
        let tx = self.store.tenant(ancestor.tenant).await;
        let tx = tx.map_err(status::store)?;
        let read = nodes::read(&tx, Machine::Uuid(ancestor.uuid)).await;
        let (host, node) = read.map_err(status::store)?;
        caller::of_host(ancestor, &host)?;
        // Where our own agent has taken over, its silence is that of the node, whatever else still runs there.
        if !host.public_key.is_empty() {
            return Ok(());
        }
        self.contacts
            .heard(ancestor.tenant, node.instance, self.now());
        if host.status.text == status::RUNNING {
            return Ok(());
        }
        self.show_running(tx, &host).await.map_err(status::store)
    }

    async fn show_running(&self, tx: Tx, host: &Host) -> Result<(), StoreError> {
        // The state of the node comes before its host in the order of locks.
        let mut node = nodes::lock(&tx, host.id).await?;
        let running = Shown::new(status::RUNNING, Indication::Idle, self.now());
        if node.status.text == nodes::NO_CONNECTION {
            node.status = running.clone();
            nodes::save(&tx, &node).await?;
        }
        hosts::set_status(&tx, host.id, &running).await?;
        tx.commit().await
    }
}
