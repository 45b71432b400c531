//! Runs and their history. [`advance`] is the only way a run moves.

mod convert;

use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, InstanceId, RunId};
use evenkeel_domain::package::settle;
use evenkeel_domain::run::{
    AttemptId, Happening, Origin, Patience, RecordedEvent, RunState, UpdateRun,
};
use evenkeel_domain::tenant::TenantId;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, EntityTrait, IntoActiveModel, NotSet, QueryFilter, QueryOrder,
    QuerySelect, Set,
};

use crate::error::{Conflict, StoreError};
use crate::keyed::Keyed;
use crate::page::{self, Listed, Page};
use crate::rows::run_event;
use crate::rows::update_run::{Column, Entity, Model};
use crate::tx::{FleetTx, Tx, all};
use crate::{ids, keyed};

/// What an event is brought to.
#[derive(Clone, Debug, PartialEq)]
pub enum Subject {
    /// A run that there is.
    Run(RunId),
    /// An attempt that nothing was heard of yet; the event opens its run.
    New(Box<Opening>),
}

/// A run to be opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Opening {
    /// On which instance.
    pub instance: InstanceId,
    /// For people.
    pub name: String,
    /// For people.
    pub description: String,
    /// The agent's own name of the attempt.
    pub attempt: Option<AttemptId>,
    /// What the attempt is for.
    pub origin: Origin,
}

/// Brings an event to a run: load under lock, ask the domain, save, append to the history. The caller has locked the
/// node's state, or is the one that judges time.
///
/// An event that the agent numbered is stored once: a number that is not above the last one changes nothing. A
/// numbered event that moves nothing, because the run includes it already or because it does not fit, is appended all
/// the same: the history keeps what the node said.
///
/// # Errors
/// An event without a number does not fit the run; the run is not there, or another one is open.
pub async fn advance(
    tx: &Tx,
    subject: Subject,
    happening: &Happening,
    patience: &Patience,
    now: Time,
) -> Result<UpdateRun, StoreError> {
    let before = match subject {
        Subject::New(opening) => return open(tx, *opening, happening, patience, now).await,
        Subject::Run(id) => lock(tx, id).await?,
    };
    if happening
        .sequence
        .is_some_and(|number| number <= before.sequence)
    {
        return Ok(before);
    }
    let state = match RunState::on(Some(&before.state), &happening.event, now, patience) {
        Ok(state) => state,
        Err(_) if happening.sequence.is_some() => before.state.clone(),
        Err(refused) => return Err(refused.into()),
    };
    if state == before.state && happening.sequence.is_none() {
        return Ok(before);
    }
    let mut run = UpdateRun {
        state,
        sequence: happening.sequence.unwrap_or(before.sequence),
        generation: before.generation + 1,
        ..before.clone()
    };
    take_evidence(&mut run, happening);
    save(tx, &run, before.generation).await?;
    append(tx, &run, happening, now).await?;
    Ok(run)
}

async fn open(
    tx: &Tx,
    opening: Opening,
    happening: &Happening,
    patience: &Patience,
    now: Time,
) -> Result<UpdateRun, StoreError> {
    let state = RunState::on(None, &happening.event, now, patience)?;
    let mut run = UpdateRun {
        id: RunId::nth(ids::next(tx.conn(), "run_numbers").await?),
        instance: opening.instance,
        name: opening.name,
        description: opening.description,
        attempt: opening.attempt,
        origin: opening.origin,
        state,
        packages: Vec::new(),
        log: String::new(),
        sequence: happening.sequence.unwrap_or(0),
        generation: 1,
        granted_at: None,
        started_at: now,
    };
    take_evidence(&mut run, happening);
    let row = convert::into_row(tx.tenant(), &run)?
        .into_active_model()
        .reset_all();
    Entity::insert(row)
        .exec_without_returning(tx.conn())
        .await?;
    append(tx, &run, happening, now).await?;
    Ok(run)
}

