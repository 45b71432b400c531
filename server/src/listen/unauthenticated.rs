//! Connections whose peer has not authenticated yet. Their number is limited. If all slots are in
//! use, a new connection replaces the oldest of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Minimum age of a connection that a new one replaces. The peer of a younger one may be about to
/// authenticate. Otherwise no node could authenticate while many nodes reconnect.
const MIN_AGE: Duration = Duration::from_secs(3);

/// Maximum numbers of unauthenticated connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnauthenticatedLimits {
    pub(crate) total: usize,
    /// Per IPv4 address or IPv6 /64 network; 0 for no limit.
    pub(crate) per_address: usize,
}

/// The unauthenticated connections of a listener. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct UnauthenticatedConnections(Arc<UnauthenticatedInner>);

#[derive(Debug)]
struct UnauthenticatedInner {
    limits: UnauthenticatedLimits,
    registry: Mutex<ConnectionRegistry>,
    /// Notified when a connection leaves.
    left: Notify,
}

#[derive(Debug, Default)]
struct ConnectionRegistry {
    next_number: u64,
    /// By number, so the oldest is the first.
    open: BTreeMap<u64, OpenConnection>,
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
}

#[derive(Debug)]
struct OpenConnection {
    since: Instant,
    /// None while it is not known.
    address: Option<IpAddr>,
    close: CancellationToken,
}

/// Slot of a connection among the unauthenticated ones; returned on drop, when the connection is
/// authenticated or has ended.
#[derive(Debug)]
pub(crate) struct UnauthenticatedSlot {
    connections: UnauthenticatedConnections,
    number: u64,
    close: CancellationToken,
}

impl UnauthenticatedConnections {
    pub(crate) fn new(limits: UnauthenticatedLimits) -> Self {
        let limits = UnauthenticatedLimits { total: limits.total.max(1), ..limits };
        Self(Arc::new(UnauthenticatedInner {
            limits,
            registry: Mutex::default(),
            left: Notify::new(),
        }))
    }

    /// Takes a slot for a new connection. If all are taken, closes the oldest connection as soon as
    /// it is old enough.
    pub(crate) async fn enter(&self) -> UnauthenticatedSlot {
        loop {
            let left = self.0.left.notified();
            match self.try_enter(Instant::now()) {
                Ok(slot) => return slot,
                Err(retry_at) => tokio::select! {
                    () = left => {}
                    () = tokio::time::sleep_until(retry_at) => {}
                },
            }
        }
    }

    /// Takes a slot, or returns the time at which the oldest connection may be closed.
    fn try_enter(&self, now: Instant) -> Result<UnauthenticatedSlot, Instant> {
        let mut registry = self.registry();
        if registry.open.len() >= self.0.limits.total
            && let Some((&number, oldest)) = registry.open.first_key_value()
        {
            oldest.check_age(now)?;
            registry.close(number);
        }
        let (number, close) = (registry.next_number, CancellationToken::new());
        registry.next_number += 1;
        let connection = OpenConnection { since: now, address: None, close: close.clone() };
        registry.open.insert(number, connection);
        drop(registry);
        Ok(UnauthenticatedSlot { connections: self.clone(), number, close })
    }

    /// Closes the oldest connection if it is old enough. Returns the time at which the next one may
    /// be closed; none if there is none.
    pub(crate) fn close_oldest(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut registry = self.registry();
        let (&number, oldest) = registry.open.first_key_value()?;
        if let Err(retry_at) = oldest.check_age(now) {
            return Some(retry_at);
        }
        registry.close(number);
        // The slot becomes free soon; then no other connection needs to be closed.
        Some(now + Duration::from_secs(1))
    }

    fn registry(&self) -> MutexGuard<'_, ConnectionRegistry> {
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnection {
    /// Returns the time from which on it may be closed, if that is later.
    fn check_age(&self, now: Instant) -> Result<(), Instant> {
        let end = self.since + MIN_AGE;
        if now < end { Err(end) } else { Ok(()) }
    }
}

impl ConnectionRegistry {
    fn close(&mut self, number: u64) {
        if let Some(connection) = self.remove(number) {
            connection.close.cancel();
            metrics::counter!("evenkeel_connections_unauthenticated_total").increment(1);
        }
    }

    fn remove(&mut self, number: u64) -> Option<OpenConnection> {
        let connection = self.open.remove(&number)?;
        if let Some(address) = connection.address
            && let Some(numbers) = self.by_address.get_mut(&address)
        {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_address.remove(&address);
            }
        }
        Some(connection)
    }
}

