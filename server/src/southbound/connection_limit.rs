//! Limits the number of connections per address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Connections of all addresses. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct AddressLimits {
    /// Maximum number of connections per address; 0 for no limit.
    max_per_address: u32,
    in_use: Arc<Mutex<HashMap<IpAddr, u32>>>,
}

/// Connection of an address; released on drop.
#[derive(Debug)]
pub(super) struct AddressSlot {
    source: Option<(AddressLimits, IpAddr)>,
}

impl AddressLimits {
    pub(super) fn new(each: u32) -> Self {
        Self { max_per_address: each, in_use: Arc::default() }
    }

    /// Acquires one more connection of an address; `None` if its limit is reached. All addresses of
    /// an IPv6 /64 network count as one, because they usually have one owner.
    pub(super) fn acquire(&self, address: IpAddr) -> Option<AddressSlot> {
        if self.max_per_address == 0 {
            return Some(AddressSlot { source: None });
        }
        let address = client_network(address);
        let mut all = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(address).or_default();
        if *count >= self.max_per_address {
            return None;
        }
        *count += 1;
        Some(AddressSlot { source: Some((self.clone(), address)) })
    }

    fn release(&self, address: IpAddr) {
        let mut all = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = all.get_mut(&address) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            all.remove(&address);
        }
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        if let Some((shares, address)) = self.source.take() {
            shares.release(address);
        }
    }
}

/// Returns the address that stands for the whole network of the client.
fn client_network(address: IpAddr) -> IpAddr {
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
    fn each_address_has_its_own_limit() {
        let shares = AddressLimits::new(2);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let first = shares.acquire(one);
        let second = shares.acquire(one);
        assert!(first.is_some() && second.is_some());
        assert!(shares.acquire(one).is_none());
        assert!(shares.acquire(other).is_some());
        drop(first);
        assert!(shares.acquire(one).is_some());
        drop(second);
        assert!(
            shares.in_use.lock().unwrap().is_empty(),
            "an address without connections is not tracked"
        );
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let shares = AddressLimits::new(1);
        let _first = shares.acquire(address("2001:db8:0:1::1")).unwrap();
        assert!(shares.acquire(address("2001:db8:0:1:ffff::2")).is_none());
        assert!(shares.acquire(address("2001:db8:0:2::1")).is_some());
        let _mapped = shares.acquire(address("::ffff:192.0.2.1")).unwrap();
        assert!(shares.acquire(address("192.0.2.1")).is_none());
    }

    #[test]
    fn without_a_limit_no_address_is_tracked() {
        let shares = AddressLimits::new(0);
        let all: Vec<_> = (0..1_000).map(|_| shares.acquire(address("::1"))).collect();
        assert!(all.iter().all(Option::is_some));
        assert!(shares.in_use.lock().unwrap().is_empty());
    }
}
