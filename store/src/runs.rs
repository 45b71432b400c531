//! Runs and their history. Only [`advance`] and [`advance_all`] change the state of a run.

mod convert;
mod details;
mod expiry;
mod history;
mod queries;

pub use details::{RunDetails, find_details, find_many_details};
pub use expiry::{
    OpenRunPosition, StalledRun, UnattendedRuns, delete_expired, list_timed_out, list_unattended,
};
pub(crate) use queries::NO_PACKAGES_SQL;
pub use queries::{
    delete, events, find, find_attempt, find_last_sampled, find_many, find_open, find_opened_with,
};

use std::iter;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Level, Scope};
use evenkeel_domain::id::{InstanceId, RunId};
use evenkeel_domain::package::PackageChange;
use evenkeel_domain::run::{
    AttemptId, Evidence, Origin, RunEventRecord, RunReport, RunState, RunTimeouts, UpdateRun,
};
use evenkeel_kit::offload_now;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, EntityTrait, IntoActiveModel, QueryFilter, QuerySelect, Set,
};

use crate::error::StoreError;
use crate::keyed::KeyedEntity;
use crate::rows::update_run::{Column, Entity, Model};
use crate::rows::{JsonColumn, instance, or_corrupt};
use crate::tx::{Tx, query_one};
use crate::{ids, limit_usage};
use history::HistoryEntry;

/// The run that an event belongs to.
#[derive(Clone, Debug, PartialEq)]
pub enum Subject {
    /// An existing run.
    Run(RunId),
    /// A new attempt; the event opens its run.
    New(Box<RunOpening>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct RunOpening {
    pub instance: InstanceId,
    /// Shown to users.
    pub name: String,
    /// Shown to users.
    pub description: String,
    /// The attempt id of the agent.
    pub attempt: Option<AttemptId>,
    /// Why the attempt was made.
    pub origin: Origin,
    /// A run that the same report of an EIM agent ended, and the scope of the assignment that
    /// applies now. The new run takes over the slot of the ended run if both are of the same
    /// assignment.
    pub follows: Option<(RunId, Scope)>,
    /// The assignment of the target: a failure before the start permit counts there.
    pub assignment: Option<Scope>,
}

/// Events of one report that are applied to a run in order.
#[derive(Clone, Copy, Debug)]
pub struct EventBatch<'a> {
    pub first: &'a RunEventRecord,
    /// The following events.
    pub rest: &'a [RunEventRecord],
    /// How long the run may stay in a state.
    pub timeouts: &'a RunTimeouts,
    /// The current time.
    pub now: Time,
}

impl<'a> EventBatch<'a> {
    fn all(&self) -> impl Iterator<Item = &'a RunEventRecord> {
        iter::once(self.first).chain(self.rest)
    }
}

/// Applies an event to a run: loads it under a lock, asks the domain for the new state, saves it
/// and appends to the history. The caller has locked the node state, or applies timeouts.
///
/// A numbered event of an agent is applied once: a number that is not above the last one changes
/// nothing. A numbered event that does not change the state, because the run includes it already or
/// because it does not fit, is still appended: the history records what the node reported. The
/// history of a run has at most a thousand entries and then only its end. Events beyond the limit
/// still take effect.
///
/// # Errors
/// An unnumbered event does not fit the run, the run does not exist, or another run is open.
pub async fn advance(
    tx: &Tx,
    subject: Subject,
    record: &RunEventRecord,
    timeouts: &RunTimeouts,
    now: Time,
) -> Result<UpdateRun, StoreError> {
    let batch = EventBatch { first: record, rest: &[], timeouts, now };
    advance_all(tx, subject, &batch, &mut |_| {}).await
}

/// Applies several events at once: the run is loaded and saved once, with its planned packages only
/// if the events came with evidence for them. `each` is called with the run
/// after every event, without the evidence of these events.
///
/// # Errors
/// As for [`advance`]. On an error no event takes effect.
pub async fn advance_all(
    tx: &Tx,
    subject: Subject,
    events: &EventBatch<'_>,
    each: &mut (dyn FnMut(&UpdateRun) + Send),
) -> Result<UpdateRun, StoreError> {
    let mut run = match subject {
        Subject::New(opening) => return open_run(tx, *opening, events, each).await,
        Subject::Run(id) => {
            let affects_packages = events.all().any(|record| record.evidence.affects_packages());
            lock(tx, id, affects_packages).await?
        }
    };
    let (generation, had_ended) = (run.generation, run.state.is_final());
    let mut steps = Vec::new();
    for record in events.all() {
        steps.extend(apply_event(&mut run, record, events)?);
        each(&run);
    }
    if steps.is_empty() {
        return Ok(run);
    }
    add_evidence(&mut run, &steps);
    save(tx, &run, &steps, generation).await?;
    history::append(tx, &run, &steps, events.now).await?;
    if run.state.is_final() && !had_ended {
        limit_usage::release_slots(tx, run.instance).await?;
    }
    Ok(run)
}

