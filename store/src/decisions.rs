//! What a decision is made from, read in one transaction. The poll, the begin and the explanation read the same.

mod own;
mod scheduled;
mod shared;
mod together;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Assigned, Brake, Scope};
use evenkeel_domain::decide::{
    Act, Decision, KnownBad, LastEnd, NodeFacts, Protocol, Wanted, decide, steady_until,
};
use evenkeel_domain::eim::{self, Asked, Delivered};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{InstanceId, OsId, RunId};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::run::{CancelCause, OpenRun, UpdateRun};
use sea_orm::QueryResult;
use serde::de::DeserializeOwned;

use crate::brake::{self, Counted};
use crate::chain::Chain;
use crate::error::StoreError;
use crate::keyed::Keyed;
use crate::nodes::{Brief, NodeState};
use crate::rows::{Kept, instance, named};
use crate::tx::Tx;
use own::{Own, own};
use shared::Shared;
use together::Together;

/// Server-wide settings that decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Horizon {
    /// How long before its window a node may fetch.
    pub fetch_ahead: TimeDelta,
    /// How long a window of an open-ended schedule is.
    pub max_window: TimeDelta,
}

impl Default for Horizon {
    fn default() -> Self {
        Self {
            fetch_ahead: TimeDelta::hours(6),
            max_window: TimeDelta::hours(24),
        }
    }
}

/// At which instant, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// To tell. What is counted may change at once.
    Look(Time),
    /// To give leave in this transaction. Where a limit applies, nobody else counts until its end. The caller took
    /// [`Tx::judge_wanted`] first and then locked the node.
    Judge(Time),
}

impl Reading {
    /// The instant.
    #[must_use]
    pub const fn now(self) -> Time {
        match self {
            Self::Look(now) | Self::Judge(now) => now,
        }
    }
}

/// Whom a decision is about: a host, and what of its node decisions are made from.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The host.
    pub host: &'a Host,
    /// The instance on it.
    pub instance: InstanceId,
    /// The operating system that it runs.
    pub os: OsId,
    /// Whether it has spoken since its instance was made.
    pub provisioned: bool,
    /// How it speaks.
    pub protocol: &'a Protocol,
    /// How its last attempt ended.
    pub last_end: Option<&'a LastEnd>,
    /// The images that failed on it.
    pub bad_images: &'a [KnownBad],
    /// What was delivered last to one of the ancestor's agents.
    pub delivered: &'a Delivered,
}

impl<'a> About<'a> {
    /// A host and what is known of its node.
    #[must_use]
    pub const fn node(host: &'a Host, node: &'a NodeState) -> Self {
        Self {
            host,
            instance: node.instance,
            os: node.os,
            provisioned: node.provisioned,
            protocol: &node.protocol,
            last_end: node.last_end.as_ref(),
            bad_images: node.bad_images.as_slice(),
            delivered: &node.delivered,
        }
    }

    /// A host and what of its node is looked at at each poll.
    #[must_use]
    pub const fn brief(host: &'a Host, node: &'a Brief) -> Self {
        Self {
            host,
            instance: node.instance,
            os: node.os,
            provisioned: node.provisioned,
            protocol: &node.protocol,
            last_end: node.last_end.as_ref(),
            bad_images: node.bad_images.as_slice(),
            delivered: &node.delivered,
        }
    }
}

/// Everything that a decision is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// The instance.
    pub instance: InstanceId,
    /// What it belongs to.
    pub chain: Chain,
    /// What is known about the node.
    pub known: NodeFacts,
    /// What applies to it.
    pub wanted: Wanted,
    /// Its run that is not over.
    pub run: Option<UpdateRun>,
    /// What was told last to one of the ancestor's agents.
    pub told: Delivered,
    /// When the first slot of the assignment that applies, its own included, is free again although nothing is heard; none
    /// if no time is set for any, or nobody has counted.
    pub slots_end: Option<Time>,
}

impl World {
    /// What the node should do now, and why.
    #[must_use]
    pub fn decide(&self, now: Time) -> Decision {
        decide(&self.known, &self.wanted, self.open(now).as_ref(), now)
    }

    /// Before which instant the node is told the same by time alone, with all that is judged beside the decision: whether
    /// its attempt was forgotten or outlived, and how far limits are used up. None if it always is. It may stay longer, and
    /// never changes sooner.
    ///
    /// Of what one of the ancestor's agents is answered this holds once it was answered so, and that is remembered.
    #[must_use]
    pub fn steady_until(&self, now: Time) -> Option<Time> {
        let (known, wanted, open) = (&self.known, &self.wanted, self.open(now));
        let decided = steady_until(known, wanted, open.as_ref(), now);
        let is_eim = known.speaks == Protocol::Eim;
        let answered = is_eim.then(|| self.answered_until(now)).flatten();
        let run = self.run.as_ref();
        let forgotten = run.and_then(UpdateRun::forgotten_at);
        let outlived = run.zip(self.told.last_word);
        let outlived = outlived.and_then(|(run, last_word)| run.outlived_at(last_word));
        let told = self.told.steady_until(now);
        let instants = [decided, answered, told, forgotten, outlived];
        let instants = instants.into_iter().chain([self.slots_end]);
        instants.flatten().filter(|at| now < *at).min()
    }

