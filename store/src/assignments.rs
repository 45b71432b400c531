//! What policies are assigned to, and how fast they may go.

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Level, Limits, Scope};
use evenkeel_domain::id::PolicyId;
use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{ColumnTrait, Condition, EntityTrait, QueryFilter, QueryResult, Set};

use crate::brake::{FAILED, count, key};
use crate::error::StoreError;
use crate::fields::{Reader, columns};
use crate::keyed::{self, Keyed};
use crate::rows::assignment::{ActiveModel, Column, Entity, Model};
use crate::rows::{host, instance, named, region, site};
use crate::tx::{self, Tx, execute, one};

const WHAT: &str = "assignment";

/// A policy that is assigned to something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// To what.
    pub scope: Scope,
    /// Which.
    pub policy: PolicyId,
    /// How fast it may go.
    pub limits: Limits,
    /// Since when failures count: when it was last written, or resumed.
    pub since: Time,
    /// Slots that are held.
    pub held: u32,
    /// Runs that failed since then.
    pub failures: u32,
    /// Who let it go on last, since its policy was assigned.
    pub resumption: Option<Resumption>,
}

impl Assignment {
    /// Whether nothing is started any more after too many failures.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.limits
            .stop_after_failures
            .is_some_and(|limit| self.failures >= limit)
    }
}

/// That somebody let an assignment go on that had stopped after failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumption {
    /// When.
    pub at: Time,
    /// Who.
    pub by: String,
    /// Why, for people.
    pub reason: String,
}

/// What is assigned to something, without how far its limits are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// To what.
    pub scope: Scope,
    /// Which policy.
    pub policy: PolicyId,
    /// How fast it may go.
    pub limits: Limits,
}

impl TryFrom<Model> for Given {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        Ok(Self {
            scope: scope_of(&row.target_kind, row.target_id)?,
            policy: PolicyId::from_bits(row.policy_id.cast_unsigned()),
            limits: limits(&row),
        })
    }
}

/// Assigns a policy, in place of the one that was assigned to the same. Failures count from now.
///
/// # Errors
/// There is no such policy, or nothing that it could be assigned to, in the project.
pub async fn set(
    tx: &Tx,
    scope: Scope,
    policy: PolicyId,
    limits: Limits,
    now: Time,
) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    there_is(tx, scope).await?;
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
    Entity::insert(row)
        .on_conflict(same)
        .exec_without_returning(tx.conn())
        .await?;
    Ok(())
}

/// The column has 31 bits, and so has every limit that was read ([`Limits::MAX`]): nothing is cut.
fn in_column(limit: u32) -> i32 {
    i32::try_from(limit).unwrap_or(i32::MAX)
}

async fn there_is(tx: &Tx, scope: Scope) -> Result<(), StoreError> {
    let bits = scope.bits();
    let (found, what) = match scope {
        Scope::Instance(_) => (
            keyed::exists::<instance::Entity>(tx, bits).await?,
            instance::Entity::WHAT,
        ),
        Scope::Host(_) => (
            keyed::exists::<host::Entity>(tx, bits).await?,
            host::Entity::WHAT,
        ),
        Scope::Site(_) => (
            keyed::exists::<site::Entity>(tx, bits).await?,
            site::Entity::WHAT,
        ),
        Scope::Region(_) => (
            keyed::exists::<region::Entity>(tx, bits).await?,
            region::Entity::WHAT,
        ),
        Scope::Project => return Ok(()),
    };
    if found {
        Ok(())
    } else {
        Err(StoreError::NotFound { what })
    }
}

/// Takes back what was assigned; nothing if nothing was.
///
/// # Errors
/// The database cannot be reached.
pub async fn clear(tx: &Tx, scope: Scope) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    let delete = tx.remove::<Entity>().filter(is(scope));
    delete.exec(tx.conn()).await?;
    Ok(())
}

/// Assigns a policy, and leaves the limits of what was assigned to the same as they are. The same policy once more
/// changes nothing.
///
/// # Errors
/// There is no such policy, or nothing that it could be assigned to, in the project.
pub async fn assign(tx: &Tx, scope: Scope, policy: PolicyId, now: Time) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    let limits = match find(tx, scope, now).await {
        Ok(found) if found.policy == policy => return Ok(()),
        Ok(found) => found.limits,
        Err(StoreError::NotFound { .. }) => Limits::default(),
        Err(error) => return Err(error),
    };
    set(tx, scope, policy, limits, now).await
}

