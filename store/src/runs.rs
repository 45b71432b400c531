//! Runs and their history. [`advance`] is the only way a run moves.

mod age;
mod convert;
mod history;
mod reading;
mod whole;

pub use age::{Quiet, expire, quiet_since};
pub use reading::{delete, events, find, find_attempt, find_many, find_open, find_sampled};
pub use whole::{WholeRun, find_many_whole, find_whole};

use std::iter;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Level, Scope};
use evenkeel_domain::id::{InstanceId, RunId};
use evenkeel_domain::package::settle;
use evenkeel_domain::run::{Account, AttemptId, Happening, Origin, Patience, RunState, UpdateRun};
use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveModelTrait, ColumnTrait, EntityTrait, IntoActiveModel, NotSet, QueryFilter, QuerySelect,
};

use crate::error::StoreError;
use crate::keyed::Keyed;
use crate::rows::update_run::{Column, Entity, Model};
use crate::rows::{instance, named};
use crate::tx::{Tx, one};
use crate::{brake, ids};
use history::Step;

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
    /// A run that ended with the same news, of an agent that asks for no leave, and what the policy that applies now is
    /// assigned to: this one goes on with the slot that the other had under the same assignment.
    pub follows: Option<(RunId, Scope)>,
}

/// Events that are brought to a run together, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Together<'a> {
    /// The first of them.
    pub first: &'a Happening,
    /// Those that follow.
    pub rest: &'a [Happening],
    /// How long the run may stay where it is.
    pub patience: &'a Patience,
    /// The instant.
    pub now: Time,
}

impl<'a> Together<'a> {
    fn all(&self) -> impl Iterator<Item = &'a Happening> {
        iter::once(self.first).chain(self.rest)
    }
}

/// Brings an event to a run: load under lock, ask the domain, save, append to the history. The caller has locked the
/// node's state, or is the one that judges time.
///
/// An event that the agent numbered is stored once: a number that is not above the last one changes nothing. A
/// numbered event that moves nothing, because the run includes it already or because it does not fit, is appended all
/// the same: the history keeps what the node said. It keeps no more than a thousand entries of a run, and then how the
/// run ends; what does not fit any more counts all the same.
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
    let alone = Together {
        first: happening,
        rest: &[],
        patience,
        now,
    };
    advance_by(tx, subject, &alone, &mut |_| {}).await
}

/// The same for events that came together: it is loaded and saved once. What each of them made of the run is told.
///
/// # Errors
/// As [`advance`]; then none of them counts.
pub async fn advance_by(
    tx: &Tx,
    subject: Subject,
    events: &Together<'_>,
    each: &mut (dyn FnMut(&UpdateRun) + Send),
) -> Result<UpdateRun, StoreError> {
    let mut run = match subject {
        Subject::New(opening) => return open(tx, *opening, events, each).await,
        Subject::Run(id) => lock(tx, id).await?,
    };
    let (seen, was_over) = (run.generation, run.state.is_final());
    let mut steps = Vec::new();
    for happening in events.all() {
        steps.extend(bring(&mut run, happening, events)?);
        each(&run);
    }
    if steps.is_empty() {
        return Ok(run);
    }
    save(tx, &run, seen).await?;
    history::append(tx, &run, &steps, events.now).await?;
    if run.state.is_final() && !was_over {
        brake::release(tx, run.instance).await?;
    }
    Ok(run)
}

/// Brings an event to a run in memory. None if it changes nothing.
fn bring<'a>(
    run: &mut UpdateRun,
    happening: &'a Happening,
    events: &Together<'_>,
) -> Result<Option<Step<'a>>, StoreError> {
    let number = happening.sequence;
    if number.is_some_and(|number| number <= run.sequence) {
        return Ok(None);
    }
    let patience = events.patience.with(run);
    let next = RunState::on(Some(&run.state), &happening.event, events.now, &patience);
    let state = match next {
        Ok(state) => state,
        Err(_) if number.is_some() => run.state.clone(),
        Err(refused) => return Err(refused.into()),
    };
    let is_moved = state != run.state;
    if !is_moved && number.is_none() {
        return Ok(None);
    }
    run.state = state;
    run.sequence = number.unwrap_or(run.sequence);
    run.generation += 1;
    take_evidence(run, happening);
    Ok(Some(Step::of(run, happening, is_moved)))
}

async fn open(
    tx: &Tx,
    opening: Opening,
    events: &Together<'_>,
    each: &mut (dyn FnMut(&UpdateRun) + Send),
) -> Result<UpdateRun, StoreError> {
    let Together { first, now, .. } = *events;
    let state = RunState::on(None, &first.event, now, events.patience)?;
    // What is over at once may be the news of another agent than the one that is at work.
    let is_beside = state.is_final() && find_open(tx, opening.instance).await?.is_some();
    let start = if is_beside {
        Start::beside(tx).await?
    } else {
        start(tx, opening.instance, now).await?
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
        account: Account::default(),
        image: None,
        sequence: first.sequence.unwrap_or(0),
        generation: 1,
        granted_at: None,
        started_at: now,
    };
    take_evidence(&mut run, first);
    let start = match (start.scope, opening.follows) {
        (None, Some(before)) => Start {
            scope: go_on(tx, before, run.instance, now).await?,
            ..start
        },
        _ => start,
    };
    let mut steps = vec![Step::of(&run, first, true)];
    each(&run);
    for happening in events.rest {
        steps.extend(bring(&mut run, happening, events)?);
        each(&run);
    }
    let row = Model {
        granted_kind: start.scope.map(|scope| scope.level().name().to_owned()),
        granted_id: start.scope.map(|scope| scope.bits().cast_signed()),
        packages_digest: start.packages,
        ..convert::into_row(tx.tenant(), &run)
    };
    Entity::insert(row.into_active_model().reset_all())
        .exec_without_returning(tx.conn())
        .await?;
    history::begin(tx, &run, &steps, now).await?;
    // Who began with no slot has at most one whose day of grace is over: it counts no more.
    if run.state.is_final() && !is_beside && start.scope.is_some() {
        brake::release(tx, run.instance).await?;
    }
    Ok(run)
}

