//! Login attempts: repeated failures wait longer and longer.
//!
//! Failures are counted per name and address, per address, and, with a larger bound, per name. The
//! bound per name limits guesses from many addresses. It does not apply to an address from which
//! the user has logged in, so that another person cannot lock out the user.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// Maximum number of tracked names and addresses.
const MAX_TRACKED_KEYS: usize = 10_000;

/// Maximum number of tracked names with addresses from which they logged in.
const MAX_KNOWN_CLIENTS: usize = 10_000;

/// Failures without a delay, of a name at one address, of an address, and of a name at all
/// addresses. Several users may share an address.
const FREE_FAILURES_PER_NAME_AND_ADDRESS: u32 = 5;
const FREE_FAILURES_PER_ADDRESS: u32 = 20;
const FREE_FAILURES_PER_NAME: u32 = 50;

/// Maximum delay.
const MAX_WAIT: TimeDelta = TimeDelta::minutes(5);

/// Failures are forgotten after this time without another attempt.
const FAILURE_TTL: TimeDelta = TimeDelta::hours(1);

/// An attempt that has not succeeded within this time counts as failed for good.
const PENDING_TIMEOUT: TimeDelta = TimeDelta::minutes(1);

/// Maximum number of bytes by which names are distinguished.
const MAX_NAME_BYTES: usize = 128;

/// Recent failed attempts.
#[derive(Debug, Default)]
pub(super) struct LoginAttempts(Mutex<AttemptHistory>);

#[derive(Debug, Default)]
struct AttemptHistory {
    failures: HashMap<AttemptKey, FailureRecord>,
    /// Names and addresses with a successful login, and its time.
    known_clients: HashMap<AttemptKey, DateTime<Utc>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum AttemptKey {
    NameAtAddress(String, Option<IpAddr>),
    Name(String),
    Address(IpAddr),
}

#[derive(Clone, Debug)]
struct FailureRecord {
    tally: Tally,
    /// Attempts that count as failed but may still succeed.
    pending: Vec<DateTime<Utc>>,
}

/// Number of failures, and the time of the last one.
#[derive(Clone, Copy, Debug)]
struct Tally {
    count: u32,
    last: DateTime<Utc>,
}

impl Tally {
    /// Adds a failure. One earlier failure is forgiven for each `MAX_WAIT` since the last failure,
    /// so an attacker who waits for exactly that time gains nothing.
    fn add_failure(self, at: DateTime<Utc>) -> Self {
        let elapsed = at - self.last;
        let forgiven = elapsed.num_seconds().max(0) / MAX_WAIT.num_seconds();
        let left = if elapsed > FAILURE_TTL {
            0
        } else {
            let forgiven = u32::try_from(forgiven).unwrap_or(u32::MAX);
            self.count.saturating_sub(forgiven)
        };
        Self { count: left.saturating_add(1), last: at }
    }
}

impl FailureRecord {
    fn new(now: DateTime<Utc>) -> Self {
        Self { tally: Tally { count: 0, last: now }, pending: Vec::new() }
    }

    /// Returns all failures, including the pending ones.
    fn total(&self) -> Tally {
        let open = self.pending.iter();
        open.fold(self.tally, |tally, at| tally.add_failure(*at))
    }

    /// Returns when the next attempt is allowed; `None` if it need not wait, whatever the clock
    /// says.
    fn next_allowed_at(&self, who: &AttemptKey) -> Option<DateTime<Utc>> {
        let free = match who {
            AttemptKey::NameAtAddress(..) => FREE_FAILURES_PER_NAME_AND_ADDRESS,
            AttemptKey::Name(_) => FREE_FAILURES_PER_NAME,
            AttemptKey::Address(_) => FREE_FAILURES_PER_ADDRESS,
        };
        let all = self.total();
        let excess = all.count.checked_sub(free)?;
        let wait = TimeDelta::seconds(1_i64 << excess.min(10)).min(MAX_WAIT);
        Some(all.last + wait)
    }

    fn begin(&mut self, now: DateTime<Utc>) {
        let is_open = |at: &DateTime<Utc>| *at + PENDING_TIMEOUT >= now;
        let decided = self.pending.iter().position(is_open);
        let decided = decided.unwrap_or(self.pending.len());
        for at in self.pending.drain(..decided) {
            self.tally = self.tally.add_failure(at);
        }
        self.pending.push(now);
    }