/// Changes how fast an assignment may go. Its policy stays, and what has failed.
///
/// # Errors
/// Nothing is assigned there.
pub async fn limit(tx: &Tx, scope: Scope, limits: Limits) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    let change = tx
        .change::<Entity>()
        .col_expr(
            Column::MaxConcurrent,
            Expr::value(limits.max_concurrent.map(in_column)),
        )
        .col_expr(
            Column::StopAfterFailures,
            Expr::value(limits.stop_after_failures.map(in_column)),
        )
        .filter(is(scope));
    match change.exec(tx.conn()).await?.rows_affected {
        0 => Err(StoreError::NotFound { what: WHAT }),
        _ => Ok(()),
    }
}

/// Lets an assignment that stopped after failures go on: what failed so far counts no more, by whichever server's clock it
/// ended. One that has not stopped stays as it is, so that to ask twice forgets no failure.
///
/// # Errors
/// Nothing is assigned there.
pub async fn resume(tx: &Tx, scope: Scope, resumption: &Resumption) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    if !find(tx, scope, resumption.at).await?.has_stopped() {
        return Ok(());
    }
    let sql = format!(
        "UPDATE assignments a SET since_at = greatest($4, (SELECT max(r.ended_at) + interval '1 microsecond' {FAILED})), \
         resumed_at = $4, resumed_by = $5, resume_reason = $6 \
         WHERE a.tenant_id = $1 AND a.target_kind = $2 AND a.target_id = $3"
    );
    let [tenant, kind, id] = key(tx, scope);
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

/// What is assigned to one thing.
///
/// # Errors
/// Nothing is.
pub async fn find(tx: &Tx, scope: Scope, now: Time) -> Result<Assignment, StoreError> {
    let sql = format!(
        "SELECT {} WHERE a.tenant_id = $2 AND a.target_kind = $3 AND a.target_id = $4",
        counted()
    );
    let [tenant, kind, id] = key(tx, scope);
    let values = [now.into(), tenant, kind, id];
    let row = one(tx.conn(), sql, values).await?;
    assignment(&row.ok_or(StoreError::NotFound { what: WHAT })?)
}

/// All that is assigned: to sites, to regions and to the project first.
///
/// # Errors
/// The database cannot be reached.
pub async fn all(tx: &Tx, now: Time) -> Result<Vec<Assignment>, StoreError> {
    let sql = format!(
        "SELECT {} WHERE a.tenant_id = $2 ORDER BY a.target_kind DESC, a.target_id DESC",
        counted()
    );
    let values = [now.into(), tx.tenant().uuid().into()];
    let rows = tx::all(tx.conn(), sql, values).await?;
    rows.iter().map(assignment).collect()
}

/// The columns of an assignment and how far its limits are used up, and whence. The first parameter is the time.
fn counted() -> String {
    format!(
        "{}, (SELECT count(*) FROM brake_slots s WHERE s.tenant_id = a.tenant_id AND s.target_kind = a.target_kind \
         AND s.target_id = a.target_id AND (s.until_at IS NULL OR s.until_at > $1)), \
         (SELECT count(*) {FAILED}) FROM assignments a",
        columns::<Model>("a")
    )
}

fn assignment(row: &QueryResult) -> Result<Assignment, StoreError> {
    let mut row = Reader::new(row);
    let model: Model = row.fields()?;
    let [held, failures] = [count(row.take()?), count(row.take()?)];
    Ok(Assignment {
        scope: scope_of(&model.target_kind, model.target_id)?,
        policy: PolicyId::from_bits(model.policy_id.cast_unsigned()),
        limits: limits(&model),
        since: model.since_at,
        held,
        failures,
        resumption: resumption(model),
    })
}

fn resumption(row: Model) -> Option<Resumption> {
    Some(Resumption {
        at: row.resumed_at?,
        by: row.resumed_by?,
        reason: row.resume_reason?,
    })
}

/// What a row is about, by its columns.
pub(crate) fn scope_of(kind: &str, id: i32) -> Result<Scope, StoreError> {
    let level = named(Level::from_name(kind), "assignments", id, "target_kind")?;
    Ok(Scope::from_bits(level, id.cast_unsigned()))
}

fn limits(row: &Model) -> Limits {
    Limits {
        max_concurrent: row.max_concurrent.map(i32::cast_unsigned),
        stop_after_failures: row.stop_after_failures.map(i32::cast_unsigned),
    }
}

fn is(scope: Scope) -> Condition {
    Condition::all()
        .add(Column::TargetKind.eq(scope.level().name()))
        .add(Column::TargetId.eq(scope.bits().cast_signed()))
}
