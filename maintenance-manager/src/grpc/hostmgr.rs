//! The gRPC service for EIM's host agents: `hostmgr_southbound_proto`.
//!
//! Every call counts as a heartbeat, so that unmodified nodes log no errors and their hosts are
//! shown as running. Hardware information is stored in addition; a failure there does not affect
//! the heartbeat.

mod system_info;

use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, InstanceId};
use evenkeel_domain::status::{Indication, Status as NodeStatus};
use evenkeel_kit::{OffloadShare, offload};
use evenkeel_proto::hostmgr::hostmgr_server::Hostmgr;
use evenkeel_proto::hostmgr::{
    HostStatusResp, SystemInfo, UpdateHostStatusByHostGuidRequest,
    UpdateHostSystemInfoByGuidRequest, UpdateHostSystemInfoByGuidResponse,
    UpdateInstanceStateStatusByHostGuidRequest, UpdateInstanceStateStatusByHostGuidResponse,
};
use evenkeel_store::nodes::{self, MachineKey};
use evenkeel_store::{StoreError, Tx, hardware, hosts};
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tonic::{Request, Response, Status};

use crate::admission::concurrency::{CallKind, Overloaded};
use crate::admission::daily_limits::LimitedAmount;
use crate::grpc::caller::{self, EimNode};
use crate::manager::MaintenanceManager;
use crate::poll::cache::LiveNode;
use crate::status;

#[tonic::async_trait]
impl Hostmgr for MaintenanceManager {
    async fn update_host_status_by_host_guid(
        &self,
        request: Request<UpdateHostStatusByHostGuidRequest>,
    ) -> Result<Response<HostStatusResp>, Status> {
        let guid = &request.get_ref().host_guid;
        Box::pin(self.handle_heartbeat(&request, guid, None)).await?;
        Ok(Response::new(HostStatusResp::default()))
    }

    async fn update_instance_state_status_by_host_guid(
        &self,
        request: Request<UpdateInstanceStateStatusByHostGuidRequest>,
    ) -> Result<Response<UpdateInstanceStateStatusByHostGuidResponse>, Status> {
        let guid = &request.get_ref().host_guid;
        Box::pin(self.handle_heartbeat(&request, guid, None)).await?;
        Ok(Response::new(UpdateInstanceStateStatusByHostGuidResponse::default()))
    }

    async fn update_host_system_info_by_guid(
        &self,
        request: Request<UpdateHostSystemInfoByGuidRequest>,
    ) -> Result<Response<UpdateHostSystemInfoByGuidResponse>, Status> {
        let message = request.get_ref();
        let info = message.system_info.as_ref();
        Box::pin(self.handle_heartbeat(&request, &message.host_guid, info)).await?;
        Ok(Response::new(UpdateHostSystemInfoByGuidResponse::default()))
    }
}

impl MaintenanceManager {
    /// Handles a heartbeat and the hardware information of the machine.
    async fn handle_heartbeat<T>(
        &self,
        request: &Request<T>,
        guid: &str,
        info: Option<&SystemInfo>,
    ) -> Result<(), Status> {
        let (peer, called) = self.authenticate_eim_node(request, guid).await;
        let (answer, eim_node) = match called {
            Ok(eim_node) => {
                let processed =
                    status::with_database_timeout(self.process_heartbeat(&eim_node, info)).await;
                (processed, Some(eim_node))
            }
            Err(refused) => (Err(refused), None),
        };
        self.show_daily_limits(&answer).await;
        let outcome = status::outcome(&answer);
        metrics::counter!("evenkeel_eim_heartbeats_total", "outcome" => outcome).increment(1);
        self.note_eim_call((peer, eim_node.as_ref()), "heartbeat", &answer);
        answer
    }

    /// The heartbeat is recorded first, so that it counts even if storing the hardware fails.
    async fn process_heartbeat(
        &self,
        eim_node: &EimNode,
        info: Option<&SystemInfo>,
    ) -> Result<(), Status> {
        let host = self.record_heartbeat(eim_node).await?;
        match info {
            None => Ok(()),
            Some(info) => self.save_hardware(eim_node, host, info).await,
        }
    }