    /// Before which instant one of the ancestor's agents is answered the same by time alone.
    fn answered_until(&self, now: Time) -> Option<Time> {
        let open = self.run.as_ref().and_then(UpdateRun::as_open);
        let decision = self.decide(now);
        let asked = Asked {
            known: &self.known,
            wanted: &self.wanted,
            open: open.as_ref(),
            decision: &decision,
            before: &self.told,
        };
        eim::steady_until(&asked, now)
    }

    /// Its open run, as decisions see it.
    fn open(&self, now: Time) -> Option<OpenRun> {
        let open = self.run.as_ref().and_then(UpdateRun::as_open)?;
        Some(OpenRun {
            may_begin_until: self.may_begin_until(now),
            ..open
        })
    }

    /// Until when an agent that ours has replaced may begin the open run: as long as what it was told lets it, and as
    /// long as something may still be heard of it.
    fn may_begin_until(&self, now: Time) -> Option<Time> {
        let run = self.run.as_ref()?;
        let last_word = self.told.last_word;
        let heard = last_word.and_then(|last_word| run.outlived_at(last_word));
        let told = self.told.may_begin_until(now)?;
        Some(heard.map_or(told, |heard| heard.min(told)))
    }

    /// What an agent has only fetched that ours has replaced, once it cannot begin it any more: nobody else would say that
    /// it is over. And why it is to be given up.
    #[must_use]
    pub fn outlived(&self, now: Time) -> Option<(RunId, CancelCause)> {
        let is_ours = matches!(self.known.speaks, Protocol::Own { .. });
        self.run
            .as_ref()
            .filter(|run| is_ours && run.attempt.is_none())?;
        match self.decide(now).act {
            Act::Cancel { run, cause } => Some((run, cause)),
            _ => None,
        }
    }

    /// Counts again how far the limits of the policy that applies are used up: with [`Reading::Judge`] after a look,
    /// once the look says that leave would be given.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn count(&mut self, tx: &Tx, reading: Reading) -> Result<(), StoreError> {
        let Some(scope) = self.applies().map(|assigned| assigned.scope) else {
            return Ok(());
        };
        self.count_under(tx, scope, reading.now()).await?;
        match reading {
            Reading::Look(_) => Ok(()),
            Reading::Judge(now) => self.count_alone(tx, scope, now).await,
        }
    }

    /// Counts once more while nobody else does, if by what was counted leave could be given. A refusal needs no exact
    /// count, so those who are refused do not wait for each other.
    async fn count_alone(&mut self, tx: &Tx, scope: Scope, now: Time) -> Result<(), StoreError> {
        let is_free = self
            .applies()
            .is_some_and(|assigned| self.wanted.held(assigned).is_none());
        if !is_free {
            return Ok(());
        }
        brake::lock(tx, scope).await?;
        self.count_under(tx, scope, now).await
    }

    async fn count_under(&mut self, tx: &Tx, scope: Scope, now: Time) -> Result<(), StoreError> {
        let counted = brake::read(tx, &[(self.instance, scope)], now).await?;
        self.take_count(&counted, scope);
        Ok(())
    }

    fn take_count(&mut self, counted: &Counted, scope: Scope) {
        self.slots_end = counted.slots_end(scope);
        let counted = counted.seen_by(self.instance, scope);
        let mut policies = self.wanted.policies.iter_mut();
        if let Some(assigned) = policies.find(|assigned| assigned.scope == scope) {
            let behind = assigned.brake.behind;
            assigned.brake = Brake { behind, ..counted };
        }
    }

    /// The assignment that applies, if it has limits: then others decide as well about the node.
    #[must_use]
    pub fn counted(&self) -> Option<Scope> {
        let counted = self.applies().filter(|assigned| assigned.limits.any());
        counted.map(|assigned| assigned.scope)
    }

    /// A node that starts by itself and let a window pass lets the others go first.
    fn give_way(&mut self, about: &About<'_>, scope: Scope, now: Time) {
        if *about.protocol != Protocol::Eim {
            return;
        }
        let open = self.run.as_ref().and_then(UpdateRun::as_open);
        let (known, told) = (&self.known, about.delivered);
        let passed = told.passed(known, open.as_ref(), now);
        let about = (known, open.as_ref());
        let behind = passed.and_then(|_| told.gives_way(about, &self.wanted, self.instance, now));
        let mut policies = self.wanted.policies.iter_mut();
        if let Some(assigned) = policies.find(|assigned| assigned.scope == scope) {
            assigned.brake.behind = behind;
        }
    }

    /// What is assigned and applies: nearest that fits.
    #[must_use]
    pub fn applies(&self) -> Option<&Assigned> {
        self.wanted.nearest(&self.known)
    }
}

