//! The caller of a request, and the project of the request.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, FromRequestParts, MatchedPath, RawPathParams};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use evenkeel_auth::{AuthError, Caller, Role};
use evenkeel_domain::id::BadId;
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_kit::spans::SpanContext;
use evenkeel_kit::{Lifecycle, chain};
use evenkeel_store::changes::{self, EventKind};
use evenkeel_store::{
    Actor, ConnectionShare, FleetTx, ProjectKey, Store, StoreError, TransactionMode, Tx,
    operator_tokens, projects, users,
};
use serde_json::json;
use uuid::Uuid;

use crate::access_log::AccessRecord;
use crate::app::{App, ListReader};
use crate::authentication_hook::AuthenticationHook;
use crate::layers::RequestId;
use crate::paths::LegacyPath;
use crate::problem::Problem;

/// Header that names the project in EIM's legacy paths.
const ACTIVE_PROJECT: &str = "activeprojectid";

/// Caller and project, as the request states them. They are verified only when a transaction is
/// opened: like EIM, the API rejects a malformed request before it checks the token.
#[derive(Clone, Debug)]
pub struct Call {
    /// The API.
    pub app: App,
    authorization: Option<String>,
    project: ProjectRef,
    request_id: String,
    /// Method and route, such as `PUT /v1/projects/{projectName}/pauses/{scope}`.
    operation: String,
    /// Address of the client, as the PROXY protocol names it if there is a proxy.
    client: Option<IpAddr>,
    hook: AuthenticationHook,
    access: AccessRecord,
    /// The span of the request, if this process sends spans.
    span: Option<SpanContext>,
    /// Ends streams that would not end by themselves.
    life: Lifecycle,
}

/// How the request names its project.
#[derive(Clone, Debug)]
enum ProjectRef {
    /// By name, in the path.
    Name(String),
    /// By UUID, in a header. None if the header is missing or not a UUID.
    Header(Option<Uuid>),
}

impl ProjectRef {
    /// The name or the UUID; none if it is missing or cannot be that of a project.
    fn valid_name(&self) -> Option<String> {
        match self {
            Self::Name(name) => parse_project_name(name).ok().map(|name| name.to_string()),
            Self::Header(id) => id.map(|id| id.to_string()),
        }
    }
}

impl Call {
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Address of the client, if it is known.
    pub const fn client(&self) -> Option<IpAddr> {
        self.client
    }

    /// The span of the request; none if this process sends no spans.
    pub fn span(&self) -> Option<SpanContext> {
        self.span
    }

    /// Verifies the token and returns the caller. This is the only use of the clock of the process:
    /// handlers take the time of the database from their transaction.
    pub fn caller(&self) -> Result<Arc<Caller>, Problem> {
        let header = self.authorization.as_deref();
        let caller = self.app.authority.verify_header(header, self.app.clock.now())?;
        self.access.note_caller(&caller);
        self.hook.call(&caller)?;
        Ok(caller)
    }

    /// Whether the token is still valid and allows the caller to read a project, or the changes that
    /// belong to no project. For streams, which last longer than the check at their begin.
    pub fn may_still_read(&self, project: TenantId) -> bool {
        let header = self.authorization.as_deref();
        let caller = self.app.authority.verify_header(header, self.app.clock.now());
        caller.is_ok_and(|caller| {
            if project == TenantId::NO_PROJECT {
                caller.may_administrate()
            } else {
                caller.may_read(project.uuid())
            }
        })
    }

