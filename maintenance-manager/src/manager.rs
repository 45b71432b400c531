//! The maintenance manager: shared state, services and tasks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_auth::{Authority, CertificateAuthority};
use evenkeel_domain::Time;
use evenkeel_kit::JobSchedule;
use evenkeel_kit::clock::Clock;
use evenkeel_kit::lifecycle::Lifecycle;
use evenkeel_kit::tick;
use evenkeel_proto::agent::agent_service_server::AgentServiceServer;
use evenkeel_proto::hostmgr::hostmgr_server::HostmgrServer;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrServiceServer;
use evenkeel_store::{Store, StoreError};
use tonic::Status;
use tonic::service::{LayerExt, Routes};
use tower::util::MapResponseLayer;
use uuid::Uuid;

use crate::admission::AdmissionLayer;
use crate::admission::concurrency::Load;
use crate::admission::daily_limits::DailyLimits;
use crate::admission::peer::Peer;
use crate::admission::rate_limit::RateLimiter;
use crate::admission::refusals::Refusals;
use crate::admission::semaphore::{ProjectWaitQueue, WaitQueue};
use crate::contacts::Contacts;
use crate::durations::loop_interval;
use crate::memory::MemoryPressure;
use crate::node_transaction::NodeWriter;
use crate::outage::Outage;
use crate::poll::PollAnswers;
use crate::poll::batch::PollBatcher;
use crate::poll::cache::{self, AnswerCache, CacheSizes, Invalidation, Lookup, NodeKey};
use crate::poll::long_poll::LongPolls;
use crate::settings::{InvalidSettings, Settings};
use crate::tasks::change_seals::ChangeSealing;
use crate::tasks::cleanup::Housekeeping;
use crate::tasks::image_updates::ImageWatch;
use crate::tasks::notification_deliveries::NotificationDeliveries;
use crate::tasks::outdated_lists::OutdatedListsWatch;
use crate::tasks::run_timeouts::RunReaper;
use crate::tasks::stale_nodes::SilentNodeWatch;
use crate::token_bindings::TokenBindings;

/// The maximum size of a message in bytes. A detail of 10 MiB is cut and stored; larger messages
/// are refused.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// The maximum number of enrolments at once; of one project, three quarters of it.
const MAX_CONCURRENT_ENROLMENTS: usize = 4;

/// The maximum number of join tokens whose project is read at once. This waits for no lock.
const MAX_JOIN_TOKEN_LOOKUPS: usize = 2;

/// How long a machine waits until its join token is read, and until it is enrolled.
const ENROLMENT_QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often expired tokens are removed.
const TOKEN_EXPIRY_INTERVAL: Duration = Duration::from_hours(1);

/// The shared state of the services for agents. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MaintenanceManager {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) authority: Arc<Authority>,
    /// Issues the certificates of nodes.
    pub(crate) ca: Arc<CertificateAuthority>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) contacts: Contacts,
    pub(crate) token_bindings: Arc<TokenBindings>,
    pub(crate) rate_limiter: Arc<RateLimiter>,
    pub(crate) daily_limits: Arc<DailyLimits>,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) outage: Arc<Outage>,
    /// Limits the join tokens whose project is read at once, before it is known.
    pub(crate) join_token_lookups: Arc<WaitQueue>,
    /// Limits the enrolments that run at once. Each holds a connection while it waits for the lock
    /// of its join token, and a roll-out must not take all connections.
    pub(crate) enrolments: Arc<ProjectWaitQueue>,
    /// Cached answers to polls.
    pub(crate) answer_cache: AnswerCache,
    /// Answers polls.
    pub(crate) poll_answers: Arc<PollAnswers>,
    /// Evaluates the polls that are not cached.
    pub(crate) poll_batcher: PollBatcher,
    /// Runs the writes of nodes.
    pub(crate) node_writer: NodeWriter,
    /// Long polls that wait for a change.
    pub(crate) long_polls: LongPolls,
    /// The load limits.
    pub(crate) load: Arc<Load>,
    memory: MemoryPressure,
    housekeeping_schedule: JobSchedule,
}

