//! Configurations for the first start of instances.

use evenkeel_domain::Time;
use evenkeel_domain::custom_config::{CustomConfig, CustomConfigSpec};
use evenkeel_domain::id::CustomConfigId;
use sea_orm::{ActiveModelTrait, Set};

use crate::error::StoreError;
use crate::rows::custom_config::{ActiveModel, Entity, Model};
use crate::tx::Tx;
use crate::{ids, keyed};

/// Creates a configuration for the first start.
///
/// # Errors
/// The name already exists.
pub async fn create(
    tx: &Tx,
    spec: &CustomConfigSpec,
    now: Time,
) -> Result<CustomConfig, StoreError> {
    let id = CustomConfigId::nth(ids::next(tx.conn(), "custom_config_numbers").await?);
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(spec.name.clone()),
        description: Set(spec.description.clone()),
        config: Set(spec.config.clone()),
        created_at: Set(now),
        updated_at: Set(now),
    };
    row.insert(tx.conn()).await?.try_into()
}

/// The configuration with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: CustomConfigId) -> Result<CustomConfig, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The configurations with these ids that exist, in no particular order.
pub async fn find_many(tx: &Tx, ids: &[CustomConfigId]) -> Result<Vec<CustomConfig>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// Deletes a configuration for the first start.
///
/// # Errors
/// It does not exist in the project, or an instance refers to it.
pub async fn delete(tx: &Tx, id: CustomConfigId) -> Result<(), StoreError> {
    keyed::delete::<Entity>(tx, id.bits()).await
}

impl TryFrom<Model> for CustomConfig {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        Ok(Self {
            id: CustomConfigId::from_bits(row.id.cast_unsigned()),
            spec: CustomConfigSpec {
                name: row.name,
                description: row.description,
                config: row.config,
            },
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