    /// Waits until the process stops.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + use<> {
        self.life.stopping().cancelled_owned()
    }

    /// Opens a transaction that reads the project.
    pub async fn read(&self) -> Result<Tx, Problem> {
        let caller = self.caller()?;
        self.enter(&caller, &TransactionMode::Read).await
    }

    /// Opens a transaction that reads the project as of one instant.
    pub async fn snapshot(&self) -> Result<Tx, Problem> {
        let caller = self.caller()?;
        self.enter(&caller, &TransactionMode::Snapshot).await
    }

    /// Opens a transaction of an administrator of all projects that reads, as of one instant, the
    /// changes of a project, which may be deleted, or those that belong to no project.
    pub async fn snapshot_of_any(&self, project: TenantId) -> Result<Tx, Problem> {
        let caller = self.caller()?;
        check_administrator(&caller)?;
        let store = self.store(ConnectionShare::RestReads, &caller);
        Ok(store.snapshot(project).await?)
    }

    /// Opens a transaction that changes the project.
    pub async fn write(&self) -> Result<Tx, Problem> {
        self.write_as_caller().await.map(|(tx, _)| tx)
    }

    /// Opens a transaction that changes the project. Also returns the name of the caller.
    pub async fn write_as_caller(&self) -> Result<(Tx, String), Problem> {
        let caller = self.caller()?;
        let entry = TransactionMode::Write(self.actor(&caller));
        let tx = self.enter(&caller, &entry).await?;
        Ok((tx, caller.actor_name()))
    }

    /// Opens a transaction of an administrator, for changes outside of projects. Also returns the
    /// name of the caller.
    pub async fn as_administrator(&self) -> Result<(FleetTx, String), Problem> {
        let caller = self.caller()?;
        check_administrator(&caller)?;
        let store = self.store(ConnectionShare::RestWrites, &caller);
        let tx = store.fleet_as(&self.actor(&caller)).await?;
        Ok((tx, caller.actor_name()))
    }

    /// Opens a transaction of an administrator of any project, for users and tokens. The handler
    /// checks in which projects.
    pub async fn as_any_administrator(&self) -> Result<(FleetTx, Arc<Caller>), Problem> {
        let caller = self.caller()?;
        if !caller.may_manage_any() {
            return Err(Problem::missing_role(format!(
                "only an administrator may do this: the token lacks the role {} and the role of an \
                 administrator of a project",
                Role::Administrator
            )));
        }
        let store = self.store(ConnectionShare::RestWrites, &caller);
        let tx = store.fleet_as(&self.actor(&caller)).await?;
        check_not_revoked(&tx, &caller).await?;
        Ok((tx, caller))
    }

    /// Opens a transaction of an administrator of the request's project, for its users and tokens,
    /// which lie outside of the data of the project.
    pub async fn as_project_administrator(
        &self,
    ) -> Result<(FleetTx, TenantId, Arc<Caller>), Problem> {
        let caller = self.caller()?;
        let project = self.project_key()?.filter(|project| can_have_role(&caller, project));
        let project = project.ok_or_else(no_role_in_project)?;
        let share = if caller.may_manage_any() {
            ConnectionShare::RestWrites
        } else {
            ConnectionShare::RestReads
        };
        let tx = self.store(share, &caller).fleet_as(&self.actor(&caller)).await?;
        let found = match &project {
            ProjectKey::Named(name) => projects::find_by_name(&tx, name.as_str()).await,
            ProjectKey::Id(id) => projects::find(&tx, *id).await,
        };
        let tenant = match found {
            Ok(project) => project.id,
            Err(StoreError::NotFound { .. }) => return Err(no_role_in_project()),
            Err(error) => return Err(error.into()),
        };
        let caller = if caller.may_manage(tenant.uuid()) {
            check_not_revoked(&tx, &caller).await?;
            with_current_roles(&tx, caller).await?
        } else {
            caller
        };
        if caller.may_manage(tenant.uuid()) {
            return Ok((tx, tenant, caller));
        }
        if !caller.may_read(tenant.uuid()) {
            return Err(no_role_in_project());
        }
        let project = self.project_label();
        Err(Problem::missing_role(format!("this needs the role administrator@{project}")))
    }

    /// Opens a transaction for what any caller may change of itself.
    pub async fn as_caller(&self, caller: &Caller) -> Result<FleetTx, Problem> {
        let store = self.store(ConnectionShare::RestWrites, caller);
        Ok(store.fleet_as(&self.actor(caller)).await?)
    }

    /// Opens a transaction for what belongs to no project. The handler checks the roles.
    pub async fn fleet(&self, share: ConnectionShare) -> Result<FleetTx, Problem> {
        let caller = self.caller()?;
        Ok(self.store(share, &caller).fleet().await?)
    }

    /// The database, for this caller. Two issuers may have users of the same name.
    fn store(&self, share: ConnectionShare, caller: &Caller) -> Store {
        self.app.store.with_share(share, Some(&caller.actor_name()))
    }

    /// Opens a transaction in the request's project, if the project exists and the caller has the
    /// role for it.
    async fn enter(&self, caller: &Caller, entry: &TransactionMode) -> Result<Tx, Problem> {
        let project = self.project_key()?;
        let project = project.filter(|project| can_have_role(caller, project));
        let share = match entry {
            TransactionMode::Write(_) if caller.may_write_any() => ConnectionShare::RestWrites,
            _ => ConnectionShare::RestReads,
        };
        let entered = match &project {
            Some(project) => self.store(share, caller).enter(project, entry).await?,
            None => None,
        };
        let may = |tenant: TenantId| match entry {
            TransactionMode::Read | TransactionMode::Snapshot => caller.may_read(tenant.uuid()),
            TransactionMode::Write(_) => caller.may_write(tenant.uuid()),
        };
        match entered {
            Some(tx) if may(tx.tenant()) => Ok(tx),
            Some(tx) if caller.may_read(tx.tenant().uuid()) => {
                let project = self.project_label();
                self.record_refusal(tx, caller).await;
                Err(Problem::missing_role(format!(
                    "you may read in project {project}, not write: this needs the role \
                     operator@{project}"
                )))
            }
            _ => Err(no_role_in_project()),
        }
    }

    /// The project of the request. None for a name that no project can have.
    fn project_key(&self) -> Result<Option<ProjectKey>, Problem> {
        match &self.project {
            ProjectRef::Name(name) => Ok(parse_project_name(name).ok().map(ProjectKey::Named)),
            ProjectRef::Header(Some(id)) => Ok(Some(ProjectKey::Id(TenantId::new(*id)))),
            ProjectRef::Header(None) => {
                let message = "the header ActiveProjectID must hold the UUID of a project";
                Err(Problem::unauthenticated(message))
            }
        }
    }

    /// Records that the caller lacks a role, not more often than once a minute. A failure does not
    /// change the response. The refusals after a record are only counted, so a caller that
    /// disconnects must not prevent the record.
    async fn record_refusal(&self, tx: Tx, caller: &Caller) {
        let Some(not_recorded) = self.app.refusals.count(tx.tenant(), caller.actor_name()) else {
            return;
        };
        let details = json!({ "request": self.operation, "refusalsNotRecorded": not_recorded });
        let recording = Lifecycle::detach(Box::pin(async move {
            let recorded = async {
                changes::record_event(&tx, EventKind::Refusal, details).await?;
                tx.commit().await
            };
            if let Err(error) = recorded.await {
                tracing::warn!(error = %chain(&error), "a refused request was not recorded");
            }
        }));
        if let Err(error) = recording.await {
            tracing::error!(%error, "a refused request was not recorded");
        }
    }

    /// The caller as a reader of lists.
    pub fn list_reader(&self) -> Result<ListReader, Problem> {
        let caller = self.caller()?.actor_name().into();
        Ok(ListReader { project: self.project_label().into(), caller })
    }

    fn project_label(&self) -> String {
        match &self.project {
            ProjectRef::Name(name) => name.clone(),
            ProjectRef::Header(id) => id.map(|id| id.to_string()).unwrap_or_default(),
        }
    }

    /// Who changes data in this request.
    fn actor(&self, caller: &Caller) -> Actor {
        Actor {
            name: caller.actor_name(),
            request_id: self.request_id.clone(),
            client_address: self.client.map(|address| address.to_string()).unwrap_or_default(),
        }
    }
}

