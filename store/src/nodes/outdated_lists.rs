//! Detection of nodes whose package lists age while they report nothing new.

use evenkeel_domain::Time;
use evenkeel_domain::condition::{Condition, ConditionKind};
use evenkeel_domain::instance::{FactsSummary, MAX_LISTS_AGE};
use sea_orm::QueryResult;
use uuid::Uuid;

use crate::error::StoreError;
use crate::rows::or_corrupt;
use crate::tx::{FleetTx, execute, query_all};

/// Adds the condition that the package lists are outdated to at most `limit` nodes of all projects
/// that do not have it. Returns the number of nodes. Safe on several replicas at once; a node whose
/// report is being processed is skipped. The next facts of a node replace the condition.
pub async fn mark_outdated_lists(tx: &FleetTx, now: Time, limit: u32) -> Result<usize, StoreError> {
    // No index has the times of the lists, so that updates stay in place. All rows are read, and a
    // sequential scan is best.
    let allow_seqscan = "SELECT set_config('enable_seqscan', 'on', true)";
    execute(tx.conn(), allow_seqscan, []).await?;
    let sql = "SELECT tenant_id, instance_id, package_lists_refreshed_at FROM node_states \
               WHERE package_lists_refreshed_at < $1 AND package_lists_error = '' \
               AND NOT conditions @> jsonb_build_array(jsonb_build_object('kind', $2::text)) \
               ORDER BY tenant_id, instance_id LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED";
    let kind = ConditionKind::PackageListsOutdated.name();
    let values = [(now - MAX_LISTS_AGE).into(), kind.into(), i64::from(limit).into()];
    let rows = query_all(tx.conn(), sql, values).await?;
    let (mut tenants, mut instances, mut conditions) = (Vec::new(), Vec::new(), Vec::new());
    for row in &rows {
        let (tenant, instance, condition) = read_outdated(row, now)?;
        tenants.push(tenant);
        instances.push(instance);
        conditions.push(condition);
    }
    if rows.is_empty() {
        return Ok(0);
    }
    let sql = "UPDATE node_states n SET conditions = n.conditions || jsonb_build_array(o.entry::jsonb) \
               FROM unnest($1::uuid[], $2::integer[], $3::text[]) AS o (tenant_id, instance_id, entry) \
               WHERE n.tenant_id = o.tenant_id AND n.instance_id = o.instance_id";
    execute(tx.conn(), sql, [tenants.into(), instances.into(), conditions.into()]).await?;
    Ok(rows.len())
}

/// The project and the instance of a row, and its condition as JSON.
fn read_outdated(row: &QueryResult, now: Time) -> Result<(Uuid, i32, String), StoreError> {
    let (tenant, instance) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
    let facts = FactsSummary {
        package_lists_refreshed_at: row.try_get_by_index(2)?,
        package_lists_error: Some(String::new()),
        ..FactsSummary::default()
    };
    let condition = facts.lists_condition(now).and_then(|(kind, text)| {
        serde_json::to_string(&Condition { kind: kind.into(), text, since: now }).ok()
    });
    let condition = or_corrupt(condition, "node_states", instance, "package_lists_refreshed_at")?;
    Ok((tenant, instance, condition))
}
