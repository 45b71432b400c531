//! State and settings of the API.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_auth::Authority;
use evenkeel_domain::os::catalogue::CatalogSelection;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::{Clock, KeyedPermit, KeyedSemaphore, max_per_project};
use evenkeel_store::Store;
use evenkeel_store::decisions::PlanningLimits;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use crate::change_feed::ChangeFeed;
use crate::password_checker::PasswordChecker;
use crate::refusals::RefusalLimiter;
use crate::reserved_names::ReservedNames;

/// Most streams of changes that read the database at the same time. A read takes milliseconds, and
/// other requests need the connections.
const MAX_WATCH_READS: usize = 2;

/// Most passwords that are hashed at the same time. Each takes a processor, and 19 MiB of memory.
const MAX_PASSWORD_HASHES: usize = 2;

/// How long a list with an expensive filter waits for others.
const EXPENSIVE_LIST_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the next chunk of such a list waits. Its client already has a part of the list, and a
/// failure would break the response. With the time that the client may take to read a chunk, it is
/// shorter than the time that the database allows a snapshot to be idle.
const NEXT_CHUNK_TIMEOUT: Duration = Duration::from_mins(1);

/// Longest pause after such a list. It is shorter than [`EXPENSIVE_LIST_TIMEOUT`], so that a single
/// user who reads page after page is never refused.
const MAX_EXPENSIVE_LIST_PAUSE: Duration = Duration::from_secs(2);

/// Everything that the API needs.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// The database.
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    /// Verifies the tokens.
    pub authority: Arc<Authority>,
    /// SHA-256 of the certificate authority's certificate, which join tokens contain. None if nodes
    /// do not need it to verify the server.
    pub ca_digest: Option<String>,
    /// Names of users that are in the file of users.
    pub reserved_names: ReservedNames,
    /// Checks the old password of users who change their own.
    pub password_checker: PasswordChecker,
    /// Settings of the API.
    pub settings: Settings,
}

/// Settings of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Largest body, in bytes.
    pub body_limit: usize,
    pub request_timeout: Duration,
    /// Planning limits of decisions; must be the same as in the maintenance manager.
    pub planning_limits: PlanningLimits,
    /// Origins whose pages may send requests, such as `https://ui.example.org`, or `*` for all.
    pub cors_origins: Vec<String>,
    /// Most lists that are streamed at the same time. Each holds a database connection while its
    /// client reads.
    pub max_streamed_lists: usize,
    /// Bytes per second that a client of a streamed list must read at least; 0 for no minimum.
    pub min_stream_rate: u64,
    /// Most lists with an expensive filter that the database reads at the same time; 0 refuses them.
    pub max_expensive_lists: usize,
    /// Percentage of the time in which the database may read such a list, from 1 to 100. After each
    /// list, the next one waits for the remaining time.
    pub expensive_list_percentage: u8,
    /// How long such a client may pause.
    pub stream_grace_period: Duration,
    /// Most streams of changes that are open at the same time; 0 refuses them.
    pub max_watchers: usize,
    /// Defaults for the registry settings of projects.
    pub os_defaults: OsDefaults,
    /// Whether the maintenance manager has a mail server, so that targets may have e-mail addresses.
    pub has_mail_server: bool,
    /// Whether the maintenance manager delivers to webhooks whose URLs begin with `http://`.
    pub allow_http_webhooks: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body_limit: 1024 * 1024,
            request_timeout: Duration::from_secs(15),
            planning_limits: PlanningLimits::default(),
            cors_origins: Vec::new(),
            max_streamed_lists: 8,
            min_stream_rate: 16 * 1024,
            max_expensive_lists: 1,
            expensive_list_percentage: 50,
            stream_grace_period: Duration::from_secs(15),
            max_watchers: 500,
            os_defaults: OsDefaults::default(),
            has_mail_server: false,
            allow_http_webhooks: false,
        }
    }
}

/// State of the handlers.
pub type App = Arc<AppState>;

