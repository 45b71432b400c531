//! Attempts to log in: whoever fails again and again waits longer and longer, by name and by address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// How many names and addresses are remembered at most.
const MOST: usize = 10_000;

/// So many attempts with a name fail without a wait, and so many from an address, behind which may be several people.
const FREE_FOR_A_NAME: u32 = 5;
const FREE_FOR_AN_ADDRESS: u32 = 20;

/// The longest wait.
const LONGEST: TimeDelta = TimeDelta::minutes(5);

/// After this time without another attempt all is forgotten.
const FORGOTTEN: TimeDelta = TimeDelta::hours(1);

/// After this time a login that was begun is decided: it succeeded, or it is one that failed.
const DECIDED: TimeDelta = TimeDelta::minutes(1);

/// The longest name that is told from others, in bytes.
const LONGEST_NAME: usize = 128;

/// The attempts that failed lately.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<HashMap<Who, Failed>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    Name(String),
    Address(IpAddr),
}

#[derive(Clone, Debug)]
struct Failed {
    tally: Tally,
    /// Attempts after these, which count as well and may yet turn out to have succeeded.
    open: Vec<DateTime<Utc>>,
}

/// How many count, and when the last of them was.
#[derive(Clone, Copy, Debug)]
struct Tally {
    count: u32,
    last: DateTime<Utc>,
}

impl Tally {
    /// One is forgiven for each of the longest waits that passed since the last. Whoever waits no longer than that and
    /// goes on gains nothing: one is forgiven, one is added.
    fn and_one(self, at: DateTime<Utc>) -> Self {
        let passed = at - self.last;
        let forgiven = passed.num_seconds().max(0) / LONGEST.num_seconds();
        let left = if passed > FORGOTTEN {
            0
        } else {
            let forgiven = u32::try_from(forgiven).unwrap_or(u32::MAX);
            self.count.saturating_sub(forgiven)
        };
        Self {
            count: left.saturating_add(1),
            last: at,
        }
    }
}

impl Failed {
    fn none(now: DateTime<Utc>) -> Self {
        Self {
            tally: Tally {
                count: 0,
                last: now,
            },
            open: Vec::new(),
        }
    }

    /// All of them, the open ones as well.
    fn all(&self) -> Tally {
        let open = self.open.iter();
        open.fold(self.tally, |tally, at| tally.and_one(*at))
    }

    /// When the next attempt may be made; none if it need not wait, whatever the clock says.
    fn until(&self, who: &Who) -> Option<DateTime<Utc>> {
        let free = match who {
            Who::Name(_) => FREE_FOR_A_NAME,
            Who::Address(_) => FREE_FOR_AN_ADDRESS,
        };
        let all = self.all();
        let over = all.count.checked_sub(free)?;
        let wait = TimeDelta::seconds(1_i64 << over.min(10)).min(LONGEST);
        Some(all.last + wait)
    }

    fn begin(&mut self, now: DateTime<Utc>) {
        let is_open = |at: &DateTime<Utc>| *at + DECIDED >= now;
        let decided = self.open.iter().position(is_open);
        let decided = decided.unwrap_or(self.open.len());
        for at in self.open.drain(..decided) {
            self.tally = self.tally.and_one(at);
        }
        self.open.push(now);
    }

    /// Leaves what was before the attempt. Which of the open ones it was matters little: they are about as old.
    fn take_one_back(&mut self) {
        if self.open.pop().is_none() {
            self.tally.count = self.tally.count.saturating_sub(1);
        }
    }

    fn last(&self) -> DateTime<Utc> {
        self.open.last().copied().unwrap_or(self.tally.last)
    }

    fn is_forgotten(&self, now: DateTime<Utc>) -> bool {
        self.last() + FORGOTTEN < now
    }
}