    /// Removes the last attempt. If several are pending, it does not matter which one is removed,
    /// because they have about the same age.
    fn withdraw_last(&mut self) {
        if self.pending.pop().is_none() {
            self.tally.count = self.tally.count.saturating_sub(1);
        }
    }

    fn last_attempt_at(&self) -> DateTime<Utc> {
        self.pending.last().copied().unwrap_or(self.tally.last)
    }

    fn is_expired(&self, now: DateTime<Utc>) -> bool {
        self.last_attempt_at() + FAILURE_TTL < now
    }
}

impl LoginAttempts {
    /// Records an attempt, which counts as failed until it succeeds, so concurrent attempts are all
    /// counted. The error is the time to wait before the next attempt.
    pub(super) fn begin(
        &self,
        name: &str,
        address: Option<IpAddr>,
        now: DateTime<Utc>,
    ) -> Result<(), Duration> {
        let mut history = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let AttemptHistory { failures, known_clients } = &mut *history;
        let keys = attempt_keys(name, address);
        let is_known = keys.iter().any(|key| known_clients.contains_key(key));
        let open = keys
            .iter()
            .filter(|key| !(is_known && matches!(key, AttemptKey::Name(_))))
            .filter_map(|key| failures.get(key).and_then(|failed| failed.next_allowed_at(key)));
        if let Some(until) = open.max().filter(|until| now < *until) {
            return Err((until - now).to_std().unwrap_or_default());
        }
        for key in keys {
            evict(failures, &key, now);
            let failed = failures.entry(key).or_insert_with(|| FailureRecord::new(now));
            failed.begin(now);
        }
        Ok(())
    }

