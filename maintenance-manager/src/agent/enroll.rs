//! How a node arrives (engine section 8).

use std::time::Duration;

use evenkeel_auth::JoinToken as Secret;
use evenkeel_domain::Time;
use evenkeel_domain::host::{Host, Registration, SerialNumber, parse_uuid};
use evenkeel_domain::instance::{Instance, InstanceKind, NewInstance};
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::join_token::JoinToken;
use evenkeel_domain::os::{OsRelease, OsSpec, SecurityFeature};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::{self, Name};
use evenkeel_proto::agent::{EnrollRequest, EnrollResponse};
use evenkeel_store::hosts::Joining;
use evenkeel_store::{
    Actor, StoreError, Tx, hosts, instances, join_tokens, nodes, os_profiles, projects,
};
use tonic::Status;
use uuid::Uuid;

use crate::agent::wire::timestamp;
use crate::manager::MaintenanceManager;
use crate::settings::delta;
use crate::status;

/// How long a machine may wait to come in.
const DOOR_WITHIN: Duration = Duration::from_secs(10);

/// What a machine says of itself, read.
struct Claim {
    joining: Joining,
    os: OsSpec,
    agent_version: String,
}

/// Makes a machine a node of the project that its join token belongs to.
pub async fn enroll(
    manager: &MaintenanceManager,
    request: EnrollRequest,
) -> Result<EnrollResponse, Status> {
    let secret = Secret::parse(&request.join_token)
        .map_err(|error| Status::invalid_argument(format!("join_token: {error}")))?;
    let digest = *secret.secret_hash().as_bytes();
    let claim = read(request).map_err(status::invalid)?;
    let now = manager.now();

    let door = tokio::time::timeout(DOOR_WITHIN, manager.doors.acquire());
    let Ok(Ok(_door)) = door.await else {
        let text = "too many machines arrive at once; try again";
        return Err(Status::unavailable(text));
    };
    status::within(entered(manager, digest, &claim, now)).await
}

/// Lets a machine in, and gives it its credential.
async fn entered(
    manager: &MaintenanceManager,
    digest: [u8; 32],
    claim: &Claim,
    now: Time,
) -> Result<EnrollResponse, Status> {
    let fleet = manager.store.fleet().await.map_err(status::store)?;
    let tenant = join_tokens::tenant_of(&fleet, digest)
        .await
        .map_err(status::store)?;
    let unknown = || Status::permission_denied("the join token is not known here");
    let tenant = tenant.ok_or_else(unknown)?;
    let project = projects::find(&fleet, tenant)
        .await
        .map_err(status::store)?;
    drop(fleet);

    let (host, instance) = admit(manager, tenant, digest, claim, now).await?;
    let lifetime = delta(manager.settings.credential_lifetime);
    let issued = manager
        .authority
        .issue_node(tenant.uuid(), &host.id.to_string(), lifetime, now)
        .map_err(|_| Status::internal("the credential could not be made"))?;
    tracing::info!(host.id = %host.id, project = %project.name, "a node was enrolled");
    Ok(EnrollResponse {
        credential: issued.token.reveal().to_owned(),
        credential_expires: Some(timestamp(issued.expires_at)),
        host_id: host.id.to_string(),
        instance_id: instance.id.to_string(),
        project: project.name.to_string(),
    })
}

fn read(request: EnrollRequest) -> Result<Claim, Invalid> {
    let identity = request.identity.unwrap_or_default();
    let uuid = parse_uuid("identity.uuid", &identity.uuid)?;
    let uuid = uuid.ok_or_else(|| Invalid::new("identity.uuid", "must not be empty"))?;
    if !(32..=1_024).contains(&request.public_key.len()) {
        return Err(Invalid::new("public_key", "not a public key"));
    }
    let release = request.os_release.unwrap_or_default();
    let os = OsRelease {
        id: release.id,
        version_id: release.version_id,
        pretty_name: release.pretty_name,
        codename: release.version_codename,
    };
    Ok(Claim {
        joining: Joining {
            uuid,
            // Vendors put all sorts of things there; what is no serial number is left out.
            serial: SerialNumber::parse("identity.serial_number", &identity.serial_number)
                .ok()
                .flatten(),
            hostname: text::cut(&text::storable(&identity.host_name), 253),
            public_key: request.public_key,
        },
        os: OsSpec::of_release(&os, &request.architecture)?,
        agent_version: text::cut(&text::storable(&request.agent_version), 64),
    })
}

