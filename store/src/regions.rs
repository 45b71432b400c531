//! Regions, which can be nested.

use std::collections::HashMap;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::RegionId;
use evenkeel_domain::location::{MAX_REGION_DEPTH, Region, RegionSpec};
use evenkeel_domain::text::Name;
use sea_orm::{ActiveModelTrait, Set};

use crate::assignments;
use crate::error::{Conflict, StoreError};
use crate::keyed::KeyedEntity;
use crate::rows::JsonColumn;
use crate::rows::region::{ActiveModel, Entity, Model};
use crate::tx::{Tx, query_all, query_one};
use crate::{ids, keyed};

/// Creates a region.
///
/// # Errors
/// Its parent does not exist in the project, or it would be nested too deeply.
pub async fn create(tx: &Tx, spec: &RegionSpec, now: Time) -> Result<Region, StoreError> {
    tx.lock_for_change().await?;
    check_parent(tx, None, spec.parent).await?;
    let id = RegionId::nth(ids::next(tx.conn(), "region_numbers").await?);
    let row = ActiveModel { created_at: Set(now), ..active_model(tx, id, spec, now) };
    row.insert(tx.conn()).await?.try_into()
}

/// The region with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: RegionId) -> Result<Region, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The regions with these ids that exist, in no particular order.
pub async fn find_many(tx: &Tx, ids: &[RegionId]) -> Result<Vec<Region>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// The number of sites in each of these regions and their subregions. Regions without sites are
/// left out.
pub async fn count_sites(tx: &Tx, ids: &[RegionId]) -> Result<HashMap<RegionId, u64>, StoreError> {
    let sql = "WITH RECURSIVE down (root, id) AS ( \
               SELECT id, id FROM regions WHERE tenant_id = $1 AND id = ANY ($2) \
               UNION ALL \
               SELECT down.root, r.id FROM down JOIN regions r ON r.tenant_id = $1 AND r.parent_id = down.id) \
               SELECT down.root, count(*) FROM down \
               JOIN sites s ON s.tenant_id = $1 AND s.region_id = down.id GROUP BY down.root";
    let bits: Vec<i32> = ids.iter().map(|id| id.bits().cast_signed()).collect();
    let rows = query_all(tx.conn(), sql, [tx.tenant().uuid().into(), bits.into()]).await?;
    let mut counts = HashMap::new();
    for row in rows {
        let (bits, count): (i32, i64) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
        let id = RegionId::from_bits(bits.cast_unsigned());
        counts.insert(id, count.cast_unsigned());
    }
    Ok(counts)
}

/// Replaces the specification of a region.
///
/// # Errors
/// It does not exist in the project, its parent does not exist or lies inside it, or a region would
/// be nested too deeply.
pub async fn change(
    tx: &Tx,
    id: RegionId,
    spec: &RegionSpec,
    now: Time,
) -> Result<Region, StoreError> {
    tx.lock_for_change().await?;
    let before = find(tx, id).await?;
    if before.spec.parent != spec.parent {
        check_parent(tx, Some(id), spec.parent).await?;
    }
    active_model(tx, id, spec, now).update(tx.conn()).await?.try_into()
}

/// Deletes a region with its assignment and schedules.
///
/// # Errors
/// It does not exist in the project, or it contains a region or a site.
pub async fn delete(tx: &Tx, id: RegionId) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    keyed::delete::<Entity>(tx, id.bits()).await?;
    assignments::clear(tx, Scope::Region(id)).await
}

/// Checks the parent of a new or a moved region. The caller holds the advisory lock of the project,
/// so the tree does not change meanwhile.
async fn check_parent(
    tx: &Tx,
    region: Option<RegionId>,
    parent: Option<RegionId>,
) -> Result<(), StoreError> {
    let Some(parent) = parent else {
        return Ok(());
    };
    let sql = "WITH RECURSIVE up (id, parent_id) AS ( \
               SELECT id, parent_id FROM regions WHERE tenant_id = $1 AND id = $2 \
               UNION \
               SELECT r.id, r.parent_id FROM up JOIN regions r ON r.tenant_id = $1 AND r.id = up.parent_id), \
               down (id, depth) AS ( \
               SELECT id, 1 FROM regions WHERE tenant_id = $1 AND id = $3 \
               UNION ALL \
               SELECT r.id, down.depth + 1 FROM down JOIN regions r ON r.tenant_id = $1 AND r.parent_id = down.id) \
               SELECT (SELECT count(*) FROM up), (SELECT coalesce(max(depth), 1) FROM down), \
               EXISTS (SELECT FROM up WHERE id = $3)";
    let moved = region.map(|id| id.bits().cast_signed());
    let values = [tx.tenant().uuid().into(), parent.bits().cast_signed().into(), moved.into()];
    let what = Entity::RESOURCE;
    let Some(row) = query_one(tx.conn(), sql, values).await? else {
        return Err(StoreError::NotFound { what });
    };
    let (above, below): (i64, i32) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
    if row.try_get_by_index::<bool>(2)? {
        return Err(Conflict::Cyclic { what }.into());
    }
    let field = "parentId";
    if above == 0 {
        return Err(Conflict::MissingReference { what, field }.into());
    }
    let depth = above + i64::from(below);
    match usize::try_from(depth) {
        Ok(depth) if depth <= MAX_REGION_DEPTH => Ok(()),
        _ => Err(Conflict::TooDeep { what, limit: MAX_REGION_DEPTH }.into()),
    }
}

fn active_model(tx: &Tx, id: RegionId, spec: &RegionSpec, now: Time) -> ActiveModel {
    ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(spec.name.to_string()),
        parent_id: Set(spec.parent.map(|parent| parent.bits().cast_signed())),
        metadata: Set(JsonColumn(spec.metadata.clone())),
        updated_at: Set(now),
        ..Default::default()
    }
}

impl TryFrom<Model> for Region {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let parent = row.parent_id.map(|id| RegionId::from_bits(id.cast_unsigned()));
        Ok(Self {
            id: RegionId::from_bits(row.id.cast_unsigned()),
            spec: RegionSpec {
                name: Name::from_stored(&row.name),
                parent,
                metadata: row.metadata.0,
            },
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
