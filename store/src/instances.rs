//! Instances, with a summary of the reports of their nodes.

use std::sync::LazyLock;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Scope, UpdateLimits};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{CustomConfigId, HostId, InstanceId, LocalAccountId, OsId, PolicyId};
use evenkeel_domain::instance::{
    FailedImage, ForeignChange, HeldBackUpdate, ImageSlot, Instance, InstanceKind, InstanceState,
    NewInstance, StaleService, Summary,
};
use evenkeel_domain::os::SecurityFeature;
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::text::Name;
use sea_orm::{ActiveModelTrait, EntityTrait, IdenStatic, QueryResult, Set};
use serde::de::DeserializeOwned;

use crate::assignments;
use crate::error::StoreError;
use crate::fields::RowReader;
use crate::hosts::INVALIDATED_STATUS;
use crate::keyed::KeyedEntity;
use crate::nodes::{self, SummaryRow};
use crate::related::{self, Related, RelatedIdsSql};
use crate::rows::instance::{ActiveModel, Column, Entity, Model};
use crate::rows::{JsonColumn, host, or_corrupt, readable};
use crate::tx::{Tx, execute, ids_in, query_all, query_map, query_one};
use crate::{fields, ids, keyed};

const TABLE: &str = "instances";

/// Maximum number of held back updates in the details of an instance. A node may report 100,000.
const MAX_HELD_BACK_UPDATES: usize = 1_000;

/// Creates an instance and the empty state of its node.
///
/// # Errors
/// The host already has an instance, or the host, operating system, policy, account or
/// configuration is not in the project.
pub async fn create(tx: &Tx, new: &NewInstance, now: Time) -> Result<Instance, StoreError> {
    // Lock order: the project's advisory lock before the rows that the assignment refers to.
    if new.policy.is_some() {
        tx.lock_for_change().await?;
    }
    let id = InstanceId::nth(ids::next(tx.conn(), "instance_numbers").await?);
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        host_id: Set(new.host.bits().cast_signed()),
        name: Set(new.name.to_string()),
        kind: Set(new.kind.name().to_owned()),
        desired_state: Set(InstanceState::Running.name().to_owned()),
        current_state: Set(InstanceState::Unspecified.name().to_owned()),
        security_feature: Set(new.security_feature.name().to_owned()),
        created_at: Set(now),
        updated_at: Set(now),
        local_account_id: Set(new.local_account.map(|id| id.bits().cast_signed())),
    };
    Entity::insert(row).exec_without_returning(tx.conn()).await?;
    nodes::create(tx, id, new.os, now).await?;
    insert_configs(tx, id, &new.custom_configs).await?;
    if let Some(policy) = new.policy {
        let unlimited = UpdateLimits::default();
        assignments::set(tx, Scope::Instance(id), policy, unlimited, now).await?;
    }
    find(tx, id).await
}

/// Stores the configurations for the first start of an instance.
async fn insert_configs(
    tx: &Tx,
    id: InstanceId,
    configs: &[CustomConfigId],
) -> Result<(), StoreError> {
    if configs.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO instance_custom_configs (tenant_id, instance_id, custom_config_id) \
               SELECT DISTINCT $1::uuid, $2::integer, id FROM unnest($3::integer[]) AS given (id)";
    let configs: Vec<i32> = configs.iter().map(|id| id.bits().cast_signed()).collect();
    let values = [tx.tenant().uuid().into(), id.bits().cast_signed().into(), configs.into()];
    execute(tx.conn(), sql, values).await.map(drop)
}

/// The instance with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: InstanceId) -> Result<Instance, StoreError> {
    first_or_not_found(find_many(tx, &[id]).await?)
}

/// The instance with this id, locked with the state of its node: no report is processed until the
/// end of the transaction.
///
/// # Errors
/// It does not exist in the project.
pub async fn lock(tx: &Tx, id: InstanceId) -> Result<Instance, StoreError> {
    nodes::lock_row(tx, id).await?;
    find(tx, id).await
}

/// The instance on this host.
///
/// # Errors
/// It does not exist in the project.
pub async fn find_by_host(tx: &Tx, host: HostId) -> Result<Instance, StoreError> {
    first_or_not_found(find_where(tx, Column::HostId, [host.bits()]).await?)
}

fn first_or_not_found<T>(items: Vec<T>) -> Result<T, StoreError> {
    let first = items.into_iter().next();
    first.ok_or(StoreError::NotFound { what: Entity::RESOURCE })
}

