//! Authenticates callers, and decides of which projects they get files.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::ConnectInfo;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use evenkeel_auth::{
    AuthError, Authority, Caller, CertificateNotValid, KeyFingerprint, NodeCertificate,
};
use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::{Store, StoreError, hosts};

use super::settings::{Admission, FileSettings};

/// Whose transfer limit a response counts against.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TransferOwner {
    /// Name of the caller; for a node of ours, the id of its host.
    Subject(String),
    /// Address of a caller without a token.
    Address(IpAddr),
    /// The address is not known.
    Unknown,
}

/// The projects whose files a caller gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VisibleProjects {
    All,
    /// Only these.
    Only(Vec<TenantId>),
}

impl VisibleProjects {
    pub fn contains(&self, tenant: TenantId) -> bool {
        match self {
            Self::All => true,
            Self::Only(tenants) => tenants.contains(&tenant),
        }
    }
}

/// A caller that gets files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileCaller {
    /// Whose transfer limit its responses count against.
    pub owner: TransferOwner,
    /// The projects whose files it gets.
    pub visible: VisibleProjects,
}

/// Why a caller gets no files.
#[derive(Debug)]
pub(super) enum AccessError {
    /// The token is missing or invalid.
    Unauthenticated(AuthError),
    /// The certificate is not valid at this time.
    CertificateNotValid(CertificateNotValid),
    /// The node has shown a credential where only a client certificate is accepted.
    CredentialNotAccepted,
    /// Its host was invalidated or deleted.
    HostNotTrusted,
    /// Its host was enrolled again with another key.
    OtherKey,
    /// The token grants no access to files.
    NoFileAccess,
    /// The database did not answer.
    Store(StoreError),
}

/// Authenticates the caller of a request. A client certificate takes precedence over a token.
pub(super) async fn authenticate(
    settings: &FileSettings,
    authority: &Authority,
    store: &Store,
    request: &Parts,
    now: Time,
) -> Result<FileCaller, AccessError> {
    if settings.admission == Admission::Open {
        let from = request.extensions.get::<ConnectInfo<SocketAddr>>();
        let owner = from.map_or(TransferOwner::Unknown, |ConnectInfo(address)| {
            TransferOwner::Address(address.ip().to_canonical())
        });
        let visible = VisibleProjects::All;
        return Ok(FileCaller { owner, visible });
    }
    if let Some(certificate) = request.extensions.get::<Arc<NodeCertificate>>() {
        return authenticate_node(store, certificate, now).await;
    }
    let header = request.headers.get(AUTHORIZATION);
    let header = header.map(|header| header.to_str().unwrap_or_default());
    let caller = authority.verify_header(header, now).map_err(AccessError::Unauthenticated)?;
    let visible = visible_projects(&caller).ok_or(AccessError::NoFileAccess)?;
    if let Some(project) = caller.node_project()
        && caller.issued_by_us
    {
        if caller.node_key.is_some() && !settings.bearer_credentials {
            return Err(AccessError::CredentialNotAccepted);
        }
        let node = (TenantId::new(project), caller.subject.as_str());
        check_host(store, node, caller.node_key.as_ref()).await?;
    }
    Ok(FileCaller { owner: TransferOwner::Subject(caller.actor_name()), visible })
}

/// Authenticates a node of ours by its client certificate.
async fn authenticate_node(
    store: &Store,
    certificate: &NodeCertificate,
    now: Time,
) -> Result<FileCaller, AccessError> {
    certificate.check_validity(now).map_err(AccessError::CertificateNotValid)?;
    let tenant = TenantId::new(certificate.project);
    check_host(store, (tenant, &certificate.host), Some(&certificate.key)).await?;
    Ok(FileCaller {
        owner: TransferOwner::Subject(certificate.host.clone()),
        visible: VisibleProjects::Only(vec![tenant]),
    })
}

/// The projects whose files the bearer of a token gets; `None` if it gets none.
fn visible_projects(caller: &Caller) -> Option<VisibleProjects> {
    if caller.may_administrate() {
        return Some(VisibleProjects::All);
    }
    let mut projects = caller.readable_projects();
    if let Some(project) = caller.node_project()
        && !projects.contains(&project)
    {
        projects.push(project);
    }
    if projects.is_empty() {
        return None;
    }
    Some(VisibleProjects::Only(projects.into_iter().map(TenantId::new).collect()))
}

/// Refuses a node whose host was invalidated, or is enrolled with another key than `key`. A host
/// with EIM's agents has no key.
async fn check_host(
    store: &Store,
    (tenant, host): (TenantId, &str),
    key: Option<&KeyFingerprint>,
) -> Result<(), AccessError> {
    let host: HostId = host.parse().map_err(|_| AccessError::NoFileAccess)?;
    let tx = store.tenant(tenant).await.map_err(AccessError::Store)?;
    match hosts::find(&tx, host).await {
        Ok(host) if host.is_trusted() => {
            let has_key = match key {
                Some(key) => key.matches(&host.public_key),
                None => host.public_key.is_empty(),
            };
            if has_key { Ok(()) } else { Err(AccessError::OtherKey) }
        }
        Ok(_) | Err(StoreError::NotFound { .. }) => Err(AccessError::HostNotTrusted),
        Err(error) => Err(AccessError::Store(error)),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use evenkeel_auth::Role;
    use uuid::Uuid;

    use super::*;

    const FIRST_PROJECT: Uuid = Uuid::from_u128(1);
    const SECOND_PROJECT: Uuid = Uuid::from_u128(2);

    fn visible_with_roles(roles: &[Role]) -> Option<VisibleProjects> {
        visible_projects(&Caller::new("somebody", roles, DateTime::UNIX_EPOCH))
    }

    #[test]
    fn a_caller_gets_the_files_of_its_projects() {
        let only = |projects: &[Uuid]| {
            let tenants = projects.iter().copied().map(TenantId::new);
            Some(VisibleProjects::Only(tenants.collect()))
        };
        assert_eq!(visible_with_roles(&[]), None);
        assert_eq!(visible_with_roles(&[Role::Node(FIRST_PROJECT)]), only(&[FIRST_PROJECT]));
        assert_eq!(
            visible_with_roles(&[Role::Node(FIRST_PROJECT), Role::Node(SECOND_PROJECT)]),
            None,
            "a node has one project"
        );
        assert_eq!(
            visible_with_roles(&[Role::Write(SECOND_PROJECT), Role::Read(FIRST_PROJECT)]),
            only(&[FIRST_PROJECT, SECOND_PROJECT])
        );
        assert_eq!(visible_with_roles(&[Role::Administrator]), Some(VisibleProjects::All));
        let one = VisibleProjects::Only(vec![TenantId::new(FIRST_PROJECT)]);
        assert!(
            one.contains(TenantId::new(FIRST_PROJECT))
                && !one.contains(TenantId::new(SECOND_PROJECT))
        );
    }
}