/// The API with its runtime state.
#[derive(Debug)]
pub struct AppState {
    inventory: Inventory,
    pub streams: StreamLimiter,
    pub expensive_lists: ExpensiveListLimiter,
    /// Limits the streams of changes.
    pub watchers: StreamLimiter,
    /// Limits how many of them read the database at the same time.
    pub watch_reads: Semaphore,
    pub change_feed: ChangeFeed,
    pub refusals: RefusalLimiter,
    /// Limits how many passwords are hashed at the same time. Administrators of a project set
    /// passwords, and must not take the memory of other projects.
    pub password_hashes: Arc<Semaphore>,
}

impl AppState {
    pub fn new(inventory: Inventory) -> Self {
        let settings = &inventory.settings;
        Self {
            streams: StreamLimiter::new(settings.max_streamed_lists),
            expensive_lists: ExpensiveListLimiter::new(
                settings.max_expensive_lists,
                settings.expensive_list_percentage,
            ),
            watchers: StreamLimiter::new(settings.max_watchers),
            watch_reads: Semaphore::new(MAX_WATCH_READS),
            change_feed: ChangeFeed::default(),
            refusals: RefusalLimiter::default(),
            password_hashes: Arc::new(Semaphore::new(MAX_PASSWORD_HASHES)),
            inventory,
        }
    }
}

/// Limits how many long lists are streamed at the same time: in total, per project and per caller.
#[derive(Debug)]
pub struct StreamLimiter {
    all: Arc<Semaphore>,
    per_project: KeyedSemaphore<TenantId>,
    per_caller: KeyedSemaphore<Arc<str>>,
}

/// Permission to stream a long list; returned on drop.
#[derive(Debug)]
pub struct StreamPermit {
    _permit: OwnedSemaphorePermit,
    _project: KeyedPermit<TenantId>,
    _caller: KeyedPermit<Arc<str>>,
}

impl StreamLimiter {
    fn new(max: usize) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            all: Arc::new(Semaphore::new(max)),
            per_project: KeyedSemaphore::new(max_per_project(max)),
            per_caller: KeyedSemaphore::new(max.div_ceil(2)),
        }
    }

    /// Takes a permit to stream a list of a project for a caller; none if too many are being
    /// streamed.
    pub fn try_acquire(&self, project: TenantId, caller: &str) -> Option<StreamPermit> {
        let caller = self.per_caller.try_acquire(caller.into())?;
        let project = self.per_project.try_acquire(project)?;
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(StreamPermit { _permit: permit, _project: project, _caller: caller })
    }
}

/// Limits how many lists with an expensive filter the database reads at the same time, and for how
/// much of the time, because each uses a processor of the database that the statements of nodes need.
#[derive(Debug)]
pub struct ExpensiveListLimiter {
    max: usize,
    /// Length of the pause after a list, as a multiple of the time that the list took.
    pause_factor: f64,
    all: Arc<Semaphore>,
    per_project: KeyedSemaphore<Arc<str>>,
    per_caller: KeyedSemaphore<Arc<str>>,
}

/// Who reads a list with an expensive filter.
#[derive(Clone, Debug)]
pub struct ListReader {
    /// The project as the request names it.
    pub project: Arc<str>,
    pub caller: Arc<str>,
}

/// Permission to read a list with an expensive filter. It is returned after the pause that follows
/// its drop.
#[derive(Debug)]
pub struct ExpensiveListPermit {
    /// None after the drop.
    held: Option<(OwnedSemaphorePermit, [KeyedPermit<Arc<str>>; 2])>,
    acquired: Instant,
    pause_factor: f64,
}

impl ExpensiveListLimiter {
    fn new(max: usize, percentage: u8) -> Self {
        let max = max.min(Semaphore::MAX_PERMITS);
        Self {
            max,
            pause_factor: 100.0 / f64::from(percentage.clamp(1, 100)) - 1.0,
            all: Arc::new(Semaphore::new(max)),
            per_project: KeyedSemaphore::new(max_per_project(max)),
            per_caller: KeyedSemaphore::new(1),
        }
    }

