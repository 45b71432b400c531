//! Instances: what runs on hosts, with the summary of what their nodes said.

use std::sync::LazyLock;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Limits, Scope};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{CustomConfigId, HostId, InstanceId, LocalAccountId, OsId, PolicyId};
use evenkeel_domain::instance::{
    FailedImage, ImageSlot, Instance, InstanceKind, InstanceState, NewInstance, Summary,
};
use evenkeel_domain::os::SecurityFeature;
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::text::Name;
use sea_orm::{ActiveModelTrait, EntityTrait, IdenStatic, QueryResult, Set};
use serde::de::DeserializeOwned;

use crate::assignments;
use crate::error::StoreError;
use crate::fields::Reader;
use crate::hosts::INVALIDATED;
use crate::keyed::Keyed;
use crate::nodes::{self, SummaryRow};
use crate::related::{self, Related, Sought};
use crate::rows::instance::{ActiveModel, Column, Entity, Model};
use crate::rows::{Kept, host, named};
use crate::tx::{Tx, all, each, execute, ids_in, one};
use crate::{fields, ids, keyed};

/// Makes an instance, with what is known of its node: nothing yet.
///
/// # Errors
/// The host has one already, or host, operating system, policy, account or configuration is not in the project.
pub async fn create(tx: &Tx, new: &NewInstance, now: Time) -> Result<Instance, StoreError> {
    // The order of locks: what is wanted before the rows that it refers to.
    if new.policy.is_some() {
        tx.write_wanted().await?;
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
    Entity::insert(row)
        .exec_without_returning(tx.conn())
        .await?;
    nodes::create(tx, id, new.os, now).await?;
    configure(tx, id, &new.custom_configs).await?;
    if let Some(policy) = new.policy {
        let unlimited = Limits::default();
        assignments::set(tx, Scope::Instance(id), policy, unlimited, now).await?;
    }
    find(tx, id).await
}

/// Says with which configurations an instance starts for the first time.
async fn configure(tx: &Tx, id: InstanceId, configs: &[CustomConfigId]) -> Result<(), StoreError> {
    if configs.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO instance_custom_configs (tenant_id, instance_id, custom_config_id) \
               SELECT DISTINCT $1::uuid, $2::integer, id FROM unnest($3::integer[]) AS given (id)";
    let configs: Vec<i32> = configs.iter().map(|id| id.bits().cast_signed()).collect();
    let values = [
        tx.tenant().uuid().into(),
        id.bits().cast_signed().into(),
        configs.into(),
    ];
    execute(tx.conn(), sql, values).await.map(drop)
}

/// The instance with this id.
///
/// # Errors
/// There is none in the project.
pub async fn find(tx: &Tx, id: InstanceId) -> Result<Instance, StoreError> {
    only(find_many(tx, &[id]).await?)
}

/// The instance with this id, locked with the state of its node: nothing is reported of it until the end of the
/// transaction.
///
/// # Errors
/// There is none in the project.
pub async fn lock(tx: &Tx, id: InstanceId) -> Result<Instance, StoreError> {
    nodes::lock_row(tx, id).await?;
    find(tx, id).await
}

/// The instance on this host.
///
/// # Errors
/// There is none in the project.
pub async fn find_by_host(tx: &Tx, host: HostId) -> Result<Instance, StoreError> {
    only(read(tx, Column::HostId, [host.bits()]).await?)
}

fn only<T>(found: Vec<T>) -> Result<T, StoreError> {
    let first = found.into_iter().next();
    first.ok_or(StoreError::NotFound { what: Entity::WHAT })
}

/// The instances with these ids that there are, in no order.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_many(tx: &Tx, ids: &[InstanceId]) -> Result<Vec<Instance>, StoreError> {
    read(tx, Column::Id, ids.iter().map(|id| id.bits())).await
}

/// The instance with this id, and its host: one statement.
///
/// # Errors
/// There is none in the project.
pub async fn find_with_host(tx: &Tx, id: InstanceId) -> Result<(Instance, Host), StoreError> {
    only(find_with_hosts(tx, &[id]).await?)
}

/// The instances with these ids that there are, each with its host, in no order: one statement for any number of them.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_with_hosts(
    tx: &Tx,
    ids: &[InstanceId],
) -> Result<Vec<(Instance, Host)>, StoreError> {
    let ids: Vec<i32> = ids.iter().map(|id| id.bits().cast_signed()).collect();
    let values = [tx.tenant().uuid().into(), ids.into()];
    let found = each(tx.conn(), MANY.as_str(), values, with_host).await?;
    Ok(found.into_iter().flatten().collect())
}

fn with_host(row: &QueryResult) -> Result<Option<(Instance, Host)>, StoreError> {
    let mut row = Reader::new(row);
    let Some(instance) = read_one(&mut row)? else {
        return Ok(None);
    };
    Ok(Some((instance, row.fields::<host::Model>()?.try_into()?)))
}

