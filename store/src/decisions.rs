//! What a decision is made from, read in one transaction. The poll, the begin and the explanation read the same.

mod surroundings;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Assigned, Brake, Scope};
use evenkeel_domain::decide::{Act, Decision, NodeFacts, Protocol, Wanted, decide};
use evenkeel_domain::eim::Delivered;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{InstanceId, RunId};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::os::{Image, OsKind};
use evenkeel_domain::run::{CancelCause, OpenRun, UpdateRun};
use evenkeel_domain::schedule::{Ahead, Opens};
use evenkeel_domain::window::Windows;

use crate::chain::Chain;
use crate::error::StoreError;
use crate::nodes::NodeState;
use crate::tx::Tx;
use crate::{assignments, brake, os_profiles, pauses, runs, schedules};
use surroundings::surroundings;

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
}

impl World {
    /// What the node should do now, and why.
    #[must_use]
    pub fn decide(&self, now: Time) -> Decision {
        let open = self.run.as_ref().and_then(UpdateRun::as_open);
        let open = open.map(|open| OpenRun {
            may_begin_until: self.may_begin_until(now),
            ..open
        });
        decide(&self.known, &self.wanted, open.as_ref(), now)
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
        self.read_brake(tx, scope, reading.now()).await?;
        // A refusal needs no exact count, so those who are refused do not wait for each other.
        let is_free = self
            .applies()
            .is_some_and(|assigned| self.wanted.held(assigned).is_none());
        if is_free && matches!(reading, Reading::Judge(_)) {
            brake::lock(tx, scope).await?;
            self.read_brake(tx, scope, reading.now()).await?;
        }
        Ok(())
    }

    /// A node that starts by itself and let a window pass lets the others go first.
    fn give_way(&mut self, node: &NodeState, now: Time) {
        let open = self.run.as_ref().and_then(UpdateRun::as_open);
        let (known, told) = (&self.known, &node.delivered);
        let behind = if node.protocol == Protocol::Eim {
            let passed = told.passed(known, open.as_ref(), now);
            let about = (known, open.as_ref());
            passed.and_then(|_| told.gives_way(about, &self.wanted, self.instance, now))
        } else {
            None
        };
        let scope = self.applies().map(|assigned| assigned.scope);
        let mut policies = self.wanted.policies.iter_mut();
        if let Some(assigned) = policies.find(|assigned| Some(assigned.scope) == scope) {
            assigned.brake.behind = behind;
        }
    }

    async fn read_brake(&mut self, tx: &Tx, scope: Scope, now: Time) -> Result<(), StoreError> {
        let counted = brake::read(tx, scope, self.instance, now).await?;
        let mut policies = self.wanted.policies.iter_mut();
        if let Some(assigned) = policies.find(|assigned| assigned.scope == scope) {
            let behind = assigned.brake.behind;
            assigned.brake = Brake { behind, ..counted };
        }
        Ok(())
    }

    /// What is assigned and applies: nearest that fits.
    #[must_use]
    pub fn applies(&self) -> Option<&Assigned> {
        self.wanted.nearest(&self.known)
    }
}

/// Reads what a decision about a node is made from.
///
/// # Errors
/// The database cannot be reached.
pub async fn world(
    tx: &Tx,
    host: &Host,
    node: &NodeState,
    horizon: &Horizon,
    reading: Reading,
) -> Result<World, StoreError> {
    let now = reading.now();
    let around = surroundings(tx, host, node.instance, node.os).await?;
    let known = NodeFacts {
        trusted: host.is_trusted() && around.trusted,
        provisioned: node.provisioned,
        os_kind: around.os.spec.kind,
        running: Image::of(&around.os),
        speaks: node.protocol.clone(),
        last_end: node.last_end.clone(),
    };
    let policies = assignments::along(tx, &around.chain).await?;
    let ahead = Ahead {
        opens: Opens::from_setting(around.any_schedule_status),
        ..ahead(node, &policies, horizon, now)
    };
    let (singles, mut repeated) = schedules::along(tx, &around.chain, now).await?;
    let mut windows: Vec<_> = singles
        .iter()
        .flat_map(|schedule| schedule.windows_from(&ahead))
        .collect();
    windows.extend(
        repeated
            .iter()
            .flat_map(|schedule| schedule.windows_from(&ahead)),
    );
    repeated.retain(|schedule| ahead.opens.admits(schedule.spec.status));
    let ids = policies.iter().map(|assigned| assigned.policy.id);
    let wanted = Wanted {
        pauses: pauses::concerning(tx, host.site, ids).await?,
        images: match known.os_kind {
            OsKind::Mutable => Vec::new(),
            OsKind::Immutable => os_profiles::images(tx, &known.running.profile_name).await?,
        },
        policies,
        windows: Windows::from_now_on(windows, now),
        repeated,
        fetch_ahead: horizon.fetch_ahead,
        order: around.order,
    };
    let mut world = World {
        instance: node.instance,
        chain: around.chain,
        known,
        wanted,
        run: runs::find_open(tx, node.instance).await?,
        told: node.delivered.clone(),
    };
    if world
        .applies()
        .is_some_and(|assigned| assigned.limits.any())
    {
        world.give_way(node, now);
        world.count(tx, reading).await?;
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
    let summary = &instance.summary;
    let around = surroundings(tx, host, instance.id, summary.os).await?;
    // What it says and how its attempts ended has no part in what fits.
    let known = NodeFacts {
        trusted: host.is_trusted() && around.trusted,
        provisioned: summary.provisioned,
        os_kind: around.os.spec.kind,
        running: Image::of(&around.os),
        speaks: Protocol::Unknown,
        last_end: None,
    };
    let policies = assignments::along(tx, &around.chain).await?;
    let mut policies = policies.into_iter();
    Ok(policies.find(|assigned| assigned.misfit(&known).is_none()))
}

/// Which windows matter: those that leave may be given ahead for, to nodes that understand it.
fn ahead(node: &NodeState, policies: &[Assigned], horizon: &Horizon, now: Time) -> Ahead {
    let (longest, limit) = match node.protocol {
        Protocol::Own { .. } => {
            let days = policies.iter().map(|a| a.policy.spec.offline_days).max();
            (TimeDelta::days(days.unwrap_or_default().into()), 64)
        }
        Protocol::Eim | Protocol::Unknown => (TimeDelta::zero(), 8),
    };
    Ahead {
        now,
        until: now + longest.max(horizon.fetch_ahead),
        limit,
        max_window: horizon.max_window,
        opens: Opens::default(),
    }
}