/// Takes the slot again that the end of a run has just let go, if it was one of the assignment that still applies: under
/// another one the instance is counted anew, and a node has one slot. Says under which assignment.
async fn go_on(
    tx: &Tx,
    (before, applies): (RunId, Scope),
    instance: InstanceId,
    now: Time,
) -> Result<Option<Scope>, StoreError> {
    let row = tx
        .scope::<Entity>()
        .filter(Column::Id.eq(before.bits().cast_signed()));
    let row = row.one(tx.conn()).await?;
    let Some((kind, target)) = row.and_then(|row| row.granted_kind.zip(row.granted_id)) else {
        return Ok(None);
    };
    let level = Level::from_name(&kind);
    let level = named(
        level,
        "update_runs",
        before.bits().cast_signed(),
        "granted_kind",
    )?;
    let scope = Scope::from_bits(level, target.cast_unsigned());
    if scope != applies {
        return Ok(None);
    }
    brake::hold(tx, scope, instance, None, now).await?;
    Ok(Some(scope))
}

/// What an instance begins a run with.
struct Start {
    /// The run.
    run: RunId,
    /// The assignment that it holds a slot of.
    scope: Option<Scope>,
    /// What is installed.
    packages: Option<Vec<u8>>,
}

impl Start {
    /// A run that has no part in where the instance stands.
    async fn beside(tx: &Tx) -> Result<Self, StoreError> {
        Ok(Self {
            run: RunId::nth(ids::next(tx.conn(), NUMBERS).await?),
            scope: None,
            packages: None,
        })
    }
}

/// The sequence of the numbers of runs.
const NUMBERS: &str = "run_numbers";

/// Reads what an instance begins a run with, and gives the run its number. A slot that it holds until an instant is now
/// held until the end of the run.
async fn start(tx: &Tx, instance: InstanceId, now: Time) -> Result<Start, StoreError> {
    let sql = "WITH held AS (UPDATE brake_slots SET until_at = NULL WHERE tenant_id = $1 AND instance_id = $2 \
               AND (until_at IS NULL OR until_at > $3) RETURNING target_kind, target_id, since_at) \
               SELECT n.packages_digest, h.target_kind, h.target_id, nextval($4::regclass) \
               FROM node_states n LEFT JOIN held h ON true \
               WHERE n.tenant_id = $1 AND n.instance_id = $2 ORDER BY h.since_at DESC NULLS LAST LIMIT 1";
    let id = instance.bits().cast_signed();
    let late = now - brake::REVIVED_FOR;
    let values = [
        tx.tenant().uuid().into(),
        id.into(),
        late.into(),
        NUMBERS.into(),
    ];
    let Some(row) = one(tx.conn(), sql, values).await? else {
        let what = instance::Entity::WHAT;
        return Err(StoreError::NotFound { what });
    };
    let kind: Option<String> = row.try_get_by_index(1)?;
    let target: Option<i32> = row.try_get_by_index(2)?;
    let scope = match kind.zip(target) {
        None => None,
        Some((kind, target)) => {
            let level = Level::from_name(&kind);
            let level = named(level, "brake_slots", id, "target_kind")?;
            Some(Scope::from_bits(level, target.cast_unsigned()))
        }
    };
    Ok(Start {
        run: RunId::nth(ids::of(&row, 3)?),
        scope,
        packages: row.try_get_by_index(0)?,
    })
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
    if let Some(account) = &evidence.account {
        run.account.clone_from(account);
    }
    if evidence.image.is_some() {
        run.image.clone_from(&evidence.image);
    }
    // What was booted is told with the end; what it was to be, with the plan.
    if let Some(image) = &mut run.image
        && evidence.booted.is_some()
    {
        image.booted.clone_from(&evidence.booted);
    }
}

/// The generation is checked as well, so that a lost lock would be noticed.
async fn save(tx: &Tx, run: &UpdateRun, seen: i64) -> Result<(), StoreError> {
    let mut row = convert::into_row(tx.tenant(), run)
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
    row.packages_digest = NotSet;
    row.granted_at = NotSet;
    row.granted_kind = NotSet;
    row.granted_id = NotSet;
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

/// Notes that a run was given leave to begin under an assignment, and takes one of its slots. From then on nobody but
/// its node knows whether it has begun; the slot is let go when the run ends.
///
/// # Errors
/// The database cannot be reached.
pub async fn grant(
    tx: &Tx,
    run: &UpdateRun,
    under: Option<Scope>,
    now: Time,
) -> Result<(), StoreError> {
    let (kind, id) = under
        .map(|scope| (scope.level().name(), scope.bits().cast_signed()))
        .unzip();
    tx.change::<Entity>()
        .col_expr(Column::GrantedAt, Expr::value(now))
        .col_expr(Column::GrantedKind, Expr::value(kind))
        .col_expr(Column::GrantedId, Expr::value(id))
        .filter(Column::Id.eq(run.id.bits().cast_signed()))
        .exec(tx.conn())
        .await?;
    match under {
        Some(scope) => brake::hold(tx, scope, run.instance, None, now).await,
        None => Ok(()),
    }
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

impl TryFrom<Model> for UpdateRun {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        convert::from_row(row)
    }
}
