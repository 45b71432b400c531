//! Use of the limits of assignments: which nodes hold an update slot, and how many runs failed.
//!
//! A slot is taken in the transaction that grants the start, after the row of the assignment was
//! locked. The count is therefore exact across all replicas. The slot is released when the run of
//! the instance ends. The slot of a node that starts by itself also expires if no run was opened in
//! time.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::LazyLock;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{LimitUsage, Scope};
use evenkeel_domain::id::InstanceId;
use sea_orm::Value;

use crate::assignments::scope_from_columns;
use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, execute, ids_in, query_all, query_one};

/// For this long after its expiry, a slot is given back to its node if the run's report arrives
/// late.
pub(crate) const SLOT_REVIVAL_PERIOD: chrono::TimeDelta = chrono::TimeDelta::days(1);

/// Failed runs under an assignment `a` since its failures count. Every query that counts failures
/// uses this text.
///
/// A run belongs to the assignment that permitted its start, or else to the one under which it
/// opened, so an update that fails while it is planned or downloaded counts too. A run without a
/// permit that times out does not count: its node was away before anything could be changed.
pub(crate) const FAILED_RUNS_SQL: &str = "FROM update_runs r \
    WHERE r.tenant_id = a.tenant_id AND coalesce(r.granted_kind, r.assigned_kind) = a.target_kind \
    AND coalesce(r.granted_id, r.assigned_id) = a.target_id \
    AND r.ended_at >= a.since_at AND r.state IN ('failed', 'reverted', 'abandoned') \
    AND (r.state <> 'abandoned' OR (r.cause = 'timed_out' AND r.granted_kind IS NOT NULL))";

/// Locks an assignment until the end of the transaction, so that no other one counts its slots.
pub(crate) async fn lock(tx: &Tx, scope: Scope) -> Result<(), StoreError> {
    let sql = "SELECT FROM assignments WHERE tenant_id = $1 AND target_kind = $2 AND target_id = $3 FOR UPDATE";
    query_one(tx.conn(), sql, scope_key(tx, scope)).await?;
    Ok(())
}

/// How far the limits of assignments are used up.
#[derive(Debug, Default)]
pub(crate) struct LimitUsageByScope(HashMap<Scope, ScopeUsage>);

/// How far the limits of one assignment are used up.
#[derive(Debug)]
struct ScopeUsage {
    /// Slots in use by any instance.
    held_slots: u32,
    /// The instances of the query that hold a slot.
    holders: HashSet<InstanceId>,
    failures: u32,
    /// When the first slot expires if no report arrives.
    first_slot_free_at: Option<Time>,
}

impl LimitUsageByScope {
    /// The use of the limits of an assignment as an instance of the query sees it: its own slot is
    /// counted separately.
    pub(crate) fn usage_for(&self, instance: InstanceId, scope: Scope) -> LimitUsage {
        let Some(used) = self.0.get(&scope) else {
            return LimitUsage::default();
        };
        let mine = used.holders.contains(&instance);
        LimitUsage {
            held_by_others: used.held_slots.saturating_sub(u32::from(mine)),
            holds_slot: mine,
            failures: used.failures,
            yields_until: None,
        }
    }

    /// When the first slot of an assignment expires if no report arrives; none if no slot expires.
    pub(crate) fn first_slot_free_at(&self, scope: Scope) -> Option<Time> {
        self.0.get(&scope)?.first_slot_free_at
    }
}

/// Slots of an assignment `a` that are in use.
const HELD_SLOTS_SQL: &str = "FROM update_slots s WHERE s.tenant_id = a.tenant_id AND s.target_kind = a.target_kind \
    AND s.target_id = a.target_id AND (s.until_at IS NULL OR s.until_at > $5)";

static USAGE_SQL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT a.target_kind, a.target_id, (SELECT count(*) {HELD_SLOTS_SQL}), (SELECT count(*) {FAILED_RUNS_SQL}), \
         ARRAY(SELECT s.instance_id {HELD_SLOTS_SQL} AND s.instance_id = ANY ({})), (SELECT min(s.until_at) {HELD_SLOTS_SQL}) \
         FROM unnest(ARRAY(SELECT unnest($2::text[])), {}) AS c (target_kind, target_id) \
         JOIN assignments a ON a.tenant_id = $1 AND a.target_kind = c.target_kind AND a.target_id = c.target_id",
        ids_in(4),
        ids_in(3),
    )
});