impl UnauthenticatedSlot {
    /// Sets the address of the client. Returns whether the connection may stay: if the address has
    /// all of its slots in use, its oldest connection is closed once it is old enough.
    pub(crate) fn set_address(&self, address: IpAddr) -> bool {
        let max = self.connections.0.limits.per_address;
        if max == 0 {
            return true;
        }
        let address = client_network(address);
        let mut registry = self.connections.registry();
        let numbers = registry.by_address.get(&address);
        if let Some(numbers) = numbers.filter(|numbers| numbers.len() >= max) {
            let oldest = numbers.first().copied();
            let Some((number, connection)) =
                oldest.and_then(|number| Some((number, registry.open.get(&number)?)))
            else {
                return false;
            };
            if connection.check_age(Instant::now()).is_err() {
                return false;
            }
            registry.close(number);
        }
        let Some(connection) = registry.open.get_mut(&self.number) else {
            return false;
        };
        connection.address = Some(address);
        registry.by_address.entry(address).or_default().insert(self.number);
        true
    }

    /// Waits until the connection must be closed.
    pub(crate) fn closed(&self) -> WaitForCancellationFutureOwned {
        self.close.clone().cancelled_owned()
    }
}

impl Drop for UnauthenticatedSlot {
    fn drop(&mut self) {
        self.connections.registry().remove(self.number);
        self.connections.0.left.notify_one();
    }
}

/// Returns the address that stands for the whole network of the client: a /64 network of IPv6
/// usually has one owner.
pub(super) fn client_network(address: IpAddr) -> IpAddr {
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

    fn connections(total: usize, per_address: usize) -> UnauthenticatedConnections {
        UnauthenticatedConnections::new(UnauthenticatedLimits { total, per_address })
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_closed(slot: &UnauthenticatedSlot) -> bool {
        slot.close.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_connection_is_closed_for_a_new_one() {
        let connections = connections(2, 0);
        let first = connections.enter().await;
        let second = connections.enter().await;
        let began = Instant::now();
        let third = connections.enter().await;
        assert_eq!(began.elapsed(), MIN_AGE, "it had time to authenticate");
        assert_eq!([&first, &second, &third].map(is_closed), [true, false, false]);
        drop(first);
        let _fourth = connections.enter().await;
        assert_eq!([&second, &third].map(is_closed), [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_authenticated_connection_is_not_closed() {
        let connections = connections(1, 0);
        let authenticated = connections.enter().await;
        let closed = authenticated.closed();
        drop(authenticated);
        let began = Instant::now();
        let other = connections.enter().await;
        assert_eq!(began.elapsed(), Duration::ZERO, "the slot is free");
        tokio::time::advance(MIN_AGE).await;
        assert!(connections.close_oldest().is_some());
        assert!(is_closed(&other));
        assert_eq!(connections.close_oldest(), None, "there is no other");
        tokio::select! {
            biased;
            () = closed => panic!("it was authenticated"),
            () = std::future::ready(()) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_takes_the_slot_of_one_that_ends() {
        let connections = connections(1, 0);
        let first = connections.enter().await;
        let began = Instant::now();
        let next = connections.enter();
        let end = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(first);
        };
        let (_next, ()) = tokio::join!(next, end);
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_its_own_limit() {
        let connections = connections(100, 1);
        let first = connections.enter().await;
        assert!(first.set_address(address("192.0.2.1")));
        let refused = connections.enter().await;
        assert!(!refused.set_address(address("::ffff:192.0.2.1")), "the first one is young");
        drop(refused);
        let other = connections.enter().await;
        assert!(other.set_address(address("192.0.2.2")));
        tokio::time::advance(MIN_AGE).await;
        let later = connections.enter().await;
        assert!(later.set_address(address("192.0.2.1")));
        assert_eq!([&first, &other, &later].map(is_closed), [true, false, false]);
        drop((first, other, later));
        let registry = connections.registry();
        assert!(registry.open.is_empty() && registry.by_address.is_empty());
    }

    #[tokio::test]
    async fn an_ipv6_network_counts_as_one_address() {
        let connections = connections(100, 1);
        let slots =
            [connections.enter().await, connections.enter().await, connections.enter().await];
        let addresses = ["2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:2::1"];
        let is_admitted = [0, 1, 2].map(|n| slots[n].set_address(address(addresses[n])));
        assert_eq!(is_admitted, [true, false, true]);
    }
}
