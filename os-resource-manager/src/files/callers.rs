//! Who asks for files, and of which projects it gets them.

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

/// Whose share an answer counts to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// Whoever has this name in its token: for a node of ours, its host's id.
    Subject(String),
    /// Whoever asks from there.
    Address(IpAddr),
    /// Nobody knows.
    Nobody,
}

/// Of which projects somebody gets files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sees {
    /// Of all.
    All,
    /// Of these.
    Only(Vec<TenantId>),
}

impl Sees {
    /// Whether they are of a project.
    pub fn of(&self, tenant: TenantId) -> bool {
        match self {
            Self::All => true,
            Self::Only(tenants) => tenants.contains(&tenant),
        }
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    /// Whose share the answer counts to.
    pub holder: Holder,
    /// What it gets.
    pub sees: Sees,
}

/// Why somebody is not let in.
#[derive(Debug)]
pub(super) enum Refused {
    /// It did not prove who it is.
    Unproven(AuthError),
    /// Its host was invalidated, or is gone.
    Distrusted,
    /// Its token is for something else.
    NothingHere,
    /// The database cannot tell.
    Store(StoreError),
}

/// Who sent a request.
pub(super) async fn asker(
    admission: Admission,
    authority: &Authority,
    store: &Store,
    request: &Parts,
    now: Time,
) -> Result<Asker, Refused> {
    if admission == Admission::Open {
        let from = request.extensions.get::<ConnectInfo<SocketAddr>>();
        let holder = from.map_or(Holder::Nobody, |ConnectInfo(address)| {
            Holder::Address(address.ip().to_canonical())
        });
        let sees = Sees::All;
        return Ok(Asker { holder, sees });
    }
    let said = request.headers.get(AUTHORIZATION);
    let said = said.map(|said| said.to_str().unwrap_or_default());
    let caller = authority
        .verify_header(said, now)
        .map_err(Refused::Unproven)?;
    let sees = sees(&caller).ok_or(Refused::NothingHere)?;
    if let Some(project) = caller.node_of()
        && caller.ours
    {
        must_be_trusted(store, TenantId::new(project), &caller.subject).await?;
    }
    Ok(Asker {
        holder: Holder::Subject(caller.subject.clone()),
        sees,
    })
}

/// Of which projects the bearer of a token gets files; none if it gets nothing at all.
fn sees(caller: &Caller) -> Option<Sees> {
    if caller.may_administrate() {
        return Some(Sees::All);
    }
    let mut projects = caller.readable_projects();
    projects.extend(caller.node_of());
    if projects.is_empty() {
        return None;
    }
    Some(Sees::Only(
        projects.into_iter().map(TenantId::new).collect(),
    ))
}

/// Refuses a node of ours whose host was invalidated, as it is refused everywhere else.
async fn must_be_trusted(store: &Store, tenant: TenantId, subject: &str) -> Result<(), Refused> {
    let host: HostId = subject.parse().map_err(|_| Refused::NothingHere)?;
    let tx = store.tenant(tenant).await.map_err(Refused::Store)?;
    match hosts::find(&tx, host).await {
        Ok(host) if host.is_trusted() => Ok(()),
        Ok(_) | Err(StoreError::NotFound { .. }) => Err(Refused::Distrusted),
        Err(error) => Err(Refused::Store(error)),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use evenkeel_auth::Role;
    use uuid::Uuid;

    use super::*;

    const ONE: Uuid = Uuid::from_u128(1);
    const TWO: Uuid = Uuid::from_u128(2);

    fn seen_with(roles: &[Role]) -> Option<Sees> {
        sees(&Caller {
            subject: "somebody".to_owned(),
            roles: roles.to_vec(),
            not_before: None,
            expires_at: DateTime::UNIX_EPOCH,
            ours: true,
        })
    }

    #[test]
    fn who_gets_files_gets_those_of_its_projects() {
        let only = |projects: &[Uuid]| {
            let tenants = projects.iter().copied().map(TenantId::new);
            Some(Sees::Only(tenants.collect()))
        };
        assert_eq!(seen_with(&[]), None);
        assert_eq!(seen_with(&[Role::Node(ONE)]), only(&[ONE]));
        assert_eq!(
            seen_with(&[Role::Node(ONE), Role::Node(TWO)]),
            None,
            "a node has one project"
        );
        assert_eq!(
            seen_with(&[Role::Write(TWO), Role::Read(ONE)]),
            only(&[ONE, TWO])
        );
        assert_eq!(seen_with(&[Role::Administrator]), Some(Sees::All));
        let one = Sees::Only(vec![TenantId::new(ONE)]);
        assert!(one.of(TenantId::new(ONE)) && !one.of(TenantId::new(TWO)));
    }
}
