//! How a node arrives (engine section 8).

use std::time::{Duration, Instant};

use evenkeel_auth::JoinToken as Secret;
use evenkeel_domain::Time;
use evenkeel_domain::host::{Host, Registration, SerialNumber, parse_uuid};
use evenkeel_domain::id::{HostId, OsId};
use evenkeel_domain::instance::{Instance, InstanceKind, NewInstance};
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::join_token::JoinToken;
use evenkeel_domain::os::{Image, OsKind, OsRelease, OsSpec, SecurityFeature};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::{self, Name};
use evenkeel_proto::agent::{self as wire, EnrollRequest, EnrollResponse};
use evenkeel_store::hosts::Joining;
use evenkeel_store::nodes::BootedImage;
use evenkeel_store::{
    Actor, StoreError, Tx, hosts, instances, join_tokens, nodes, os_profiles, projects,
};
use tonic::Status;
use uuid::Uuid;

use crate::agent::wire::timestamp;
use crate::manager::MaintenanceManager;
use crate::peer::Peer;
use crate::settings::delta;
use crate::status;

/// How long a machine may wait to come in.
const DOOR_WITHIN: Duration = Duration::from_secs(10);

/// The longest text of a booted image, in bytes: an image of the catalogue has no longer one.
const MAX_TEXT: usize = 512;

/// What a machine says of itself, read.
struct Claim {
    joining: Joining,
    runs: Runs,
    architecture: String,
    agent_version: String,
}

/// What a machine runs that comes in.
enum Runs {
    /// Packages: the catalogue gets an entry for its release if it has none.
    Release(Box<OsSpec>),
    /// An image: one of the catalogue.
    Image(BootedImage),
}

/// Makes a machine a node of the project that its join token belongs to.
pub async fn enroll(
    manager: &MaintenanceManager,
    peer: &Peer,
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
    // Others from there may have been refused meanwhile.
    manager.flood.may_pass(peer, Instant::now())?;
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
    let short = |text: &str, max| text::cut(&text::storable(text), max);
    let runs = if let Some(booted) = request.booted_image {
        // Its release may have no name at all.
        Runs::Image(BootedImage {
            profile_name: short(&booted.profile_name, MAX_TEXT),
            image_id: short(&booted.image_id, MAX_TEXT),
        })
    } else {
        let release = release(request.os_release.unwrap_or_default());
        let spec = OsSpec::of_release(&release, &request.architecture)?;
        Runs::Release(Box::new(spec))
    };
    Ok(Claim {
        joining: Joining {
            uuid,
            // Vendors put all sorts of things there; what is no serial number is left out.
            serial: SerialNumber::parse("identity.serial_number", &identity.serial_number)
                .ok()
                .flatten(),
            hostname: short(&identity.host_name, 253),
            public_key: request.public_key,
        },
        runs,
        architecture: short(&request.architecture, 64),
        agent_version: short(&request.agent_version, 64),
    })
}

fn release(told: wire::OsRelease) -> OsRelease {
    OsRelease {
        id: told.id,
        version_id: told.version_id,
        pretty_name: told.pretty_name,
        codename: told.version_codename,
    }
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
    let (host, instance) = admitted.await?;
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

/// Makes the machine a host with an instance, as far as it is not one already.
async fn enter(
    tx: &Tx,
    token: &JoinToken,
    known: Option<Host>,
    claim: &Claim,
    now: Time,
) -> Result<(Host, Instance), Status> {
    let host = joined(tx, known, claim, now).await.map_err(status::store)?;
    let instance = match instances::find_by_host(tx, host.id).await {
        Ok(instance) => instance,
        Err(StoreError::NotFound { .. }) => {
            let os = runs(tx, claim, now).await?;
            let new = NewInstance {
                host: host.id,
                os,
                name: host.name.clone(),
                kind: InstanceKind::Metal,
                security_feature: SecurityFeature::None,
                policy: None,
                local_account: None,
                custom_configs: Vec::new(),
            };
            let made = instances::create(tx, &new, now).await;
            made.map_err(status::store)?
        }
        Err(error) => return Err(status::store(error)),
    };
    let greeted = greeted(tx, host.id, claim).await;
    greeted.map_err(status::store)?;
    tracing::debug!(token.id = %token.id, host.id = %host.id, "a machine came in");
    Ok((host, instance))
}

async fn joined(
    tx: &Tx,
    known: Option<Host>,
    claim: &Claim,
    now: Time,
) -> Result<Host, StoreError> {
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
    hosts::joined(tx, id, joining, now).await
}

/// The entry of the catalogue that a machine runs. That of a release is made if it is not there. An image comes from
/// those who publish it: nothing is made up for one.
async fn runs(tx: &Tx, claim: &Claim, now: Time) -> Result<OsId, Status> {
    let booted = match &claim.runs {
        Runs::Release(spec) => {
            let os = os_profiles::ensure(tx, spec, now).await;
            return Ok(os.map_err(status::store)?.id);
        }
        Runs::Image(booted) => booted,
    };
    let (profile_name, image_id) = (&booted.profile_name, &booted.image_id);
    let found = os_profiles::find_image(tx, profile_name, image_id).await;
    let found = found
        .map_err(status::store)?
        .filter(|os| os.spec.kind == OsKind::Immutable && Image::of(os).fits(&claim.architecture));
    found.map(|os| os.id).ok_or_else(|| {
        Status::failed_precondition(format!(
            "the catalogue has no image {profile_name} {image_id} for {}: \
             add it with `evenkeel os create`",
            claim.architecture
        ))
    })
}

async fn greeted(tx: &Tx, host: HostId, claim: &Claim) -> Result<(), StoreError> {
    let mut node = nodes::lock(tx, host).await?;
    node.provisioned = true;
    node.agent_version.clone_from(&claim.agent_version);
    nodes::save(tx, &node).await
}
