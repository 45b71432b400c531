//! Instances: what runs on hosts, with the summary of what their nodes said.

use std::collections::HashMap;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Limits, Scope};
use evenkeel_domain::id::{CustomConfigId, HostId, InstanceId, LocalAccountId, OsId, PolicyId};
use evenkeel_domain::instance::{Instance, InstanceKind, InstanceState, NewInstance};
use evenkeel_domain::os::SecurityFeature;
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::text::Name;
use sea_orm::{ActiveModelTrait, EntityTrait, JoinType, QueryFilter, QuerySelect, SelectTwo, Set};

use crate::assignments;
use crate::error::StoreError;
use crate::hosts::INVALIDATED;
use crate::keyed::Keyed;
use crate::nodes;
use crate::rows::instance::{ActiveModel, Column, Entity, Model};
use crate::rows::{named, node_state};
use crate::tx::{Tx, all, among, execute};
use crate::{ids, keyed};

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
    only(of_hosts(tx, &[host]).await?)
}

fn only(instances: Vec<Instance>) -> Result<Instance, StoreError> {
    let first = instances.into_iter().next();
    first.ok_or(StoreError::NotFound { what: Entity::WHAT })
}

/// The instances on these hosts, in no order.
///
/// # Errors
/// The database cannot be reached.
pub async fn of_hosts(tx: &Tx, hosts: &[HostId]) -> Result<Vec<Instance>, StoreError> {
    let bits = hosts.iter().map(|id| id.bits().cast_signed());
    let rows = with_states(tx).filter(among(Column::HostId, bits));
    whole(tx, rows.all(tx.conn()).await?).await
}

/// The instances with these ids that there are, in no order.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_many(tx: &Tx, ids: &[InstanceId]) -> Result<Vec<Instance>, StoreError> {
    let bits = ids.iter().map(|id| id.bits().cast_signed());
    let rows = with_states(tx).filter(among(Column::Id, bits));
    whole(tx, rows.all(tx.conn()).await?).await
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

/// Instances together with what their nodes said.
fn with_states(tx: &Tx) -> SelectTwo<Entity, node_state::Entity> {
    let of_node = Entity::belongs_to(node_state::Entity)
        .from((Column::TenantId, Column::Id))
        .to((node_state::Column::TenantId, node_state::Column::InstanceId));
    tx.scope::<Entity>()
        .join(JoinType::LeftJoin, of_node.into())
        .select_also(node_state::Entity)
}

/// Puts rows together with what is assigned to them and with their configurations: two statements for any number of them.
async fn whole(
    tx: &Tx,
    rows: Vec<(Model, Option<node_state::Model>)>,
) -> Result<Vec<Instance>, StoreError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let id_of = |row: &Model| InstanceId::from_bits(row.id.cast_unsigned());
    let ids: Vec<_> = rows.iter().map(|(row, _)| id_of(row)).collect();
    let policies: HashMap<_, _> = assignments::of_instances(tx, &ids)
        .await?
        .into_iter()
        .collect();
    let mut configs = configs(tx, &ids).await?;
    let mut instances = Vec::with_capacity(rows.len());
    for (row, state) in rows {
        let state = named(state, "node_states", row.id, "instance_id")?;
        let id = id_of(&row);
        instances.push(Instance {
            policy: policies.get(&id).copied(),
            custom_configs: configs.remove(&id).unwrap_or_default(),
            ..instance(row, state)?
        });
    }
    Ok(instances)
}

/// The configurations of instances, by id.
async fn configs(
    tx: &Tx,
    instances: &[InstanceId],
) -> Result<HashMap<InstanceId, Vec<CustomConfigId>>, StoreError> {
    let sql = "SELECT instance_id, custom_config_id FROM instance_custom_configs \
               WHERE tenant_id = $1 AND instance_id = ANY ($2)";
    let bits: Vec<i32> = instances.iter().map(|id| id.bits().cast_signed()).collect();
    let mut configs: HashMap<_, Vec<_>> = HashMap::new();
    for row in all(tx.conn(), sql, [tx.tenant().uuid().into(), bits.into()]).await? {
        let (instance, config): (i32, i32) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
        configs
            .entry(InstanceId::from_bits(instance.cast_unsigned()))
            .or_default()
            .push(CustomConfigId::from_bits(config.cast_unsigned()));
    }
    for of_one in configs.values_mut() {
        of_one.sort_unstable();
    }
    Ok(configs)
}

/// An instance without what is assigned to it and without its configurations.
fn instance(row: Model, state: node_state::Model) -> Result<Instance, StoreError> {
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
        summary: nodes::summary(state)?,
        created_at: row.created_at,
        updated_at: row.updated_at,
    })
}