/// An instance with its host and with what is too much for a list.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeInstance {
    /// The instance.
    pub instance: Instance,
    /// Its host.
    pub host: Host,
    /// The packages that its node said are installed, as they are kept; none if it said nothing of them.
    pub packages: Option<String>,
    /// The open vulnerabilities of the operating system that it runs, as its registry told them last; none if it came
    /// from none or nothing was told.
    pub existing_cves: Option<String>,
    /// The places for images that its node has; none if it is updated by packages.
    pub slots: Vec<ImageSlot>,
    /// The images that failed on it, the last one last.
    pub failed_images: Vec<FailedImage>,
}

/// The instance with this id, whole, and what it and its host refer to (see [`related::Wanted`]): one statement.
///
/// # Errors
/// There is none in the project.
pub async fn find_whole(tx: &Tx, id: InstanceId) -> Result<(WholeInstance, Related), StoreError> {
    let values = [tx.tenant().uuid().into(), id.bits().cast_signed().into()];
    let row = one(tx.conn(), WHOLE.as_str(), values).await?;
    let row = row.ok_or(StoreError::NotFound { what: Entity::WHAT })?;
    let (instance, host) = with_host(&row)?.ok_or(StoreError::NotFound { what: Entity::WHAT })?;
    let whole = WholeInstance {
        instance,
        host,
        packages: row.try_get("", "packages")?,
        existing_cves: row.try_get("", "existing_cves")?,
        slots: of_facts(&row, id, "slots")?,
        failed_images: of_facts(&row, id, "failed_images")?,
    };
    Ok((whole, related::from_row(&row)?))
}

/// A list of what the node of an instance said of itself.
fn of_facts<T: DeserializeOwned>(
    row: &QueryResult,
    id: InstanceId,
    column: &str,
) -> Result<Vec<T>, StoreError> {
    let list: Result<Kept<Vec<T>>, _> = row.try_get("", column);
    let list = named(list.ok(), "node_states", id.bits().cast_signed(), "facts")?;
    Ok(list.0)
}

/// What a person may change of an instance. What is not given stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceChange {
    /// Its name.
    pub name: Option<Name>,
    /// What it runs on.
    pub kind: Option<InstanceKind>,
    /// Which operating system its node will run (see [`Instance::check_os`]).
    pub os: Option<OsId>,
    /// The policy that is assigned to it; none takes it back.
    pub policy: Option<Option<PolicyId>>,
}

/// Changes an instance.
///
/// # Errors
/// There is none in the project, or the operating system or the policy is not in it.
pub async fn change(
    tx: &Tx,
    id: InstanceId,
    change: &InstanceChange,
    now: Time,
) -> Result<Instance, StoreError> {
    if change.policy.is_some() {
        tx.write_wanted().await?;
    }
    let before = lock(tx, id).await?;
    if let Some(os) = change.os.filter(|os| *os != before.summary.os) {
        nodes::set_os(tx, id, os).await?;
    }
    // The same policy once more changes nothing: its limits and what has failed stay.
    if let Some(policy) = change.policy.filter(|policy| *policy != before.policy) {
        match policy {
            Some(policy) => assignments::assign(tx, Scope::Instance(id), policy, now).await?,
            None => assignments::clear(tx, Scope::Instance(id)).await?,
        }
    }
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: change
            .name
            .as_ref()
            .map_or(sea_orm::NotSet, |name| Set(name.to_string())),
        kind: change
            .kind
            .map_or(sea_orm::NotSet, |kind| Set(kind.name().to_owned())),
        updated_at: Set(now),
        ..Default::default()
    };
    row.update(tx.conn()).await?;
    find(tx, id).await
}

/// Withdraws the trust in an instance: from now on its node is not listened to. Once more changes nothing.
///
/// # Errors
/// There is none in the project.
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
    let status = Status::new(INVALIDATED, Indication::Idle, now);
    nodes::set_status(tx, id, &status).await
}

/// Removes an instance, with its runs and what was assigned to it.
///
/// # Errors
/// There is none in the project.
pub async fn delete(tx: &Tx, id: InstanceId) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    // The order of locks: the node's state before its runs.
    nodes::lock_row(tx, id).await?;
    keyed::delete::<Entity>(tx, id.bits()).await?;
    assignments::clear(tx, Scope::Instance(id)).await
}

/// What is shown of instances `i`, with what is [`JOINED`] to them, for [`read_one`].
pub(crate) fn columns() -> String {
    format!(
        "{}, {}, a.policy_id, {CONFIGS}",
        fields::columns::<Model>("i"),
        fields::columns::<SummaryRow>("n"),
    )
}

/// The configurations that an instance `i` starts with for the first time.
const CONFIGS: &str = "ARRAY(SELECT c.custom_config_id FROM instance_custom_configs c \
     WHERE c.tenant_id = i.tenant_id AND c.instance_id = i.id)";