    /// Waits for a permit, at most for [`EXPENSIVE_LIST_TIMEOUT`]. A caller reads one such list at a
    /// time, and a project leaves a part to others, so projects take turns, and the callers of each.
    pub async fn acquire(&self, reader: &ListReader) -> Option<ExpensiveListPermit> {
        self.acquire_within(EXPENSIVE_LIST_TIMEOUT, reader).await
    }

    /// Waits for a permit to read the next chunk of a list, at most for [`NEXT_CHUNK_TIMEOUT`].
    pub async fn acquire_for_next_chunk(&self, reader: &ListReader) -> Option<ExpensiveListPermit> {
        self.acquire_within(NEXT_CHUNK_TIMEOUT, reader).await
    }

    async fn acquire_within(
        &self,
        within: Duration,
        reader: &ListReader,
    ) -> Option<ExpensiveListPermit> {
        if self.max == 0 {
            return None;
        }
        let acquire = async {
            let caller = self.per_caller.acquire(Arc::clone(&reader.caller)).await;
            let project = self.per_project.acquire(Arc::clone(&reader.project)).await;
            let permit = Arc::clone(&self.all).acquire_owned().await.ok()?;
            Some(ExpensiveListPermit {
                held: Some((permit, [project, caller])),
                acquired: Instant::now(),
                pause_factor: self.pause_factor,
            })
        };
        timeout(within, acquire).await.ok().flatten()
    }
}

impl Drop for ExpensiveListPermit {
    fn drop(&mut self) {
        let pause = self.acquired.elapsed().mul_f64(self.pause_factor);
        let pause = pause.min(MAX_EXPENSIVE_LIST_PAUSE);
        // Without a runtime, the server is ending.
        if let (Some(held), Ok(runtime)) = (self.held.take(), Handle::try_current()) {
            runtime.spawn(async move {
                sleep(pause).await;
                drop(held);
            });
        }
    }
}

impl Deref for AppState {
    type Target = Inventory;

    fn deref(&self) -> &Inventory {
        &self.inventory
    }
}