    /// Records the success of the last attempt. Failures of the name at the address are cleared;
    /// other failures of the name and of the address remain, without this attempt.
    pub(super) fn record_success(&self, name: &str, address: Option<IpAddr>, now: DateTime<Utc>) {
        let mut history = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let AttemptHistory { failures, known_clients } = &mut *history;
        for key in attempt_keys(name, address) {
            if matches!(key, AttemptKey::NameAtAddress(..)) {
                failures.remove(&key);
                remember(known_clients, key, now);
            } else if let Some(failed) = failures.get_mut(&key) {
                failed.withdraw_last();
                if failed.total().count == 0 {
                    failures.remove(&key);
                }
            }
        }
    }
}

fn attempt_keys(name: &str, address: Option<IpAddr>) -> Vec<AttemptKey> {
    let end = name.floor_char_boundary(MAX_NAME_BYTES);
    let (name, network) = (name[..end].to_owned(), address.map(client_network));
    let mut keys = vec![AttemptKey::NameAtAddress(name.clone(), network), AttemptKey::Name(name)];
    keys.extend(network.map(AttemptKey::Address));
    keys
}

/// Records a successful login. Replaces the oldest one if there are too many.
fn remember(
    known_clients: &mut HashMap<AttemptKey, DateTime<Utc>>,
    client: AttemptKey,
    now: DateTime<Utc>,
) {
    if known_clients.len() >= MAX_KNOWN_CLIENTS && !known_clients.contains_key(&client) {
        let oldest = known_clients.iter().min_by_key(|(_, at)| **at);
        if let Some(oldest) = oldest.map(|(client, _)| client.clone()) {
            known_clients.remove(&oldest);
        }
    }
    known_clients.insert(client, now);
}

/// The owner of an IPv6 address usually has a /64 network of addresses.
pub(super) fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(all) => {
            let [a, b, c, d, ..] = all.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Removes expired entries, or else the oldest one.
fn evict(all: &mut HashMap<AttemptKey, FailureRecord>, new: &AttemptKey, now: DateTime<Utc>) {
    if all.len() < MAX_TRACKED_KEYS || all.contains_key(new) {
        return;
    }
    all.retain(|_, failed| !failed.is_expired(now));
    if all.len() < MAX_TRACKED_KEYS {
        return;
    }
    let oldest = all.iter().min_by_key(|(_, failed)| failed.last_attempt_at());
    if let Some(oldest) = oldest.map(|(who, _)| who.clone()) {
        all.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();

    fn at(seconds: i64) -> DateTime<Utc> {
        NOON + TimeDelta::seconds(seconds)
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn repeated_failures_wait_longer_and_longer() {
        let attempts = LoginAttempts::default();
        for _ in 0..5 {
            assert_eq!(attempts.begin("alice", Some(address(1)), NOON), Ok(()));
        }
        let mut now = NOON;
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            let wait = Duration::from_secs(seconds);
            assert_eq!(attempts.begin("alice", Some(address(1)), now), Err(wait));
            now += TimeDelta::from_std(wait).unwrap();
            assert_eq!(attempts.begin("alice", Some(address(1)), now), Ok(()));
        }
        assert_eq!(attempts.begin("bob", Some(address(1)), now), Ok(()), "another name");
        assert_eq!(attempts.begin("alice", Some(address(2)), now), Ok(()), "another address");
    }

    #[test]
    fn failures_at_many_addresses_delay_a_name_except_where_it_has_logged_in() {
        let attempts = LoginAttempts::default();
        let office = Some(address(200));
        attempts.begin("alice", office, NOON).unwrap();
        attempts.record_success("alice", office, NOON);
        for n in 0..50 {
            assert_eq!(attempts.begin("alice", Some(address(n)), NOON), Ok(()), "{n}");
        }
        let refused = attempts.begin("alice", Some(address(100)), NOON);
        assert_eq!(refused, Err(Duration::from_secs(1)));
        assert_eq!(attempts.begin("alice", office, NOON), Ok(()));
        // Its own failures there count as everywhere.
        for _ in 0..4 {
            assert_eq!(attempts.begin("alice", office, NOON), Ok(()));
        }
        assert!(attempts.begin("alice", office, NOON).is_err());
    }

    #[test]
    fn the_number_of_known_clients_is_limited() {
        let attempts = LoginAttempts::default();
        for n in 0..MAX_KNOWN_CLIENTS + 10 {
            attempts.record_success(&n.to_string(), None, at(i64::try_from(n).unwrap()));
        }
        let history = attempts.0.lock().unwrap();
        assert_eq!(history.known_clients.len(), MAX_KNOWN_CLIENTS);
        let first = AttemptKey::NameAtAddress("0".to_owned(), None);
        assert!(!history.known_clients.contains_key(&first), "the oldest is forgotten");
    }

    #[test]
    fn an_address_is_limited_across_names() {
        let attempts = LoginAttempts::default();
        for n in 0..20 {
            assert_eq!(attempts.begin(&n.to_string(), Some(address(1)), NOON), Ok(()));
        }
        let refused = attempts.begin("another", Some(address(1)), NOON);
        assert_eq!(refused, Err(Duration::from_secs(1)));
        assert_eq!(attempts.begin("another", Some(address(2)), NOON), Ok(()));
        let home = |text: &str| text.parse().ok();
        for n in 0..20 {
            let (name, address) = (format!("v6 {n}"), home(&format!("2001:db8::{n}")));
            assert_eq!(attempts.begin(&name, address, NOON), Ok(()));
        }
        let refused = attempts.begin("v6", home("2001:db8::ffff"), NOON);
        assert!(refused.is_err(), "one network");
        assert!(attempts.begin("v6", home("2001:db9::1"), NOON).is_ok());
    }

    #[test]
    fn a_success_clears_the_name_but_not_the_address() {
        let attempts = LoginAttempts::default();
        for n in 0..19 {
            attempts.begin(&n.to_string(), Some(address(1)), NOON).unwrap();
        }
        for _ in 0..5 {
            attempts.begin("alice", Some(address(1)), NOON).unwrap();
            attempts.record_success("alice", Some(address(1)), NOON);
        }
        attempts.begin("alice", Some(address(1)), NOON).unwrap();
        assert!(attempts.begin("bob", Some(address(1)), NOON).is_err());
    }

    #[test]
    fn successful_logins_do_not_keep_old_failures_of_an_address_alive() {
        let attempts = LoginAttempts::default();
        let office = Some(address(1));
        for n in 0..1_000 {
            let now = at(n * 1_800);
            if n % 10 == 0 {
                assert_eq!(attempts.begin("bob", office, now), Ok(()), "{n}");
            }
            for second in [0, 1] {
                let now = now + TimeDelta::seconds(second);
                assert_eq!(attempts.begin("alice", office, now), Ok(()), "{n}");
                attempts.record_success("alice", office, NOON);
            }
        }
    }

    #[test]
    fn a_success_after_many_failures_does_not_lengthen_the_wait() {
        let attempts = LoginAttempts::default();
        let office = Some(address(1));
        for n in 0..20 {
            attempts.begin(&n.to_string(), office, NOON).unwrap();
        }
        for _ in 0..3 {
            assert_eq!(attempts.begin("alice", office, at(1)), Ok(()));
            attempts.record_success("alice", office, NOON);
        }
    }

    #[test]
    fn below_the_limit_no_attempt_waits_for_any_clock() {
        let attempts = LoginAttempts::default();
        let office = Some(address(1));
        for now in [at(3_600), at(3_600), at(3_599), NOON] {
            assert_eq!(attempts.begin("alice", office, now), Ok(()));
            assert_eq!(attempts.begin("bob", office, now), Ok(()));
        }
    }

    #[test]
    fn concurrent_successful_logins_record_no_failures() {
        let attempts = LoginAttempts::default();
        let office = Some(address(1));
        for n in 0..1_000 {
            let now = at(n);
            for name in ["alice", "bob", "carol"] {
                assert_eq!(attempts.begin(name, office, now), Ok(()), "{n}");
            }
            for name in ["bob", "alice", "carol"] {
                attempts.record_success(name, office, NOON);
            }
        }
        assert!(attempts.0.lock().unwrap().failures.is_empty());
    }

    #[test]
    fn successful_logins_do_not_speed_up_guessing() {
        let attempts = LoginAttempts::default();
        let home = Some(address(1));
        for n in 0..20 {
            attempts.begin(&n.to_string(), home, NOON).unwrap();
        }
        let mut now = NOON;
        let waits = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300];
        for (n, seconds) in waits.into_iter().enumerate() {
            let wait = Duration::from_secs(seconds);
            assert_eq!(attempts.begin("mallory", home, now), Err(wait));
            now += TimeDelta::from_std(wait).unwrap();
            assert_eq!(attempts.begin("mallory", home, now), Ok(()));
            attempts.record_success("mallory", home, now);
            let victim = format!("victim {n}");
            assert_eq!(attempts.begin(&victim, home, now), Ok(()));
        }
    }

    #[test]
    fn failures_expire_one_by_one() {
        let attempts = LoginAttempts::default();
        let office = Some(address(1));
        for n in 0..20 {
            attempts.begin(&n.to_string(), office, NOON).unwrap();
        }
        // Three failures are forgiven in 15 minutes.
        let later = at(900);
        for name in ["a", "b", "c"] {
            assert_eq!(attempts.begin(name, office, later), Ok(()));
        }
        let wait = Duration::from_secs(1);
        assert_eq!(attempts.begin("d", office, later), Err(wait));
    }

    #[test]
    fn all_failures_expire() {
        let attempts = LoginAttempts::default();
        for n in 0..5 {
            attempts.begin("alice", None, at(n)).unwrap();
        }
        assert!(attempts.begin("alice", None, at(4)).is_err());
        for _ in 0..5 {
            attempts.begin("alice", None, at(3 * 3600)).unwrap();
        }
        assert!(attempts.begin("alice", None, at(3 * 3600)).is_err());
    }

    #[test]
    fn the_number_of_tracked_keys_is_limited() {
        let attempts = LoginAttempts::default();
        // Each attempt has two keys.
        for n in 0..MAX_TRACKED_KEYS / 2 + 100 {
            let seconds = i64::try_from(n).unwrap() / 100;
            attempts.begin(&n.to_string(), None, at(seconds)).unwrap();
        }
        assert_eq!(attempts.0.lock().unwrap().failures.len(), MAX_TRACKED_KEYS);
        let long = "ü".repeat(10_000);
        attempts.begin(&long, None, at(1000)).unwrap();
        let history = attempts.0.lock().unwrap();
        let longest = history.failures.keys().map(|key| match key {
            AttemptKey::NameAtAddress(name, _) | AttemptKey::Name(name) => name.len(),
            AttemptKey::Address(_) => 0,
        });
        assert!(longest.max() <= Some(MAX_NAME_BYTES));
    }
}
