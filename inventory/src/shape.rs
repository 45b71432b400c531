//! REST forms that several resources share.

mod hardware;
pub mod hosts;
pub mod instances;
pub mod operating_systems;
pub mod policies;
pub mod providers;
pub mod targets;

use evenkeel_api::status::StatusIndication;
use evenkeel_api::timestamps::unix_seconds;
use evenkeel_domain::id::{BadId, parse_id};
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::status::{Indication, Status};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::extract::Json;
use crate::problem::Problem;

/// Result of a handler.
pub type Answer<T> = Result<Json<T>, Problem>;

/// Path parameter of a project.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Call` reads the value")]
pub struct InProject {
    /// Name of the project.
    project_name: String,
}

/// Path parameters of a resource in a project.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    /// Name of the project.
    #[serde(rename = "projectName")]
    pub _project_name: String,
    /// ID of the resource. An unknown ID gives `not-found`, an ID of another kind
    /// `invalid-argument`.
    pub resource_id: String,
}

/// Query parameter that names the fields to change.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the value")]
pub struct MaskParams {
    /// Names of the fields to change, separated by commas. Without it, the fields that the body
    /// names are changed. A field that is named here and missing in the body is cleared. The server
    /// refuses a name that no field has (`invalid-argument`).
    field_mask: Option<String>,
}

/// Parses the id in a field that may be empty.
pub fn optional_id<T>(field: &'static str, text: &str) -> Result<Option<T>, Invalid>
where
    T: std::str::FromStr<Err = BadId>,
{
    match text {
        "" => Ok(None),
        id => parse_id(field, id).map(Some),
    }
}

/// REST form of a status in three fields: text, indication, Unix seconds.
pub fn status_fields(status: &Status) -> (String, StatusIndication, u32) {
    (status.text.clone(), indication(status.indication), unix_seconds(Some(status.at)))
}

/// REST form of an indication.
pub const fn indication(indication: Indication) -> StatusIndication {
    match indication {
        Indication::Unspecified => StatusIndication::Unspecified,
        Indication::Error => StatusIndication::Error,
        Indication::InProgress => StatusIndication::InProgress,
        Indication::Idle => StatusIndication::Idle,
    }
}