/// Defaults of the server for the registry settings of projects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsDefaults {
    /// Names of the registries in the server's configuration.
    pub registries: Vec<String>,
    /// Default selection of the server.
    pub selection: CatalogSelection,
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn reader(project: &str, caller: &str) -> ListReader {
        ListReader { project: project.into(), caller: caller.into() }
    }

    fn project(n: u128) -> TenantId {
        TenantId::new(Uuid::from_u128(n))
    }

    /// Takes permits for callers that each stream one list, until there is none.
    fn take_all(streams: &StreamLimiter, n: u128) -> Vec<StreamPermit> {
        let take = |caller: u32| streams.try_acquire(project(n), &format!("{n} {caller}"));
        (0..100).map_while(take).collect()
    }

    #[test]
    fn a_project_leaves_streams_to_others() {
        for (max, most) in [(0, 0), (1, 1), (2, 1), (8, 6)] {
            let streams = StreamLimiter::new(max);
            let taken = take_all(&streams, 1);
            assert_eq!(taken.len(), most, "of {max}");
            let others = take_all(&streams, 2);
            assert_eq!(taken.len() + others.len(), max, "of {max}");
            drop(taken);
            assert_eq!(streams.try_acquire(project(1), "one").is_some(), max > 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_take_turns_with_expensive_lists() {
        let lists = ExpensiveListLimiter::new(1, 100);
        let first = lists.acquire(&reader("ours", "one")).await.expect("a permit");
        assert!(lists.acquire(&reader("ours", "two")).await.is_none(), "after the timeout");
        let take_turn = async |caller| lists.acquire(&reader("ours", caller)).await.is_some();
        let release = async { drop(first) };
        let (again, other, ()) = tokio::join!(take_turn("one"), take_turn("two"), release);
        assert!(again && other);
    }

    #[tokio::test(start_paused = true)]
    async fn a_project_with_many_callers_leaves_expensive_lists_to_others() {
        let lists = ExpensiveListLimiter::new(1, 100);
        let order = std::sync::Mutex::new(Vec::new());
        let read = async |project: &'static str, caller: &'static str| {
            let permit = lists.acquire(&reader(project, caller)).await.expect("a permit");
            order.lock().expect("no panic").push(caller);
            sleep(Duration::from_millis(100)).await;
            drop(permit);
        };
        tokio::join!(
            read("ours", "one"),
            read("ours", "two"),
            read("ours", "three"),
            read("theirs", "other"),
        );
        let order = order.into_inner().expect("no panic");
        assert_eq!(order, ["one", "other", "two", "three"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_reads_one_expensive_list_at_a_time() {
        let lists = ExpensiveListLimiter::new(3, 100);
        let _first = lists.acquire(&reader("ours", "one")).await.expect("a permit");
        assert!(lists.acquire(&reader("ours", "one")).await.is_none());
        assert!(lists.acquire(&reader("ours", "other")).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_has_begun_waits_longer_than_a_new_one() {
        let lists = ExpensiveListLimiter::new(1, 100);
        let first = lists.acquire(&reader("ours", "one")).await.expect("a permit");
        let release = async {
            sleep(EXPENSIVE_LIST_TIMEOUT * 2).await;
            drop(first);
        };
        let (two, three) = (reader("ours", "two"), reader("ours", "three"));
        let (new, begun, ()) =
            tokio::join!(lists.acquire(&two), lists.acquire_for_next_chunk(&three), release);
        assert!(new.is_none() && begun.is_some());
    }

    #[test]
    fn a_caller_leaves_streams_to_others() {
        for (max, most) in [(1, 1), (2, 1), (5, 3), (8, 4)] {
            let streams = StreamLimiter::new(max);
            let take = |n: u128| streams.try_acquire(project(n), "one");
            let taken: Vec<_> = (0..100).map_while(take).collect();
            assert_eq!(taken.len(), most, "of {max}");
            assert_eq!(streams.try_acquire(project(100), "other").is_some(), max > 1);
        }
    }

    /// Reads lists of two callers by turns, each for 100 ms. Returns when each of them began, in
    /// milliseconds.
    async fn times_of_lists(percentage: u8) -> Vec<u128> {
        let limiter = ExpensiveListLimiter::new(1, percentage);
        let began = Instant::now();
        let mut times = Vec::new();
        for caller in ["one", "two", "one"] {
            let permit = limiter.acquire(&reader("ours", caller)).await.expect("a permit");
            times.push(began.elapsed().as_millis());
            sleep(Duration::from_millis(100)).await;
            drop(permit);
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_expensive_list_the_next_one_waits_for_the_time_of_others() {
        for (percentage, expected) in
            [(100, [0, 100, 200]), (50, [0, 200, 400]), (25, [0, 400, 800])]
        {
            let times = times_of_lists(percentage).await;
            let is_close = |(time, expected): (&u128, u128)| time.abs_diff(expected) <= 5;
            assert!(times.iter().zip(expected).all(is_close), "{percentage}: {times:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_waits_too_long_for_an_expensive_list_gets_no_permit() {
        let limiter = ExpensiveListLimiter::new(1, 50);
        let first = limiter.acquire(&reader("ours", "one")).await.expect("a permit");
        assert!(limiter.acquire(&reader("ours", "two")).await.is_none());
        assert!(
            limiter.acquire(&reader("ours", "one")).await.is_none(),
            "one list of a caller at a time"
        );
        drop(first);
        // The pause is as long as the list took, but shorter than the timeout.
        assert!(limiter.acquire(&reader("ours", "one")).await.is_some());
    }

    #[tokio::test]
    async fn without_permits_expensive_lists_are_refused() {
        assert!(ExpensiveListLimiter::new(0, 50).acquire(&reader("ours", "one")).await.is_none());
    }
}
