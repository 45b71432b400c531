//! What policies are assigned to, and how fast they may go.

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Assigned, Brake, Level, Limits, Scope};
use evenkeel_domain::id::{InstanceId, PolicyId};
use evenkeel_domain::os::{Image, OsProfile};
use evenkeel_domain::pause::PauseScope;
use evenkeel_domain::policy::UpdatePolicy;
use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{
    ColumnTrait, Condition, EntityTrait, FromQueryResult, QueryFilter, QueryResult, Set,
};

use crate::brake::{FAILURES, count};
use crate::chain::Chain;
use crate::error::StoreError;
use crate::keyed::{self, Keyed};
use crate::page::{Listed, Page};
use crate::rows::assignment::{ActiveModel, Column, Entity, Model};
use crate::rows::{host, instance, named, os_profile, region, site, update_policy};
use crate::tx::{Tx, all, among, columns, one};

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
    };
    let same = OnConflict::columns([Column::TenantId, Column::TargetKind, Column::TargetId])
        .update_columns([
            Column::PolicyId,
            Column::MaxConcurrent,
            Column::StopAfterFailures,
            Column::SinceAt,
        ])
        .to_owned();
    Entity::insert(row)
        .on_conflict(same)
        .exec_without_returning(tx.conn())
        .await?;
    Ok(())
}

/// A limit that no fleet reaches is none; the column has 31 bits.
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

/// Lets an assignment that stopped after failures go on: they count from now.
///
/// # Errors
/// Nothing is assigned there.
pub async fn resume(tx: &Tx, scope: Scope, now: Time) -> Result<(), StoreError> {
    tx.write_wanted().await?;
    match anew(tx, is(scope), now).await? {
        0 => Err(StoreError::NotFound { what: WHAT }),
        _ => Ok(()),
    }
}

/// Lets the assignments that a pause concerned go on.
pub(crate) async fn count_anew(tx: &Tx, scope: PauseScope, now: Time) -> Result<(), StoreError> {
    let concerned = match scope {
        PauseScope::Project => Condition::all(),
        PauseScope::Site(site) => is(Scope::Site(site)),
        PauseScope::Policy(policy) => {
            Condition::all().add(Column::PolicyId.eq(policy.bits().cast_signed()))
        }
    };
    let stopping = concerned.add(Column::StopAfterFailures.is_not_null());
    anew(tx, stopping, now).await.map(drop)
}

async fn anew(tx: &Tx, which: Condition, now: Time) -> Result<u64, StoreError> {
    let change = tx
        .change::<Entity>()
        .col_expr(Column::SinceAt, Expr::value(now))
        .filter(which);
    Ok(change.exec(tx.conn()).await?.rows_affected)
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
    let values = [
        now.into(),
        tx.tenant().uuid().into(),
        scope.level().name().into(),
        scope.bits().cast_signed().into(),
    ];
    let row = one(tx.conn(), sql, values).await?;
    assignment(&row.ok_or(StoreError::NotFound { what: WHAT })?)
}

/// Part of what is assigned: to sites, to regions and to the project first.
///
/// # Errors
/// The database cannot be reached.
pub async fn list(tx: &Tx, page: Page, now: Time) -> Result<Listed<Assignment>, StoreError> {
    let sql = format!(
        "SELECT {} WHERE a.tenant_id = $2 \
         ORDER BY a.target_kind DESC, a.target_id DESC \
         LIMIT $3 OFFSET $4",
        counted()
    );
    let limit = page
        .limit
        .map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let offset = i64::try_from(page.offset).unwrap_or(i64::MAX);
    let tenant = tx.tenant().uuid();
    let values = [now.into(), tenant.into(), limit.into(), offset.into()];
    let rows = all(tx.conn(), sql, values).await?;
    let total = "SELECT count(*) FROM assignments WHERE tenant_id = $1";
    let total = match one(tx.conn(), total, [tenant.into()]).await? {
        Some(row) => row.try_get_by_index::<i64>(0)?.cast_unsigned(),
        None => 0,
    };
    let items: Result<_, _> = rows.iter().map(assignment).collect();
    Ok(Listed {
        items: items?,
        total,
    })
}

