//! Local accounts that can log in to nodes.

use evenkeel_domain::Time;
use evenkeel_domain::id::LocalAccountId;
use evenkeel_domain::local_account::{LocalAccount, LocalAccountSpec};
use sea_orm::{ActiveModelTrait, Set};

use crate::error::StoreError;
use crate::rows::local_account::{ActiveModel, Entity, Model};
use crate::tx::Tx;
use crate::{ids, keyed};

/// Creates an account.
///
/// # Errors
/// The name already exists.
pub async fn create(
    tx: &Tx,
    spec: &LocalAccountSpec,
    now: Time,
) -> Result<LocalAccount, StoreError> {
    let id = LocalAccountId::nth(ids::next(tx.conn(), "local_account_numbers").await?);
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        username: Set(spec.username.clone()),
        ssh_key: Set(spec.ssh_key.clone()),
        created_at: Set(now),
        updated_at: Set(now),
    };
    row.insert(tx.conn()).await?.try_into()
}

/// The account with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: LocalAccountId) -> Result<LocalAccount, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The accounts with these ids that exist, in no particular order.
pub async fn find_many(tx: &Tx, ids: &[LocalAccountId]) -> Result<Vec<LocalAccount>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// Deletes an account.
///
/// # Errors
/// It does not exist in the project, or an instance uses it.
pub async fn delete(tx: &Tx, id: LocalAccountId) -> Result<(), StoreError> {
    keyed::delete::<Entity>(tx, id.bits()).await
}

impl TryFrom<Model> for LocalAccount {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        Ok(Self {
            id: LocalAccountId::from_bits(row.id.cast_unsigned()),
            spec: LocalAccountSpec { username: row.username, ssh_key: row.ssh_key },
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
