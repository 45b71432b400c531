//! The maintenance manager as a whole.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_auth::Authority;
use evenkeel_domain::Time;
use evenkeel_kit::beat;
use evenkeel_kit::clock::Clock;
use evenkeel_kit::lifecycle::Lifecycle;
use evenkeel_proto::agent::agent_service_server::AgentServiceServer;
use evenkeel_proto::hostmgr::hostmgr_server::HostmgrServer;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrServiceServer;
use evenkeel_store::Store;
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::service::{LayerExt, Routes};
use tower::util::MapResponseLayer;
use uuid::Uuid;

use crate::admission::AdmissionLayer;
use crate::bonds::Bonds;
use crate::contacts::Contacts;
use crate::desk::Desk;
use crate::holds::Holds;
use crate::housekeeping::Housekeeping;
use crate::images::ImageWatch;
use crate::load::Load;
use crate::memory::Memory;
use crate::outage::Outage;
use crate::peer::{Flood, Peer, Refusals};
use crate::settings::{Settings, delta, period};
use crate::silence::SilenceWatch;
use crate::tracker::Tracker;
use crate::view::{self, Recall, Sizes, View, Who};

/// The largest message that is read. A detail of 10 MiB is cut and its outcome kept; larger is refused.
pub const MAX_MESSAGE: usize = 16 << 20;

/// How many machines are let in at once.
const DOORS: usize = 4;

/// How often tokens are forgotten whose time is over.
const TOKENS_EVERY: Duration = Duration::from_hours(1);

/// What the services for agents share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MaintenanceManager {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) contacts: Contacts,
    pub(crate) bonds: Arc<Bonds>,
    pub(crate) flood: Arc<Flood>,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) outage: Arc<Outage>,
    /// Machines that are let in at once. Each holds a connection while it waits for those with the same join token, so
    /// a roll-out must not take them all.
    pub(crate) doors: Arc<Semaphore>,
    /// What is remembered of answers.
    pub(crate) view: View,
    /// Where the others are looked for.
    pub(crate) desk: Desk,
    /// Polls that are held until there is something to say.
    pub(crate) holds: Holds,
    /// How much is taken on at once.
    pub(crate) load: Arc<Load>,
    memory: Memory,
}