/// What came with an event belongs to the run.
fn take_evidence(run: &mut UpdateRun, happening: &Happening) {
    let evidence = &happening.evidence;
    if let Some(plan) = &evidence.plan {
        run.packages.clone_from(plan);
    }
    settle(&mut run.packages, &evidence.results);
    if !evidence.log.is_empty() {
        run.log.clone_from(&evidence.log);
    }
}

/// The generation is checked as well, so that a lost lock would be noticed.
async fn save(tx: &Tx, run: &UpdateRun, seen: i64) -> Result<(), StoreError> {
    let mut row = convert::into_row(tx.tenant(), run)?
        .into_active_model()
        .reset_all();
    // What was frozen when the run was opened is not written again.
    row.tenant_id = NotSet;
    row.id = NotSet;
    row.instance_id = NotSet;
    row.name = NotSet;
    row.description = NotSet;
    row.attempt = NotSet;
    row.policy_id = NotSet;
    row.origin = NotSet;
    row.target_digest = NotSet;
    row.granted_at = NotSet;
    row.started_at = NotSet;
    let saved = tx
        .change::<Entity>()
        .set(row)
        .filter(Column::Id.eq(run.id.bits().cast_signed()))
        .filter(Column::Generation.eq(seen))
        .exec(tx.conn())
        .await?;
    match saved.rows_affected {
        1 => Ok(()),
        _ => Err(StoreError::Stale { what: Entity::WHAT }),
    }
}

async fn append(
    tx: &Tx,
    run: &UpdateRun,
    happening: &Happening,
    now: Time,
) -> Result<(), StoreError> {
    let last = tx
        .scope::<run_event::Entity>()
        .filter(run_event::Column::RunId.eq(run.id.bits().cast_signed()))
        .order_by_desc(run_event::Column::Position)
        .one(tx.conn())
        .await?;
    let row = run_event::ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        run_id: Set(run.id.bits().cast_signed()),
        position: Set(last.map_or(1, |event| event.position + 1)),
        event: Set(happening.event.name().to_owned()),
        state: Set(run.state.name().to_owned()),
        sequence: Set(happening.sequence.map(u32::cast_signed)),
        boot_id: Set(happening.boot_id.clone()),
        node_time: Set(happening.node_time),
        at: Set(now),
        detail: Set(happening.event.detail()),
    };
    row.insert(tx.conn()).await?;
    Ok(())
}

/// Notes that a run was given leave to begin. From then on nobody but its node knows whether it has begun.
///
/// # Errors
/// The database cannot be reached.
pub async fn grant(tx: &Tx, id: RunId, now: Time) -> Result<(), StoreError> {
    tx.change::<Entity>()
        .col_expr(Column::GrantedAt, Expr::value(now))
        .filter(Column::Id.eq(id.bits().cast_signed()))
        .exec(tx.conn())
        .await?;
    Ok(())
}

async fn lock(tx: &Tx, id: RunId) -> Result<UpdateRun, StoreError> {
    let found = tx
        .scope::<Entity>()
        .filter(Column::Id.eq(id.bits().cast_signed()));
    let found = found.lock_exclusive().one(tx.conn()).await?;
    found
        .ok_or(StoreError::NotFound { what: Entity::WHAT })?
        .try_into()
}

/// The run with this id.
///
/// # Errors
/// There is none in the project.
pub async fn find(tx: &Tx, id: RunId) -> Result<UpdateRun, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The run of an instance that is not over.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_open(tx: &Tx, instance: InstanceId) -> Result<Option<UpdateRun>, StoreError> {
    let found = tx
        .scope::<Entity>()
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
        .filter(Column::EndedAt.is_null())
        .one(tx.conn())
        .await?;
    found.map(UpdateRun::try_from).transpose()
}

/// The run that an attempt of an instance became.
///
/// # Errors
/// The database cannot be reached.
pub async fn find_attempt(
    tx: &Tx,
    instance: InstanceId,
    attempt: AttemptId,
) -> Result<Option<UpdateRun>, StoreError> {
    let found = tx
        .scope::<Entity>()
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
        .filter(Column::Attempt.eq(attempt.0))
        .one(tx.conn())
        .await?;
    found.map(UpdateRun::try_from).transpose()
}

