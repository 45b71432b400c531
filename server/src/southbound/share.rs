//! How many connections each address has.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The connections of all addresses. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    /// The most of one address; 0 is without limit.
    each: u32,
    taken: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

/// One connection of an address. It counts until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    of: Option<(Shares, IpAddr)>,
}

impl Shares {
    pub(super) fn new(each: u32) -> Self {
        Self {
            each,
            taken: Arc::default(),
        }
    }

    /// One more connection of an address; none if it has as many as it may. Whoever has one address of IPv6 has 2^64 of
    /// them, which count as one.
    pub(super) fn take(&self, address: IpAddr) -> Option<Share> {
        if self.each == 0 {
            return Some(Share { of: None });
        }
        let address = owner(address);
        let mut all = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = all.entry(address).or_default();
        if *taken >= self.each {
            return None;
        }
        *taken += 1;
        Some(Share {
            of: Some((self.clone(), address)),
        })
    }

    fn give_back(&self, address: IpAddr) {
        let mut all = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(taken) = all.get_mut(&address) else {
            return;
        };
        *taken = taken.saturating_sub(1);
        if *taken == 0 {
            all.remove(&address);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some((shares, address)) = self.of.take() {
            shares.give_back(address);
        }
    }
}

/// The address that stands for all that its owner has.
fn owner(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(all) => {
            let [a, b, c, d, ..] = all.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_as_many_connections_as_it_may_and_the_others_theirs() {
        let shares = Shares::new(2);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let first = shares.take(one);
        let second = shares.take(one);
        assert!(first.is_some() && second.is_some());
        assert!(shares.take(one).is_none());
        assert!(shares.take(other).is_some());
        drop(first);
        assert!(shares.take(one).is_some());
        drop(second);
        assert!(
            shares.taken.lock().unwrap().is_empty(),
            "nothing is kept of an address without connections"
        );
    }

    #[test]
    fn many_addresses_of_one_owner_count_as_one() {
        let shares = Shares::new(1);
        let _first = shares.take(address("2001:db8:0:1::1")).unwrap();
        assert!(shares.take(address("2001:db8:0:1:ffff::2")).is_none());
        assert!(shares.take(address("2001:db8:0:2::1")).is_some());
        let _mapped = shares.take(address("::ffff:192.0.2.1")).unwrap();
        assert!(shares.take(address("192.0.2.1")).is_none());
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let shares = Shares::new(0);
        let all: Vec<_> = (0..1_000).map(|_| shares.take(address("::1"))).collect();
        assert!(all.iter().all(Option::is_some));
        assert!(shares.taken.lock().unwrap().is_empty());
    }
}
