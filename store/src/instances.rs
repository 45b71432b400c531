//! Instances: what runs on hosts, with the summary of what their nodes said.

use std::collections::HashMap;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Limits, Scope};
use evenkeel_domain::id::{HostId, InstanceId, PolicyId};
use evenkeel_domain::instance::{Instance, InstanceKind, InstanceState, NewInstance};
use evenkeel_domain::os::SecurityFeature;
use evenkeel_domain::text::Name;
use sea_orm::{ActiveModelTrait, EntityTrait, QueryFilter, QueryOrder, Set};

use crate::assignments;
use crate::error::StoreError;
use crate::keyed::Keyed;
use crate::nodes;
use crate::page::{self, Listed, Page};
use crate::rows::instance::{ActiveModel, Column, Entity, Model};
use crate::rows::{named, node_state};
use crate::tx::{Tx, among};
use crate::{ids, keyed};

/// Makes an instance, with what is known of its node: nothing yet.
///
/// # Errors
/// The host has one already, or host, operating system or policy is not in the project.
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
    };
    Entity::insert(row)
        .exec_without_returning(tx.conn())
        .await?;
    nodes::create(tx, id, new.os, now).await?;
    if let Some(policy) = new.policy {
        let unlimited = Limits::default();
        assignments::set(tx, Scope::Instance(id), policy, unlimited, now).await?;
    }
    find(tx, id).await
}

/// The instance with this id.
///
/// # Errors
/// There is none in the project.
pub async fn find(tx: &Tx, id: InstanceId) -> Result<Instance, StoreError> {
    only(find_many(tx, &[id]).await?)
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
    let rows = tx
        .scope::<Entity>()
        .filter(among(Column::HostId, bits))
        .all(tx.conn())
        .await?;
    whole(tx, rows).await
}

/// The instances with these ids that there are, in no order.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_many(tx: &Tx, ids: &[InstanceId]) -> Result<Vec<Instance>, StoreError> {
    let bits = ids.iter().map(|id| id.bits().cast_signed());
    let rows = tx
        .scope::<Entity>()
        .filter(among(Column::Id, bits))
        .all(tx.conn())
        .await?;
    whole(tx, rows).await
}

/// Part of the instances, by id.
///
/// # Errors
/// The database cannot be reached.
pub async fn list(tx: &Tx, page: Page) -> Result<Listed<Instance>, StoreError> {
    let rows: Listed<Row> =
        page::read(tx, tx.scope::<Entity>().order_by_asc(Column::Id), page).await?;
    let total = rows.total;
    let items = whole(tx, rows.items.into_iter().map(|row| row.0).collect()).await?;
    Ok(Listed { items, total })
}

/// A row that is not an instance yet: its node's state is missing.
struct Row(Model);

impl TryFrom<Model> for Row {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        Ok(Self(row))
    }
}

/// What a person may change of an instance. What is not given stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceChange {
    /// Its name.
    pub name: Option<Name>,
    /// The policy that is assigned to it; none takes it back.
    pub policy: Option<Option<PolicyId>>,
}

/// Changes an instance.
///
/// # Errors
/// There is none in the project, or the policy is not in it.
pub async fn change(
    tx: &Tx,
    id: InstanceId,
    change: &InstanceChange,
    now: Time,
) -> Result<Instance, StoreError> {
    if change.policy.is_some() {
        tx.write_wanted().await?;
    }
    let before = find(tx, id).await?;
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
        updated_at: Set(now),
        ..Default::default()
    };
    row.update(tx.conn()).await?;
    find(tx, id).await
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

/// Puts rows together with what their nodes said and what is assigned to them: two statements for any number of them.
async fn whole(tx: &Tx, rows: Vec<Model>) -> Result<Vec<Instance>, StoreError> {
    let ids: Vec<_> = rows
        .iter()
        .map(|row| InstanceId::from_bits(row.id.cast_unsigned()))
        .collect();
    let states = tx
        .scope::<node_state::Entity>()
        .filter(among(
            node_state::Column::InstanceId,
            rows.iter().map(|row| row.id),
        ))
        .all(tx.conn())
        .await?;
    let mut states: HashMap<i32, _> = states
        .into_iter()
        .map(|row| (row.instance_id, row))
        .collect();
    let policies: HashMap<_, _> = assignments::of_instances(tx, &ids)
        .await?
        .into_iter()
        .collect();
    let mut instances = Vec::with_capacity(rows.len());
    for (row, id) in rows.into_iter().zip(ids) {
        let state = named(states.remove(&row.id), "node_states", row.id, "instance_id")?;
        instances.push(instance(row, state, policies.get(&id).copied())?);
    }
    Ok(instances)
}

fn instance(
    row: Model,
    state: node_state::Model,
    policy: Option<PolicyId>,
) -> Result<Instance, StoreError> {
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
        policy,
        summary: nodes::summary(state)?,
        created_at: row.created_at,
        updated_at: row.updated_at,
    })
}
