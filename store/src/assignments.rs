//! Policy assignments and their limits.

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Level, Scope, UpdateLimits};
use evenkeel_domain::id::PolicyId;
use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{ColumnTrait, Condition, EntityTrait, QueryFilter, QueryResult, Set};

use crate::error::StoreError;
use crate::fields::{RowReader, columns};
use crate::keyed::{self, KeyedEntity};
use crate::limit_usage::{FAILED_RUNS_SQL, saturating_count, scope_key};
use crate::rows::assignment::{ActiveModel, Column, Entity, Model};
use crate::rows::{host, instance, or_corrupt, readable, region, site};
use crate::tx::{self, Tx, execute, query_one};

const RESOURCE: &str = "assignment";

/// A policy assigned to a scope, its limits and how far they are used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub scope: Scope,
    pub policy: PolicyId,
    pub limits: UpdateLimits,
    /// Failures count from this time: when the assignment was last written or resumed.
    pub since: Time,
    /// Slots in use.
    pub held_slots: u32,
    /// Runs that failed at or after `since`.
    pub failures: u32,
    /// Last resumption since the policy was assigned.
    pub resumption: Option<Resumption>,
}

impl Assignment {
    /// Whether too many failures have stopped the assignment, so that no further update starts.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.limits.stop_after_failures.is_some_and(|limit| self.failures >= limit)
    }
}

/// Who resumed an assignment that had stopped after failures, when and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumption {
    pub at: Time,
    pub by: String,
    pub reason: String,
}

/// An assignment without the use of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AssignmentSpec {
    pub scope: Scope,
    pub policy: PolicyId,
    pub limits: UpdateLimits,
}

impl TryFrom<Model> for AssignmentSpec {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        Ok(Self {
            scope: scope_from_columns(&row.target_kind, row.target_id)?,
            policy: PolicyId::from_bits(row.policy_id.cast_unsigned()),
            limits: limits_from_row(&row),
        })
    }
}

/// Assigns a policy to a scope and replaces its previous assignment. Failures count from `now`.
///
/// # Errors
/// The project has no such policy or no such scope.
pub async fn set(
    tx: &Tx,
    scope: Scope,
    policy: PolicyId,
    limits: UpdateLimits,
    now: Time,
) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    ensure_scope_exists(tx, scope).await?;
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        target_kind: Set(scope.level().name().to_owned()),
        target_id: Set(scope.bits().cast_signed()),
        policy_id: Set(policy.bits().cast_signed()),
        max_concurrent: Set(limits.max_concurrent.map(in_column)),
        stop_after_failures: Set(limits.stop_after_failures.map(in_column)),
        since_at: Set(now),
        resumed_at: Set(None),
        resumed_by: Set(None),
        resume_reason: Set(None),
    };
    let same = OnConflict::columns([Column::TenantId, Column::TargetKind, Column::TargetId])
        .update_columns([
            Column::PolicyId,
            Column::MaxConcurrent,
            Column::StopAfterFailures,
            Column::SinceAt,
            Column::ResumedAt,
            Column::ResumedBy,
            Column::ResumeReason,
        ])
        .to_owned();
    Entity::insert(row).on_conflict(same).exec_without_returning(tx.conn()).await?;
    Ok(())
}

/// Limits have at most 31 bits ([`Limits::MAX`]), so the column type loses nothing.
fn in_column(limit: u32) -> i32 {
    i32::try_from(limit).unwrap_or(i32::MAX)
}

async fn ensure_scope_exists(tx: &Tx, scope: Scope) -> Result<(), StoreError> {
    let bits = scope.bits();
    let (exists, what) = match scope {
        Scope::Instance(_) => {
            (keyed::exists::<instance::Entity>(tx, bits).await?, instance::Entity::RESOURCE)
        }
        Scope::Host(_) => (keyed::exists::<host::Entity>(tx, bits).await?, host::Entity::RESOURCE),
        Scope::Site(_) => (keyed::exists::<site::Entity>(tx, bits).await?, site::Entity::RESOURCE),
        Scope::Region(_) => {
            (keyed::exists::<region::Entity>(tx, bits).await?, region::Entity::RESOURCE)
        }
        Scope::Project => return Ok(()),
    };
    if exists { Ok(()) } else { Err(StoreError::NotFound { what }) }
}

/// Removes the assignment of a scope, if there is one.
pub async fn clear(tx: &Tx, scope: Scope) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    let delete = tx.remove::<Entity>().filter(scope_condition(scope));
    delete.exec(tx.conn()).await?;
    Ok(())
}

/// Assigns a policy and keeps the limits of an existing assignment. Assigning the same policy again
/// changes nothing.
///
/// # Errors
/// The project has no such policy or no such scope.
pub async fn assign(tx: &Tx, scope: Scope, policy: PolicyId, now: Time) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    let limits = match find(tx, scope, now).await {
        Ok(current) if current.policy == policy => return Ok(()),
        Ok(current) => current.limits,
        Err(StoreError::NotFound { .. }) => UpdateLimits::default(),
        Err(error) => return Err(error),
    };
    set(tx, scope, policy, limits, now).await
}