/// Refuses a caller who is no administrator of all projects.
fn check_administrator(caller: &Caller) -> Result<(), Problem> {
    if caller.may_administrate() {
        return Ok(());
    }
    Err(Problem::missing_role(format!(
        "only an administrator may do this: the token lacks the role {}",
        Role::Administrator
    )))
}

/// Refuses a token that is revoked, also if this process does not know it yet: it could issue tokens and
/// create users that survive the revocation.
pub async fn check_not_revoked(tx: &FleetTx, caller: &Caller) -> Result<(), Problem> {
    let id = caller.token_id.filter(|_| caller.issued_by_us);
    let issuer = if caller.issued_by_us { "" } else { &*caller.issuer };
    let subject = (issuer, caller.subject.as_str());
    if operator_tokens::is_revoked(tx, id, subject, caller.issued_at).await? {
        return Err(AuthError::Revoked.into());
    }
    Ok(())
}

/// The caller without the roles that its user in the database has lost since the login. With them, it
/// could create tokens and users that keep them. The user loses no further role until the end of the
/// transaction. A transaction that changes users locks their changes before.
pub async fn with_current_roles(
    tx: &FleetTx,
    caller: Arc<Caller>,
) -> Result<Arc<Caller>, StoreError> {
    let is_login = caller.issued_by_us && caller.token_name.is_none();
    let Some(token) = caller.token_id.filter(|_| is_login) else {
        return Ok(caller);
    };
    let Some(current) = users::lock_login_roles(tx, &caller.subject, token).await? else {
        return Ok(caller);
    };
    let mut restricted = Caller::clone(&caller);
    restricted.roles.retain(|role| current.contains(&role.to_string()));
    Ok(Arc::new(restricted))
}

