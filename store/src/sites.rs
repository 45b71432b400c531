//! Sites of hosts.

use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{RegionId, SiteId};
use evenkeel_domain::location::{Site, SiteSpec};
use evenkeel_domain::pause::PauseScope;
use evenkeel_domain::text::Name;
use sea_orm::{ActiveModelTrait, Set};

use crate::error::StoreError;
use crate::rows::JsonColumn;
use crate::rows::site::{ActiveModel, Entity, Model};
use crate::tx::Tx;
use crate::{assignments, ids, keyed, pauses};

/// Creates a site.
///
/// # Errors
/// Its region does not exist in the project.
pub async fn create(tx: &Tx, spec: &SiteSpec, now: Time) -> Result<Site, StoreError> {
    tx.lock_for_change().await?;
    let id = SiteId::nth(ids::next(tx.conn(), "site_numbers").await?);
    let row = ActiveModel { created_at: Set(now), ..active_model(tx, id, spec, now) };
    row.insert(tx.conn()).await?.try_into()
}

/// The site with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: SiteId) -> Result<Site, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The sites with these ids that exist, in no particular order.
pub async fn find_many(tx: &Tx, ids: &[SiteId]) -> Result<Vec<Site>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// Replaces the specification of a site.
///
/// # Errors
/// It does not exist in the project, or its region does not.
pub async fn change(tx: &Tx, id: SiteId, spec: &SiteSpec, now: Time) -> Result<Site, StoreError> {
    tx.lock_for_change().await?;
    find(tx, id).await?;
    let row = active_model(tx, id, spec, now).update(tx.conn()).await?;
    row.try_into()
}

/// Deletes a site with its assignment, its schedules and its pause.
///
/// # Errors
/// It does not exist in the project, or it has hosts.
pub async fn delete(tx: &Tx, id: SiteId) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    keyed::delete::<Entity>(tx, id.bits()).await?;
    assignments::clear(tx, Scope::Site(id)).await?;
    pauses::clear(tx, PauseScope::Site(id)).await
}

fn active_model(tx: &Tx, id: SiteId, spec: &SiteSpec, now: Time) -> ActiveModel {
    ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(spec.name.to_string()),
        region_id: Set(spec.region.map(|region| region.bits().cast_signed())),
        latitude: Set(spec.latitude),
        longitude: Set(spec.longitude),
        metadata: Set(JsonColumn(spec.metadata.clone())),
        updated_at: Set(now),
        ..Default::default()
    }
}

impl TryFrom<Model> for Site {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let region = row.region_id.map(|id| RegionId::from_bits(id.cast_unsigned()));
        Ok(Self {
            id: SiteId::from_bits(row.id.cast_unsigned()),
            spec: SiteSpec {
                name: Name::from_stored(&row.name),
                region,
                latitude: row.latitude,
                longitude: row.longitude,
                metadata: row.metadata.0,
            },
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
