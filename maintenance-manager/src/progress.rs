//! Brings news of a node to its runs, in one transaction. Both doors go through here.

use std::iter;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::decide::{Protocol, Target, target};
use evenkeel_domain::eim::Delivered;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, InstanceId, OsId, PolicyId, RunId};
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::os::{Image, OsKind};
use evenkeel_domain::policy::UpdatePolicy;
use evenkeel_domain::run::{AttemptId, Happening, Origin, RunEvent, UpdateRun};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::cut;
use evenkeel_store::decisions::{self, Reading, World};
use evenkeel_store::nodes::{self, Machine, NodeState};
use evenkeel_store::runs::{self, Opening, Subject, Together};
use evenkeel_store::{StoreError, Tx, hosts, os_profiles, policies};
use tokio::sync::OwnedSemaphorePermit;

use crate::derived;
use crate::load::{Busy, CallKind};
use crate::manager::MaintenanceManager;
use crate::status;
use crate::view::View;

/// One node, locked, with all that a decision about it is made from.
pub struct Scene<'a> {
    manager: &'a MaintenanceManager,
    pub tx: Tx,
    pub host: Host,
    pub node: NodeState,
    pub world: World,
    pub now: Time,
    before: Box<NodeState>,
    /// Its turn among those who write.
    _pen: OwnedSemaphorePermit,
}

/// The turn of a call among those who write.
pub type Turn<'a> = (&'a MaintenanceManager, OwnedSemaphorePermit);

/// What an attempt begins with.
pub struct Beginning {
    /// The agent's own name of it.
    pub attempt: Option<AttemptId>,
    /// What it is for.
    pub origin: Origin,
    /// The run whose leave it goes on with, and under what that must have been given.
    pub follows: Option<(RunId, Scope)>,
}

impl<'a> Scene<'a> {
    /// Locks the node of a machine, for one whose turn it is ([`MaintenanceManager::in_turn`]). With `judging`, nobody
    /// changes what is wanted until the end: needed by whoever gives leave.
    pub async fn open(
        (manager, pen): Turn<'a>,
        (tenant, machine): (TenantId, Machine),
        judging: bool,
    ) -> Result<Self, StoreError> {
        let tx = manager.store.tenant(tenant).await?;
        if judging {
            tx.judge_wanted().await?;
        }
        let (host, node) = nodes::lock_with_host(&tx, machine).await?;
        // The time of judgement is that after the wait for the lock.
        let now = manager.now();
        let horizon = manager.settings.horizon();
        let reading = Reading::Look(now);
        let world = decisions::world(&tx, &host, &node, &horizon, reading).await?;
        Ok(Self {
            manager,
            tx,
            host,
            before: Box::new(node.clone()),
            node,
            world,
            now,
            _pen: pen,
        })
    }

    /// The run that an attempt became.
    pub async fn run_of(&self, attempt: AttemptId) -> Result<Option<UpdateRun>, StoreError> {
        runs::find_attempt(&self.tx, self.node.instance, attempt).await
    }

    /// Brings an event to a run.
    pub async fn bring(
        &mut self,
        subject: Subject,
        happening: &Happening,
    ) -> Result<UpdateRun, StoreError> {
        self.bring_all(subject, happening, &[]).await
    }

    /// Brings events to a run that came together: the first and those that follow.
    pub async fn bring_all(
        &mut self,
        subject: Subject,
        first: &Happening,
        rest: &[Happening],
    ) -> Result<UpdateRun, StoreError> {
        let patience = self.manager.settings.patience();
        let together = Together {
            first,
            rest,
            patience: &patience,
            now: self.now,
        };
        self.bring_with(subject, &together).await
    }

    /// Gives up the open run because its time, which others have judged, has come.
    pub async fn time_out(&mut self, limit: Time) -> Result<(), StoreError> {
        let Some(run) = self.world.run.clone() else {
            return Ok(());
        };
        let patience = self.manager.settings.patience().until(&run, limit);
        let together = Together {
            first: &Happening::of(RunEvent::TimedOut),
            rest: &[],
            patience: &patience,
            now: self.now,
        };
        self.bring_with(Subject::Run(run.id), &together).await?;
        self.look_again().await
    }

