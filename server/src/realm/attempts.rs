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

#[derive(Clone, Copy, Debug)]
struct Failed {
    count: u32,
    last: DateTime<Utc>,
}

impl Failed {
    /// When the next attempt may be made.
    fn until(self, who: &Who) -> DateTime<Utc> {
        let free = match who {
            Who::Name(_) => FREE_FOR_A_NAME,
            Who::Address(_) => FREE_FOR_AN_ADDRESS,
        };
        let wait = match self.count.checked_sub(free) {
            None => TimeDelta::zero(),
            Some(over) => TimeDelta::seconds(1_i64 << over.min(10)).min(LONGEST),
        };
        self.last + wait
    }

    fn is_forgotten(self, now: DateTime<Utc>) -> bool {
        self.last + FORGOTTEN < now
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
            .filter_map(|who| all.get(who).map(|failed| failed.until(who)));
        if let Some(until) = open.max().filter(|until| now < *until) {
            return Err((until - now).to_std().unwrap_or_default());
        }
        for who in both {
            make_room(&mut all, &who, now);
            let failed = all.entry(who).or_insert(Failed {
                count: 0,
                last: now,
            });
            if failed.is_forgotten(now) {
                failed.count = 0;
            }
            failed.count = failed.count.saturating_add(1);
            failed.last = now;
        }
        Ok(())
    }

    /// Notes that the last attempt was none that failed. Others from the same address still count.
    pub(super) fn succeeded(&self, name: &str, address: Option<IpAddr>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for who in both(name, address) {
            match who {
                Who::Name(_) => {
                    all.remove(&who);
                }
                Who::Address(_) => {
                    if let Some(failed) = all.get_mut(&who) {
                        failed.count = failed.count.saturating_sub(1);
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
    let oldest = all.iter().min_by_key(|(_, failed)| failed.last);
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
