//! `notifications`: the deliveries to the notification targets of a project.

use evenkeel_api::notification::{NotificationList, NotificationResource};
use evenkeel_domain::notification::NotificationState;
use evenkeel_store::notifications::{self, Delivery};
use utoipa::IntoParams;

use crate::call::Call;
use crate::extract::{Json, Params};
use crate::listing::short_list::{PageParams, PageQuery};
use crate::problem::Problem;
use crate::shape::{Answer, InProject};

/// Query parameters of the list.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the values")]
pub struct StateParams {
    /// State of the deliveries: `pending`, `delivered` or `dead`. Without it the response contains
    /// deliveries in any state.
    state: Option<String>,
}

/// List notifications
///
/// Returns the newest 1,000 deliveries, the latest first. Deliveries that have ended are removed after
/// 30 days. The list has no `filter` and no `orderBy`.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/notifications", tag = "notifications",
    params(InProject, StateParams, PageParams),
    responses((status = 200, description = "The deliveries, the latest first.", body = NotificationList), Problem),
)]
pub async fn list_notifications(call: Call, params: Params) -> Answer<NotificationList> {
    let page = PageQuery::from_params(&params)?;
    let state = params.text("state").map(parse_state).transpose()?;
    let tx = call.read().await?;
    let part = page.paginate(notifications::list(&tx, state).await?);
    Ok(Json(NotificationList {
        notifications: part.items.into_iter().map(resource).collect(),
        total_elements: part.total_elements,
        has_next: part.has_next,
        next_page_token: part.next_page_token,
    }))
}

fn parse_state(text: &str) -> Result<NotificationState, Problem> {
    NotificationState::from_name(text)
        .ok_or_else(|| Problem::parameter("state", "must be `pending`, `delivered` or `dead`"))
}

fn resource(delivery: Delivery) -> NotificationResource {
    NotificationResource {
        notification_id: delivery.id.to_string(),
        target_id: delivery.target.to_string(),
        event: delivery.event,
        event_at: delivery.event_at,
        state: delivery.state.to_string(),
        attempts: delivery.attempts,
        attempted_at: delivery.attempted_at,
        next_attempt_at: delivery.next_attempt_at,
        last_error: delivery.last_error,
    }
}