/// The columns of an assignment and how far its limits are used up, and whence. The first parameter is the time.
fn counted() -> String {
    format!(
        "{}, (SELECT count(*) FROM brake_slots s WHERE s.tenant_id = a.tenant_id AND s.target_kind = a.target_kind \
         AND s.target_id = a.target_id AND (s.until_at IS NULL OR s.until_at > $1)) AS held, \
         ({FAILURES}) AS failures FROM assignments a",
        columns::<Entity>("a")
    )
}

fn assignment(row: &QueryResult) -> Result<Assignment, StoreError> {
    let model = Model::from_query_result(row, "a_")?;
    Ok(Assignment {
        scope: scope(&model)?,
        policy: PolicyId::from_bits(model.policy_id.cast_unsigned()),
        limits: limits(&model),
        since: model.since_at,
        held: count(row.try_get("", "held")?),
        failures: count(row.try_get("", "failures")?),
    })
}

fn scope(row: &Model) -> Result<Scope, StoreError> {
    let level = Level::from_name(&row.target_kind);
    let level = named(level, "assignments", row.target_id, "target_kind")?;
    Ok(Scope::from_bits(level, row.target_id.cast_unsigned()))
}

fn limits(row: &Model) -> Limits {
    Limits {
        max_concurrent: row.max_concurrent.map(i32::cast_unsigned),
        stop_after_failures: row.stop_after_failures.map(i32::cast_unsigned),
    }
}

/// The policies that are assigned directly to these instances.
///
/// # Errors
/// The database cannot be reached.
pub async fn of_instances(
    tx: &Tx,
    ids: &[InstanceId],
) -> Result<Vec<(InstanceId, PolicyId)>, StoreError> {
    let bits = ids.iter().map(|id| id.bits().cast_signed());
    let rows = tx
        .scope::<Entity>()
        .filter(Column::TargetKind.eq(Level::Instance.name()))
        .filter(among(Column::TargetId, bits))
        .all(tx.conn())
        .await?;
    let pair = |row: Model| {
        (
            InstanceId::from_bits(row.target_id.cast_unsigned()),
            PolicyId::from_bits(row.policy_id.cast_unsigned()),
        )
    };
    Ok(rows.into_iter().map(pair).collect())
}

/// What is assigned along a chain, nearest first, in one statement. How far the limits are used up is not read.
pub(crate) async fn along(tx: &Tx, chain: &Chain) -> Result<Vec<Assigned>, StoreError> {
    let sql = format!(
        "SELECT {}, {}, {} \
         FROM unnest($2::text[], $3::integer[]) WITH ORDINALITY AS c (target_kind, target_id, nearness) \
         JOIN assignments a ON a.tenant_id = $1 AND a.target_kind = c.target_kind AND a.target_id = c.target_id \
         JOIN update_policies p ON p.tenant_id = a.tenant_id AND p.id = a.policy_id \
         LEFT JOIN os_profiles o ON o.tenant_id = p.tenant_id AND o.id = p.target_os_id \
         ORDER BY c.nearness",
        columns::<Entity>("a"),
        columns::<update_policy::Entity>("p"),
        columns::<os_profile::Entity>("o"),
    );
    let scopes = chain.scopes();
    let kinds: Vec<String> = scopes
        .iter()
        .map(|scope| scope.level().name().to_owned())
        .collect();
    let ids: Vec<i32> = scopes
        .iter()
        .map(|scope| scope.bits().cast_signed())
        .collect();
    let values = [tx.tenant().uuid().into(), kinds.into(), ids.into()];
    let rows = all(tx.conn(), sql, values).await?;
    rows.iter().map(assigned).collect()
}

fn assigned(row: &QueryResult) -> Result<Assigned, StoreError> {
    let model = Model::from_query_result(row, "a_")?;
    let policy = update_policy::Model::from_query_result(row, "p_")?;
    let os = os_profile::Model::from_query_result_optional(row, "o_")?;
    let os = os.map(OsProfile::try_from).transpose()?;
    Ok(Assigned {
        scope: scope(&model)?,
        policy: UpdatePolicy::try_from(policy)?,
        image: os.as_ref().map(Image::of),
        limits: limits(&model),
        brake: Brake::default(),
    })
}

fn is(scope: Scope) -> Condition {
    Condition::all()
        .add(Column::TargetKind.eq(scope.level().name()))
        .add(Column::TargetId.eq(scope.bits().cast_signed()))
}