async fn admit(
    manager: &MaintenanceManager,
    tenant: TenantId,
    digest: [u8; 32],
    claim: &Claim,
    now: Time,
) -> Result<(Host, Instance), Status> {
    let actor = Actor {
        name: format!("enrolment of {}", claim.joining.uuid),
        request_id: String::new(),
    };
    let tx = manager
        .store
        .tenant_as(tenant, &actor)
        .await
        .map_err(status::store)?;
    let token = join_tokens::lock(&tx, digest)
        .await
        .map_err(status::store)?;
    let serial = claim.joining.serial.as_ref();
    let known = lock_known(&tx, claim.joining.uuid, serial)
        .await
        .map_err(status::store)?;
    let again = known
        .as_ref()
        .is_some_and(|host| host.public_key == claim.joining.public_key);
    check(&token, known.as_ref(), again, now)?;
    let admitted = enter(&tx, &token, known, claim, now);
    let (host, instance) = admitted.await.map_err(status::store)?;
    if !instance.is_trusted() {
        let why = format!("{} was invalidated", instance.id);
        return Err(Status::permission_denied(why));
    }
    if !again {
        join_tokens::used(&tx, token.id, now)
            .await
            .map_err(status::store)?;
    }
    let unsettled = manager.unsettled(tenant, host.id, instance.id);
    tx.commit().await.map_err(status::store)?;
    drop(unsettled);
    manager.contacts.heard(tenant, instance.id, now, None);
    Ok((host, instance))
}

/// The host that the machine is known as, locked after the state of its node: that is the order of locks.
async fn lock_known(
    tx: &Tx,
    uuid: Uuid,
    serial: Option<&SerialNumber>,
) -> Result<Option<Host>, StoreError> {
    let Some(known) = hosts::find_known(tx, uuid, serial).await? else {
        return Ok(None);
    };
    match nodes::lock(tx, known.id).await {
        Ok(_) | Err(StoreError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    // Another machine may have taken its place meanwhile: what is judged is what is there now.
    hosts::lock(tx, known.id).await.map(Some)
}

/// Whether the machine may come in. `again` is the same machine once more, whose answer may have been lost.
fn check(token: &JoinToken, known: Option<&Host>, again: bool, now: Time) -> Result<(), Status> {
    use evenkeel_domain::join_token::Worthless;
    match token.check(now) {
        Ok(()) => {}
        Err(Worthless::Used) if again => {}
        Err(worthless) => return Err(Status::permission_denied(worthless.to_string())),
    }
    match known {
        None if !token.spec.may_create_hosts => Err(Status::permission_denied(
            "this machine is not registered, and the join token does not allow unregistered machines: \
             register it with `evenkeel host register`",
        )),
        Some(host) if !host.is_trusted() => Err(Status::permission_denied(format!(
            "{} was invalidated",
            host.id
        ))),
        Some(host) if !host.public_key.is_empty() && !again => {
            Err(Status::failed_precondition(format!(
                "another machine is enrolled as {}: if this one replaces it, delete that host first \
             (`evenkeel host delete {} --with-instance`)",
                host.id, host.id
            )))
        }
        _ => Ok(()),
    }
}

async fn enter(
    tx: &Tx,
    token: &JoinToken,
    known: Option<Host>,
    claim: &Claim,
    now: Time,
) -> Result<(Host, Instance), StoreError> {
    let joining = &claim.joining;
    let id = if let Some(host) = known {
        host.id
    } else {
        let registration = Registration {
            name: Name::default(),
            uuid: Some(joining.uuid),
            serial: joining.serial.clone(),
            auto_onboard: true,
            user_lvm_size: 0,
        };
        hosts::register(tx, &registration, now).await?.id
    };
    let host = hosts::joined(tx, id, joining, now).await?;
    let instance = match instances::find_by_host(tx, id).await {
        Ok(instance) => instance,
        Err(StoreError::NotFound { .. }) => {
            let os = os_profiles::ensure(tx, &claim.os, now).await?;
            let new = NewInstance {
                host: id,
                os: os.id,
                name: host.name.clone(),
                kind: InstanceKind::Metal,
                security_feature: SecurityFeature::None,
                policy: None,
                local_account: None,
                custom_configs: Vec::new(),
            };
            instances::create(tx, &new, now).await?
        }
        Err(error) => return Err(error),
    };
    let mut node = nodes::lock(tx, id).await?;
    node.provisioned = true;
    node.agent_version.clone_from(&claim.agent_version);
    nodes::save(tx, &node).await?;
    tracing::debug!(token.id = %token.id, host.id = %id, "a machine came in");
    Ok((host, instance))
}
