//! Hosts together with what is known of their nodes.

use evenkeel_domain::host::Host;
use evenkeel_domain::id::HostId;
use sea_orm::sea_query::LockType;
use sea_orm::{ColumnTrait, Condition, EntityTrait, JoinType, QueryFilter, QuerySelect, SelectTwo};
use uuid::Uuid;

use super::NodeState;
use crate::error::StoreError;
use crate::hosts;
use crate::keyed::Keyed;
use crate::rows::node_state::{Column, Entity, Model};
use crate::rows::{host, instance};
use crate::tx::Tx;

/// By what a machine is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// The id of its host.
    Host(HostId),
    /// Its UUID.
    Uuid(Uuid),
}

impl Machine {
    fn is(self) -> Condition {
        match self {
            Self::Host(id) => Condition::all().add(host::Column::Id.eq(id.bits().cast_signed())),
            Self::Uuid(uuid) => Condition::all().add(host::Column::Uuid.eq(uuid)),
        }
    }

    /// The state of its node, together with its host.
    fn node(self, tx: &Tx) -> SelectTwo<Entity, host::Entity> {
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
            .filter(self.is())
    }

    /// Why there is no such node.
    async fn missing(self, tx: &Tx) -> StoreError {
        let host = tx.scope::<host::Entity>().filter(self.is());
        match host.one(tx.conn()).await {
            Ok(None) => StoreError::NotFound {
                what: host::Entity::WHAT,
            },
            Ok(Some(_)) => StoreError::NotFound {
                what: instance::Entity::WHAT,
            },
            Err(error) => error.into(),
        }
    }
}

/// A host and what is known of its node, in one statement.
///
/// # Errors
/// There is no such host in the project, or it has no instance.
pub async fn read(tx: &Tx, machine: Machine) -> Result<(Host, NodeState), StoreError> {
    match machine.node(tx).one(tx.conn()).await? {
        Some((node, Some(host))) => Ok((host.try_into()?, node.try_into()?)),
        _ => Err(machine.missing(tx).await),
    }
}

/// A host and what is known of its node, which is locked until the end of the transaction: its reports are taken one by
/// one.
///
/// # Errors
/// There is no such host in the project, or it has no instance.
pub async fn lock_with_host(tx: &Tx, machine: Machine) -> Result<(Host, NodeState), StoreError> {
    let (node, host) = locked(tx, machine).await?;
    // The host as it was before the wait for the lock may have lost our trust since.
    let host = hosts::find(tx, HostId::from_bits(host.id.cast_unsigned())).await?;
    Ok((host, node.try_into()?))
}

/// What is known of the node on a host, locked until the end of the transaction: its reports are taken one by one.
///
/// # Errors
/// The host has no instance in the project.
pub async fn lock(tx: &Tx, host: HostId) -> Result<NodeState, StoreError> {
    let (node, _) = locked(tx, Machine::Host(host)).await?;
    node.try_into()
}

async fn locked(tx: &Tx, machine: Machine) -> Result<(Model, host::Model), StoreError> {
    let mut node = machine.node(tx);
    QuerySelect::query(&mut node).lock_with_tables(LockType::Update, [Entity]);
    match node.one(tx.conn()).await? {
        Some((node, Some(host))) => Ok((node, host)),
        _ => Err(machine.missing(tx).await),
    }
}

/// What is known of the node on a host.
///
/// # Errors
/// The host has no instance in the project.
pub async fn find_by_host(tx: &Tx, host: HostId) -> Result<NodeState, StoreError> {
    read(tx, Machine::Host(host)).await.map(|(_, node)| node)
}
