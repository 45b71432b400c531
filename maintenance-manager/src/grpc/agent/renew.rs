//! Renewal of the certificates and the credential of a node.

use evenkeel_proto::agent::{RenewRequest, RenewResponse};
use evenkeel_store::nodes::{self, MachineKey};
use evenkeel_store::{Tx, instances};
use tonic::Status;

use crate::admission::concurrency::CallKind;
use crate::evaluate::check_key;
use crate::grpc::agent::certificates::RequestedKeys;
use crate::grpc::agent::credentials;
use crate::grpc::caller::{Node, NodeProof};
use crate::manager::MaintenanceManager;
use crate::node_transaction::WritePermit;
use crate::status;

/// Issues new certificates, and a credential if the node has authenticated with one, to a node whose
/// host is trusted and was enrolled with the same key. The signature of the request proves that the
/// node still has the key.
pub async fn renew(
    manager: &MaintenanceManager,
    node: &Node,
    request: RenewRequest,
) -> Result<RenewResponse, Status> {
    let (client, mut decryption) =
        (request.certificate_request, request.decryption_certificate_request);
    if matches!(node.proof, NodeProof::Credential { .. }) {
        // A proxy may have copied the request for the client key. It must not get secrets.
        decryption.clear();
    }
    let keys = RequestedKeys::parse(&client, &decryption).map_err(status::from_invalid)?;
    if keys.client.fingerprint() != node.key {
        return Err(Status::invalid_argument(
            "certificate_request: its key is not that of the certificate or the credential",
        ));
    }
    let issued = manager.node_writer.with_write_permit((node.tenant, CallKind::Write), |permit| {
        issue(permit, manager, node, &keys)
    });
    issued.await
}

/// Checks that the node may renew its certificates and its credential, issues them by the clock of
/// the database, and stores the decryption certificate.
async fn issue(
    (writer, _permit): WritePermit<'_>,
    manager: &MaintenanceManager,
    node: &Node,
    keys: &RequestedKeys,
) -> Result<RenewResponse, Status> {
    let tx = writer.store.tenant(node.tenant).await.map_err(status::from_store_error)?;
    check_may_renew(&tx, node).await?;
    let (host, now) = ((node.tenant, node.host), tx.database_time());
    let certificate = keys.issue_client(&manager.ca, host, now)?;
    let credential = credentials::renew(manager, node, now)?;
    let decryption_certificate = keys.issue_decryption(&manager.ca, host, now)?;
    let stored = keys.store_decryption(&tx, node.host, &decryption_certificate).await;
    stored.map_err(status::from_store_error)?;
    tx.commit().await.map_err(status::from_store_error)?;
    Ok(RenewResponse { certificate, decryption_certificate, credential })
}

async fn check_may_renew(tx: &Tx, node: &Node) -> Result<(), Status> {
    let found = nodes::find_with_host(tx, MachineKey::Host(node.host)).await;
    let (host, state) = found.map_err(status::from_store_error)?;
    check_key(&host, &node.key)?;
    let instance = instances::find(tx, state.instance).await.map_err(status::from_store_error)?;
    if host.is_trusted() && instance.is_trusted() {
        return Ok(());
    }
    Err(Status::permission_denied(format!("{} was invalidated", host.id)))
}
