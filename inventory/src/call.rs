//! Who asks, and in which project.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use evenkeel_auth::Caller;
use evenkeel_domain::id::BadId;
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_store::{Actor, Entry, FleetTx, ProjectKey, StoreError, Tx};
use uuid::Uuid;

use crate::layers::RequestId;
use crate::paths::Legacy;
use crate::problem::Problem;
use crate::{App, Inventory};

/// The header that names the project in the ancestor's legacy form.
const ACTIVE_PROJECT: &str = "activeprojectid";

/// What a request says of who asks and where. Nothing of it is verified before a transaction is opened, so that a
/// malformed request is told so first, as the ancestor does.
#[derive(Clone, Debug)]
pub struct Call {
    authorization: Option<String>,
    place: Place,
    request_id: String,
}

/// How the project is named.
#[derive(Clone, Debug)]
enum Place {
    /// By its name in the path.
    Named(String),
    /// By its UUID in a header.
    Active(Option<Uuid>),
}

impl Call {
    /// The id of the request.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }
}

impl FromRequestParts<App> for Call {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        let place = if parts.extensions.get::<Legacy>().is_some() {
            let id = text(&parts.headers, ACTIVE_PROJECT).and_then(|id| Uuid::try_parse(&id).ok());
            Place::Active(id)
        } else {
            let params = RawPathParams::from_request_parts(parts, app).await.ok();
            let name = params.as_ref().and_then(|params| {
                let is_project = |(key, _): &(&str, &str)| *key == "projectName";
                params
                    .iter()
                    .find(is_project)
                    .map(|(_, name)| name.to_owned())
            });
            Place::Named(name.unwrap_or_default())
        };
        Ok(Self {
            authorization: text(&parts.headers, AUTHORIZATION.as_str()),
            place,
            request_id: RequestId::of(&parts.extensions).to_owned(),
        })
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

impl Inventory {
    /// Who asks.
    pub(crate) fn caller(&self, call: &Call) -> Result<Arc<Caller>, Problem> {
        let header = call.authorization.as_deref();
        Ok(self.authority.verify_header(header, self.clock.now())?)
    }

    /// Opens a transaction for reading what is in the project.
    pub(crate) async fn read(&self, call: &Call) -> Result<Tx, Problem> {
        let caller = self.caller(call)?;
        self.enter(call, &caller, &Entry::Read).await
    }

    /// Opens a transaction for reading what is in the project, all of it as it is at one instant.
    pub(crate) async fn snapshot(&self, call: &Call) -> Result<Tx, Problem> {
        let caller = self.caller(call)?;
        self.enter(call, &caller, &Entry::Snapshot).await
    }

    /// Opens a transaction for changing what is in the project.
    pub(crate) async fn write(&self, call: &Call) -> Result<Tx, Problem> {
        self.write_by_name(call).await.map(|(tx, _)| tx)
    }

    /// Opens a transaction for changing what is in the project, and says who does so.
    pub(crate) async fn write_by_name(&self, call: &Call) -> Result<(Tx, String), Problem> {
        let caller = self.caller(call)?;
        let how = Entry::Write(actor(&caller, call));
        let tx = self.enter(call, &caller, &how).await?;
        Ok((tx, caller.subject.clone()))
    }

    /// Opens a transaction for changing projects themselves.
    pub(crate) async fn administrate(&self, call: &Call) -> Result<FleetTx, Problem> {
        let caller = self.caller(call)?;
        if !caller.may_administrate() {
            return Err(Problem::forbidden(
                "only an administrator may make and delete projects",
            ));
        }
        Ok(self.store.fleet_as(&actor(&caller, call)).await?)
    }

    /// Opens a transaction in the project of a call, if there is one and the caller may do there what it is opened for.
    async fn enter(&self, call: &Call, caller: &Caller, how: &Entry) -> Result<Tx, Problem> {
        let project = match &call.place {
            Place::Named(name) => project_name_of_path(name).ok().map(ProjectKey::Named),
            Place::Active(Some(id)) => Some(ProjectKey::Id(TenantId::new(*id))),
            Place::Active(None) => {
                let message = "the header ActiveProjectID must hold the UUID of a project";
                return Err(Problem::unauthenticated(message));
            }
        };
        let entered = match &project {
            Some(project) => self.store.enter(project, how).await?,
            None => None,
        };
        let may = |tenant: TenantId| match how {
            Entry::Read | Entry::Snapshot => caller.may_read(tenant.uuid()),
            Entry::Write(_) => caller.may_write(tenant.uuid()),
        };
        // Whether a project exists is nobody's business who may not enter it.
        entered
            .filter(|tx| may(tx.tenant()))
            .ok_or_else(|| Problem::forbidden("no such project, or no role in it for this"))
    }
}

fn actor(caller: &Caller, call: &Call) -> Actor {
    Actor {
        name: caller.subject.clone(),
        request_id: call.request_id.clone(),
    }
}

/// Reads the name of a project in a path. What no project can be called is not found.
pub fn project_name_of_path(text: &str) -> Result<ProjectName, StoreError> {
    ProjectName::parse("projectName", text).map_err(|_| StoreError::NotFound { what: "project" })
}

/// Reads the id of a path. An id of another kind is a bad request; one that no resource can have is not found.
pub fn id_of_path<T>(what: &'static str, text: &str) -> Result<T, Problem>
where
    T: std::str::FromStr<Err = BadId>,
{
    named_of_path("resourceId", what, text)
}

/// Reads the id of a path that is called otherwise there.
pub fn named_of_path<T>(name: &str, what: &'static str, text: &str) -> Result<T, Problem>
where
    T: std::str::FromStr<Err = BadId>,
{
    text.parse().map_err(|error| match error {
        BadId::Impossible { .. } => StoreError::NotFound { what }.into(),
        BadId::OtherKind { .. } => Problem::parameter(name, error),
    })
}