impl MaintenanceManager {
    /// A maintenance manager on a store.
    #[must_use]
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        authority: Arc<Authority>,
        settings: Settings,
    ) -> Self {
        let (settings, memory) = (Arc::new(settings), Memory::default());
        let view = View::new(settings.view.clone());
        let load = Arc::new(Load::new(settings.load.clone()));
        let shared = (&settings, &load);
        let desk = Desk::new(store.clone(), view.clone(), Arc::clone(&clock), shared);
        Self {
            store,
            clock,
            authority,
            flood: Arc::new(Flood::new(settings.flood.clone())),
            refusals: Arc::default(),
            outage: Arc::default(),
            view,
            desk,
            holds: Holds::new(settings.holds.clone(), memory.clone()),
            load,
            settings,
            contacts: Contacts::default(),
            bonds: Arc::new(Bonds::new()),
            doors: Arc::new(Semaphore::new(DOORS)),
            memory,
        }
    }

    /// Where it is to be said whether memory is short.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.memory.clone()
    }

    /// The gRPC services, for a server that speaks HTTP/2.
    #[must_use]
    pub fn services(&self) -> Routes {
        let ours = AgentServiceServer::new(self.clone()).max_decoding_message_size(MAX_MESSAGE);
        let ancestors =
            MaintmgrServiceServer::new(self.clone()).max_decoding_message_size(MAX_MESSAGE);
        let too_large = MapResponseLayer::new(name_what_is_too_large);
        // Nothing that is kept is said there.
        let heartbeats = HostmgrServer::new(self.clone());
        let admission = AdmissionLayer::new(Arc::clone(&self.load));
        Routes::new(admission.named_layer(too_large.named_layer(ours)))
            .add_service(admission.named_layer(too_large.named_layer(ancestors)))
            .add_service(admission.named_layer(too_large.named_layer(heartbeats)))
    }

    /// Starts the loops: the times of last contact, the runs whose time has come, the nodes that fell silent, what is new
    /// for nodes of images, the housekeeping, and what keeps the view and the load in sight. All of them may go on in any
    /// number of processes on one database.
    pub fn start_loops(&self, life: &Lifecycle) {
        self.start_view(life);
        self.start_watching(life);
        self.start_writing(life);
    }

    /// Starts to follow the change log: from then on answers are remembered. Once in each process, which tells of its own
    /// changes by itself ([`Store::tell_hints`]).
    pub fn start_view(&self, life: &Lifecycle) {
        let (view, store, holds) = (self.view.clone(), self.store.clone(), self.holds.clone());
        let (outage, stopping) = (Arc::clone(&self.outage), life.stopping());
        life.spawn("change log", async move {
            view::follow(view, store, holds, outage, stopping).await;
            Ok(())
        });
    }

    /// Starts to watch the load, and lets the polls go that are held when the process stops.
    fn start_watching(&self, life: &Lifecycle) {
        let (load, stopping) = (Arc::clone(&self.load), life.stopping());
        life.spawn("load", async move {
            load.watch(stopping).await;
            Ok(())
        });
        let (holds, stopping) = (self.holds.clone(), life.stopping());
        let load = Arc::clone(&self.load);
        life.spawn("holds", async move {
            stopping.cancelled().await;
            load.lets_go();
            holds.drain();
            Ok(())
        });
        self.start_rechecks(life);
        self.start_forgetting(life);
    }

    /// Starts to forget tokens whose time is over. To look at a million takes longer than calls should wait.
    fn start_forgetting(&self, life: &Lifecycle) {
        let (authority, bonds) = (Arc::clone(&self.authority), Arc::clone(&self.bonds));
        let (clock, stopping) = (Arc::clone(&self.clock), life.stopping());
        life.spawn("expired tokens", async move {
            let mut passes = tokio::time::interval(TOKENS_EVERY);
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return Ok(()),
                    _ = passes.tick() => {}
                }
                let (authority, bonds, now) =
                    (Arc::clone(&authority), Arc::clone(&bonds), clock.now());
                let forget = move || {
                    authority.forget_expired(now);
                    bonds.forget_expired(now);
                };
                tokio::task::spawn_blocking(forget).await?;
            }
        });
    }

    /// Starts to see whether what held polls go by still holds, some of them at a time.
    pub fn start_rechecks(&self, life: &Lifecycle) {
        let (all, longest) = (self.settings.holds.recheck, Duration::from_secs(1));
        let every = period(all.min(longest));
        // Whoever comes while a round goes on has its turn in the next one.
        let shares = usize::try_from(all.as_millis() / every.as_millis().max(1) / 2);
        let shares = shares.unwrap_or(usize::MAX);
        let (manager, stopping) = (self.clone(), life.stopping());
        life.spawn("rechecks", async move {
            let mut looks = beat::ticks(every);
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return Ok(()),
                    _ = looks.tick() => manager.recheck(shares),
                }
            }
        });
    }

    /// Nothing is known while nobody follows the log, and then nobody is woken for it.
    fn recheck(&self, shares: usize) {
        if self.view.pass().is_none() {
            return;
        }
        let now = self.now();
        self.holds.recheck(shares, |(tenant, host), asked| {
            let who = Who::Host(tenant, host);
            matches!(self.view.recall(&who, asked, now), Recall::Hit(_))
        });
    }

    /// Starts to write the times of last contact, and writes those that are left when the process stops and has let go of
    /// those that it holds.
    pub fn start_contacts(&self, life: &Lifecycle) {
        let contacts = self.contacts.clone();
        let (store, every) = (self.store.clone(), period(self.settings.contacts_every));
        let (stopping, outage) = (life.stopping(), Arc::clone(&self.outage));
        let load = Arc::clone(&self.load);
        life.spawn("contacts", async move {
            let stopped = async {
                stopping.cancelled().await;
                load.has_let_go().await;
            };
            contacts.run(store, every, &outage, stopped).await;
            Ok(())
        });
    }

    fn start_writing(&self, life: &Lifecycle) {
        self.start_contacts(life);
        let tracker = Tracker::new(self.store.clone(), Arc::clone(&self.clock), &self.settings)
            .with_outage(&self.outage);
        let stopping = life.stopping();
        life.spawn("tracker", async move {
            tracker.run(stopping).await;
            Ok(())
        });
        let watch = SilenceWatch::new(self.store.clone(), Arc::clone(&self.clock), &self.settings)
            .with_outage(&self.outage);
        let stopping = life.stopping();
        life.spawn("silent nodes", async move {
            watch.run(stopping).await;
            Ok(())
        });
        let images = ImageWatch::new(self.store.clone(), &self.settings).with_outage(&self.outage);
        let (hinted, stopping) = (self.view.projects(), life.stopping());
        life.spawn("images", async move {
            images.run(hinted, stopping).await;
            Ok(())
        });
        let housekeeping =
            Housekeeping::new(self.store.clone(), Arc::clone(&self.clock), &self.settings)
                .with_outage(&self.outage);
        let stopping = life.stopping();
        life.spawn("housekeeping", async move {
            housekeeping.run(stopping).await?;
            Ok(())
        });
    }

    /// Waits until all that was committed before is taken into account. False if that takes too long, or nobody follows the
    /// change log.
    pub async fn caught_up(&self) -> bool {
        self.view.fence(Instant::now()).await
    }

    /// How much is remembered of answers.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.view.sizes()
    }

    /// How many polls are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.holds.len()
    }

    /// How many answers from memory were found to be others than the database would have given.
    #[must_use]
    pub fn mismatches(&self) -> u64 {
        self.desk.mismatches()
    }

    /// Notes for the log how a call of a peer ended.
    pub(crate) fn note<T>(&self, peer: &Peer, call: &'static str, answer: &Result<T, Status>) {
        self.note_saying((peer, None), call, answer);
    }

    /// The same for a peer that says that it has a UUID.
    pub(crate) fn note_saying<T>(
        &self,
        who: (&Peer, Option<Uuid>),
        call: &'static str,
        answer: &Result<T, Status>,
    ) {
        self.outage.note_call(call, answer);
        self.refusals.note(who, call, answer, self.now());
    }

    /// Before when a node of ours is not silent that is heard now, if it is told to come back later than usual: twice that
    /// from now.
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        let usual = self.settings.poll_interval;
        let interval = self.load.interval(usual);
        (usual < interval).then(|| now + delta(interval) * 2)
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }
}

/// tonic says `OUT_OF_RANGE` of a message that is too large; the word for it is `RESOURCE_EXHAUSTED`.
fn name_what_is_too_large<B>(
    mut response: tonic::codegen::http::Response<B>,
) -> tonic::codegen::http::Response<B> {
    let status = response.headers_mut().get_mut("grpc-status");
    if let Some(code) = status.filter(|code| code.as_bytes() == b"11") {
        *code = tonic::codegen::http::HeaderValue::from_static("8");
    }
    response
}