    /// Records a heartbeat. Heartbeats come every ten seconds: the database is written only if the
    /// host is not shown as running, and not even queried while the cache says that nothing is to
    /// be written.
    async fn record_heartbeat(&self, eim_node: &EimNode) -> Result<HostId, Status> {
        let (tenant, uuid) = (eim_node.tenant, eim_node.uuid);
        if let Some(live) = self.answer_cache.live_node(tenant, uuid) {
            caller::check_token_binding(eim_node, live.host)?;
            self.contacts.record(tenant, live.instance, self.now(), None);
            return Ok(live.host);
        }
        let one = self.load.admit_to_database(tenant, CallKind::EimQuery);
        let _one = one.map_err(Overloaded::status)?;
        let as_of = self.answer_cache.last_pass();
        let (host, instance) = self.find_live_node(eim_node).await?;
        if let Some(instance) = instance {
            let live_node = LiveNode { host, instance };
            self.answer_cache.record_heartbeat(tenant, uuid, live_node, as_of);
        }
        Ok(host)
    }

    /// Finds the node in the database and records the heartbeat. Returns the instance if nothing
    /// had to be written.
    async fn find_live_node(
        &self,
        eim_node: &EimNode,
    ) -> Result<(HostId, Option<InstanceId>), Status> {
        let tx = self.store.tenant(eim_node.tenant).await;
        let tx = tx.map_err(status::from_store_error)?;
        let read = nodes::find_with_host(&tx, MachineKey::Uuid(eim_node.uuid)).await;
        let (host, node) = read.map_err(status::from_store_error)?;
        caller::check_may_speak_for(eim_node, &host)?;
        // The node status shows an invalidated instance as well, and is already loaded.
        if node.status.text == hosts::INVALIDATED_STATUS {
            return Err(Status::unauthenticated("the instance was invalidated"));
        }
        // Once our own agent has taken over, only its calls count as contact.
        if !host.public_key.is_empty() {
            return Ok((host.id, None));
        }
        self.contacts.record(eim_node.tenant, node.instance, self.now(), None);
        if host.status.text == status::RUNNING {
            return Ok((host.id, Some(node.instance)));
        }
        let updated = self.show_running(tx, &host).await;
        updated.map_err(status::from_store_error)?;
        Ok((host.id, None))
    }

    /// Stores the hardware information if it has changed.
    async fn save_hardware(
        &self,
        eim_node: &EimNode,
        host: HostId,
        info: &SystemInfo,
    ) -> Result<(), Status> {
        let parse = || {
            let reported = system_info::parse_hardware(info)?;
            let digest: hardware::HardwareDigest = Sha256::digest(info.encode_to_vec()).into();
            Some((reported, digest))
        };
        let Some((reported, digest)) =
            offload(OffloadShare::Nodes, info.encoded_len(), parse).await
        else {
            return Ok(());
        };
        let tx = self.store.tenant(eim_node.tenant).await.map_err(status::from_store_error)?;
        let now = tx.database_time();
        let stored = hardware::store_if_changed(&tx, host, reported, &digest, now).await;
        if !stored.map_err(status::from_store_error)? {
            return Ok(());
        }
        // The next transaction that locks the node writes the charge.
        let (node, bytes) = ((eim_node.tenant, host), info.encoded_len() as u64);
        self.daily_limits.charge(node, LimitedAmount::Bytes, bytes)?;
        tx.commit().await.map_err(status::from_store_error)
    }

    async fn show_running(&self, tx: Tx, host: &Host) -> Result<(), StoreError> {
        // The node state is locked before its host: this is the lock order.
        let mut node = nodes::lock(&tx, host.id).await?;
        // The instance may have been invalidated before the lock.
        if node.status.text == hosts::INVALIDATED_STATUS {
            return Ok(());
        }
        let running = NodeStatus::new(status::RUNNING, Indication::Idle, tx.database_time());
        if node.status.text == nodes::NO_CONNECTION_STATUS {
            let before = node.clone();
            node.status = running.clone();
            nodes::save_changes(&tx, &before, &node).await?;
        }
        hosts::set_status(&tx, host.id, &running).await?;
        tx.commit().await
    }
}