/// Reads the use of limits for these instances and scopes: one statement, or none if the list is
/// empty.
pub(crate) async fn read(
    tx: &Tx,
    of: &[(InstanceId, Scope)],
    now: Time,
) -> Result<LimitUsageByScope, StoreError> {
    if of.is_empty() {
        return Ok(LimitUsageByScope::default());
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
    let mut usages = HashMap::new();
    for row in query_all(tx.conn(), USAGE_SQL.as_str(), values).await? {
        let kind: String = row.try_get_by_index(0)?;
        let holders: Vec<i32> = row.try_get_by_index(4)?;
        let holders = holders.into_iter().map(i32::cast_unsigned);
        let used = ScopeUsage {
            held_slots: saturating_count(row.try_get_by_index(2)?),
            failures: saturating_count(row.try_get_by_index(3)?),
            holders: holders.map(InstanceId::from_bits).collect(),
            first_slot_free_at: row.try_get_by_index(5)?,
        };
        usages.insert(scope_from_columns(&kind, row.try_get_by_index(1)?)?, used);
    }
    Ok(LimitUsageByScope(usages))
}

pub(crate) fn saturating_count(count: i64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Takes a slot of an assignment for an instance, or keeps the slot that the instance holds. The
/// caller has checked in the same transaction ([`crate::decisions::ReadMode::Grant`]) that a slot
/// is free. With `until`, the slot expires at that time unless a run of the instance was opened
/// before. Without it, the slot is released when the run ends.
pub async fn take_slot(
    tx: &Tx,
    scope: Scope,
    instance: InstanceId,
    until: Option<Time>,
    now: Time,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO update_slots AS s (tenant_id, target_kind, target_id, instance_id, since_at, until_at) \
               VALUES ($1, $2, $3, $4, $5, $6) \
               ON CONFLICT (tenant_id, target_kind, target_id, instance_id) DO UPDATE SET \
               until_at = CASE WHEN s.until_at IS NULL THEN NULL ELSE excluded.until_at END, \
               since_at = CASE WHEN s.until_at <= excluded.since_at THEN excluded.since_at ELSE s.since_at END";
    let [tenant, kind, id] = scope_key(tx, scope);
    let instance = instance.bits().cast_signed();
    let values = [tenant, kind, id, instance.into(), now.into(), until.into()];
    execute(tx.conn(), sql, values).await?;
    Ok(())
}

pub async fn release_slots(tx: &Tx, instance: InstanceId) -> Result<(), StoreError> {
    let sql = "DELETE FROM update_slots WHERE tenant_id = $1 AND instance_id = $2";
    let values = [tx.tenant().uuid().into(), instance.bits().cast_signed().into()];
    execute(tx.conn(), sql, values).await?;
    Ok(())
}

/// Deletes at most `limit` slots that expired more than `SLOT_REVIVAL_PERIOD` ago and returns their
/// number. Expired slots do not count; they are kept this long for reports that arrive late. Safe
/// on several replicas at once.
pub async fn delete_expired_slots(tx: &FleetTx, now: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = "WITH over AS (SELECT tenant_id, target_kind, target_id, instance_id FROM update_slots WHERE until_at < $1 \
               ORDER BY tenant_id, until_at LIMIT $2 FOR UPDATE SKIP LOCKED) \
               DELETE FROM update_slots s USING over o WHERE s.tenant_id = o.tenant_id \
               AND s.target_kind = o.target_kind AND s.target_id = o.target_id AND s.instance_id = o.instance_id";
    let values = [(now - SLOT_REVIVAL_PERIOD).into(), i64::from(limit).into()];
    execute(tx.conn(), sql, values).await
}

/// The key columns of an assignment.
pub(crate) fn scope_key(tx: &Tx, scope: Scope) -> [Value; 3] {
    [tx.tenant().uuid().into(), scope.level().name().into(), scope.bits().cast_signed().into()]
}
