//! Brings news of a node to its runs, in one transaction. Both doors go through here.

use evenkeel_domain::Time;
use evenkeel_domain::decide::{Target, target};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::HostId;
use evenkeel_domain::run::{AttemptId, Happening, Origin, RunEvent, UpdateRun};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::cut;
use evenkeel_store::decisions::{self, World};
use evenkeel_store::nodes::{self, NodeState};
use evenkeel_store::runs::{self, Opening, Subject};
use evenkeel_store::{StoreError, Tx, hosts, os_profiles, policies};

use crate::manager::MaintenanceManager;

/// One node, locked, with all that a decision about it is made from.
pub struct Scene<'a> {
    manager: &'a MaintenanceManager,
    pub tx: Tx,
    pub host: Host,
    pub node: NodeState,
    pub world: World,
    pub now: Time,
    before: NodeState,
}

impl<'a> Scene<'a> {
    /// Locks the node on a host. With `judging`, nobody changes what is wanted until the end: needed by whoever gives
    /// leave.
    pub async fn open(
        manager: &'a MaintenanceManager,
        tenant: TenantId,
        host: HostId,
        judging: bool,
    ) -> Result<Self, StoreError> {
        let tx = manager.store.tenant(tenant).await?;
        if judging {
            tx.judge_wanted().await?;
        }
        let node = nodes::lock(&tx, host).await?;
        // The time of judgement is that after the wait for the lock.
        let now = manager.now();
        let host = hosts::find(&tx, host).await?;
        let world = decisions::world(&tx, &host, &node, &manager.settings.horizon(), now).await?;
        Ok(Self {
            manager,
            tx,
            host,
            before: node.clone(),
            node,
            world,
            now,
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
        let patience = self.manager.settings.patience();
        let run = runs::advance(&self.tx, subject, happening, &patience, self.now).await?;
        // Late news of an attempt that another one has replaced says nothing about where the node stands.
        if self.world.run.as_ref().is_none_or(|open| open.id == run.id) {
            self.node.reflect(&run, self.now);
            self.world.run = Some(run.clone()).filter(|run| !run.state.is_final());
        }
        metrics::counter!("evenkeel_run_events_total", "event" => happening.event.name())
            .increment(1);
        Ok(run)
    }

    /// Brings the first event of an attempt: opens its run, and ends another one that is still open.
    pub async fn begin_attempt(
        &mut self,
        attempt: Option<AttemptId>,
        digest: Option<&str>,
        happening: &Happening,
    ) -> Result<UpdateRun, StoreError> {
        if let Some(other) = self.world.run.take() {
            let superseded = Happening::of(RunEvent::Superseded);
            self.bring(Subject::Run(other.id), &superseded).await?;
        }
        let os = os_profiles::find(&self.tx, self.node.os).await?;
        let host: String = self.host.title().chars().take(13).collect();
        let opening = Opening {
            instance: self.node.instance,
            name: format!("{host} update {}", self.now.format("%Y%m%d-%H%M%S")),
            description: cut(&format!("OS update for {}", os.spec.name), 200),
            attempt,
            origin: self.origin(digest).await?,
        };
        self.bring(Subject::New(Box::new(opening)), happening).await
    }

    /// What an attempt is for: the policy that its digest names; without a digest the one that was delivered, else the
    /// one that applies now.
    async fn origin(&self, digest: Option<&str>) -> Result<Origin, StoreError> {
        let present = target(&self.world.known, &self.world.wanted).ok();
        let wanted = match digest {
            None => {
                let delivered = self.node.delivered.policy;
                delivered.or(present.as_ref().map(|target| target.policy))
            }
            Some(digest) => digest.parse().ok(),
        };
        let Some(id) = wanted else {
            return Ok(Origin {
                target: None,
                policy: None,
            });
        };
        let policy = match policies::find(&self.tx, id).await {
            Ok(policy) => Some(policy),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let same = present.filter(|target| target.policy == id);
        let target = same.or_else(|| policy.as_ref().map(Target::of_packages));
        Ok(Origin { target, policy })
    }

    /// Keeps what changed, makes it all visible, and notes that the node was heard.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        self.node.provisioned = true;
        let running = Status::new("Running", Indication::Idle, self.now);
        self.node.status = running.clone().since(Some(&self.node.status));
        if self.node != self.before {
            nodes::save(&self.tx, &self.node).await?;
        }
        if self.host.status.text != running.text {
            hosts::set_status(&self.tx, self.host.id, &running).await?;
        }
        let (tenant, instance) = (self.tx.tenant(), self.node.instance);
        self.tx.commit().await?;
        self.manager.contacts.heard(tenant, instance, self.now);
        Ok(())
    }
}
