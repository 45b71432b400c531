//! How far nodes and projects have used up their daily limits, for all processes.
//!
//! A limit is a bucket that holds the amount of a day and fills up within a day. An amount costs
//! time: the part of a day in which the bucket gains as much again. A row says when the bucket is
//! full, by the clock of the database. A row in the past is the same as no row.

use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use sea_orm::Value;
use uuid::Uuid;

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, execute, query_all, query_one};

/// The time that an amount of a project costs, or has cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProjectCharge<'a> {
    pub tenant: TenantId,
    /// Name of the amount.
    pub amount: &'a str,
    /// At most a day.
    pub cost: Duration,
}

/// How far a project has used up a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectDailyUsage {
    pub tenant: TenantId,
    /// Name of the amount.
    pub amount: String,
    /// Time until the bucket is full.
    pub used: Duration,
}

/// Charges an amount to a node, or returns how long it must wait until its bucket has as much. The
/// caller has locked the node, and writes what is counted in the same transaction.
pub async fn charge_node(
    tx: &Tx,
    host: HostId,
    amount: &str,
    cost: Duration,
) -> Result<Option<Duration>, StoreError> {
    // An interval of hours and not of days: a day may have 23 hours in the time zone of a session.
    let sql = "WITH charged AS (INSERT INTO node_daily_usage AS u (tenant_id, host_id, amount, full_at) \
               VALUES ($1, $2, $3, now() + $4::bigint * interval '1 microsecond') \
               ON CONFLICT (tenant_id, host_id, amount) DO UPDATE \
               SET full_at = greatest(u.full_at, now()) + $4::bigint * interval '1 microsecond' \
               WHERE u.full_at + $4::bigint * interval '1 microsecond' <= now() + interval '24 hours' RETURNING 1) \
               SELECT extract(epoch FROM u.full_at - now())::double precision FROM node_daily_usage u \
               WHERE u.tenant_id = $1 AND u.host_id = $2 AND u.amount = $3 AND NOT EXISTS (SELECT FROM charged)";
    let host = host.bits().cast_signed();
    let values = [tx.tenant().uuid().into(), host.into(), amount.into(), micros(cost).into()];
    let Some(refused) = query_one(tx.conn(), sql, values).await? else {
        return Ok(None);
    };
    let used = seconds(refused.try_get_by_index(0)?);
    Ok(Some((used + cost).saturating_sub(DAY)))
}

/// Adds what projects have used, and returns the usage of all projects that have used anything.
/// Refuses nothing: it was stored already. Deleted projects are skipped. The list must not contain
/// an amount of a project twice.
pub async fn charge_projects(
    tx: &FleetTx,
    charges: &[ProjectCharge<'_>],
) -> Result<Vec<ProjectDailyUsage>, StoreError> {
    if !charges.is_empty() {
        add_charges(tx, charges).await?;
    }
    let sql = "SELECT tenant_id, amount, extract(epoch FROM full_at - now())::double precision \
               FROM project_daily_usage WHERE full_at > now()";
    let mut usages = Vec::new();
    for row in query_all(tx.conn(), sql, []).await? {
        usages.push(ProjectDailyUsage {
            tenant: TenantId::new(row.try_get_by_index(0)?),
            amount: row.try_get_by_index(1)?,
            used: seconds(row.try_get_by_index(2)?),
        });
    }
    Ok(usages)
}

async fn add_charges(tx: &FleetTx, charges: &[ProjectCharge<'_>]) -> Result<(), StoreError> {
    // Sorted: two batches in different orders could deadlock.
    let mut charges = charges.to_vec();
    charges.sort_unstable();
    let tenants = charges.iter().map(|charge| charge.tenant.uuid());
    let amounts = charges.iter().map(|charge| charge.amount.to_owned());
    let costs = charges.iter().map(|charge| micros(charge.cost));
    let values: [Value; 3] = [
        tenants.collect::<Vec<Uuid>>().into(),
        amounts.collect::<Vec<String>>().into(),
        costs.collect::<Vec<i64>>().into(),
    ];
    let sql = "INSERT INTO project_daily_usage AS u (tenant_id, amount, full_at) \
               SELECT c.tenant_id, c.amount, now() + c.cost * interval '1 microsecond' \
               FROM unnest($1::uuid[], $2::text[], $3::bigint[]) WITH ORDINALITY AS c (tenant_id, amount, cost, at) \
               JOIN projects p ON p.tenant_id = c.tenant_id AND p.removed_at IS NULL ORDER BY c.at \
               ON CONFLICT (tenant_id, amount) DO UPDATE SET full_at = least(now() + interval '24 hours', \
               greatest(u.full_at, now()) \
               + make_interval(secs => extract(epoch FROM excluded.full_at - now())::double precision))";
    execute(tx.conn(), sql, values).await?;
    Ok(())
}

/// Deletes at most `limit` rows of nodes whose buckets are full again, and such rows of projects.
/// Returns their number. Safe on several replicas at once.
pub async fn delete_expired(tx: &FleetTx, now: Time, limit: u32) -> Result<u64, StoreError> {
    let mut removed = 0;
    for table in ["node_daily_usage", "project_daily_usage"] {
        let sql = format!(
            "DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table} WHERE full_at < $1 \
             ORDER BY tenant_id LIMIT $2 FOR UPDATE SKIP LOCKED))"
        );
        removed += execute(tx.conn(), sql, [now.into(), i64::from(limit).into()]).await?;
    }
    Ok(removed)
}

const DAY: Duration = Duration::from_hours(24);

fn micros(cost: Duration) -> i64 {
    i64::try_from(cost.min(DAY).as_micros()).unwrap_or(i64::MAX)
}

/// A number of seconds of the database; none if it is negative.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