/// The history of a run, oldest first.
///
/// # Errors
/// The database cannot be reached.
pub async fn events(tx: &Tx, id: RunId) -> Result<Vec<RecordedEvent>, StoreError> {
    let rows = tx
        .scope::<run_event::Entity>()
        .filter(run_event::Column::RunId.eq(id.bits().cast_signed()))
        .order_by_asc(run_event::Column::Position)
        .all(tx.conn())
        .await?;
    Ok(rows.into_iter().map(convert::event).collect())
}

/// Part of the runs, by id; only those of one instance, newest first, if it is given.
///
/// # Errors
/// The database cannot be reached.
pub async fn list(
    tx: &Tx,
    instance: Option<InstanceId>,
    page: Page,
) -> Result<Listed<UpdateRun>, StoreError> {
    let list = match instance {
        None => tx.scope::<Entity>(),
        Some(instance) => tx
            .scope::<Entity>()
            .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
            .order_by_desc(Column::StartedAt),
    };
    page::read(tx, list.order_by_asc(Column::Id), page).await
}

/// Removes a run that is over, with its history.
///
/// # Errors
/// There is none in the project, or it is not over: its node would open it again.
pub async fn delete(tx: &Tx, id: RunId) -> Result<(), StoreError> {
    let delete = tx
        .remove::<Entity>()
        .filter(Column::Id.eq(id.bits().cast_signed()))
        .filter(Column::EndedAt.is_not_null());
    if delete.exec(tx.conn()).await?.rows_affected == 1 {
        return Ok(());
    }
    find(tx, id).await?;
    Err(StoreError::Conflict(Conflict::InUse {
        what: Entity::WHAT,
        by: "an attempt that is not over",
    }))
}

/// An open run that nothing was heard of for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quiet {
    /// Its project.
    pub tenant: TenantId,
    /// The host of its instance.
    pub host: HostId,
    /// The run.
    pub run: RunId,
    /// Since when it stands where it stands.
    pub since: Time,
}

/// Open runs of all projects that stand where they stand since before an instant, longest first; those after `last` in
/// that order. Who acts on one locks its node and judges again.
///
/// # Errors
/// The database cannot be reached.
pub async fn quiet_since(
    tx: &FleetTx,
    before: Time,
    last: Option<Quiet>,
    limit: u32,
) -> Result<Vec<Quiet>, StoreError> {
    let sql = "SELECT r.tenant_id, i.host_id, r.id, r.state_since FROM update_runs r \
               JOIN instances i ON i.tenant_id = r.tenant_id AND i.id = r.instance_id \
               WHERE r.ended_at IS NULL AND r.state_since < $1 \
               AND ($2::timestamptz IS NULL OR (r.state_since, r.tenant_id, r.id) > ($2, $3, $4)) \
               ORDER BY r.state_since, r.tenant_id, r.id LIMIT $5";
    let values = [
        before.into(),
        last.map(|last| last.since).into(),
        last.map(|last| last.tenant.uuid()).into(),
        last.map(|last| last.run.bits().cast_signed()).into(),
        i64::from(limit).into(),
    ];
    let quiet = |row: sea_orm::QueryResult| -> Result<Quiet, StoreError> {
        Ok(Quiet {
            tenant: TenantId::new(row.try_get_by_index(0)?),
            host: HostId::from_bits(row.try_get_by_index::<i32>(1)?.cast_unsigned()),
            run: RunId::from_bits(row.try_get_by_index::<i32>(2)?.cast_unsigned()),
            since: row.try_get_by_index(3)?,
        })
    };
    all(tx.conn(), sql, values)
        .await?
        .into_iter()
        .map(quiet)
        .collect()
}

impl TryFrom<Model> for UpdateRun {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        convert::from_row(row)
    }
}
