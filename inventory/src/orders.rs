//! `compute/instances/{id}/order`: what a person wants of one instance, outside the plan.

use axum::extract::State;
use chrono::TimeDelta;
use evenkeel_api::Empty;
use evenkeel_api::order::{OrderInput, OrderKind as Wire, OrderResource};
use evenkeel_domain::Time;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::order::{Order, OrderKind, reason};
use evenkeel_store::{StoreError, instances, orders};

use crate::App;
use crate::call::{Call, id_of_path};
use crate::extract::{Json, Path};
use crate::instances::WHAT;
use crate::problem::Problem;
use crate::shape::{Answer, Item};

const ORDER: &str = "order";

/// Show what was ordered last for an instance.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/instances/{resourceId}/order", tag = "instances", params(Item),
    responses((status = 200, description = "The order.", body = OrderResource), Problem),
)]
pub async fn get_order(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<OrderResource> {
    let tx = app.read(&call).await?;
    let id: InstanceId = id_of_path(WHAT, &path.resource_id)?;
    instances::find(&tx, id).await?;
    let order = orders::find(&tx, id).await?;
    let order = order.ok_or(StoreError::NotFound { what: ORDER })?;
    Ok(Json(resource(id, &order)))
}

/// Order an update of an instance now, or that it is called off. The latest order replaces the one before.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/instances/{resourceId}/order", tag = "instances", params(Item),
    request_body = OrderInput,
    responses((status = 200, description = "The order.", body = OrderResource), Problem),
)]
pub async fn put_order(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<OrderInput>,
) -> Answer<OrderResource> {
    let (tx, by) = app.write_by_name(&call).await?;
    let id: InstanceId = id_of_path(WHAT, &path.resource_id)?;
    let order = order(&body, by, app.clock.now())?;
    if orders::set(&tx, &[id], &order).await?.is_empty() {
        return Err(StoreError::NotFound { what: WHAT }.into());
    }
    tx.commit().await?;
    Ok(Json(resource(id, &order)))
}

/// Take an order back.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/compute/instances/{resourceId}/order", tag = "instances", params(Item),
    responses((status = 200, description = "It is taken back.", body = Empty), Problem),
)]
pub async fn delete_order(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: InstanceId = id_of_path(WHAT, &path.resource_id)?;
    instances::find(&tx, id).await?;
    if orders::find(&tx, id).await?.is_none() {
        return Err(StoreError::NotFound { what: ORDER }.into());
    }
    orders::clear(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn order(body: &OrderInput, by: String, now: Time) -> Result<Order, Problem> {
    if !(1..=OrderInput::MAX_SECONDS).contains(&body.seconds) {
        let why = format!("must be from 1 to {}", OrderInput::MAX_SECONDS);
        return Err(Problem::invalid("seconds", why));
    }
    let (kind, length) = match body.kind {
        Wire::Now => (OrderKind::Now, TimeDelta::seconds(body.seconds.into())),
        Wire::Cancel => (OrderKind::Cancel, TimeDelta::zero()),
    };
    Ok(Order {
        kind,
        at: now,
        until: now + length,
        reason: reason(&body.reason)?,
        by,
    })
}

/// An order on the wire.
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