/// The instances with these ids that exist, in no particular order.
pub async fn find_many(tx: &Tx, ids: &[InstanceId]) -> Result<Vec<Instance>, StoreError> {
    find_where(tx, Column::Id, ids.iter().map(|id| id.bits())).await
}

/// The instance with this id and its host: one statement.
///
/// # Errors
/// It does not exist in the project.
pub async fn find_with_host(tx: &Tx, id: InstanceId) -> Result<(Instance, Host), StoreError> {
    let rows = read_with_hosts(tx, &[id], with_host).await?;
    first_or_not_found(rows.into_iter().flatten().collect())
}

/// The instances with these ids that exist, each with its host, in no particular order: one
/// statement for any number of instances. Leaves out instances that cannot be read.
pub async fn find_with_hosts(
    tx: &Tx,
    ids: &[InstanceId],
) -> Result<Vec<(Instance, Host)>, StoreError> {
    let read = |row: &QueryResult| Ok(readable(TABLE, with_host(row)).flatten());
    let pairs = read_with_hosts(tx, ids, read).await?;
    Ok(pairs.into_iter().flatten().collect())
}

async fn read_with_hosts<T>(
    tx: &Tx,
    ids: &[InstanceId],
    read: impl Fn(&QueryResult) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let ids: Vec<i32> = ids.iter().map(|id| id.bits().cast_signed()).collect();
    let values = [tx.tenant().uuid().into(), ids.into()];
    query_map(tx.conn(), FIND_MANY_SQL.as_str(), values, read).await
}

fn with_host(row: &QueryResult) -> Result<Option<(Instance, Host)>, StoreError> {
    let mut row = RowReader::new(row);
    let Some(instance) = read_instance(&mut row)? else {
        return Ok(None);
    };
    Ok(Some((instance, row.fields::<host::Model>()?.try_into()?)))
}

/// An instance with its host and the data that is too large for lists.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceDetails {
    pub instance: Instance,
    pub host: Host,
    /// The installed packages, as stored; none if the node did not report them.
    pub packages: Option<String>,
    /// The open vulnerabilities of its operating system from the registry's last list; none if the
    /// operating system has no registry or no list.
    pub existing_cves: Option<String>,
    /// The image slots of its node; none if it is updated by packages.
    pub slots: Vec<ImageSlot>,
    /// The images that failed on it, latest last.
    pub failed_images: Vec<FailedImage>,
    /// Why its node requires a reboot, for users.
    pub reboot_reasons: Vec<String>,
    /// The first updates that its node holds back. The summary of the facts has the number of all.
    pub held_back_updates: Vec<HeldBackUpdate>,
    /// The services of its node that still run replaced files.
    pub stale_services: Vec<StaleService>,
    /// The last change of packages that its agent did not make.
    pub foreign_change: Option<ForeignChange>,
}

/// The details of an instance, and the resources that it and its host refer to (see
/// [`related::RelatedIds`]): one statement.
///
/// # Errors
/// It does not exist in the project.
pub async fn find_details(
    tx: &Tx,
    id: InstanceId,
) -> Result<(InstanceDetails, Related), StoreError> {
    let values = [tx.tenant().uuid().into(), id.bits().cast_signed().into()];
    let row = query_one(tx.conn(), FIND_DETAILS_SQL.as_str(), values).await?;
    let row = row.ok_or(StoreError::NotFound { what: Entity::RESOURCE })?;
    let (instance, host) =
        with_host(&row)?.ok_or(StoreError::NotFound { what: Entity::RESOURCE })?;
    let details = InstanceDetails {
        instance,
        host,
        packages: row.try_get("", "packages")?,
        existing_cves: row.try_get("", "existing_cves")?,
        slots: read_fact(&row, id, "slots")?,
        failed_images: read_fact(&row, id, "failed_images")?,
        reboot_reasons: read_fact(&row, id, "reboot_reasons")?,
        held_back_updates: read_fact(&row, id, "held_back")?,
        stale_services: read_fact(&row, id, "stale_service_list")?,
        foreign_change: read_fact(&row, id, "foreign_change")?,
    };
    Ok((details, related::from_row(&row)?))
}

