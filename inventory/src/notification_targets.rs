//! `notification-targets`: webhooks and e-mail addresses that receive the notifications of a project.

use evenkeel_api::notification::{
    NotificationReplayInput, NotificationReplayResult, NotificationTargetInput,
    NotificationTargetList, NotificationTargetResource, NotificationTestResult,
};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::Time;
use evenkeel_domain::id::NotificationTargetId;
use evenkeel_domain::notification::{
    EmailAddresses, MAX_TARGETS_PER_PROJECT, NotificationEvent, NotificationTarget,
    NotificationTargetSpec, TargetAddress, WebhookSecret, WebhookUrl,
};
use evenkeel_domain::text::Name;
use evenkeel_store::notifications::{self, ReplaySelection};
use evenkeel_store::{StoreError, notification_targets};
use uuid::Uuid;

use crate::app::Settings;
use crate::call::{Call, parse_resource_id};
use crate::extract::{Json, Params, Path};
use crate::listing::short_list::{PageParams, PageQuery};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};

/// List notification targets
///
/// Returns the targets by ID, without their secrets. The list has no `filter` and no `orderBy`.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/notification-targets", tag = "notifications",
    params(InProject, PageParams),
    responses((status = 200, description = "The targets, by id.", body = NotificationTargetList), Problem),
)]
pub async fn list_notification_targets(
    call: Call,
    params: Params,
) -> Answer<NotificationTargetList> {
    let page = PageQuery::from_params(&params)?;
    let tx = call.read().await?;
    let part = page.paginate(notification_targets::all(&tx).await?);
    Ok(Json(NotificationTargetList {
        notification_targets: part.items.iter().map(resource).collect(),
        total_elements: part.total_elements,
        has_next: part.has_next,
        next_page_token: part.next_page_token,
    }))
}

/// Create a notification target
///
/// Only this response contains the secret of a webhook, with which the receiver verifies messages. The
/// server checks the address of the URL when it delivers; request a test to see whether it is accepted.
///
/// The server refuses a name that another target of the project has, more than 100 targets, e-mail
/// addresses if it has no mail server, and a URL with `http://` if its settings do not allow it
/// (`failed-precondition`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/notification-targets", tag = "notifications", params(InProject),
    request_body = NotificationTargetInput,
    responses(
        (
            status = 200, description = "The target, including the secret of a webhook.",
            body = NotificationTargetResource
        ),
        Problem,
    ),
)]
pub async fn create_notification_target(
    call: Call,
    Json(body): Json<NotificationTargetInput>,
) -> Answer<NotificationTargetResource> {
    let spec = NotificationTargetSpec {
        name: Name::parse_given("name", &body.name)?,
        address: parse_address(&body)?,
        events: NotificationEvent::parse_list(&body.events)?,
    };
    let tx = call.write().await?;
    check_deliverable(&spec.address, &call.app.settings)?;
    tx.lock_for_change().await?;
    let existing = notification_targets::all(&tx).await?;
    if existing.iter().any(|target| target.spec.name == spec.name) {
        return Err(Problem::precondition(format!(
            "a notification target of the project has the name `{}`; choose another name",
            spec.name
        )));
    }
    if existing.len() >= MAX_TARGETS_PER_PROJECT {
        return Err(Problem::precondition(format!(
            "the project has {MAX_TARGETS_PER_PROJECT} notification targets, which is the maximum; delete one first"
        )));
    }
    let secret = generate_secret()?;
    let target = notification_targets::create(&tx, &spec, &secret, tx.database_time()).await?;
    tx.commit().await?;
    let is_email = matches!(spec.address, TargetAddress::Email(_));
    Ok(Json(if is_email { resource(&target) } else { with_secret(&target, &secret) }))
}

/// Refuses an address to which this server delivers nothing. Names the setting that allows it.
fn check_deliverable(address: &TargetAddress, settings: &Settings) -> Result<(), Problem> {
    match address {
        TargetAddress::Email(_) if !settings.has_mail_server => Err(Problem::precondition(
            "the server has no mail server for e-mails; set maintenance_manager.smtp.host and \
             maintenance_manager.smtp.from in evenkeeld.toml",
        )),
        TargetAddress::Webhook(url)
            if url.as_str().starts_with("http://") && !settings.allow_http_webhooks =>
        {
            Err(Problem::precondition(
                "the URL begins with http://; use https://, or set \
                 maintenance_manager.notifications.allow_http in evenkeeld.toml",
            ))
        }
        _ => Ok(()),
    }
}

