//! Image series that changed, and the nodes whose newest image must be updated.

use std::collections::HashMap;

use evenkeel_domain::eim;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::os::Image;
use evenkeel_domain::tenant::TenantId;
use sea_orm::QueryResult;

use crate::error::StoreError;
use crate::os_profiles::{ImageRow, OsImage};
use crate::rows::JsonColumn;
use crate::tx::{FleetTx, Tx, execute, query_all, query_one};

/// An image series that changed: the images that share a profile name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSeries {
    pub tenant: TenantId,
    pub profile_name: String,
    /// Counts the changes of the series.
    pub version: i64,
}

/// Result of [`update_nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesUpdate {
    /// Number of nodes that were checked.
    pub checked_nodes: u64,
    /// Number of nodes whose newest image changed.
    pub changed_nodes: u64,
    /// Continue after this instance; none if there are no more.
    pub last: Option<InstanceId>,
}

/// At most `limit` image series of all projects whose nodes are not up to date.
pub async fn list_outdated(tx: &FleetTx, limit: u32) -> Result<Vec<ImageSeries>, StoreError> {
    let sql = "SELECT tenant_id, profile_name, change_count FROM image_series WHERE change_count > applied_count \
               ORDER BY tenant_id, profile_name LIMIT $1";
    let series = |row: QueryResult| -> Result<ImageSeries, StoreError> {
        Ok(ImageSeries {
            tenant: TenantId::new(row.try_get_by_index(0)?),
            profile_name: row.try_get_by_index(1)?,
            version: row.try_get_by_index(2)?,
        })
    };
    let rows = query_all(tx.conn(), sql, [i64::from(limit).into()]).await?;
    rows.into_iter().map(series).collect()
}

/// Updates the newest available image of nodes that run an image of a series: at most `limit` nodes
/// after an instance, in the order of the instances. None if another replica is doing it.
///
/// # Errors
/// A node is locked for too long, or the database cannot be reached.
pub async fn update_nodes(
    tx: &Tx,
    series: &ImageSeries,
    after: Option<InstanceId>,
    limit: u32,
) -> Result<Option<SeriesUpdate>, StoreError> {
    if !try_lock(tx, series).await? {
        return Ok(None);
    }
    // Read under the lock: a later transaction writes newer data.
    let images = load_images(tx, series).await?;
    let newest = newest_by_architecture(&images);
    let available = images.iter().filter_map(|running| {
        let newest = newest.get(running.architecture.as_str())?;
        let text = eim::newer_image_name(running, newest.as_slice())?;
        Some((running.os.bits().cast_signed(), text))
    });
    let (ids, texts): (Vec<i32>, Vec<String>) = available.unzip();
    // A node's value is compared after its row was locked, not as of the start of the statement.
    let sql = "WITH newest AS (SELECT * FROM unnest($2::integer[], $3::text[]) AS w (os_id, shown)), \
               mine AS MATERIALIZED (SELECT n.instance_id, n.os_id, n.os_update_available AS shown FROM node_states n \
               WHERE n.tenant_id = $1 AND n.os_id = ANY ($2::integer[]) AND n.instance_id > $4::bigint \
               ORDER BY n.instance_id LIMIT $5 FOR NO KEY UPDATE OF n), \
               updated AS (UPDATE node_states n SET os_update_available = w.shown, \
               available_digest = sha256(convert_to(w.shown, 'UTF8')) FROM mine m JOIN newest w ON w.os_id = m.os_id \
               WHERE n.tenant_id = $1 AND n.instance_id = m.instance_id AND m.shown <> w.shown RETURNING 1) \
               SELECT (SELECT count(*) FROM mine), (SELECT count(*) FROM updated), (SELECT max(instance_id) FROM mine)";
    // The database stores ids as signed numbers and orders them so.
    let after = after.map_or(i64::MIN, |id| id.bits().cast_signed().into());
    let values = [
        tx.tenant().uuid().into(),
        ids.into(),
        texts.into(),
        after.into(),
        i64::from(limit).into(),
    ];
    let Some(row) = query_one(tx.conn(), sql, values).await? else {
        return Ok(None);
    };
    let (checked, changed): (i64, i64) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
    let last: Option<i32> = row.try_get_by_index(2)?;
    let last = last.filter(|_| checked >= i64::from(limit));
    Ok(Some(SeriesUpdate {
        checked_nodes: checked.unsigned_abs(),
        changed_nodes: changed.unsigned_abs(),
        last: last.map(|id| InstanceId::from_bits(id.cast_unsigned())),
    }))
}

/// Records that the nodes of a series are up to date with its version at the time of
/// [`list_outdated`]. Runs in its own transaction, so that no transaction that holds a node waits
/// for it. Returns whether this changed anything. A series that changed since stays outdated.
pub async fn mark_followed(tx: &Tx, series: &ImageSeries) -> Result<bool, StoreError> {
    let sql = "UPDATE image_series SET applied_count = $3 WHERE tenant_id = $1 AND profile_name = $2 AND applied_count < $3";
    let values =
        [tx.tenant().uuid().into(), series.profile_name.as_str().into(), series.version.into()];
    Ok(execute(tx.conn(), sql, values).await? > 0)
}

/// Locks a series until the end of the transaction. False if another transaction holds it.
async fn try_lock(tx: &Tx, series: &ImageSeries) -> Result<bool, StoreError> {
    let sql =
        "SELECT pg_try_advisory_xact_lock(hashtextextended('image series/' || $1 || '/' || $2, 0))";
    let values = [tx.tenant().to_string().into(), series.profile_name.as_str().into()];
    match query_one(tx.conn(), sql, values).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// The newest image for each architecture of a series.
fn newest_by_architecture(images: &[Image]) -> HashMap<&str, Option<Image>> {
    let mut newest = HashMap::new();
    for image in images {
        let architecture = image.architecture.as_str();
        newest.entry(architecture).or_insert_with(|| {
            let candidates = images.iter().filter(|candidate| candidate.fits(architecture));
            Image::newest(candidates).cloned()
        });
    }
    newest
}

/// The images of a series, by id as in decisions.
async fn load_images(tx: &Tx, series: &ImageSeries) -> Result<Vec<Image>, StoreError> {
    let sql = format!(
        "SELECT to_json(t) FROM (SELECT {} FROM os_profiles \
         WHERE tenant_id = $1 AND kind = 'immutable' AND profile_name = $2 ORDER BY id) t",
        ImageRow::COLUMNS
    );
    let values = [tx.tenant().uuid().into(), series.profile_name.as_str().into()];
    let image = |row: QueryResult| -> Result<Image, StoreError> {
        let JsonColumn(row): JsonColumn<ImageRow> = row.try_get_by_index(0)?;
        Ok(OsImage::try_from(row)?.image)
    };
    let rows = query_all(tx.conn(), sql, values).await?;
    rows.into_iter().map(image).collect()
}