impl Attempts {
    /// Notes an attempt, which counts as failed until it succeeds: of many at once each is one. The error is how long to
    /// wait before it may be made.
    pub(super) fn begin(
        &self,
        name: &str,
        address: Option<IpAddr>,
        now: DateTime<Utc>,
    ) -> Result<(), Duration> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let both = both(name, address);
        let open = both
            .iter()
            .filter_map(|who| all.get(who).and_then(|failed| failed.until(who)));
        if let Some(until) = open.max().filter(|until| now < *until) {
            return Err((until - now).to_std().unwrap_or_default());
        }
        for who in both {
            make_room(&mut all, &who, now);
            let failed = all.entry(who).or_insert_with(|| Failed::none(now));
            failed.begin(now);
        }
        Ok(())
    }

    /// Notes that the last attempt was none that failed. Others from the same address still count, as if it had not been.
    pub(super) fn succeeded(&self, name: &str, address: Option<IpAddr>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for who in both(name, address) {
            match who {
                Who::Name(_) => {
                    all.remove(&who);
                }
                Who::Address(_) => {
                    if let Some(failed) = all.get_mut(&who) {
                        failed.take_one_back();
                        if failed.all().count == 0 {
                            all.remove(&who);
                        }
                    }
                }
            }
        }
    }
}

fn both(name: &str, address: Option<IpAddr>) -> Vec<Who> {
    let end = name.floor_char_boundary(LONGEST_NAME);
    let mut both = vec![Who::Name(name[..end].to_owned())];
    both.extend(address.map(|address| Who::Address(network(address))));
    both
}

/// Whoever has one address of IPv6 has 2^64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(all) => {
            let [a, b, c, d, ..] = all.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Forgets what is over, or else what is oldest.
