//! The brake of assignments: who is being changed under which, and how many failed.
//!
//! A slot is taken in the transaction that gives leave, after the row of the assignment was locked: so the count is exact
//! whoever asks at the same time, on any replica. It is let go when the run of the instance ends. A slot of a node that
//! starts by itself is let go as well when its time is over and no run was opened.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Brake, Scope};
use evenkeel_domain::id::InstanceId;
use sea_orm::Value;

use crate::assignments::scope_of;
use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, all, execute, ids_in, one};

/// A slot whose time is over is given back to its node for so long, if the news of its run comes late.
pub(crate) const REVIVED_FOR: chrono::TimeDelta = chrono::TimeDelta::days(1);

/// What ended badly under an assignment `a` since it counts. One text for all who count.
pub(crate) const FAILED: &str = "FROM update_runs r \
    WHERE r.tenant_id = a.tenant_id AND r.granted_kind = a.target_kind AND r.granted_id = a.target_id \
    AND r.ended_at >= a.since_at AND r.state IN ('failed', 'reverted', 'abandoned') \
    AND (r.state <> 'abandoned' OR r.cause = 'timed_out')";

/// Lets nobody else count the slots of an assignment until the end of the transaction.
pub(crate) async fn lock(tx: &Tx, scope: Scope) -> Result<(), StoreError> {
    let sql = "SELECT FROM assignments WHERE tenant_id = $1 AND target_kind = $2 AND target_id = $3 FOR UPDATE";
    one(tx.conn(), sql, key(tx, scope)).await?;
    Ok(())
}

/// How far the limits of assignments are used up.
#[derive(Debug, Default)]
pub(crate) struct Counted(HashMap<Scope, Used>);

/// How far the limits of one assignment are used up.
#[derive(Debug)]
struct Used {
    /// Slots that anybody holds.
    held: u32,
    /// Who of those who were asked for holds one.
    by: Vec<InstanceId>,
    failures: u32,
    /// When the first slot is free again although nothing is heard.
    end: Option<Time>,
}

impl Counted {
    /// How far the limits of an assignment are used up, as an instance sees it that was asked for.
    pub(crate) fn seen_by(&self, instance: InstanceId, scope: Scope) -> Brake {
        let Some(used) = self.0.get(&scope) else {
            return Brake::default();
        };
        let mine = used.by.contains(&instance);
        Brake {
            held: used.held.saturating_sub(u32::from(mine)),
            mine,
            failures: used.failures,
            behind: None,
        }
    }

    /// When the first slot of an assignment, whoever holds it, is free again although nothing is heard; none if no time is
    /// set for any.
    pub(crate) fn slots_end(&self, scope: Scope) -> Option<Time> {
        self.0.get(&scope)?.end
    }
}

/// Slots of an assignment `a` that count.
const HELD: &str = "FROM brake_slots s WHERE s.tenant_id = a.tenant_id AND s.target_kind = a.target_kind \
    AND s.target_id = a.target_id AND (s.until_at IS NULL OR s.until_at > $5)";

static READ: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT a.target_kind, a.target_id, (SELECT count(*) {HELD}), (SELECT count(*) {FAILED}), \
         ARRAY(SELECT s.instance_id {HELD} AND s.instance_id = ANY ({})), (SELECT min(s.until_at) {HELD}) \
         FROM unnest(ARRAY(SELECT unnest($2::text[])), {}) AS c (target_kind, target_id) \
         JOIN assignments a ON a.tenant_id = $1 AND a.target_kind = c.target_kind AND a.target_id = c.target_id",
        ids_in(4),
        ids_in(3),
    )
});