/// A part of the reported facts of a node.
fn read_fact<T: DeserializeOwned>(
    row: &QueryResult,
    id: InstanceId,
    column: &str,
) -> Result<T, StoreError> {
    let fact: Result<JsonColumn<T>, _> = row.try_get("", column);
    let fact = or_corrupt(fact.ok(), "node_states", id.bits().cast_signed(), "facts")?;
    Ok(fact.0)
}

/// Changes to an instance. Missing fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceChange {
    pub name: Option<Name>,
    /// What it runs on, such as bare metal.
    pub kind: Option<InstanceKind>,
    /// The operating system that its node will run (see [`Instance::check_os`]).
    pub os: Option<OsId>,
    /// Its assigned policy; the inner none removes the assignment.
    pub policy: Option<Option<PolicyId>>,
}

/// Changes an instance.
///
/// # Errors
/// It does not exist in the project, or the operating system or the policy does not.
pub async fn change(
    tx: &Tx,
    id: InstanceId,
    change: &InstanceChange,
    now: Time,
) -> Result<Instance, StoreError> {
    if change.policy.is_some() {
        tx.lock_for_change().await?;
    }
    let before = lock(tx, id).await?;
    if let Some(os) = change.os.filter(|os| *os != before.summary.os) {
        nodes::set_os(tx, id, os).await?;
    }
    // Assigning the same policy again changes nothing: its limits and its failures stay.
    if let Some(policy) = change.policy.filter(|policy| *policy != before.policy) {
        match policy {
            Some(policy) => assignments::assign(tx, Scope::Instance(id), policy, now).await?,
            None => assignments::clear(tx, Scope::Instance(id)).await?,
        }
    }
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: change.name.as_ref().map_or(sea_orm::NotSet, |name| Set(name.to_string())),
        kind: change.kind.map_or(sea_orm::NotSet, |kind| Set(kind.name().to_owned())),
        updated_at: Set(now),
        ..Default::default()
    };
    row.update(tx.conn()).await?;
    find(tx, id).await
}

/// Withdraws the trust in an instance: reports of its node are refused from now on. Idempotent.
///
/// # Errors
/// It does not exist in the project.
pub async fn invalidate(tx: &Tx, id: InstanceId, now: Time) -> Result<(), StoreError> {
    let before = lock(tx, id).await?;
    let untrusted = InstanceState::Untrusted;
    if before.desired == untrusted && before.current == untrusted {
        return Ok(());
    }
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        desired_state: Set(untrusted.name().to_owned()),
        current_state: Set(untrusted.name().to_owned()),
        updated_at: Set(now),
        ..Default::default()
    };
    row.update(tx.conn()).await?;
    let status = Status::new(INVALIDATED_STATUS, Indication::Idle, now);
    nodes::set_status(tx, id, &status).await
}

/// Deletes an instance with its runs and its assignment.
///
/// # Errors
/// It does not exist in the project.
pub async fn delete(tx: &Tx, id: InstanceId) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    // Lock order: the node's state before its runs.
    nodes::lock_row(tx, id).await?;
    keyed::delete::<Entity>(tx, id.bits()).await?;
    assignments::clear(tx, Scope::Instance(id)).await
}

/// The columns of instances `i` with their [`JOINS_SQL`], for [`read_instance`].
pub(crate) fn columns() -> String {
    format!(
        "{}, {}, a.policy_id, {CONFIG_IDS_SQL}",
        fields::columns::<Model>("i"),
        fields::columns::<SummaryRow>("n"),
    )
}

/// The first-start configurations of an instance `i`.
const CONFIG_IDS_SQL: &str = "ARRAY(SELECT c.custom_config_id FROM instance_custom_configs c \
     WHERE c.tenant_id = i.tenant_id AND c.instance_id = i.id)";

/// Joins the node state and the instance's own assignment to instances `i`.
pub(crate) const JOINS_SQL: &str = "LEFT JOIN node_states n ON n.tenant_id = i.tenant_id AND n.instance_id = i.id \
     LEFT JOIN assignments a ON a.tenant_id = i.tenant_id AND a.target_kind = 'instance' AND a.target_id = i.id";

/// Instances `i` with their hosts.
static FROM_WITH_HOSTS_SQL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "instances i JOIN hosts h ON h.tenant_id = i.tenant_id AND h.id = i.host_id {JOINS_SQL}"
    )
});

static FIND_MANY_SQL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {}, {} FROM {} WHERE i.tenant_id = $1 AND i.id = ANY ({})",
        columns(),
        fields::columns::<host::Model>("h"),
        *FROM_WITH_HOSTS_SQL,
        ids_in(2),
    )
});