/// Changes the limits of an assignment. Its policy and its failure count stay.
///
/// # Errors
/// The scope has no assignment.
pub async fn set_limits(tx: &Tx, scope: Scope, limits: UpdateLimits) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    let change = tx
        .change::<Entity>()
        .col_expr(Column::MaxConcurrent, Expr::value(limits.max_concurrent.map(in_column)))
        .col_expr(Column::StopAfterFailures, Expr::value(limits.stop_after_failures.map(in_column)))
        .filter(scope_condition(scope));
    match change.exec(tx.conn()).await?.rows_affected {
        0 => Err(StoreError::NotFound { what: RESOURCE }),
        _ => Ok(()),
    }
}

/// Resumes an assignment that stopped after failures. Earlier failures no longer count, whichever
/// server's clock stamped them. An assignment that has not stopped stays unchanged, so a repeated
/// request does not reset the failure count.
///
/// # Errors
/// The scope has no assignment.
pub async fn resume(tx: &Tx, scope: Scope, resumption: &Resumption) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    if !find(tx, scope, resumption.at).await?.has_stopped() {
        return Ok(());
    }
    let sql = format!(
        "UPDATE assignments a SET since_at = greatest($4, (SELECT max(r.ended_at) + interval '1 microsecond' {FAILED_RUNS_SQL})), \
         resumed_at = $4, resumed_by = $5, resume_reason = $6 \
         WHERE a.tenant_id = $1 AND a.target_kind = $2 AND a.target_id = $3"
    );
    let [tenant, kind, id] = scope_key(tx, scope);
    let values = [
        tenant,
        kind,
        id,
        resumption.at.into(),
        resumption.by.as_str().into(),
        resumption.reason.as_str().into(),
    ];
    execute(tx.conn(), sql, values).await.map(drop)
}

/// The assignment of a scope.
///
/// # Errors
/// The scope has no assignment.
pub async fn find(tx: &Tx, scope: Scope, now: Time) -> Result<Assignment, StoreError> {
    let sql = format!(
        "SELECT {} WHERE a.tenant_id = $2 AND a.target_kind = $3 AND a.target_id = $4",
        select_with_usage()
    );
    let [tenant, kind, id] = scope_key(tx, scope);
    let values = [now.into(), tenant, kind, id];
    let row = query_one(tx.conn(), sql, values).await?;
    assignment_from_row(&row.ok_or(StoreError::NotFound { what: RESOURCE })?)
}

/// All assignments: those of sites, regions and the project first.
pub async fn all(tx: &Tx, now: Time) -> Result<Vec<Assignment>, StoreError> {
    let sql = format!(
        "SELECT {} WHERE a.tenant_id = $2 ORDER BY a.target_kind DESC, a.target_id DESC",
        select_with_usage()
    );
    let values = [now.into(), tx.tenant().uuid().into()];
    let rows = tx::query_all(tx.conn(), sql, values).await?;
    Ok(rows.iter().filter_map(|row| readable("assignments", assignment_from_row(row))).collect())
}

/// The columns of an assignment with the use of its limits, and the `FROM` clause. `$1` is the
/// current time.
fn select_with_usage() -> String {
    format!(
        "{}, (SELECT count(*) FROM update_slots s WHERE s.tenant_id = a.tenant_id AND s.target_kind = a.target_kind \
         AND s.target_id = a.target_id AND (s.until_at IS NULL OR s.until_at > $1)), \
         (SELECT count(*) {FAILED_RUNS_SQL}) FROM assignments a",
        columns::<Model>("a")
    )
}

fn assignment_from_row(row: &QueryResult) -> Result<Assignment, StoreError> {
    let mut row = RowReader::new(row);
    let model: Model = row.fields()?;
    let [held_slots, failures] = [saturating_count(row.take()?), saturating_count(row.take()?)];
    Ok(Assignment {
        scope: scope_from_columns(&model.target_kind, model.target_id)?,
        policy: PolicyId::from_bits(model.policy_id.cast_unsigned()),
        limits: limits_from_row(&model),
        since: model.since_at,
        held_slots,
        failures,
        resumption: resumption_from_row(model),
    })
}

fn resumption_from_row(row: Model) -> Option<Resumption> {
    Some(Resumption { at: row.resumed_at?, by: row.resumed_by?, reason: row.resume_reason? })
}

/// The scope that the columns of a row name.
pub(crate) fn scope_from_columns(kind: &str, id: i32) -> Result<Scope, StoreError> {
    let level = or_corrupt(Level::from_name(kind), "assignments", id, "target_kind")?;
    Ok(Scope::from_bits(level, id.cast_unsigned()))
}

fn limits_from_row(row: &Model) -> UpdateLimits {
    UpdateLimits {
        max_concurrent: row.max_concurrent.map(i32::cast_unsigned),
        stop_after_failures: row.stop_after_failures.map(i32::cast_unsigned),
    }
}

fn scope_condition(scope: Scope) -> Condition {
    Condition::all()
        .add(Column::TargetKind.eq(scope.level().name()))
        .add(Column::TargetId.eq(scope.bits().cast_signed()))
}