    async fn bring_with(
        &mut self,
        subject: Subject,
        events: &Together<'_>,
    ) -> Result<UpdateRun, StoreError> {
        // Late news of an attempt that another one has replaced says nothing about where the node stands.
        let open = self.world.run.as_ref();
        let is_late = open.is_some_and(|open| match &subject {
            Subject::Run(id) => open.id != *id,
            Subject::New(_) => true,
        });
        let Self { tx, node, now, .. } = self;
        let mut reflect = |run: &UpdateRun| {
            if !is_late {
                node.reflect(run, *now);
            }
        };
        let run = runs::advance_by(tx, subject, events, &mut reflect).await?;
        if !is_late {
            let (known, node) = (&mut self.world.known, &self.node);
            known.last_end.clone_from(&node.last_end);
            known.bad_images.clone_from(&node.bad_images);
            self.world.run = Some(run.clone()).filter(|run| !run.state.is_final());
        }
        for happening in iter::once(events.first).chain(events.rest) {
            let event = happening.event.name();
            metrics::counter!("evenkeel_run_events_total", "event" => event).increment(1);
        }
        Ok(run)
    }

    /// Brings the first event of an attempt, and those that came with it: opens its run, and ends another one that is still
    /// open.
    pub async fn begin_attempt(
        &mut self,
        beginning: Beginning,
        first: &Happening,
        rest: &[Happening],
    ) -> Result<UpdateRun, StoreError> {
        if let Some(other) = self.world.run.take() {
            let superseded = Happening::of(RunEvent::Superseded);
            self.bring(Subject::Run(other.id), &superseded).await?;
        }
        self.opened(beginning, first, rest).await
    }

    /// Brings the only event of an attempt that is over: what is open meanwhile stays as it is.
    pub async fn record(
        &mut self,
        beginning: Beginning,
        happening: &Happening,
    ) -> Result<UpdateRun, StoreError> {
        self.opened(beginning, happening, &[]).await
    }

    async fn opened(
        &mut self,
        beginning: Beginning,
        first: &Happening,
        rest: &[Happening],
    ) -> Result<UpdateRun, StoreError> {
        let running = &self.world.known.running.name;
        let host: String = self.host.title().chars().take(13).collect();
        let opening = Opening {
            instance: self.node.instance,
            name: format!("{host} update {}", self.now.format("%Y%m%d-%H%M%S")),
            description: cut(&format!("OS update for {running}"), 200),
            attempt: beginning.attempt,
            origin: beginning.origin,
            follows: beginning.follows,
        };
        self.bring_all(Subject::New(Box::new(opening)), first, rest)
            .await
    }

    /// What an attempt is for that names its target.
    pub async fn named(&self, digest: &str) -> Result<Origin, StoreError> {
        let Some((id, os)) = Target::named_by(digest) else {
            return Ok(self.origin(None, None));
        };
        let policy = self.policy(id).await?;
        let present = target(&self.world.known, &self.world.wanted).ok();
        if let Some(present) = present.filter(|target| target.digest() == digest) {
            return Ok(self.origin(Some(present), policy));
        }
        let image = match os {
            Some(os) => self.image(os).await?,
            None => None,
        };
        Ok(self.meant(policy, image))
    }

    /// What an attempt is for that was begun by what was told last; the wish that applies now if nothing was told yet.
    pub async fn told(&self, delivered: Delivered) -> Result<Origin, StoreError> {
        let present = target(&self.world.known, &self.world.wanted).ok();
        let told = delivered.policy;
        let Some(id) = told.or(present.as_ref().map(|target| target.policy)) else {
            return Ok(self.origin(None, None));
        };
        let policy = self.policy(id).await?;
        let target = match (&policy, told) {
            (Some(policy), Some(_)) => delivered.target(policy),
            (_, Some(_)) => None,
            (_, None) => present,
        };
        Ok(self.origin(target, policy))
    }

    fn meant(&self, policy: Option<UpdatePolicy>, image: Option<Image>) -> Origin {
        let target = policy.as_ref().and_then(|policy| match image {
            Some(image) => Some(Target::of_image(policy, image)),
            None if self.world.known.os_kind == OsKind::Immutable => Target::of_kernel(policy),
            None => Some(Target::of_packages(policy)),
        });
        self.origin(target, policy)
    }

    fn origin(&self, target: Option<Target>, policy: Option<UpdatePolicy>) -> Origin {
        Origin {
            order: self.ordered(target.as_ref()),
            target,
            policy,
        }
    }

    /// The order that lets the node begin now, if no schedule does: none lets it try an image again that failed there.
    fn ordered(&self, target: Option<&Target>) -> Option<Order> {
        let wanted = &self.world.wanted;
        let counts = |order: &&Order| {
            order.kind == OrderKind::Now && order.at <= self.now && self.now < order.until
        };
        let order = wanted.order.as_ref().filter(counts)?;
        let failed = target.and_then(|target| self.world.known.quarantined(target));
        let is_scheduled = wanted.windows.open(self.now).is_some() && failed.is_none();
        (!is_scheduled).then(|| order.clone())
    }