static FIND_DETAILS_SQL: LazyLock<String> = LazyLock::new(|| {
    let related_ids = RelatedIdsSql {
        local_accounts: Some("ARRAY[i.local_account_id]".to_owned()),
        custom_configs: Some(CONFIG_IDS_SQL.to_owned()),
        ..RelatedIdsSql::for_node()
    };
    format!(
        "SELECT {}, {}, {}, (SELECT p.body FROM contents p WHERE p.tenant_id = n.tenant_id \
         AND p.digest = n.packages_digest) AS packages, (SELECT c.body FROM os_details x JOIN contents c \
         ON c.tenant_id = x.tenant_id AND c.digest = x.existing_cves_digest \
         WHERE x.tenant_id = n.tenant_id AND x.os_id = n.os_id) AS existing_cves, \
         coalesce(n.facts -> 'slots', '[]') AS slots, coalesce(n.facts -> 'badImages', '[]') AS failed_images, \
         coalesce(n.facts -> 'rebootReasons', '[]') AS reboot_reasons, \
         coalesce(jsonb_path_query_array(n.facts, '$.heldBack[0 to {}]'), '[]') AS held_back, \
         coalesce(n.facts -> 'staleServices', '[]') AS stale_service_list, \
         coalesce(n.facts -> 'foreignChange', 'null') AS foreign_change \
         FROM {} WHERE i.tenant_id = $1 AND i.id = $2",
        columns(),
        fields::columns::<host::Model>("h"),
        related_ids.columns(),
        MAX_HELD_BACK_UPDATES - 1,
        *FROM_WITH_HOSTS_SQL,
    )
});

/// The instances with one of these ids in a column, in no particular order.
async fn find_where(
    tx: &Tx,
    column: Column,
    ids: impl IntoIterator<Item = u32>,
) -> Result<Vec<Instance>, StoreError> {
    let sql = format!(
        "SELECT {} FROM instances i {JOINS_SQL} WHERE i.tenant_id = $1 AND i.{} = ANY ({})",
        columns(),
        column.as_str(),
        ids_in(2),
    );
    let ids: Vec<i32> = ids.into_iter().map(u32::cast_signed).collect();
    let rows = query_all(tx.conn(), sql, [tx.tenant().uuid().into(), ids.into()]).await?;
    let instances = rows.iter().map(|row| read_instance(&mut RowReader::new(row)));
    instances.filter_map(Result::transpose).collect()
}

/// Reads an instance from the next [`columns`]; none if the host of the row has no instance.
pub(crate) fn read_instance(row: &mut RowReader<'_>) -> Result<Option<Instance>, StoreError> {
    let model = row.joined::<Model>()?;
    let summary = row.joined::<SummaryRow>()?;
    let policy: Option<i32> = row.take()?;
    let configs: Vec<i32> = row.take()?;
    let Some(model) = model else {
        return Ok(None);
    };
    let summary = or_corrupt(summary, "node_states", model.id, "instance_id")?;
    let configs = configs.into_iter().map(i32::cast_unsigned);
    let mut configs: Vec<_> = configs.map(CustomConfigId::from_bits).collect();
    configs.sort_unstable();
    Ok(Some(Instance {
        policy: policy.map(|id| PolicyId::from_bits(id.cast_unsigned())),
        custom_configs: configs,
        ..instance_from_row(model, summary.try_into()?)
    }))
}

/// An instance without its assignment and its configurations.
/// A value that only a newer release knows reads as unspecified.
fn instance_from_row(row: Model, summary: Summary) -> Instance {
    let state = |name: &str| InstanceState::from_name(name).unwrap_or(InstanceState::Unspecified);
    let security = SecurityFeature::from_name(&row.security_feature);
    Instance {
        id: InstanceId::from_bits(row.id.cast_unsigned()),
        host: HostId::from_bits(row.host_id.cast_unsigned()),
        name: Name::from_stored(&row.name),
        kind: InstanceKind::from_name(&row.kind).unwrap_or(InstanceKind::Unspecified),
        desired: state(&row.desired_state),
        current: state(&row.current_state),
        security_feature: security.unwrap_or(SecurityFeature::Unspecified),
        policy: None,
        local_account: row.local_account_id.map(|id| LocalAccountId::from_bits(id.cast_unsigned())),
        custom_configs: Vec::new(),
        summary,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}
