//! What several resources have in common on the wire.

use evenkeel_api::status::StatusIndication;
use evenkeel_api::timestamps::unix_seconds;
use evenkeel_domain::id::{BadId, parse_id};
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::status::{Indication, Status};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::extract::Json;
use crate::problem::Problem;

/// What a handler gives.
pub type Answer<T> = Result<Json<T>, Problem>;

/// The project of a path, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path, rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "the document is made from it; `Call` reads the value"
)]
pub struct InProject {
    /// The name of the project.
    project_name: String,
}

/// One thing of a project.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    /// The name of the project.
    #[serde(rename = "projectName")]
    pub _project_name: String,
    /// The id of the resource.
    pub resource_id: String,
}

/// Which fields a change is about, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "the document is made from it; `Params` reads the value"
)]
pub struct MaskParams {
    /// The names of the fields to change, separated by commas; those that the body names if it is left out. A field that
    /// is named here and missing in the body is emptied.
    field_mask: Option<String>,
}

/// The id in a field that may be empty.
pub fn optional_id<T>(field: &'static str, text: &str) -> Result<Option<T>, Invalid>
where
    T: std::str::FromStr<Err = BadId>,
{
    match text {
        "" => Ok(None),
        id => parse_id(field, id).map(Some),
    }
}

/// A status as three fields: text, indication, Unix seconds.
pub fn triplet(status: &Status) -> (String, StatusIndication, u32) {
    (
        status.text.clone(),
        indication(status.indication),
        unix_seconds(Some(status.at)),
    )
}

/// How a status is taken.
pub const fn indication(indication: Indication) -> StatusIndication {
    match indication {
        Indication::Unspecified => StatusIndication::Unspecified,
        Indication::Error => StatusIndication::Error,
        Indication::InProgress => StatusIndication::InProgress,
        Indication::Idle => StatusIndication::Idle,
    }
}