    async fn policy(&self, id: PolicyId) -> Result<Option<UpdatePolicy>, StoreError> {
        let mut assigned = self.world.wanted.policies.iter();
        if let Some(assigned) = assigned.find(|assigned| assigned.policy.id == id) {
            return Ok(Some(assigned.policy.clone()));
        }
        found(policies::find(&self.tx, id).await)
    }

    /// An image of the catalogue, if it is still there.
    pub async fn image(&self, os: OsId) -> Result<Option<Image>, StoreError> {
        let known = self.world.wanted.images.iter().find(|image| image.os == os);
        if let Some(image) = known {
            return Ok(Some(image.clone()));
        }
        let profile = found(os_profiles::find(&self.tx, os).await)?;
        Ok(profile.as_ref().map(Image::of))
    }

    /// Reads what a decision is made from once more, after a run has ended.
    pub async fn look_again(&mut self) -> Result<(), StoreError> {
        let horizon = self.manager.settings.horizon();
        let reading = Reading::Look(self.now);
        let read = decisions::world(&self.tx, &self.host, &self.node, &horizon, reading);
        let speaks = self.world.known.speaks.clone();
        self.world = read.await?;
        self.world.known.speaks = speaks;
        self.world.known.provisioned = true;
        Ok(())
    }

    /// Counts the slots of the assignment that applies, and lets nobody else do so until the end.
    pub async fn count(&mut self) -> Result<(), StoreError> {
        let reading = Reading::Judge(self.now);
        self.world.count(&self.tx, reading).await
    }

    /// Whether anything is to be kept.
    pub fn has_news(&self) -> bool {
        self.node != *self.before
    }

    /// Whether a run is open that has begun to change the node.
    pub fn is_being_changed(&self) -> bool {
        let open = self.world.run.as_ref();
        open.is_some_and(|run| !run.state.is_untouched())
    }

    /// Takes note that the node really runs an image of the catalogue.
    pub fn runs(&mut self, image: Image) {
        self.node.os = image.os;
        self.world.known.running = image;
    }

    /// Keeps what changed and makes it all visible. Nothing is said about whether the node is there.
    pub async fn keep(self) -> Result<(), StoreError> {
        if self.node != *self.before {
            nodes::save(&self.tx, &self.node).await?;
        }
        self.make_visible().await
    }

    /// Keeps what changed, makes it all visible, and notes that the node was heard.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        self.node.provisioned = true;
        let running = Status::new(status::RUNNING, Indication::Idle, self.now);
        self.node.status = running.clone().since(Some(&self.node.status));
        derived::follow(&mut self.node, &self.world, self.now);
        if self.node != *self.before {
            nodes::save(&self.tx, &self.node).await?;
        }
        if self.host.status.text != running.text {
            hosts::set_status(&self.tx, self.host.id, &running).await?;
        }
        let (tenant, instance) = (self.tx.tenant(), self.node.instance);
        let (manager, now) = (self.manager, self.now);
        // EIM's agents come at their own pace.
        let is_ours = matches!(self.node.protocol, Protocol::Own { .. });
        let due = manager.due(now).filter(|_| is_ours);
        self.make_visible().await?;
        manager.contacts.heard(tenant, instance, now, due);
        Ok(())
    }

    /// Commits. What was remembered of the node is forgotten before anything is answered.
    async fn make_visible(self) -> Result<(), StoreError> {
        let (tenant, host, instance) = (self.tx.tenant(), self.host.id, self.node.instance);
        let _unsettled = self.manager.unsettled(tenant, host, instance);
        self.tx.commit().await
    }
}

impl MaintenanceManager {
    /// Lets a call write once it is its turn, and for a bounded time: those who are too many wait for their turn and not
    /// for a connection, which others need who only read.
    pub async fn in_turn<'a, T, F>(
        &'a self,
        kind: CallKind,
        write: impl FnOnce(Turn<'a>) -> F,
    ) -> Result<T, tonic::Status>
    where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let _one = self.load.to_the_database(kind).map_err(Busy::status)?;
        let pen = self.load.pen().await?;
        status::within(Box::pin(write((self, pen)))).await
    }

    /// While what is returned lives, it is not known whether something of a node was committed. Then what was remembered
    /// of it is forgotten, also if nobody waits for the answer any more.
    pub fn unsettled(&self, tenant: TenantId, host: HostId, instance: InstanceId) -> Unsettled<'_> {
        Unsettled {
            view: &self.view,
            node: (tenant, host, instance),
        }
    }
}

/// A commit on its way.
#[derive(Debug)]
#[must_use]
pub struct Unsettled<'a> {
    view: &'a View,
    node: (TenantId, HostId, InstanceId),
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        let (tenant, host, instance) = self.node;
        self.view.forget(tenant, host, instance);
    }
}

/// What is not there any more is no error.
pub fn found<T>(answer: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