impl MaintenanceManager {
    /// A maintenance manager on a store.
    ///
    /// # Errors
    /// Names the first invalid setting.
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        authority: Arc<Authority>,
        ca: Arc<CertificateAuthority>,
        settings: Settings,
    ) -> Result<Self, InvalidSettings> {
        let housekeeping_schedule = settings.parse_housekeeping_schedule()?;
        let (settings, memory) = (Arc::new(settings), MemoryPressure::default());
        let answer_cache = AnswerCache::new(settings.answer_cache.clone());
        let load = Arc::new(Load::new(settings.load.clone()));
        let poll_batcher = PollBatcher::new(
            store.clone(),
            answer_cache.clone(),
            Arc::clone(&clock),
            Arc::clone(&load),
            (settings.poll_batch.clone(), settings.planning_limits()),
        );
        let poll_answers = PollAnswers::new(
            answer_cache.clone(),
            poll_batcher.clone(),
            Arc::clone(&clock),
            settings.answer_cache.audit_every,
        );
        let daily_limits = Arc::new(DailyLimits::new(&settings.daily_limits));
        let node_writer = NodeWriter {
            store: store.clone(),
            clock: Arc::clone(&clock),
            settings: Arc::clone(&settings),
            load: Arc::clone(&load),
            contacts: Contacts::default(),
            answer_cache: answer_cache.clone(),
            daily_limits: Arc::clone(&daily_limits),
        };
        Ok(Self {
            store,
            clock,
            authority,
            ca,
            rate_limiter: Arc::new(RateLimiter::new(&settings.rate_limit)),
            daily_limits,
            refusals: Arc::default(),
            outage: Arc::default(),
            answer_cache,
            poll_answers: Arc::new(poll_answers),
            poll_batcher,
            long_polls: LongPolls::new(settings.long_poll.clone(), memory.clone()),
            load,
            settings,
            contacts: node_writer.contacts.clone(),
            node_writer,
            token_bindings: Arc::new(TokenBindings::new()),
            join_token_lookups: Arc::new(WaitQueue::new(
                MAX_JOIN_TOKEN_LOOKUPS,
                usize::MAX,
                ENROLMENT_QUEUE_TIMEOUT,
            )),
            enrolments: Arc::new(ProjectWaitQueue::new(
                MAX_CONCURRENT_ENROLMENTS,
                usize::MAX,
                ENROLMENT_QUEUE_TIMEOUT,
            )),
            memory,
            housekeeping_schedule,
        })
    }

    /// The memory pressure that the server sets.
    #[must_use]
    pub fn memory(&self) -> MemoryPressure {
        self.memory.clone()
    }

    /// The gRPC services, for a server that speaks HTTP/2.
    #[must_use]
    pub fn services(&self) -> Routes {
        let ours =
            AgentServiceServer::new(self.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let eim =
            MaintmgrServiceServer::new(self.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let too_large = MapResponseLayer::new(map_too_large_status);
        // Heartbeats and hardware information are short, so the default message size (4 MiB) is
        // enough.
        let heartbeats = HostmgrServer::new(self.clone());
        let admission = AdmissionLayer::new(Arc::clone(&self.load));
        Routes::new(admission.named_layer(too_large.named_layer(ours)))
            .add_service(admission.named_layer(too_large.named_layer(eim)))
            .add_service(admission.named_layer(too_large.named_layer(heartbeats)))
    }

    /// Starts all tasks: contact times, run timeouts, silent nodes, image changes, housekeeping,
    /// notifications, the answer cache and the load. All of them may run in any number of processes on one
    /// database.
    pub fn start_tasks(&self, life: &Lifecycle) {
        self.start_log_follower(life);
        self.start_load_tasks(life);
        self.start_store_tasks(life);
    }

    /// Starts to follow the change log; from then on answers are cached. Once per process. Changes
    /// of the same process arrive through [`Store::send_hints`].
    pub fn start_log_follower(&self, life: &Lifecycle) {
        let (answer_cache, store, long_polls) =
            (self.answer_cache.clone(), self.store.clone(), self.long_polls.clone());
        let (outage, stopping) = (Arc::clone(&self.outage), life.stopping());
        life.spawn("change log", async move {
            let wake_affected = move |invalidation: &Invalidation| long_polls.wake(invalidation);
            let follower = cache::follow_log(answer_cache, store, outage, stopping, wake_affected);
            Box::pin(follower).await;
            Ok(())
        });
    }

    /// Starts the tasks that sample the load, and that end the long polls when the process stops.
    fn start_load_tasks(&self, life: &Lifecycle) {
        let (load, stopping) = (Arc::clone(&self.load), life.stopping());
        life.spawn("load", async move {
            load.watch(stopping).await;
            Ok(())
        });
        let (long_polls, stopping) = (self.long_polls.clone(), life.stopping());
        let load = Arc::clone(&self.load);
        life.spawn("long polls", async move {
            stopping.cancelled().await;
            load.note_drain();
            long_polls.drain();
            Ok(())
        });
        self.start_rechecks(life);
        self.start_token_expiry(life);
    }

    /// Starts to remove expired tokens. A scan of a million tokens takes too long for an async
    /// worker.
    fn start_token_expiry(&self, life: &Lifecycle) {
        let (authority, token_bindings) =
            (Arc::clone(&self.authority), Arc::clone(&self.token_bindings));
        let (clock, stopping) = (Arc::clone(&self.clock), life.stopping());
        life.spawn("expired tokens", async move {
            let mut ticks = tokio::time::interval(TOKEN_EXPIRY_INTERVAL);
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return Ok(()),
                    _ = ticks.tick() => {}
                }
                let (authority, token_bindings, now) =
                    (Arc::clone(&authority), Arc::clone(&token_bindings), clock.now());
                let remove_expired = move || {
                    authority.remove_expired_tokens(now);
                    token_bindings.remove_expired(now);
                };
                tokio::task::spawn_blocking(remove_expired).await?;
            }
        });
    }

    /// Starts to check long polls against the cache, a share at a time.
    pub fn start_rechecks(&self, life: &Lifecycle) {
        let (recheck_interval, max_interval) =
            (self.settings.long_poll.recheck_interval, Duration::from_secs(1));
        let interval = loop_interval(recheck_interval.min(max_interval));
        // A poll that is registered during a round is checked in the next one, hence the division
        // by two.
        let shares =
            usize::try_from(recheck_interval.as_millis() / interval.as_millis().max(1) / 2);
        let shares = shares.unwrap_or(usize::MAX);
        let (manager, stopping) = (self.clone(), life.stopping());
        life.spawn("rechecks", async move {
            let mut ticks = tick::aligned_interval(interval);
            loop {
                tokio::select! {
                    () = stopping.cancelled() => return Ok(()),
                    _ = ticks.tick() => manager.recheck(shares),
                }
            }
        });
    }

    /// Does nothing while the change log is not followed: the cache is empty then and would wake
    /// all polls.
    fn recheck(&self, shares: usize) {
        if self.answer_cache.last_pass().is_none() {
            return;
        }
        let now = self.now();
        self.long_polls.recheck(shares, |(tenant, host), cache_key| {
            let node = NodeKey::Host(tenant, host);
            matches!(self.answer_cache.lookup(&node, cache_key, now), Lookup::Hit(_))
        });
    }

    /// Starts to write the contact times. At a stop the last ones are written after the long polls
    /// have ended.
    pub fn start_contacts(&self, life: &Lifecycle) {
        let contacts = self.contacts.clone();
        let database = (self.store.clone(), Arc::clone(&self.clock));
        let interval = loop_interval(self.settings.contact_write_interval);
        let (stopping, outage) = (life.stopping(), Arc::clone(&self.outage));
        let load = Arc::clone(&self.load);
        life.spawn("contacts", async move {
            let stopped = async {
                stopping.cancelled().await;
                load.wait_for_drain().await;
            };
            contacts.run(database, interval, &outage, stopped).await;
            Ok(())
        });
    }

    /// Starts to exchange how far projects have used up their daily limits. At a stop the last
    /// amounts are written after the long polls have ended.
    fn start_daily_usage(&self, life: &Lifecycle) {
        let (limits, store) = (Arc::clone(&self.daily_limits), self.store.clone());
        let (stopping, outage) = (life.stopping(), Arc::clone(&self.outage));
        let load = Arc::clone(&self.load);
        life.spawn("daily usage", async move {
            let stopped = async {
                stopping.cancelled().await;
                load.wait_for_drain().await;
            };
            limits.projects().run(store, &outage, stopped).await;
            Ok(())
        });
    }

    /// Exchanges how far projects have used up their daily limits, once.
    ///
    /// # Errors
    /// The database cannot be reached or is busy; the next exchange writes the same.
    pub async fn exchange_daily_usage(&self) -> Result<(), StoreError> {
        self.daily_limits.projects().exchange(&self.store).await.map(drop)
    }

    fn start_store_tasks(&self, life: &Lifecycle) {
        self.start_contacts(life);
        self.start_daily_usage(life);
        let run_reaper =
            RunReaper::new(self.store.clone(), Arc::clone(&self.clock), &self.settings)
                .with_outage(&self.outage);
        let stopping = life.stopping();
        life.spawn("run reaper", async move {
            run_reaper.run(stopping).await;
            Ok(())
        });
        let silent_nodes =
            SilentNodeWatch::new(self.store.clone(), Arc::clone(&self.clock), &self.settings)
                .with_outage(&self.outage);
        let stopping = life.stopping();
        life.spawn("silent nodes", async move {
            silent_nodes.run(stopping).await;
            Ok(())
        });
        let outdated_lists = OutdatedListsWatch::new(self.store.clone(), Arc::clone(&self.clock))
            .with_outage(&self.outage);
        let stopping = life.stopping();
        life.spawn("outdated package lists", async move {
            outdated_lists.run(stopping).await;
            Ok(())
        });
        let images = ImageWatch::new(self.store.clone(), &self.settings).with_outage(&self.outage);
        let (image_changes, stopping) = (self.answer_cache.project_changes(), life.stopping());
        life.spawn("images", async move {
            images.run(image_changes, stopping).await;
            Ok(())
        });
        let housekeeping =
            Housekeeping::new(self.store.clone(), Arc::clone(&self.clock), &self.settings)
                .with_outage(&self.outage);
        let (schedule, stopping) = (self.housekeeping_schedule.clone(), life.stopping());
        life.spawn("housekeeping", async move {
            housekeeping.run(schedule, stopping).await?;
            Ok(())
        });
        let (sealing, outage) = (ChangeSealing::new(self.store.clone()), Arc::clone(&self.outage));
        let stopping = life.stopping();
        life.spawn("change seals", async move {
            sealing.run(&outage, stopping).await;
            Ok(())
        });
        self.start_notifications(life);
    }

    /// Starts to deliver notifications.
    fn start_notifications(&self, life: &Lifecycle) {
        let (store, clock) = (self.store.clone(), Arc::clone(&self.clock));
        let (settings, smtp) = (&self.settings.notifications, &self.settings.smtp);
        let deliveries = NotificationDeliveries::new(store, clock, settings, smtp);
        let deliveries = deliveries.with_outage(&self.outage);
        let stopping = life.stopping();
        life.spawn("notifications", async move {
            Box::pin(deliveries.run(stopping)).await;
            Ok(())
        });
    }

    /// Waits until all earlier commits are applied to the cache. Returns false after a time limit,
    /// or if the change log is not followed.
    pub async fn wait_until_caught_up(&self) -> bool {
        self.answer_cache.fence(Instant::now()).await
    }

    /// The size of the answer cache.
    #[must_use]
    pub fn cache_sizes(&self) -> CacheSizes {
        self.answer_cache.sizes()
    }

    /// The number of long polls.
    #[must_use]
    pub fn long_poll_count(&self) -> usize {
        self.long_polls.len()
    }

    /// The number of cached answers that differed from the database in an audit.
    #[must_use]
    pub fn cache_mismatches(&self) -> u64 {
        self.poll_answers.mismatches()
    }

    /// Records the result of a call of a peer for the log.
    pub(crate) fn note<T>(&self, peer: &Peer, call: &'static str, answer: &Result<T, Status>) {
        self.note_with_uuid((peer, None), call, answer);
    }

    /// Like [`Self::note`], for a peer that claims a UUID.
    pub(crate) fn note_with_uuid<T>(
        &self,
        caller: (&Peer, Option<Uuid>),
        call: &'static str,
        answer: &Result<T, Status>,
    ) {
        self.outage.note_call(call, answer);
        self.refusals.record(caller, call, answer, self.now());
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }
}

/// tonic reports `OUT_OF_RANGE` for a message that is too large; the standard code is
/// `RESOURCE_EXHAUSTED`.
fn map_too_large_status<B>(
    mut response: tonic::codegen::http::Response<B>,
) -> tonic::codegen::http::Response<B> {
    let status = response.headers_mut().get_mut("grpc-status");
    if let Some(code) = status.filter(|code| code.as_bytes() == b"11") {
        *code = tonic::codegen::http::HeaderValue::from_static("8");
    }
    response
}
