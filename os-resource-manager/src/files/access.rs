//! Authenticates callers, and decides of which projects they get files.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use evenkeel_auth::{AuthError, Authority, Caller};
use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::{Store, StoreError, hosts};

use super::settings::Admission;

/// Whose transfer limit a response counts against.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TransferOwner {
    /// Subject of the token; for a node of ours, the id of its host.
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
    /// Its host was invalidated or deleted.
    HostNotTrusted,
    /// The token grants no access to files.
    NoFileAccess,
    /// The database did not answer.
    Store(StoreError),
}

/// Authenticates the caller of a request.
pub(super) async fn authenticate(
    admission: Admission,
    authority: &Authority,
    store: &Store,
    request: &Parts,
    now: Time,
) -> Result<FileCaller, AccessError> {
    if admission == Admission::Open {
        let from = request.extensions.get::<ConnectInfo<SocketAddr>>();
        let owner = from.map_or(TransferOwner::Unknown, |ConnectInfo(address)| {
            TransferOwner::Address(address.ip().to_canonical())
        });
        let visible = VisibleProjects::All;
        return Ok(FileCaller { owner, visible });
    }
    let header = request.headers.get(AUTHORIZATION);
    let header = header.map(|header| header.to_str().unwrap_or_default());
    let caller = authority.verify_header(header, now).map_err(AccessError::Unauthenticated)?;
    let visible = visible_projects(&caller).ok_or(AccessError::NoFileAccess)?;
    if let Some(project) = caller.node_project()
        && caller.issued_by_us
    {
        check_host_trusted(store, TenantId::new(project), &caller.subject).await?;
    }
    Ok(FileCaller { owner: TransferOwner::Subject(caller.subject.clone()), visible })
}

/// The projects whose files the bearer of a token gets; `None` if it gets none.
fn visible_projects(caller: &Caller) -> Option<VisibleProjects> {
    if caller.may_administrate() {
        return Some(VisibleProjects::All);
    }
    let mut projects = caller.readable_projects();
    projects.extend(caller.node_project());
    if projects.is_empty() {
        return None;
    }
    Some(VisibleProjects::Only(projects.into_iter().map(TenantId::new).collect()))
}

/// Refuses a node of ours whose host was invalidated, as all other services do.
async fn check_host_trusted(
    store: &Store,
    tenant: TenantId,
    subject: &str,
) -> Result<(), AccessError> {
    let host: HostId = subject.parse().map_err(|_| AccessError::NoFileAccess)?;
    let tx = store.tenant(tenant).await.map_err(AccessError::Store)?;
    match hosts::find(&tx, host).await {
        Ok(host) if host.is_trusted() => Ok(()),
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
        visible_projects(&Caller {
            subject: "somebody".to_owned(),
            roles: roles.to_vec(),
            not_before: None,
            expires_at: DateTime::UNIX_EPOCH,
            issued_by_us: true,
        })
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
