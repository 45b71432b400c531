//! Providers of machines.

use evenkeel_domain::Time;
use evenkeel_domain::id::ProviderId;
use evenkeel_domain::provider::{Provider, ProviderKind, ProviderSpec, ProviderVendor};
use evenkeel_domain::text::Name;
use sea_orm::{ActiveModelTrait, Set};

use crate::error::StoreError;
use crate::rows::provider::{ActiveModel, Entity, Model};
use crate::tx::Tx;
use crate::{ids, keyed};

/// Creates a provider.
///
/// # Errors
/// The name already exists.
pub async fn create(tx: &Tx, spec: &ProviderSpec, now: Time) -> Result<Provider, StoreError> {
    let id = ProviderId::nth(ids::next(tx.conn(), "provider_numbers").await?);
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        kind: Set(spec.kind.name().to_owned()),
        vendor: Set(spec.vendor.name().to_owned()),
        name: Set(spec.name.to_string()),
        api_endpoint: Set(spec.api_endpoint.clone()),
        api_credentials: Set(spec.api_credentials.clone()),
        config: Set(spec.config.clone()),
        created_at: Set(now),
        updated_at: Set(now),
    };
    row.insert(tx.conn()).await?.try_into()
}

/// The provider with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: ProviderId) -> Result<Provider, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The providers with these ids that exist, in no particular order.
pub async fn find_many(tx: &Tx, ids: &[ProviderId]) -> Result<Vec<Provider>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// Deletes a provider.
///
/// # Errors
/// It does not exist in the project, or a host refers to it.
pub async fn delete(tx: &Tx, id: ProviderId) -> Result<(), StoreError> {
    keyed::delete::<Entity>(tx, id.bits()).await
}

impl TryFrom<Model> for Provider {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let kind = ProviderKind::from_name(&row.kind);
        let vendor = ProviderVendor::from_name(&row.vendor);
        Ok(Self {
            id: ProviderId::from_bits(row.id.cast_unsigned()),
            spec: ProviderSpec {
                kind: kind.unwrap_or(ProviderKind::Unspecified),
                vendor: vendor.unwrap_or(ProviderVendor::Unspecified),
                name: Name::from_stored(&row.name),
                api_endpoint: row.api_endpoint,
                api_credentials: row.api_credentials,
                config: row.config,
            },
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
