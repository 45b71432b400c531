//! Records of logins with a password in the change log, outside of projects.
//!
//! A login is recorded in the transaction that begins it. A refused login is recorded after the
//! response, so that it neither slows down nor changes the response; and only a limited number of
//! them, because anybody can cause them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_auth::users::is_new_name;
use evenkeel_kit::{Lifecycle, chain};
use evenkeel_store::changes::{self, EventKind};
use evenkeel_store::{Actor, ConnectionShare, FleetTx, Store, StoreError, users};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::access_log::truncate_name;
use super::user_store::UserStore;

/// Shortest time between two records of a name at an address, and between two records of the number
/// of failures that were left out.
const RECORD_INTERVAL: Duration = Duration::from_mins(1);

/// Most failures that a process records within [`RECORD_INTERVAL`].
const MAX_RECORDED_FAILURES: usize = 60;

/// The actor of failures with a name that does not exist. The name is not recorded: people type
/// passwords in its field.
const UNKNOWN_USER: &str = "(unknown user)";

/// The actor of the record of failures that were left out.
const SEVERAL_USERS: &str = "(several users)";

/// Why a login was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoginRefusal {
    /// The name or the password is wrong, or the user is disabled.
    BadCredentials,
    /// The user or the address must wait because of earlier failures.
    TooManyAttempts,
    /// The name is in the file of users and in the database.
    AmbiguousName,
}

/// Records a login in the transaction that begins it, which was opened for [`actor`].
pub(super) async fn record_login(tx: &FleetTx, name: &str) -> Result<(), StoreError> {
    changes::record_fleet_event(tx, EventKind::Login, json!({ "name": name })).await
}

/// The user behind a login. The endpoint has no ids of requests.
pub(super) fn actor(name: &str, client: Option<IpAddr>) -> Actor {
    Actor {
        name: name.to_owned(),
        request_id: String::new(),
        client_address: client.map(|address| address.to_string()).unwrap_or_default(),
    }
}

/// Records refused logins.
#[derive(Clone, Debug)]
pub(super) struct FailureRecorder {
    store: Store,
    users: Arc<UserStore>,
    recent: Arc<RecentFailures>,
    /// One record at a time, so that records take at most one connection of logins.
    writing: Arc<tokio::sync::Mutex<()>>,
}

/// A refused login.
#[derive(Debug)]
struct RefusedLogin {
    name: String,
    client: Option<IpAddr>,
    refusal: LoginRefusal,
}

impl FailureRecorder {
    pub(super) fn new(store: &Store, users: &Arc<UserStore>) -> Self {
        let store = store.with_share(ConnectionShare::Logins, None);
        Self { store, users: Arc::clone(users), recent: Arc::default(), writing: Arc::default() }
    }

    /// Records a refused login in the background.
    pub(super) fn record(&self, name: &str, client: Option<IpAddr>, refusal: LoginRefusal) {
        let name = truncate_name(name).to_owned();
        match self.recent.count(&name, client) {
            CountedFailure::Recorded => {
                let refused = RefusedLogin { name, client, refusal };
                let recorder = self.clone();
                Lifecycle::detach(Box::pin(async move { recorder.write_failure(refused).await }));
            }
            CountedFailure::FirstLeftOut => {
                let recorder = self.clone();
                Lifecycle::detach(Box::pin(async move {
                    sleep(RECORD_INTERVAL).await;
                    recorder.write_left_out().await;
                }));
            }
            CountedFailure::LeftOut => {}
        }
    }

    /// A failure that cannot be recorded counts among those that are left out.
    async fn write_failure(&self, refused: RefusedLogin) {
        if let Err(error) = self.try_write_failure(refused).await {
            tracing::warn!(error = %chain(&error), "a refused login was not recorded");
            self.recent.add_left_out(1);
        }
    }

    async fn try_write_failure(&self, refused: RefusedLogin) -> Result<(), StoreError> {
        let _writing = self.writing.lock().await;
        let RefusedLogin { name, client, refusal } = refused;
        let state = self.find_state(&name).await?;
        let reason = match (refusal, state) {
            (LoginRefusal::TooManyAttempts, _) => "too-many-attempts",
            (LoginRefusal::AmbiguousName, _) => "ambiguous-name",
            (LoginRefusal::BadCredentials, UserState::Unknown) => "unknown-user",
            (LoginRefusal::BadCredentials, UserState::Disabled) => "disabled-user",
            (LoginRefusal::BadCredentials, UserState::Enabled) => "wrong-password",
        };
        if state == UserState::Unknown {
            self.write(&actor(UNKNOWN_USER, client), json!({ "reason": reason })).await
        } else {
            let details = json!({ "name": name, "reason": reason });
            self.write(&actor(&name, client), details).await
        }
    }

    /// Records how many failures were left out since the last such record.
    async fn write_left_out(&self) {
        let _writing = self.writing.lock().await;
        let left_out = self.recent.take_left_out();
        let details = json!({ "reason": "left-out", "failuresNotRecorded": left_out });
        if let Err(error) = self.write(&actor(SEVERAL_USERS, None), details).await {
            tracing::warn!(error = %chain(&error), left_out, "the number of refused logins was not recorded");
            self.recent.add_left_out(left_out);
        }
    }

    async fn write(&self, actor: &Actor, details: Value) -> Result<(), StoreError> {
        let tx = self.store.fleet_as(actor).await?;
        changes::record_fleet_event(&tx, EventKind::LoginFailure, details).await?;
        tx.commit().await
    }

