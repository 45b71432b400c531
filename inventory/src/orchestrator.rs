//! `/v1/orchestrator`: the features of EIM that this server has.

use evenkeel_api::orchestrator::OrchestratorInfo;

use crate::call::Call;
use crate::extract::Json;
use crate::problem::Problem;
use crate::shape::Answer;

/// Get the features of the orchestrator
///
/// Returns the features of EIM that this server has. EIM's clients read them before they offer
/// their commands. Every valid token is sufficient.
#[utoipa::path(
    get, path = "/v1/orchestrator", tag = "projects",
    responses((status = 200, description = "The available features.", body = OrchestratorInfo), Problem),
)]
pub async fn get_orchestrator(call: Call) -> Answer<OrchestratorInfo> {
    call.caller()?;
    Ok(Json(OrchestratorInfo::for_version(env!("CARGO_PKG_VERSION"))))
}
