//! Enrolment: how a machine becomes a node.

use std::fmt;
use std::net::IpAddr;

use evenkeel_auth::JoinToken as Secret;
use evenkeel_domain::Time;
use evenkeel_domain::host::{Host, HostState, Registration, SerialNumber, parse_uuid};
use evenkeel_domain::id::{HostId, OsId};
use evenkeel_domain::instance::{Instance, InstanceKind, NewInstance};
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::join_token::JoinToken;
use evenkeel_domain::os::{Image, OsKind, OsRelease, OsSpec, SecurityFeature};
use evenkeel_domain::tenant::Project;
use evenkeel_domain::text::{self, Name};
use evenkeel_proto::agent::{self as wire, EnrollRequest, EnrollResponse};
use evenkeel_store::hosts::JoinRequest;
use evenkeel_store::nodes::BootedImage;
use evenkeel_store::{
    Actor, StoreError, Tx, hosts, instances, join_tokens, nodes, os_profiles, projects,
};
use tonic::Status;
use uuid::Uuid;

use crate::admission::peer::Peer;
use crate::grpc::agent::certificates::RequestedKeys;
use crate::grpc::agent::credentials;
use crate::manager::MaintenanceManager;
use crate::node_transaction::none_if_missing;
use crate::status;
use crate::wire::agent::timestamp;

/// The maximum length of a text of a booted image, in bytes. Images in the catalogue have no longer
/// ones.
const MAX_TEXT_BYTES: usize = 512;

/// What a machine claims in its enrolment request, validated.
struct Claim {
    joining: JoinRequest,
    keys: RequestedKeys,
    os: ClaimedOs,
    architecture: String,
    agent_version: String,
}

/// The operating system of an enrolling machine.
enum ClaimedOs {
    /// A release with packages. The catalogue gets an entry for the release if it has none.
    Release(Box<OsSpec>),
    /// An image of the catalogue.
    Image(BootedImage),
}

/// Enrols a machine into the project of its join token. `address` is that of the machine, or of its
/// proxy, for the change log.
pub async fn enroll(
    manager: &MaintenanceManager,
    peer: &Peer,
    address: Option<IpAddr>,
    request: EnrollRequest,
) -> Result<EnrollResponse, Status> {
    let secret = Secret::parse(&request.join_token)
        .map_err(|error| Status::invalid_argument(format!("join_token: {error}")))?;
    let digest = *secret.secret_hash().as_bytes();
    let claim = parse_claim(request).map_err(status::from_invalid)?;
    let actor = Actor {
        name: format!("enrolment of {}", claim.joining.uuid),
        request_id: String::new(),
        client_address: address.map(|address| address.to_string()).unwrap_or_default(),
    };
    let too_many = || Status::unavailable("too many machines enrol at once; try again");
    let lookup = manager.join_token_lookups.acquire().await.ok_or_else(too_many)?;
    // Other calls from this address may have been refused while this one waited.
    manager.rate_limiter.check(peer)?;
    let project = status::with_database_timeout(find_project(manager, digest)).await?;
    drop(lookup);
    let _permit = manager.enrolments.acquire(project.id).await.ok_or_else(too_many)?;
    manager.rate_limiter.check(peer)?;
    let enrolled = enroll_node(manager, (&project, &actor), digest, &claim);
    Box::pin(status::with_database_timeout(enrolled)).await
}

/// The project of a join token.
async fn find_project(manager: &MaintenanceManager, digest: [u8; 32]) -> Result<Project, Status> {
    let fleet = manager.store.fleet().await.map_err(status::from_store_error)?;
    let tenant =
        join_tokens::find_tenant(&fleet, digest).await.map_err(status::from_store_error)?;
    let tenant = tenant.ok_or_else(refuse_unknown_token)?;
    projects::find(&fleet, tenant).await.map_err(status::from_store_error)
}

fn refuse_unknown_token() -> Status {
    Status::permission_denied("the join token is unknown on this server")
}

/// Admits a machine and issues its certificates, and its credential if credentials are accepted.
async fn enroll_node(
    manager: &MaintenanceManager,
    (project, actor): (&Project, &Actor),
    digest: [u8; 32],
    claim: &Claim,
) -> Result<EnrollResponse, Status> {
    let tenant = project.id;
    let tx = manager.store.tenant_as(tenant, actor).await.map_err(status::from_store_error)?;
    let now = tx.database_time();
    let (host, instance, decryption_certificate) =
        admit_machine(manager, tx, digest, claim, now).await?;
    let certificate = claim.keys.issue_client(&manager.ca, (tenant, host.id), now)?;
    let (credential, credential_expires) = if manager.settings.bearer_credentials {
        let key = claim.keys.client.fingerprint();
        let issued = credentials::issue(manager, (tenant, host.id), &key, now)?;
        (issued.token.reveal().to_owned(), Some(timestamp(issued.expires_at)))
    } else {
        (String::new(), None)
    };
    tracing::info!(host.id = %host.id, project = %project.name, "a node was enrolled");
    Ok(EnrollResponse {
        credential,
        credential_expires,
        host_id: host.id.to_string(),
        instance_id: instance.id.to_string(),
        project: project.name.to_string(),
        certificate,
        decryption_certificate,
        now: Some(timestamp(now)),
    })
}