/// Reads what decisions about nodes of a project are made from, in their order: at most three statements for any number of
/// nodes, and none for none. What cannot be read of one, or makes no sense, says nothing of the others; whose it is takes
/// more statements to find out where some of them share it.
///
/// # Errors
/// The database cannot be reached. Of a node: it runs an operating system that is not in the project, or what is kept of it
/// makes no sense.
pub async fn worlds(
    tx: &Tx,
    of: &[About<'_>],
    horizon: &Horizon,
    now: Time,
) -> Result<Vec<Result<World, StoreError>>, StoreError> {
    let mut worlds = Vec::with_capacity(of.len());
    let mut parts = vec![of];
    while let Some(part) = parts.pop() {
        match at_once(tx, part, horizon, now).await {
            Ok(found) => worlds.extend(found),
            Err(StoreError::Corrupt { .. }) if part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            Err(error @ StoreError::Corrupt { .. }) => worlds.push(Err(error)),
            Err(error) => return Err(error),
        }
    }
    Ok(worlds)
}

/// The same, unless something makes no sense that some of them share.
async fn at_once(
    tx: &Tx,
    of: &[About<'_>],
    horizon: &Horizon,
    now: Time,
) -> Result<Vec<Result<World, StoreError>>, StoreError> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
    let owns = own(tx, of).await?;
    let mut shared = Shared::default();
    shared.read(tx, of, Some(now)).await?;
    let mut together = Together::new(&shared, horizon, now);
    let (mut worlds, mut limited) = (Vec::with_capacity(of.len()), Vec::new());
    for (about, own) in of.iter().zip(owns) {
        let mut world = own.and_then(|own| together.world(about, own));
        if let Ok(world) = &mut world
            && let Some(scope) = world.counted()
        {
            world.give_way(about, scope, now);
            limited.push((world.instance, scope));
        }
        worlds.push(world);
    }
    let counted = brake::read(tx, &limited, now).await?;
    for world in worlds.iter_mut().flatten() {
        if let Some(scope) = world.counted() {
            world.take_count(&counted, scope);
        }
    }
    Ok(worlds)
}

/// Reads what a decision about a node is made from.
///
/// # Errors
/// The database cannot be reached, the node runs an operating system that is not in the project, or what is kept of it makes
/// no sense.
pub async fn world(
    tx: &Tx,
    host: &Host,
    node: &NodeState,
    horizon: &Horizon,
    reading: Reading,
) -> Result<World, StoreError> {
    let about = About::node(host, node);
    let found = worlds(tx, &[about], horizon, reading.now()).await?.pop();
    let what = instance::Entity::WHAT;
    let mut world = found.ok_or(StoreError::NotFound { what })??;
    if let (Reading::Judge(now), Some(scope)) = (reading, world.counted()) {
        world.count_alone(tx, scope, now).await?;
    }
    Ok(world)
}

/// The policy that applies to an instance: nearest that fits. As [`World::applies`], read without all that only says when
/// it may be obeyed.
///
/// # Errors
/// The database cannot be reached.
pub async fn applied(
    tx: &Tx,
    host: &Host,
    instance: &Instance,
) -> Result<Option<Assigned>, StoreError> {
    // What it says and how its attempts ended has no part in what fits.
    let (unheard, nothing) = (Protocol::Unknown, Delivered::default());
    let about = About {
        host,
        instance: instance.id,
        os: instance.summary.os,
        provisioned: instance.summary.provisioned,
        protocol: &unheard,
        last_end: None,
        bad_images: &[],
        delivered: &nothing,
    };
    // Nor have its order and its run.
    let own = Own {
        trusted: instance.is_trusted(),
        order: None,
        run: None,
    };
    let mut shared = Shared::default();
    shared.read(tx, &[about], None).await?;
    let known = shared.known(&about, &own)?;
    let policies = shared.policies(&shared.chain(&about));
    let mut policies = policies.into_iter();
    Ok(policies.find(|assigned| assigned.misfit(&known).is_none()))
}

/// The rows that a column gathers.
fn gathered<M: DeserializeOwned>(
    row: &QueryResult,
    column: &'static str,
) -> Result<Vec<M>, StoreError> {
    // The row is there, so what cannot be read of it makes no sense.
    let rows = row.try_get::<Option<Kept<Vec<M>>>>("", column);
    let rows = named(rows.ok(), "what is wanted", 0, column)?;
    Ok(rows.map(|kept| kept.0).unwrap_or_default())
}
