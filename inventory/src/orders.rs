//! `compute/instances/{id}/order`: a manual order for one instance, outside of its schedules.

use chrono::TimeDelta;
use evenkeel_api::Empty;
use evenkeel_api::order::{OrderInput, OrderKind as Wire, OrderResource};
use evenkeel_domain::Time;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::order::{Order, OrderKind, parse_reason};
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::spans::{self, Span, SpanContext};
use evenkeel_store::{StoreError, instances, orders};

use crate::call::{Call, parse_resource_id};
use crate::extract::{Json, Path};
use crate::instances::RESOURCE_KIND;
use crate::problem::Problem;
use crate::shape::{Answer, Item};

const ORDER_KIND: &str = "order";

/// Get the last order of an instance
///
/// Returns the last order of the instance, also if it has expired. For an instance without an order
/// the answer is `not-found`.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/instances/{resourceId}/order", tag = "instances", params(Item),
    responses((status = 200, description = "The order.", body = OrderResource), Problem),
)]
pub async fn get_order(call: Call, Path(path): Path<Item>) -> Answer<OrderResource> {
    let tx = call.read().await?;
    let id: InstanceId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    instances::find(&tx, id).await?;
    let order = orders::find(&tx, id).await?;
    let order = order.ok_or(StoreError::NotFound { what: ORDER_KIND })?;
    Ok(Json(resource(id, &order)))
}

/// Order an update now, or cancel one
///
/// `now` opens a window for this instance, for `seconds` from now; pauses, limits and the policy
/// still apply, and a failed image is tried once more. `cancel` skips the windows that are open and
/// stops a run that has changed nothing yet; later windows stay. The new order replaces the
/// previous one. A repeated `now` extends the window and never shortens it: `until` has the later
/// end of both. To close the window earlier, cancel or delete the order first.
///
/// The server refuses `seconds` of 0 or more than 86,400, and a reason that has more than 500 bytes
/// or several lines (`invalid-argument`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/instances/{resourceId}/order", tag = "instances", params(Item),
    request_body = OrderInput,
    responses((status = 200, description = "The order.", body = OrderResource), Problem),
)]
pub async fn put_order(
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<OrderInput>,
) -> Answer<OrderResource> {
    let (tx, by) = call.write_as_caller().await?;
    let id: InstanceId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let order = parse_order(&body, by, tx.database_time())?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let order = order.replacing(orders::find(&tx, id).await?.as_ref());
    if orders::set(&tx, &[id], &order).await?.is_empty() {
        return Err(StoreError::NotFound { what: RESOURCE_KIND }.into());
    }
    let tenant = tx.tenant();
    tx.commit().await?;
    send_span(&call, tenant, id, &order);
    Ok(Json(resource(id, &order)))
}

/// Sends the span of an order, with a link to the request. It is the root of a trace of its own,
/// whose IDs are derived from the order: the spans of the runs that it permits link to it.
fn send_span(call: &Call, tenant: TenantId, instance: InstanceId, order: &Order) {
    let Some(request) = call.span() else {
        return;
    };
    spans::send(Span {
        context: SpanContext::derive(tenant.uuid(), &order.unique_name(instance)),
        parent: None,
        name: "order".to_owned(),
        start: order.at,
        end: call.app.clock.now().max(order.at),
        attributes: vec![
            ("evenkeel.project", tenant.uuid().to_string()),
            ("evenkeel.instance", instance.to_string()),
            ("evenkeel.order", order.kind.name().to_owned()),
        ],
        link: Some(request),
        is_error: false,
        http_status: None,
    });
}

/// Delete the order of an instance
///
/// Closes the window of an order `now`, or lets the instance use the open windows again after
/// `cancel`. For an instance without an order the answer is `not-found`.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/compute/instances/{resourceId}/order", tag = "instances", params(Item),
    responses((status = 200, description = "The order is deleted.", body = Empty), Problem),
)]
pub async fn delete_order(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: InstanceId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    instances::find(&tx, id).await?;
    if orders::find(&tx, id).await?.is_none() {
        return Err(StoreError::NotFound { what: ORDER_KIND }.into());
    }
    orders::clear(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn parse_order(body: &OrderInput, by: String, now: Time) -> Result<Order, Problem> {
    if !(1..=OrderInput::MAX_SECONDS).contains(&body.seconds) {
        let why = format!("must be from 1 to {}", OrderInput::MAX_SECONDS);
        return Err(Problem::invalid("seconds", why));
    }
    let (kind, length) = match body.kind {
        Wire::Now => (OrderKind::Now, TimeDelta::seconds(body.seconds.into())),
        Wire::Cancel => (OrderKind::Cancel, TimeDelta::zero()),
    };
    Ok(Order { kind, at: now, until: now + length, reason: parse_reason(&body.reason)?, by })
}

/// REST form of an order.
pub fn resource(instance: InstanceId, order: &Order) -> OrderResource {
    OrderResource {
        instance_id: instance.to_string(),
        kind: order.kind.name().to_owned(),
        since: order.at,
        until: order.until,
        reason: order.reason.clone(),
        by: order.by.clone(),
    }
}