fn parse_claim(request: EnrollRequest) -> Result<Claim, Invalid> {
    let identity = request.identity.unwrap_or_default();
    let uuid = parse_uuid("identity.uuid", &identity.uuid)?;
    let uuid = uuid.ok_or_else(|| Invalid::new("identity.uuid", "must not be empty"))?;
    let keys = RequestedKeys::parse(
        &request.certificate_request,
        &request.decryption_certificate_request,
    )?;
    let short = |text: &str, max| text::cut(&text::storable(text), max);
    let os = if let Some(booted) = request.booted_image {
        // The release of an image may have no name at all.
        ClaimedOs::Image(BootedImage {
            profile_name: short(&booted.profile_name, MAX_TEXT_BYTES),
            image_id: short(&booted.image_id, MAX_TEXT_BYTES),
        })
    } else {
        let release = release(request.os_release.unwrap_or_default());
        let spec = OsSpec::from_release(&release, &request.architecture)?;
        ClaimedOs::Release(Box::new(spec))
    };
    Ok(Claim {
        joining: JoinRequest {
            uuid,
            serial: SerialNumber::from_report(&identity.serial_number),
            hostname: short(&identity.host_name, 253),
            public_key: keys.client.public_key(),
        },
        keys,
        os,
        architecture: short(&request.architecture, 64),
        agent_version: short(&request.agent_version, 64),
    })
}

fn release(message: wire::OsRelease) -> OsRelease {
    OsRelease {
        id: message.id,
        version_id: message.version_id,
        pretty_name: message.pretty_name,
        codename: message.version_codename,
    }
}

/// Creates the node of a machine. Also returns its decryption certificate in DER; empty if it
/// requested none.
async fn admit_machine(
    manager: &MaintenanceManager,
    tx: Tx,
    digest: [u8; 32],
    claim: &Claim,
    now: Time,
) -> Result<(Host, Instance, Vec<u8>), Status> {
    let tenant = tx.tenant();
    // The token may have been deleted while the machine waited.
    let token = none_if_missing(join_tokens::lock(&tx, digest).await);
    let token = token.map_err(status::from_store_error)?.ok_or_else(refuse_unknown_token)?;
    let serial = claim.joining.serial.as_ref();
    let (existing, has_eim_agent) =
        lock_existing(&tx, claim.joining.uuid, serial).await.map_err(status::from_store_error)?;
    let is_retry =
        existing.as_ref().is_some_and(|host| host.public_key == claim.joining.public_key);
    check_admission(&token, existing.as_ref(), is_retry, now)?;
    if has_eim_agent && !token.spec.may_replace_eim_agents {
        return Err(Status::permission_denied(
            "an agent of EIM uses the host of this machine, and the join token does not allow to replace it: \
             use one of `evenkeel join-token create --replace-eim-agents`",
        ));
    }
    let admitted = create_node(&tx, &token, existing, claim, now);
    let (host, instance) = admitted.await?;
    if !instance.is_trusted() {
        return Err(refuse_invalidated(instance.id, host.id));
    }
    if !is_retry {
        join_tokens::record_use(&tx, token.id, now).await.map_err(status::from_store_error)?;
    }
    // It names the host, whose id is known only now, and is stored with it.
    let decryption_certificate =
        claim.keys.issue_decryption(&manager.ca, (tenant, host.id), now)?;
    let stored = claim.keys.store_decryption(&tx, host.id, &decryption_certificate).await;
    stored.map_err(status::from_store_error)?;
    let unsettled = manager.node_writer.pending_invalidation(tenant, host.id, instance.id);
    tx.commit().await.map_err(status::from_store_error)?;
    drop(unsettled);
    manager.contacts.record(tenant, instance.id, manager.now(), None);
    Ok((host, instance, decryption_certificate))
}

/// Finds and locks the host of the machine. Also returns whether an agent of EIM uses it: a node
/// that is in use without a key of our agent. The node state is locked first: this is the lock
/// order.
async fn lock_existing(
    tx: &Tx,
    uuid: Uuid,
    serial: Option<&SerialNumber>,
) -> Result<(Option<Host>, bool), StoreError> {
    let Some(existing) = hosts::find_registered(tx, uuid, serial).await? else {
        return Ok((None, false));
    };
    let node = none_if_missing(nodes::lock(tx, existing.id).await)?;
    // Another machine may have enrolled as this host in the meantime, so the host is read again.
    let host = hosts::lock(tx, existing.id).await?;
    let is_in_use = node.is_some_and(|node| node.provisioned);
    let has_eim_agent = is_in_use && host.public_key.is_empty();
    Ok((Some(host), has_eim_agent))
}

