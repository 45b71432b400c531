//! `/v1/orchestrator`: which parts of the ancestor's platform are there.

use axum::extract::State;
use evenkeel_api::orchestrator::OrchestratorInfo;

use crate::App;
use crate::call::Call;
use crate::extract::Json;
use crate::problem::Problem;
use crate::shape::Answer;

/// Tell which parts of the ancestor's platform are there.
#[utoipa::path(
    get, path = "/v1/orchestrator", tag = "projects",
    responses((status = 200, description = "The parts that are there.", body = OrchestratorInfo), Problem),
)]
pub async fn get_orchestrator(State(app): State<App>, call: Call) -> Answer<OrchestratorInfo> {
    app.caller(&call)?;
    Ok(Json(OrchestratorInfo::of_version(env!(
        "CARGO_PKG_VERSION"
    ))))
}
