//! Bearer credentials of nodes whose proxy terminates TLS.

use chrono::TimeDelta;
use evenkeel_auth::{IssuedToken, KeyFingerprint};
use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use tonic::Status;

use crate::durations::to_time_delta;
use crate::grpc::caller::{Node, NodeProof, RENEWAL_AGE};
use crate::manager::MaintenanceManager;

/// Issues the credential of a node that was enrolled with this key.
pub fn issue(
    manager: &MaintenanceManager,
    (tenant, host): (TenantId, HostId),
    key: &KeyFingerprint,
    now: Time,
) -> Result<IssuedToken, Status> {
    let (host, lifetime) = (host.to_string(), lifetime(manager));
    let issued = manager.authority.issue_credential((tenant.uuid(), &host), key, lifetime, now);
    issued.map_err(|_| Status::internal("the credential could not be issued"))
}

/// Whether the node has a credential that is older than a day, or than two thirds of a lifetime that
/// is shorter than that.
pub fn is_renewal_due(manager: &MaintenanceManager, node: &Node, now: Time) -> bool {
    match node.proof {
        NodeProof::Certificate { .. } => false,
        NodeProof::Credential { issued_at } => {
            let lifetime = lifetime(manager);
            RENEWAL_AGE.min(lifetime - lifetime / 3) < now - issued_at
        }
    }
}

/// A new credential if the node has one whose renewal is due; otherwise an empty text.
pub fn renew_if_due(
    manager: &MaintenanceManager,
    node: &Node,
    now: Time,
) -> Result<String, Status> {
    if is_renewal_due(manager, node, now) { renew(manager, node, now) } else { Ok(String::new()) }
}

/// A new credential if the node has authenticated with one; otherwise an empty text.
pub fn renew(manager: &MaintenanceManager, node: &Node, now: Time) -> Result<String, Status> {
    match node.proof {
        NodeProof::Certificate { .. } => Ok(String::new()),
        NodeProof::Credential { .. } => {
            let issued = issue(manager, (node.tenant, node.host), &node.key, now)?;
            Ok(issued.token.reveal().to_owned())
        }
    }
}

fn lifetime(manager: &MaintenanceManager) -> TimeDelta {
    to_time_delta(manager.settings.credential_lifetime)
}