/// Whether the machine may enrol. `is_retry` means that the same machine repeats its request: its
/// first answer may have been lost.
fn check_admission(
    token: &JoinToken,
    existing: Option<&Host>,
    is_retry: bool,
    now: Time,
) -> Result<(), Status> {
    use evenkeel_domain::join_token::JoinTokenError;
    match token.check(now) {
        Ok(()) => {}
        Err(JoinTokenError::Used) if is_retry => {}
        Err(worthless) => return Err(Status::permission_denied(worthless.to_string())),
    }
    match existing {
        None if !token.spec.may_create_hosts => Err(Status::permission_denied(
            "this machine is not registered, and the join token does not allow unregistered machines: \
             register it with `evenkeel host register`",
        )),
        Some(host) if !host.is_trusted() => Err(refuse_invalidated(host.id, host.id)),
        Some(host) if !host.public_key.is_empty() && !is_retry => {
            Err(Status::failed_precondition(format!(
                "another machine is enrolled as {}: if this one replaces it, delete that host first \
             (`evenkeel host delete {} --with-instance`); if both exist and their vendor gave them the same UUID, \
             enrol this one with another UUID (`evenkeel-agent enroll --uuid`)",
                host.id, host.id
            )))
        }
        _ => Ok(()),
    }
}

/// Refuses a machine whose host or instance was invalidated.
fn refuse_invalidated(what: impl fmt::Display, host: HostId) -> Status {
    Status::permission_denied(format!(
        "{what} was invalidated: to use this machine again, delete the host first \
         (`evenkeel host delete {host} --with-instance`)"
    ))
}

/// Creates the host and the instance of the machine as far as they do not exist.
async fn create_node(
    tx: &Tx,
    token: &JoinToken,
    existing: Option<Host>,
    claim: &Claim,
    now: Time,
) -> Result<(Host, Instance), Status> {
    let host = join_host(tx, existing, claim, now).await.map_err(status::from_store_error)?;
    let instance = match instances::find_by_host(tx, host.id).await {
        Ok(instance) => instance,
        Err(StoreError::NotFound { .. }) => {
            let os = resolve_os(tx, claim, now).await?;
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
            let created = instances::create(tx, &new, now).await;
            created.map_err(status::from_store_error)?
        }
        Err(error) => return Err(status::from_store_error(error)),
    };
    let marked = mark_provisioned(tx, host.id, claim).await;
    marked.map_err(status::from_store_error)?;
    tracing::debug!(token.id = %token.id, host.id = %host.id, "a machine enrolled");
    Ok((host, instance))
}

async fn join_host(
    tx: &Tx,
    existing: Option<Host>,
    claim: &Claim,
    now: Time,
) -> Result<Host, StoreError> {
    let joining = &claim.joining;
    let id = if let Some(host) = existing {
        host.id
    } else {
        let registration = Registration {
            name: Name::default(),
            uuid: Some(joining.uuid),
            uuid_text: String::new(),
            serial: joining.serial.clone(),
            current: HostState::Registered,
            auto_onboard: true,
            user_lvm_size: 0,
        };
        hosts::register(tx, &registration, now).await?.id
    };
    hosts::record_join(tx, id, joining, now).await
}

/// Finds the catalogue entry of the operating system. A missing entry for a release is created; a
/// missing image is an error, because images come only from their publisher.
async fn resolve_os(tx: &Tx, claim: &Claim, now: Time) -> Result<OsId, Status> {
    let booted = match &claim.os {
        ClaimedOs::Release(spec) => {
            let os = os_profiles::find_or_create(tx, spec, now).await;
            return Ok(os.map_err(status::from_store_error)?.id);
        }
        ClaimedOs::Image(booted) => booted,
    };
    let (profile_name, image_id) = (&booted.profile_name, &booted.image_id);
    let profile = os_profiles::find_image(tx, profile_name, image_id).await;
    let profile = profile.map_err(status::from_store_error)?;
    if profile.as_ref().is_some_and(|os| os.has_unknown_kind) {
        return Err(Status::unavailable(format!(
            "a newer release of the server wrote the image {profile_name} {image_id}; try again"
        )));
    }
    let profile = profile.filter(|os| {
        os.spec.kind == OsKind::Immutable && Image::from_profile(os).fits(&claim.architecture)
    });
    profile.map(|os| os.id).ok_or_else(|| {
        Status::failed_precondition(format!(
            "the catalogue has no image {profile_name} {image_id} for {}: \
             add it with `evenkeel os create`",
            claim.architecture
        ))
    })
}

async fn mark_provisioned(tx: &Tx, host: HostId, claim: &Claim) -> Result<(), StoreError> {
    let mut node = nodes::lock(tx, host).await?;
    node.provisioned = true;
    node.agent_version.clone_from(&claim.agent_version);
    if node.facts_digest.is_empty() {
        // Until the node reports its facts, its updates are unknown, which is not the same as none.
        let unknown = "the node has not reported yet".to_owned();
        node.facts_summary.package_lists_error = Some(unknown);
    }
    nodes::save(tx, &node).await
}