/// What instances `i` are shown with: what their nodes said, and the policies that are assigned to themselves.
pub(crate) const JOINED: &str = "LEFT JOIN node_states n ON n.tenant_id = i.tenant_id AND n.instance_id = i.id \
     LEFT JOIN assignments a ON a.tenant_id = i.tenant_id AND a.target_kind = 'instance' AND a.target_id = i.id";

/// Instances `i` with their hosts.
static WITH_HOSTS: LazyLock<String> = LazyLock::new(|| {
    format!("instances i JOIN hosts h ON h.tenant_id = i.tenant_id AND h.id = i.host_id {JOINED}")
});

static MANY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {}, {} FROM {} WHERE i.tenant_id = $1 AND i.id = ANY ({})",
        columns(),
        fields::columns::<host::Model>("h"),
        *WITH_HOSTS,
        ids_in(2),
    )
});

static WHOLE: LazyLock<String> = LazyLock::new(|| {
    let sought = Sought {
        local_accounts: Some("ARRAY[i.local_account_id]".to_owned()),
        custom_configs: Some(CONFIGS.to_owned()),
        ..Sought::of_node()
    };
    format!(
        "SELECT {}, {}, {}, (SELECT p.body FROM contents p WHERE p.tenant_id = n.tenant_id \
         AND p.digest = n.packages_digest) AS packages, (SELECT c.body FROM os_inside x JOIN contents c \
         ON c.tenant_id = x.tenant_id AND c.digest = x.existing_cves_digest \
         WHERE x.tenant_id = n.tenant_id AND x.os_id = n.os_id) AS existing_cves, \
         coalesce(n.facts -> 'slots', '[]') AS slots, coalesce(n.facts -> 'badImages', '[]') AS failed_images \
         FROM {} WHERE i.tenant_id = $1 AND i.id = $2",
        columns(),
        fields::columns::<host::Model>("h"),
        sought.columns(),
        *WITH_HOSTS,
    )
});

/// The instances with one of these in a column, in no order.
async fn read(
    tx: &Tx,
    column: Column,
    ids: impl IntoIterator<Item = u32>,
) -> Result<Vec<Instance>, StoreError> {
    let sql = format!(
        "SELECT {} FROM instances i {JOINED} WHERE i.tenant_id = $1 AND i.{} = ANY ({})",
        columns(),
        column.as_str(),
        ids_in(2),
    );
    let ids: Vec<i32> = ids.into_iter().map(u32::cast_signed).collect();
    let rows = all(tx.conn(), sql, [tx.tenant().uuid().into(), ids.into()]).await?;
    let instances = rows.iter().map(|row| read_one(&mut Reader::new(row)));
    instances.filter_map(Result::transpose).collect()
}

/// The instance of the next [`columns`]; none if nothing is on the host of the row.
pub(crate) fn read_one(row: &mut Reader<'_>) -> Result<Option<Instance>, StoreError> {
    let model = row.joined::<Model>()?;
    let summary = row.joined::<SummaryRow>()?;
    let policy: Option<i32> = row.take()?;
    let configs: Vec<i32> = row.take()?;
    let Some(model) = model else {
        return Ok(None);
    };
    let summary = named(summary, "node_states", model.id, "instance_id")?;
    let configs = configs.into_iter().map(i32::cast_unsigned);
    let mut configs: Vec<_> = configs.map(CustomConfigId::from_bits).collect();
    configs.sort_unstable();
    Ok(Some(Instance {
        policy: policy.map(|id| PolicyId::from_bits(id.cast_unsigned())),
        custom_configs: configs,
        ..instance(model, summary.try_into()?)?
    }))
}

/// An instance without what is assigned to it and without its configurations.
fn instance(row: Model, summary: Summary) -> Result<Instance, StoreError> {
    const TABLE: &str = "instances";
    let at = |name: &str, column| named(InstanceState::from_name(name), TABLE, row.id, column);
    let security = SecurityFeature::from_name(&row.security_feature);
    Ok(Instance {
        id: InstanceId::from_bits(row.id.cast_unsigned()),
        host: HostId::from_bits(row.host_id.cast_unsigned()),
        name: named(Name::parse("name", &row.name).ok(), TABLE, row.id, "name")?,
        kind: named(InstanceKind::from_name(&row.kind), TABLE, row.id, "kind")?,
        desired: at(&row.desired_state, "desired_state")?,
        current: at(&row.current_state, "current_state")?,
        security_feature: named(security, TABLE, row.id, "security_feature")?,
        policy: None,
        local_account: row
            .local_account_id
            .map(|id| LocalAccountId::from_bits(id.cast_unsigned())),
        custom_configs: Vec::new(),
        summary,
        created_at: row.created_at,
        updated_at: row.updated_at,
    })
}