/// The one address that the body has.
fn parse_address(body: &NotificationTargetInput) -> Result<TargetAddress, Problem> {
    match (body.url.as_str(), body.email_addresses.as_slice()) {
        ("", []) => Err(Problem::invalid("url", "set it, or `emailAddresses`")),
        (url, []) => Ok(TargetAddress::Webhook(WebhookUrl::parse("url", url)?)),
        ("", addresses) => {
            Ok(TargetAddress::Email(EmailAddresses::parse("emailAddresses", addresses)?))
        }
        _ => Err(Problem::invalid("emailAddresses", "excludes `url`")),
    }
}

/// Get a notification target
///
/// Returns the target without its secret.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/notification-targets/{resourceId}", tag = "notifications", params(Item),
    responses((status = 200, description = "The target.", body = NotificationTargetResource), Problem),
)]
pub async fn get_notification_target(
    call: Call,
    Path(path): Path<Item>,
) -> Answer<NotificationTargetResource> {
    let tx = call.read().await?;
    let target = notification_targets::find(&tx, parse_id(&path)?).await?;
    Ok(Json(resource(&target)))
}

/// Delete a notification target
///
/// Deletes the target with its deliveries. Pending ones are not delivered.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/notification-targets/{resourceId}", tag = "notifications", params(Item),
    responses((status = 200, description = "The target is deleted.", body = Empty), Problem),
)]
pub async fn delete_notification_target(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    notification_targets::delete(&tx, parse_id(&path)?).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// Enable a notification target
///
/// New events are queued again, and pending deliveries continue at once. Events that happened while the
/// target was disabled are not delivered.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/notification-targets/{resourceId}/enable", tag = "notifications",
    params(Item),
    responses((status = 200, description = "The target is enabled.", body = NotificationTargetResource), Problem),
)]
pub async fn enable_notification_target(
    call: Call,
    Path(path): Path<Item>,
) -> Answer<NotificationTargetResource> {
    set_enabled(&call, &path, true).await
}

/// Disable a notification target
///
/// New events are not queued, and pending deliveries wait.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/notification-targets/{resourceId}/disable", tag = "notifications",
    params(Item),
    responses((status = 200, description = "The target is disabled.", body = NotificationTargetResource), Problem),
)]
pub async fn disable_notification_target(
    call: Call,
    Path(path): Path<Item>,
) -> Answer<NotificationTargetResource> {
    set_enabled(&call, &path, false).await
}

/// Rotate the secret of a notification target
///
/// Only this response contains the new secret. The next attempt is signed with it, so let the receiver
/// accept both secrets meanwhile, or disable the target first.
///
/// The server refuses this for e-mail addresses, which have no secret (`failed-precondition`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/notification-targets/{resourceId}/rotate-secret", tag = "notifications",
    params(Item),
    responses(
        (status = 200, description = "The target, including its new secret.", body = NotificationTargetResource),
        Problem,
    ),
)]
pub async fn rotate_notification_secret(
    call: Call,
    Path(path): Path<Item>,
) -> Answer<NotificationTargetResource> {
    let (tx, id) = (call.write().await?, parse_id(&path)?);
    let secret = generate_secret()?;
    let now = tx.database_time();
    let target = notification_targets::replace_secret(&tx, id, &secret, now).await?;
    if matches!(target.spec.address, TargetAddress::Email(_)) {
        return Err(Problem::precondition("a target of e-mail addresses has no secret"));
    }
    tx.commit().await?;
    Ok(Json(with_secret(&target, &secret)))
}

/// Send a test to a notification target
///
/// Queues a message of the type `test`, also if the target waits after failures. A target that is
/// disabled gets it when it is enabled.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/notification-targets/{resourceId}/test", tag = "notifications", params(Item),
    responses((status = 200, description = "The test is queued.", body = NotificationTestResult), Problem),
)]
pub async fn test_notification_target(
    call: Call,
    Path(path): Path<Item>,
) -> Answer<NotificationTestResult> {
    let (tx, id) = (call.write().await?, parse_id(&path)?);
    let delivery = notifications::queue_test(&tx, id, tx.database_time()).await?;
    tx.commit().await?;
    Ok(Json(NotificationTestResult { notification_id: delivery.to_string() }))
}