/// The same answer for a missing project and a missing role, so that no caller can probe for projects.
fn no_role_in_project() -> Problem {
    Problem::forbidden("no such project, or no role in it for this")
}

/// Whether the caller can have a role in the project, as far as this is known without the database.
/// A caller without one must not take a connection.
fn can_have_role(caller: &Caller, project: &ProjectKey) -> bool {
    match project {
        ProjectKey::Id(id) => caller.may_read(id.uuid()),
        ProjectKey::Named(_) => caller.may_read_any(),
    }
}

impl FromRequestParts<App> for Call {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        let project = if parts.extensions.get::<LegacyPath>().is_some() {
            let id = header_text(&parts.headers, ACTIVE_PROJECT)
                .and_then(|id| Uuid::try_parse(&id).ok());
            ProjectRef::Header(id)
        } else {
            let params = RawPathParams::from_request_parts(parts, app).await.ok();
            let name = params.as_ref().and_then(|params| {
                let is_project = |(key, _): &(&str, &str)| *key == "projectName";
                params.iter().find(is_project).map(|(_, name)| name.to_owned())
            });
            ProjectRef::Name(name.unwrap_or_default())
        };
        let access: AccessRecord = parts.extensions.get().cloned().unwrap_or_default();
        if let Some(name) = project.valid_name() {
            access.note_project(name);
        }
        let route = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
        Ok(Self {
            app: Arc::clone(app),
            authorization: header_text(&parts.headers, AUTHORIZATION.as_str()),
            project,
            request_id: RequestId::from_extensions(&parts.extensions).to_owned(),
            operation: format!("{} {}", parts.method, route.unwrap_or_default()),
            client: parts
                .extensions
                .get()
                .map(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| peer.ip().to_canonical()),
            hook: parts.extensions.get().cloned().unwrap_or_default(),
            access,
            span: parts.extensions.get().copied(),
            life: parts.extensions.get().cloned().unwrap_or_default(),
        })
    }
}

fn header_text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Parses the name of a project in a path. An impossible name gives "not found".
pub fn parse_project_name(text: &str) -> Result<ProjectName, StoreError> {
    ProjectName::parse("projectName", text).map_err(|_| StoreError::NotFound { what: "project" })
}

/// Parses the id in a path. An id of another kind is a bad request; a malformed id gives "not
/// found".
pub fn parse_resource_id<T>(what: &'static str, text: &str) -> Result<T, Problem>
where
    T: std::str::FromStr<Err = BadId>,
{
    parse_path_id("resourceId", what, text)
}

/// As [`parse_resource_id`], for a path parameter of another name.
pub fn parse_path_id<T>(name: &str, what: &'static str, text: &str) -> Result<T, Problem>
where
    T: std::str::FromStr<Err = BadId>,
{
    text.parse().map_err(|error| match error {
        BadId::Malformed { .. } => StoreError::NotFound { what }.into(),
        BadId::OtherKind { .. } => Problem::parameter(name, error),
    })
}
