//! Heartbeats of the ancestor's nodes that say nothing new: those whose host shows that it runs.
//!
//! That is remembered beside the answer to a node's polls, and forgotten with it: whatever is changed of its host, its
//! instance or what that said makes the next heartbeat look into the database.

use evenkeel_domain::id::{HostId, InstanceId};
use evenkeel_domain::tenant::TenantId;
use uuid::Uuid;

use super::table::Named;
use super::{Pass, View, Who};

/// A node that was found to live, and to be shown so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive {
    /// Its host.
    pub host: HostId,
    /// Its instance.
    pub instance: InstanceId,
}

impl View {
    /// The node with a UUID, if nothing was changed of it since a heartbeat found nothing to write.
    pub fn alive(&self, tenant: TenantId, uuid: Uuid) -> Option<Alive> {
        if !self.is_fresh() {
            return None;
        }
        let (named, seconds) = (self.named(tenant, uuid), self.seconds());
        let table = self.table();
        table.alive(table.grounds.known(tenant)?, named, seconds)
    }

    /// A heartbeat found nothing to write. Remembered if something is of the node, and nothing was changed of it since the
    /// pass before it looked.
    pub fn beats(&self, tenant: TenantId, uuid: Uuid, alive: Alive, as_of: Option<Pass>) {
        let named = self.named(tenant, uuid);
        let mut table = self.table();
        if let Some((tenant, Pass(as_of))) = table.grounds.known(tenant).zip(as_of) {
            table.beats(tenant, named, alive, as_of);
        }
    }

    fn named(&self, tenant: TenantId, uuid: Uuid) -> Named {
        Named::Uuid(self.uuid(&Who::Uuid(tenant, uuid)))
    }
}
