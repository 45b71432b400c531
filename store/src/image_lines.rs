//! Lines of images that changed, and the nodes that are to be told what is newest in theirs.

use std::collections::HashMap;

use evenkeel_domain::eim;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::os::Image;
use evenkeel_domain::tenant::TenantId;
use sea_orm::QueryResult;

use crate::error::StoreError;
use crate::os_profiles::{ImageRow, KindOfImage};
use crate::rows::Kept;
use crate::tx::{FleetTx, Tx, all, execute, one};

/// A line of images that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Whose it is.
    pub tenant: TenantId,
    /// The profile name that its images share.
    pub profile_name: String,
    /// How often it has changed.
    pub changed: i64,
}

/// What came of following a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// How many nodes were looked at.
    pub looked: u64,
    /// For how many of them something else is newest than they showed.
    pub changed: u64,
    /// Behind which instance to go on; none if there are no more.
    pub last: Option<InstanceId>,
}

/// Lines of all projects that changed since their nodes were told, at most so many.
///
/// # Errors
/// The database cannot be reached.
pub async fn behind(tx: &FleetTx, limit: u32) -> Result<Vec<Line>, StoreError> {
    let sql = "SELECT tenant_id, profile_name, changed FROM image_lines WHERE changed > followed \
               ORDER BY tenant_id, profile_name LIMIT $1";
    let line = |row: QueryResult| -> Result<Line, StoreError> {
        Ok(Line {
            tenant: TenantId::new(row.try_get_by_index(0)?),
            profile_name: row.try_get_by_index(1)?,
            changed: row.try_get_by_index(2)?,
        })
    };
    let rows = all(tx.conn(), sql, [i64::from(limit).into()]).await?;
    rows.into_iter().map(line).collect()
}

/// Brings up to date what nodes that run an image of a line could be updated to, at most of so many behind an instance,
/// in the order of their instances. None if another replica is at it.
///
/// # Errors
/// Somebody holds a node for too long, or the database cannot be reached.
pub async fn follow(
    tx: &Tx,
    line: &Line,
    after: Option<InstanceId>,
    limit: u32,
) -> Result<Option<Followed>, StoreError> {
    if !is_alone(tx, line).await? {
        return Ok(None);
    }
    // Read when nobody else is at it: whoever comes later writes what is newer.
    let images = images(tx, line).await?;
    let newest = newest(&images);
    let shown = images.iter().filter_map(|running| {
        let newest = newest.get(running.architecture.as_str())?;
        let text = eim::available_for(running, newest.as_slice())?;
        Some((running.os.bits().cast_signed(), text))
    });
    let (ids, texts): (Vec<i32>, Vec<String>) = shown.unzip();
    // What a node shows is looked at as it is once its row is held, not as it was when the statement began.
    let sql = "WITH newest AS (SELECT * FROM unnest($2::integer[], $3::text[]) AS w (os_id, shown)), \
               mine AS MATERIALIZED (SELECT n.instance_id, n.os_id, n.os_update_available AS shown FROM node_states n \
               WHERE n.tenant_id = $1 AND n.os_id = ANY ($2::integer[]) AND n.instance_id > $4::bigint \
               ORDER BY n.instance_id LIMIT $5 FOR NO KEY UPDATE OF n), \
               told AS (UPDATE node_states n SET os_update_available = w.shown, \
               available_digest = sha256(convert_to(w.shown, 'UTF8')) FROM mine m JOIN newest w ON w.os_id = m.os_id \
               WHERE n.tenant_id = $1 AND n.instance_id = m.instance_id AND m.shown <> w.shown RETURNING 1) \
               SELECT (SELECT count(*) FROM mine), (SELECT count(*) FROM told), (SELECT max(instance_id) FROM mine)";
    // The database knows ids as signed numbers, and orders them so.
    let after = after.map_or(i64::MIN, |id| id.bits().cast_signed().into());
    let values = [
        tx.tenant().uuid().into(),
        ids.into(),
        texts.into(),
        after.into(),
        i64::from(limit).into(),
    ];
    let Some(row) = one(tx.conn(), sql, values).await? else {
        return Ok(None);
    };
    let (looked, changed): (i64, i64) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
    let last: Option<i32> = row.try_get_by_index(2)?;
    let last = last.filter(|_| looked >= i64::from(limit));
    Ok(Some(Followed {
        looked: looked.unsigned_abs(),
        changed: changed.unsigned_abs(),
        last: last.map(|id| InstanceId::from_bits(id.cast_unsigned())),
    }))
}

/// Notes that the nodes of a line were told what it was when it was found behind; in a transaction of its own, so that
/// nobody waits for it who holds a node. Says whether that was news. If the line changed since, it is behind all the
/// same.
///
/// # Errors
/// The database cannot be reached.
pub async fn done(tx: &Tx, line: &Line) -> Result<bool, StoreError> {
    let sql = "UPDATE image_lines SET followed = $3 WHERE tenant_id = $1 AND profile_name = $2 AND followed < $3";
    let values = [
        tx.tenant().uuid().into(),
        line.profile_name.as_str().into(),
        line.changed.into(),
    ];
    Ok(execute(tx.conn(), sql, values).await? > 0)
}

/// Whether nobody else is at a line, until the end of the transaction.
async fn is_alone(tx: &Tx, line: &Line) -> Result<bool, StoreError> {
    let sql =
        "SELECT pg_try_advisory_xact_lock(hashtextextended('image line/' || $1 || '/' || $2, 0))";
    let values = [
        tx.tenant().to_string().into(),
        line.profile_name.as_str().into(),
    ];
    match one(tx.conn(), sql, values).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// The newest image for each architecture that the images of a line are for.
fn newest(images: &[Image]) -> HashMap<&str, Option<Image>> {
    let mut newest = HashMap::new();
    for image in images {
        let architecture = image.architecture.as_str();
        newest.entry(architecture).or_insert_with(|| {
            let fitting = images.iter().filter(|one| one.fits(architecture));
            Image::newest(fitting).cloned()
        });
    }
    newest
}

/// The images of a line, by id as decisions have them.
async fn images(tx: &Tx, line: &Line) -> Result<Vec<Image>, StoreError> {
    let sql = format!(
        "SELECT to_json(t) FROM (SELECT {} FROM os_profiles \
         WHERE tenant_id = $1 AND kind = 'immutable' AND profile_name = $2 ORDER BY id) t",
        ImageRow::COLUMNS
    );
    let values = [tx.tenant().uuid().into(), line.profile_name.as_str().into()];
    let image = |row: QueryResult| -> Result<Image, StoreError> {
        let Kept(row): Kept<ImageRow> = row.try_get_by_index(0)?;
        Ok(KindOfImage::try_from(row)?.image)
    };
    let rows = all(tx.conn(), sql, values).await?;
    rows.into_iter().map(image).collect()
}