fn make_room(all: &mut HashMap<Who, Failed>, new: &Who, now: DateTime<Utc>) {
    if all.len() < MOST || all.contains_key(new) {
        return;
    }
    all.retain(|_, failed| !failed.is_forgotten(now));
    if all.len() < MOST {
        return;
    }
    let oldest = all.iter().min_by_key(|(_, failed)| failed.last());
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
    fn whoever_fails_again_and_again_waits_longer_and_longer() {
        let attempts = Attempts::default();
        for _ in 0..5 {
            assert_eq!(attempts.begin("alice", Some(address(1)), NOON), Ok(()));
        }
        let mut now = NOON;
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            let wait = Duration::from_secs(seconds);
            assert_eq!(attempts.begin("alice", Some(address(2)), now), Err(wait));
            now += TimeDelta::from_std(wait).unwrap();
            assert_eq!(attempts.begin("alice", Some(address(3)), now), Ok(()));
        }
        assert_eq!(
            attempts.begin("bob", Some(address(3)), now),
            Ok(()),
            "another"
        );
    }

    #[test]
    fn an_address_is_limited_whatever_name_it_tries() {
        let attempts = Attempts::default();
        for n in 0..20 {
            assert_eq!(
                attempts.begin(&n.to_string(), Some(address(1)), NOON),
                Ok(())
            );
        }
        let refused = attempts.begin("one more", Some(address(1)), NOON);
        assert_eq!(refused, Err(Duration::from_secs(1)));
        assert_eq!(attempts.begin("one more", Some(address(2)), NOON), Ok(()));
        let home = |text: &str| text.parse().ok();
        for n in 0..20 {
            let (name, address) = (format!("v6 {n}"), home(&format!("2001:db8::{n}")));
            assert_eq!(attempts.begin(&name, address, NOON), Ok(()));
        }
        let refused = attempts.begin("v6", home("2001:db8::ffff"), NOON);
        assert!(refused.is_err(), "one house");
        assert!(attempts.begin("v6", home("2001:db9::1"), NOON).is_ok());
    }

    #[test]
    fn a_success_frees_the_name_and_not_the_address() {
        let attempts = Attempts::default();
        for n in 0..19 {
            attempts
                .begin(&n.to_string(), Some(address(1)), NOON)
                .unwrap();
        }
        for _ in 0..5 {
            attempts.begin("alice", Some(address(1)), NOON).unwrap();
            attempts.succeeded("alice", Some(address(1)));
        }
        attempts.begin("alice", Some(address(1)), NOON).unwrap();
        assert!(attempts.begin("bob", Some(address(1)), NOON).is_err());
    }

    #[test]
    fn right_logins_do_not_keep_the_few_wrong_ones_of_an_office_alive() {
        let attempts = Attempts::default();
        let office = Some(address(1));
        for n in 0..1_000 {
            let now = at(n * 1_800);
            if n % 10 == 0 {
                assert_eq!(attempts.begin("bob", office, now), Ok(()), "{n}");
            }
            for second in [0, 1] {
                let now = now + TimeDelta::seconds(second);
                assert_eq!(attempts.begin("alice", office, now), Ok(()), "{n}");
                attempts.succeeded("alice", office);
            }
        }
    }

    #[test]
    fn a_right_login_after_too_many_wrong_ones_makes_the_next_wait_no_longer() {
        let attempts = Attempts::default();
        let office = Some(address(1));
        for n in 0..20 {
            attempts.begin(&n.to_string(), office, NOON).unwrap();
        }
        for _ in 0..3 {
            assert_eq!(attempts.begin("alice", office, at(1)), Ok(()));
            attempts.succeeded("alice", office);
        }
    }

    #[test]
    fn below_the_limit_nobody_waits_whatever_the_clock_says() {
        let attempts = Attempts::default();
        let office = Some(address(1));
        for now in [at(3_600), at(3_600), at(3_599), NOON] {
            assert_eq!(attempts.begin("alice", office, now), Ok(()));
            assert_eq!(attempts.begin("bob", office, now), Ok(()));
        }
    }

    #[test]
    fn of_logins_at_the_same_time_none_counts_that_succeeds() {
        let attempts = Attempts::default();
        let office = Some(address(1));
        for n in 0..1_000 {
            let now = at(n);
            for name in ["alice", "bob", "carol"] {
                assert_eq!(attempts.begin(name, office, now), Ok(()), "{n}");
            }
            for name in ["bob", "alice", "carol"] {
                attempts.succeeded(name, office);
            }
        }
        assert!(attempts.0.lock().unwrap().is_empty());
    }

    #[test]
    fn whoever_guesses_gains_nothing_by_right_logins_in_between() {
        let attempts = Attempts::default();
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
            attempts.succeeded("mallory", home);
            let victim = format!("victim {n}");
            assert_eq!(attempts.begin(&victim, home, now), Ok(()));
        }
    }

    #[test]
    fn failures_are_forgiven_one_by_one_while_nobody_fails() {
        let attempts = Attempts::default();
        let office = Some(address(1));
        for n in 0..20 {
            attempts.begin(&n.to_string(), office, NOON).unwrap();
        }
        // Three are forgiven in a quarter of an hour.
        let later = at(900);
        for name in ["a", "b", "c"] {
            assert_eq!(attempts.begin(name, office, later), Ok(()));
        }
        let wait = Duration::from_secs(1);
        assert_eq!(attempts.begin("d", office, later), Err(wait));
    }

    #[test]
    fn all_is_forgotten_in_time() {
        let attempts = Attempts::default();
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
    fn no_more_is_remembered_than_there_is_room_for() {
        let attempts = Attempts::default();
        for n in 0..MOST + 100 {
            let seconds = i64::try_from(n).unwrap() / 100;
            attempts.begin(&n.to_string(), None, at(seconds)).unwrap();
        }
        assert_eq!(attempts.0.lock().unwrap().len(), MOST);
        let long = "ü".repeat(10_000);
        attempts.begin(&long, None, at(1000)).unwrap();
        let kept = attempts.0.lock().unwrap();
        let longest = kept.keys().map(|who| match who {
            Who::Name(name) => name.len(),
            Who::Address(_) => 0,
        });
        assert!(longest.max() <= Some(LONGEST_NAME));
    }
}
