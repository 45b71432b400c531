//! Heartbeats of EIM's nodes that need no write because the host is already shown as running.
//!
//! This is stored next to the cached answer of the node and removed with it: any change of the
//! host, the instance or its reported state makes the next heartbeat query the database.

use evenkeel_domain::id::{HostId, InstanceId};
use evenkeel_domain::tenant::TenantId;
use uuid::Uuid;

use super::table::SlotKey;
use super::{AnswerCache, NodeKey, Pass};

/// A node that is alive and already shown as running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveNode {
    pub host: HostId,
    pub instance: InstanceId,
}

impl AnswerCache {
    /// The node with a UUID, if it has not changed since a heartbeat found nothing to write.
    pub fn live_node(&self, tenant: TenantId, uuid: Uuid) -> Option<LiveNode> {
        if !self.is_current() {
            return None;
        }
        let (key, seconds) = (self.uuid_key(tenant, uuid), self.uptime_seconds());
        let table = self.table();
        table.live_node(table.scopes.find_tenant(tenant)?, key, seconds)
    }

    /// Records that a heartbeat found nothing to write. Stored only if the node has a cached answer
    /// and has not changed since the pass `as_of`.
    pub fn record_heartbeat(
        &self,
        tenant: TenantId,
        uuid: Uuid,
        live_node: LiveNode,
        as_of: Option<Pass>,
    ) {
        let key = self.uuid_key(tenant, uuid);
        let mut table = self.table();
        if let Some((tenant, Pass(as_of))) = table.scopes.find_tenant(tenant).zip(as_of) {
            table.record_heartbeat(tenant, key, live_node, as_of);
        }
    }

    fn uuid_key(&self, tenant: TenantId, uuid: Uuid) -> SlotKey {
        SlotKey::Uuid(self.uuid_hash(&NodeKey::Uuid(tenant, uuid)))
    }
}