/// How far the limits of assignments are used up, as instances see them: one statement for any number of them, and none
/// for nobody.
pub(crate) async fn read(
    tx: &Tx,
    of: &[(InstanceId, Scope)],
    now: Time,
) -> Result<Counted, StoreError> {
    if of.is_empty() {
        return Ok(Counted::default());
    }
    let scopes: BTreeSet<Scope> = of.iter().map(|(_, scope)| *scope).collect();
    let kinds = scopes.iter().map(|scope| scope.level().name().to_owned());
    let ids = scopes.iter().map(|scope| scope.bits().cast_signed());
    let instances = of.iter().map(|(instance, _)| instance.bits().cast_signed());
    let values = [
        tx.tenant().uuid().into(),
        kinds.collect::<Vec<String>>().into(),
        ids.collect::<Vec<i32>>().into(),
        instances.collect::<Vec<i32>>().into(),
        now.into(),
    ];
    let mut counted = HashMap::new();
    for row in all(tx.conn(), READ.as_str(), values).await? {
        let kind: String = row.try_get_by_index(0)?;
        let by: Vec<i32> = row.try_get_by_index(4)?;
        let by = by.into_iter().map(i32::cast_unsigned);
        let used = Used {
            held: count(row.try_get_by_index(2)?),
            failures: count(row.try_get_by_index(3)?),
            by: by.map(InstanceId::from_bits).collect(),
            end: row.try_get_by_index(5)?,
        };
        counted.insert(scope_of(&kind, row.try_get_by_index(1)?)?, used);
    }
    Ok(Counted(counted))
}

pub(crate) fn count(counted: i64) -> u32 {
    u32::try_from(counted).unwrap_or(u32::MAX)
}

/// Takes a slot of an assignment for an instance, or keeps the one that it holds. The caller has judged in the same
/// transaction ([`crate::decisions::Reading::Judge`]) that one is free. With `until`, the slot is let go at that instant
/// unless a run of the instance was opened before; without, when its run ends.
///
/// # Errors
/// The database cannot be reached.
pub async fn hold(
    tx: &Tx,
    scope: Scope,
    instance: InstanceId,
    until: Option<Time>,
    now: Time,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO brake_slots AS s (tenant_id, target_kind, target_id, instance_id, since_at, until_at) \
               VALUES ($1, $2, $3, $4, $5, $6) \
               ON CONFLICT (tenant_id, target_kind, target_id, instance_id) DO UPDATE SET \
               until_at = CASE WHEN s.until_at IS NULL THEN NULL ELSE excluded.until_at END, \
               since_at = CASE WHEN s.until_at <= excluded.since_at THEN excluded.since_at ELSE s.since_at END";
    let [tenant, kind, id] = key(tx, scope);
    let instance = instance.bits().cast_signed();
    let values = [tenant, kind, id, instance.into(), now.into(), until.into()];
    execute(tx.conn(), sql, values).await?;
    Ok(())
}

/// Lets go what an instance holds.
///
/// # Errors
/// The database cannot be reached.
pub async fn release(tx: &Tx, instance: InstanceId) -> Result<(), StoreError> {
    let sql = "DELETE FROM brake_slots WHERE tenant_id = $1 AND instance_id = $2";
    let values = [
        tx.tenant().uuid().into(),
        instance.bits().cast_signed().into(),
    ];
    execute(tx.conn(), sql, values).await?;
    Ok(())
}

/// Removes slots whose time was over before an instant, at most so many. They count no more since then; what is kept of
/// them is who held them, for news that comes late. Says how many. Safe on several replicas at once.
///
/// # Errors
/// The database cannot be reached.
pub async fn clean(tx: &FleetTx, now: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = "WITH over AS (SELECT tenant_id, target_kind, target_id, instance_id FROM brake_slots WHERE until_at < $1 \
               ORDER BY tenant_id, until_at LIMIT $2 FOR UPDATE SKIP LOCKED) \
               DELETE FROM brake_slots s USING over o WHERE s.tenant_id = o.tenant_id \
               AND s.target_kind = o.target_kind AND s.target_id = o.target_id AND s.instance_id = o.instance_id";
    let values = [(now - REVIVED_FOR).into(), i64::from(limit).into()];
    execute(tx.conn(), sql, values).await
}

/// What an assignment is found by.
pub(crate) fn key(tx: &Tx, scope: Scope) -> [Value; 3] {
    [
        tx.tenant().uuid().into(),
        scope.level().name().into(),
        scope.bits().cast_signed().into(),
    ]
}