/// Applies an event to a run in memory, without its evidence. None if it changes nothing.
fn apply_event<'a>(
    run: &mut UpdateRun,
    record: &'a RunEventRecord,
    events: &EventBatch<'_>,
) -> Result<Option<HistoryEntry<'a>>, StoreError> {
    let number = record.sequence;
    if number.is_some_and(|number| number <= run.sequence) {
        return Ok(None);
    }
    let timeouts = events.timeouts.for_run(run);
    let next = RunState::apply_event(Some(&run.state), &record.event, events.now, &timeouts);
    let state = match next {
        Ok(state) => state,
        Err(_) if number.is_some() => run.state.clone(),
        Err(refused) => return Err(refused.into()),
    };
    let state_changed = state != run.state;
    if !state_changed && number.is_none() {
        return Ok(None);
    }
    run.state = state;
    run.sequence = number.unwrap_or(run.sequence);
    run.generation += 1;
    Ok(Some(HistoryEntry::new(run, record, state_changed)))
}

async fn open_run(
    tx: &Tx,
    opening: RunOpening,
    events: &EventBatch<'_>,
    each: &mut (dyn FnMut(&UpdateRun) + Send),
) -> Result<UpdateRun, StoreError> {
    let EventBatch { first, now, .. } = *events;
    let state = RunState::apply_event(None, &first.event, now, events.timeouts)?;
    // A run that ends at once may be reported by another agent than the one with the open run.
    let is_detached = state.is_final() && find_open(tx, opening.instance).await?.is_some();
    let start = if is_detached {
        RunStart::detached(tx).await?
    } else {
        begin_run(tx, opening.instance, now).await?
    };
    let mut run = UpdateRun {
        id: start.run,
        instance: opening.instance,
        name: opening.name,
        description: opening.description,
        attempt: opening.attempt,
        origin: opening.origin,
        state,
        packages: Vec::new(),
        log: String::new(),
        report: RunReport::default(),
        image: None,
        sequence: first.sequence.unwrap_or(0),
        generation: 1,
        granted_at: None,
        started_at: now,
    };
    let start = match (start.scope, opening.follows) {
        (None, Some(before)) => {
            RunStart { scope: retake_slot(tx, before, run.instance, now).await?, ..start }
        }
        _ => start,
    };
    let mut steps = vec![HistoryEntry::new(&run, first, true)];
    each(&run);
    for record in events.rest {
        steps.extend(apply_event(&mut run, record, events)?);
        each(&run);
    }
    add_evidence(&mut run, &steps);
    let (granted_kind, granted_id) = scope_columns(start.scope);
    let (assigned_kind, assigned_id) = scope_columns(opening.assignment);
    let row = Model {
        granted_kind,
        granted_id,
        assigned_kind,
        assigned_id,
        packages_digest: start.packages,
        ..convert::into_row(tx.tenant(), &run)
    };
    Entity::insert(row.into_active_model().reset_all()).exec_without_returning(tx.conn()).await?;
    history::begin(tx, &run, &steps, now).await?;
    // A run that began without a slot has at most an expired slot, which does not count.
    if run.state.is_final() && !is_detached && start.scope.is_some() {
        limit_usage::release_slots(tx, run.instance).await?;
    }
    Ok(run)
}

