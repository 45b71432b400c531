//! Hosts together with the state of their nodes.

use evenkeel_domain::host::Host;
use evenkeel_domain::id::HostId;
use sea_orm::sea_query::{Expr, LockType};
use sea_orm::{ColumnTrait, Condition, EntityTrait, JoinType, QueryFilter, QuerySelect, SelectTwo};
use uuid::Uuid;

use super::NodeState;
use crate::error::StoreError;
use crate::hosts;
use crate::keyed::KeyedEntity;
use crate::rows::node_state::{Column, Entity, Model};
use crate::rows::{host, instance};
use crate::tx::Tx;

/// The key by which a machine is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MachineKey {
    Host(HostId),
    Uuid(Uuid),
}

impl MachineKey {
    fn condition(self) -> Condition {
        match self {
            Self::Host(id) => Condition::all().add(host::Column::Id.eq(id.bits().cast_signed())),
            Self::Uuid(uuid) => Condition::all().add(host::Column::Uuid.eq(uuid)),
        }
    }

    /// The query for the state of its node and its host.
    fn query(self, tx: &Tx) -> SelectTwo<Entity, host::Entity> {
        let tenant = tx.tenant().uuid();
        let on_instance = Entity::belongs_to(instance::Entity)
            .from((Column::TenantId, Column::InstanceId))
            .to((instance::Column::TenantId, instance::Column::Id));
        let on_host = instance::Entity::belongs_to(host::Entity)
            .from((instance::Column::TenantId, instance::Column::HostId))
            .to((host::Column::TenantId, host::Column::Id));
        tx.scope::<Entity>()
            .join(JoinType::InnerJoin, on_instance.into())
            .join(JoinType::InnerJoin, on_host.into())
            .select_also(host::Entity)
            .filter(host::Column::TenantId.eq(tenant))
            .filter(in_present_project(tx))
            .filter(self.condition())
    }

    /// Finds out whether the host or the instance is missing.
    async fn not_found_error(self, tx: &Tx) -> StoreError {
        let host = tx.scope::<host::Entity>().filter(in_present_project(tx));
        let host = host.filter(self.condition());
        match host.one(tx.conn()).await {
            Ok(None) => StoreError::NotFound { what: host::Entity::RESOURCE },
            Ok(Some(_)) => StoreError::NotFound { what: instance::Entity::RESOURCE },
            Err(error) => error.into(),
        }
    }
}

/// The project was not deleted: its nodes are refused before their rows are removed.
fn in_present_project(tx: &Tx) -> Expr {
    let sql = "EXISTS (SELECT FROM projects p WHERE p.tenant_id = $1 AND p.removed_at IS NULL)";
    Expr::cust_with_values(sql, [tx.tenant().uuid()])
}

/// A host and the state of its node, in one statement.
///
/// # Errors
/// The host does not exist in the project, or it has no instance.
pub async fn find_with_host(tx: &Tx, machine: MachineKey) -> Result<(Host, NodeState), StoreError> {
    match machine.query(tx).one(tx.conn()).await? {
        Some((node, Some(host))) => Ok((host.try_into()?, node.try_into()?)),
        _ => Err(machine.not_found_error(tx).await),
    }
}

/// A host and the state of its node, locked until the end of the transaction, so that reports of
/// the node are processed one by one.
///
/// # Errors
/// The host does not exist in the project, or it has no instance.
pub async fn lock_with_host(tx: &Tx, machine: MachineKey) -> Result<(Host, NodeState), StoreError> {
    let (node, host) = lock_rows(tx, machine).await?;
    // Read again: while this transaction waited for the lock, the host may have lost its trust.
    let host = hosts::find(tx, HostId::from_bits(host.id.cast_unsigned())).await?;
    Ok((host, node.try_into()?))
}

/// The state of the node on a host, locked until the end of the transaction, so that its reports
/// are processed one by one.
///
/// # Errors
/// The host has no instance in the project.
pub async fn lock(tx: &Tx, host: HostId) -> Result<NodeState, StoreError> {
    let (node, _) = lock_rows(tx, MachineKey::Host(host)).await?;
    node.try_into()
}

async fn lock_rows(tx: &Tx, machine: MachineKey) -> Result<(Model, host::Model), StoreError> {
    let mut node = machine.query(tx);
    QuerySelect::query(&mut node).lock_with_tables(LockType::Update, [Entity]);
    match node.one(tx.conn()).await? {
        Some((node, Some(host))) => Ok((node, host)),
        _ => Err(machine.not_found_error(tx).await),
    }
}

/// The state of the node on a host.
///
/// # Errors
/// The host has no instance in the project.
pub async fn find_by_host(tx: &Tx, host: HostId) -> Result<NodeState, StoreError> {
    find_with_host(tx, MachineKey::Host(host)).await.map(|(_, node)| node)
}