/// Send deliveries again
///
/// Sends one delivery of the target, or all whose events are in a range of time, with the same IDs.
/// Only deliveries that have ended are sent again, and only within 30 days.
///
/// The server refuses a body that names neither a delivery nor a range, or both, and a range that ends
/// before it begins (`invalid-argument`). For a delivery that the target does not have the problem is
/// `not-found`.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/notification-targets/{resourceId}/replay", tag = "notifications",
    params(Item), request_body = NotificationReplayInput,
    responses((status = 200, description = "The deliveries are pending.", body = NotificationReplayResult), Problem),
)]
pub async fn replay_notifications(
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<NotificationReplayInput>,
) -> Answer<NotificationReplayResult> {
    let (tx, id) = (call.write().await?, parse_id(&path)?);
    let now = tx.database_time();
    let selection = parse_selection(&body, now)?;
    let replayed = notifications::replay(&tx, id, selection, now).await?;
    if let (0, ReplaySelection::One(delivery)) = (replayed, selection) {
        check_delivery_of(&tx, id, delivery).await?;
    }
    tx.commit().await?;
    Ok(Json(NotificationReplayResult { replayed }))
}

/// A pending delivery is not replayed, but exists.
async fn check_delivery_of(
    tx: &evenkeel_store::Tx,
    target: NotificationTargetId,
    delivery: Uuid,
) -> Result<(), Problem> {
    if notifications::exists(tx, target, delivery).await? {
        return Ok(());
    }
    Err(StoreError::NotFound { what: notifications::RESOURCE }.into())
}

fn parse_selection(body: &NotificationReplayInput, now: Time) -> Result<ReplaySelection, Problem> {
    match (&body.notification_id, body.since, body.until) {
        (Some(id), None, None) => {
            let id =
                id.parse().map_err(|_| Problem::invalid("notificationId", "must be a UUID"))?;
            Ok(ReplaySelection::One(id))
        }
        (None, Some(since), until) => {
            let until = until.unwrap_or(now);
            if until < since {
                return Err(Problem::invalid("until", "must not be before `since`"));
            }
            Ok(ReplaySelection::EventsBetween(since, until))
        }
        (None, None, _) => Err(Problem::invalid("since", "name a `notificationId` or `since`")),
        (Some(_), ..) => Err(Problem::invalid("notificationId", "excludes `since` and `until`")),
    }
}

async fn set_enabled(
    call: &Call,
    path: &Item,
    enabled: bool,
) -> Answer<NotificationTargetResource> {
    let (tx, id) = (call.write().await?, parse_id(path)?);
    let now = tx.database_time();
    let target = notification_targets::set_enabled(&tx, id, enabled, now).await?;
    tx.commit().await?;
    Ok(Json(resource(&target)))
}

fn parse_id(path: &Item) -> Result<NotificationTargetId, Problem> {
    parse_resource_id(notification_targets::RESOURCE, &path.resource_id)
}

fn generate_secret() -> Result<WebhookSecret, Problem> {
    let key = evenkeel_auth::generate_webhook_key::<{ WebhookSecret::BYTES }>();
    let key = key.map_err(|error| {
        tracing::error!(%error, "cannot create the secret of a webhook");
        Problem::internal()
    })?;
    Ok(WebhookSecret::from_bytes(key.to_vec()))
}

fn with_secret(target: &NotificationTarget, secret: &WebhookSecret) -> NotificationTargetResource {
    NotificationTargetResource { secret: Some(secret.reveal_text()), ..resource(target) }
}

fn resource(target: &NotificationTarget) -> NotificationTargetResource {
    let (url, email_addresses) = match &target.spec.address {
        TargetAddress::Webhook(url) => (url.as_str().to_owned(), Vec::new()),
        TargetAddress::Email(addresses) => (String::new(), addresses.as_slice().to_vec()),
    };
    NotificationTargetResource {
        resource_id: target.id.to_string(),
        name: target.spec.name.to_string(),
        url,
        email_addresses,
        events: target.spec.events.iter().map(ToString::to_string).collect(),
        enabled: target.enabled,
        secret: None,
        timestamps: Some(Timestamps::new(target.created_at, target.updated_at)),
    }
}