/// Adds the evidence of events to their run.
fn add_evidence(run: &mut UpdateRun, steps: &[HistoryEntry<'_>]) {
    let evidence = || steps.iter().map(HistoryEntry::evidence);
    let packages =
        |evidence: &Evidence| evidence.plan.as_ref().map_or(0, Vec::len) + evidence.results.len();
    let packages = run.packages.len() + evidence().map(packages).sum::<usize>();
    offload_now(packages * size_of::<PackageChange>(), || run.add_evidence(evidence()));
}

/// The columns of an assignment's scope.
fn scope_columns(scope: Option<Scope>) -> (Option<String>, Option<i32>) {
    scope.map(|scope| (scope.level().name().to_owned(), scope.bits().cast_signed())).unzip()
}

/// Takes the slot of an ended run again if it belongs to the assignment that still applies. Under
/// another assignment the instance is counted from the start, and a node has one slot. Returns the
/// scope of the assignment.
async fn retake_slot(
    tx: &Tx,
    (before, applies): (RunId, Scope),
    instance: InstanceId,
    now: Time,
) -> Result<Option<Scope>, StoreError> {
    let row = tx.scope::<Entity>().filter(Column::Id.eq(before.bits().cast_signed()));
    let row = row.one(tx.conn()).await?;
    let Some((kind, target)) = row.and_then(|row| row.granted_kind.zip(row.granted_id)) else {
        return Ok(None);
    };
    let level = Level::from_name(&kind);
    let level = or_corrupt(level, "update_runs", before.bits().cast_signed(), "granted_kind")?;
    let scope = Scope::from_bits(level, target.cast_unsigned());
    if scope != applies {
        return Ok(None);
    }
    limit_usage::take_slot(tx, scope, instance, None, now).await?;
    Ok(Some(scope))
}

/// What a new run starts with.
struct RunStart {
    run: RunId,
    /// The assignment whose slot the instance holds.
    scope: Option<Scope>,
    /// Digest of the installed packages.
    packages: Option<Vec<u8>>,
}

impl RunStart {
    /// A run that is independent of the state of the instance.
    async fn detached(tx: &Tx) -> Result<Self, StoreError> {
        Ok(Self {
            run: RunId::nth(ids::next(tx.conn(), RUN_NUMBERS_SEQUENCE).await?),
            scope: None,
            packages: None,
        })
    }
}

const RUN_NUMBERS_SEQUENCE: &str = "run_numbers";

/// Reads what a new run starts with and assigns its number. A slot with an expiry is now held until
/// the end of the run.
async fn begin_run(tx: &Tx, instance: InstanceId, now: Time) -> Result<RunStart, StoreError> {
    let sql = "WITH held AS (UPDATE update_slots SET until_at = NULL WHERE tenant_id = $1 AND instance_id = $2 \
               AND (until_at IS NULL OR until_at > $3) RETURNING target_kind, target_id, since_at) \
               SELECT n.packages_digest, h.target_kind, h.target_id, nextval($4::regclass) \
               FROM node_states n LEFT JOIN held h ON true \
               WHERE n.tenant_id = $1 AND n.instance_id = $2 ORDER BY h.since_at DESC NULLS LAST LIMIT 1";
    let id = instance.bits().cast_signed();
    let revivable_since = now - limit_usage::SLOT_REVIVAL_PERIOD;
    let values =
        [tx.tenant().uuid().into(), id.into(), revivable_since.into(), RUN_NUMBERS_SEQUENCE.into()];
    let Some(row) = query_one(tx.conn(), sql, values).await? else {
        let what = instance::Entity::RESOURCE;
        return Err(StoreError::NotFound { what });
    };
    let kind: Option<String> = row.try_get_by_index(1)?;
    let target: Option<i32> = row.try_get_by_index(2)?;
    let scope = match kind.zip(target) {
        None => None,
        Some((kind, target)) => {
            let level = Level::from_name(&kind);
            let level = or_corrupt(level, "update_slots", id, "target_kind")?;
            Some(Scope::from_bits(level, target.cast_unsigned()))
        }
    };
    Ok(RunStart {
        run: RunId::nth(ids::number_at(&row, 3)?),
        scope,
        packages: row.try_get_by_index(0)?,
    })
}

/// Saves what these events change. The planned packages may be megabytes long, so each small event
/// would write as much again. Also checks the generation, so that a lost lock would be detected.
async fn save(
    tx: &Tx,
    run: &UpdateRun,
    steps: &[HistoryEntry<'_>],
    generation: i64,
) -> Result<(), StoreError> {
    let affects =
        |is_affected: fn(&Evidence) -> bool| steps.iter().any(|step| is_affected(step.evidence()));
    let mut row = convert::into_changed_columns(run);
    if affects(Evidence::affects_packages) {
        row.packages = Set(JsonColumn(run.packages.clone()));
    }
    if affects(Evidence::affects_image) {
        row.image = Set(run.image.clone().map(JsonColumn));
    }
    if affects(|evidence| !evidence.log.is_empty()) {
        row.log = Set(run.log.clone());
    }
    if affects(|evidence| evidence.report.is_some()) {
        row.report = Set(JsonColumn(run.report.clone()));
    }
    let saved = tx
        .change::<Entity>()
        .set(row)
        .filter(Column::Id.eq(run.id.bits().cast_signed()))
        .filter(Column::Generation.eq(generation))
        .exec(tx.conn())
        .await?;
    match saved.rows_affected {
        1 => Ok(()),
        _ => Err(StoreError::Stale { what: Entity::RESOURCE }),
    }
}

/// Records that a run was permitted to start under an assignment, and takes one of its slots. From
/// then on only the node knows whether the run has begun; the slot is released when the run ends.
pub async fn grant(
    tx: &Tx,
    run: &UpdateRun,
    under: Option<Scope>,
    now: Time,
) -> Result<(), StoreError> {
    let (kind, id) = under.map(|scope| (scope.level().name(), scope.bits().cast_signed())).unzip();
    tx.change::<Entity>()
        .col_expr(Column::GrantedAt, Expr::value(now))
        .col_expr(Column::GrantedKind, Expr::value(kind))
        .col_expr(Column::GrantedId, Expr::value(id))
        .filter(Column::Id.eq(run.id.bits().cast_signed()))
        .exec(tx.conn())
        .await?;
    match under {
        Some(scope) => limit_usage::take_slot(tx, scope, run.instance, None, now).await,
        None => Ok(()),
    }
}

async fn lock(tx: &Tx, id: RunId, with_packages: bool) -> Result<UpdateRun, StoreError> {
    let query =
        if with_packages { tx.scope::<Entity>() } else { queries::select_without_packages(tx) };
    let query = query.filter(Column::Id.eq(id.bits().cast_signed()));
    let row = query.lock_exclusive().one(tx.conn()).await?;
    row.ok_or(StoreError::NotFound { what: Entity::RESOURCE })?.try_into()
}

impl TryFrom<Model> for UpdateRun {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        convert::from_row(row)
    }
}