    /// Whether a name is that of a user, in the file or in the database.
    async fn find_state(&self, name: &str) -> Result<UserState, StoreError> {
        let (people, owned_name) = (Arc::clone(&self.users), name.to_owned());
        let is_in_file =
            tokio::task::spawn_blocking(move || people.current_users().find(&owned_name).is_some());
        // A panic of this task is a defect; then only the name is missing.
        if is_in_file.await.unwrap_or_default() {
            return Ok(UserState::Enabled);
        }
        // Postgres refuses some of the other names as texts.
        if !is_new_name(name) {
            return Ok(UserState::Unknown);
        }
        let tx = self.store.fleet().await?;
        Ok(match users::is_disabled(&tx, name).await? {
            None => UserState::Unknown,
            Some(true) => UserState::Disabled,
            Some(false) => UserState::Enabled,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UserState {
    Unknown,
    Disabled,
    Enabled,
}

/// The refused logins of the last minute.
#[derive(Debug, Default)]
struct RecentFailures(Mutex<FailureCounts>);

#[derive(Debug, Default)]
struct FailureCounts {
    /// When a failure of a name at an address was recorded.
    recorded: HashMap<(String, Option<IpAddr>), Instant>,
    /// Failures that were left out since the last record of their number.
    left_out: u64,
    /// Whether a task will record that number.
    is_record_due: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountedFailure {
    /// The caller records the failure.
    Recorded,
    /// The failure is not recorded. After [`RECORD_INTERVAL`], the caller records the number of these.
    FirstLeftOut,
    /// The failure is not recorded.
    LeftOut,
}

impl RecentFailures {
    fn count(&self, name: &str, client: Option<IpAddr>) -> CountedFailure {
        let now = Instant::now();
        let mut counts = self.lock();
        // At most `MAX_RECORDED_FAILURES` entries.
        counts.recorded.retain(|_, recorded_at| now < *recorded_at + RECORD_INTERVAL);
        let key = (name.to_owned(), client);
        if counts.recorded.len() < MAX_RECORDED_FAILURES && !counts.recorded.contains_key(&key) {
            counts.recorded.insert(key, now);
            return CountedFailure::Recorded;
        }
        counts.left_out += 1;
        if counts.is_record_due {
            return CountedFailure::LeftOut;
        }
        counts.is_record_due = true;
        CountedFailure::FirstLeftOut
    }

    /// Counts failures that could not be recorded. The next record of the number contains them.
    fn add_left_out(&self, failures: u64) {
        self.lock().left_out += failures;
    }

    fn take_left_out(&self) -> u64 {
        let mut counts = self.lock();
        counts.is_record_due = false;
        std::mem::take(&mut counts.left_out)
    }

    fn lock(&self) -> MutexGuard<'_, FailureCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_store::changes::ChangeFilter;
    use evenkeel_store::testing::fresh_store;

    use super::*;

    fn recorder(store: &Store) -> FailureRecorder {
        FailureRecorder::new(store, &Arc::new(UserStore::open(None).unwrap()))
    }

    #[tokio::test]
    async fn failures_that_are_left_out_are_counted_in_a_record() {
        let store = fresh_store().await;
        let recorder = recorder(&store);
        recorder.recent.add_left_out(3);
        recorder.write_left_out().await;
        let no_project = "00000000-0000-0000-0000-000000000000".parse().unwrap();
        let tx = store.snapshot(no_project).await.unwrap();
        let found = changes::list(&tx, &ChangeFilter::default(), None, 2).await.unwrap();
        assert_eq!(found.len(), 1);
        let expected = json!({"reason": "left-out", "failuresNotRecorded": 3});
        assert_eq!(
            (found[0].actor.as_deref(), &found[0].after),
            (Some(SEVERAL_USERS), &Some(expected))
        );
        assert_eq!(recorder.recent.take_left_out(), 0);
    }

    #[tokio::test]
    async fn a_failure_that_the_database_cannot_record_counts_among_those_left_out() {
        let store = fresh_store().await;
        let recorder = recorder(&store);
        store.close().await;
        let refusal = LoginRefusal::BadCredentials;
        let refused = RefusedLogin { name: "alice".to_owned(), client: None, refusal };
        recorder.write_failure(refused).await;
        recorder.write_left_out().await;
        assert_eq!(recorder.recent.take_left_out(), 1, "the next record has the number");
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_at_an_address_is_recorded_once_a_minute() {
        let recent = RecentFailures::default();
        let home = Some(IpAddr::from([192, 0, 2, 7]));
        assert_eq!(recent.count("alice", home), CountedFailure::Recorded);
        assert_eq!(recent.count("bob", home), CountedFailure::Recorded);
        assert_eq!(recent.count("alice", None), CountedFailure::Recorded);
        assert_eq!(recent.count("alice", home), CountedFailure::FirstLeftOut);
        assert_eq!(recent.count("alice", home), CountedFailure::LeftOut);
        tokio::time::advance(RECORD_INTERVAL).await;
        assert_eq!(recent.take_left_out(), 2);
        assert_eq!(recent.count("alice", home), CountedFailure::Recorded);
        assert_eq!(
            recent.count("alice", home),
            CountedFailure::FirstLeftOut,
            "a new record is due"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_records_in_a_minute_is_bounded() {
        let recent = RecentFailures::default();
        let count = |n: usize| recent.count(&n.to_string(), None);
        assert!((0..MAX_RECORDED_FAILURES).all(|n| count(n) == CountedFailure::Recorded));
        assert_eq!(count(MAX_RECORDED_FAILURES), CountedFailure::FirstLeftOut);
        assert!((0..1_000).all(|n| count(n) == CountedFailure::LeftOut));
        assert_eq!(recent.lock().recorded.len(), MAX_RECORDED_FAILURES);
        recent.add_left_out(1);
        assert_eq!(recent.take_left_out(), 1_002);
        tokio::time::advance(RECORD_INTERVAL).await;
        assert_eq!(count(MAX_RECORDED_FAILURES), CountedFailure::Recorded);
    }
}
