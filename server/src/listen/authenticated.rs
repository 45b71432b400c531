//! Connections of authenticated callers. Without limits, one user, project or address could take all
//! slots of the listener.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_auth::Caller;
use evenkeel_inventory::ConnectionLimit;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::unauthenticated::client_network;

/// Maximum numbers of authenticated connections; 0 for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AuthenticatedLimits {
    pub(crate) user: usize,
    pub(crate) project: usize,
    /// Per IPv4 address or IPv6 /64 network.
    pub(crate) address: usize,
}

/// The authenticated connections of a listener, by owner. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct AuthenticatedConnections(Arc<AuthenticatedInner>);

#[derive(Debug)]
struct AuthenticatedInner {
    limits: AuthenticatedLimits,
    next_number: AtomicUsize,
    open: Mutex<ConnectionsByOwner>,
}

/// The connections of each owner by number, so the oldest is the first.
type ConnectionsByOwner = HashMap<ConnectionOwner, BTreeMap<usize, ConnectionActivity>>;

/// Who has a share of the connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ConnectionOwner {
    User(String),
    /// A project of the token; none for callers without a role in a project.
    Project(Option<Uuid>),
    Address(IpAddr),
}

/// Number of running requests of a connection, and whether it must close. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionActivity {
    running: Arc<AtomicUsize>,
    close: CancellationToken,
}

/// A request, which runs until this is dropped.
#[derive(Debug)]
pub(crate) struct RunningRequest(ConnectionActivity);

/// A connection from its first byte on. It counts from its first valid token until it is dropped.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    connections: AuthenticatedConnections,
    number: usize,
    /// None for a connection of a proxy, whose address stands for many clients.
    address: Option<IpAddr>,
    activity: ConnectionActivity,
    owners: Mutex<Vec<ConnectionOwner>>,
}

impl AuthenticatedConnections {
    pub(crate) fn new(limits: AuthenticatedLimits) -> Self {
        Self(Arc::new(AuthenticatedInner {
            limits,
            next_number: AtomicUsize::new(0),
            open: Mutex::default(),
        }))
    }

    /// Adds a new connection. It must close itself when `close` is cancelled, after the request that
    /// runs.
    pub(crate) fn connect(
        &self,
        address: Option<IpAddr>,
        close: CancellationToken,
    ) -> ClientConnection {
        ClientConnection {
            connections: self.clone(),
            number: self.0.next_number.fetch_add(1, Ordering::Relaxed),
            address: address.map(client_network),
            activity: ConnectionActivity { running: Arc::default(), close },
            owners: Mutex::default(),
        }
    }

    /// Counts a connection for its owners. If an owner has too many, its oldest idle one is closed. If
    /// one of the owners has no idle one, none is closed and the connection is refused.
    fn enter(
        &self,
        client: &ClientConnection,
        owners: &[ConnectionOwner],
    ) -> Result<(), ConnectionLimit> {
        let mut open = self.open();
        let mut replaced: BTreeMap<usize, ConnectionActivity> = BTreeMap::new();
        for owner in owners {
            let (max, limit) = self.limit(owner);
            let Some(connections) = open.get(owner).filter(|_| max > 0) else {
                continue;
            };
            // The others are closing already.
            let staying = connections
                .iter()
                .filter(|(number, other)| !other.is_closing() && !replaced.contains_key(*number));
            let staying: Vec<_> = staying.collect();
            if staying.len() < max {
                continue;
            }
            // A connection whose client does not read the rest of its response closes late.
            if connections.len() >= max + max.div_ceil(4) {
                return Err(limit);
            }
            let idle = staying.into_iter().find(|(_, other)| other.is_idle());
            let (number, idle) = idle.ok_or(limit)?;
            replaced.insert(*number, idle.clone());
        }
        for idle in replaced.values() {
            idle.close.cancel();
            metrics::counter!("evenkeel_connections_idle_closed_total").increment(1);
        }
        for owner in owners {
            let connections = open.entry(owner.clone()).or_default();
            connections.insert(client.number, client.activity.clone());
        }
        Ok(())
    }

    fn remove(&self, number: usize, owners: &[ConnectionOwner]) {
        let mut open = self.open();
        for owner in owners {
            if let Some(connections) = open.get_mut(owner) {
                connections.remove(&number);
                if connections.is_empty() {
                    open.remove(owner);
                }
            }
        }
    }

    fn limit(&self, owner: &ConnectionOwner) -> (usize, ConnectionLimit) {
        let limits = self.0.limits;
        match owner {
            ConnectionOwner::User(_) => (limits.user, ConnectionLimit::PerUser),
            ConnectionOwner::Project(_) => (limits.project, ConnectionLimit::PerProject),
            ConnectionOwner::Address(_) => (limits.address, ConnectionLimit::PerAddress),
        }
    }

    fn open(&self) -> MutexGuard<'_, ConnectionsByOwner> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientConnection {
    /// Counts the connection for the caller of a request. A proxy may send requests of another
    /// caller on the same connection, which then counts for that one. If a limit is reached, the
    /// connection closes after the request.
    pub(crate) fn authenticate(&self, caller: &Caller) -> Result<(), ConnectionLimit> {
        let desired = find_owners(caller, self.address);
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if *owners == desired {
            return Ok(());
        }
        self.connections.remove(self.number, &owners);
        owners.clear();
        let entered = self.connections.enter(self, &desired);
        match entered {
            Ok(()) => *owners = desired,
            Err(_) => self.activity.close.cancel(),
        }
        entered
    }

    /// Sets the address of the client that a proxy names, before the first request.
    pub(crate) fn set_address(&mut self, address: IpAddr) {
        self.address = Some(client_network(address));
    }

    pub(crate) fn activity(&self) -> &ConnectionActivity {
        &self.activity
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        let owners = self.owners.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.connections.remove(self.number, owners);
    }
}

impl ConnectionActivity {
    /// Counts a request that begins.
    pub(crate) fn begin(self) -> RunningRequest {
        self.running.fetch_add(1, Ordering::Relaxed);
        RunningRequest(self)
    }

    /// Cancelled when the connection must close, or the process stops.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.close
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.close.is_cancelled()
    }

    fn is_idle(&self) -> bool {
        self.running.load(Ordering::Relaxed) == 0
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Who a connection counts for. It can send requests to each project of the token, so it counts for
/// each: users with the roles {A}, {A, B} and {A, C} share the limit of A. An administrator belongs to
/// no project.
fn find_owners(caller: &Caller, address: Option<IpAddr>) -> Vec<ConnectionOwner> {
    let mut owners = vec![ConnectionOwner::User(caller.actor_name())];
    if !caller.may_administrate() {
        let mut projects = caller.readable_projects();
        projects.extend(caller.node_project());
        if projects.is_empty() {
            owners.push(ConnectionOwner::Project(None));
        }
        owners.extend(projects.into_iter().map(|project| ConnectionOwner::Project(Some(project))));
    }
    owners.extend(address.map(ConnectionOwner::Address));
    owners
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use evenkeel_auth::Role;

    use super::*;

    const UNLIMITED: AuthenticatedLimits = AuthenticatedLimits { user: 0, project: 0, address: 0 };

    fn caller(subject: &str, roles: &[Role]) -> Caller {
        Caller::new(subject, roles, DateTime::UNIX_EPOCH)
    }

    /// A user with a role in one project.
    fn user(subject: &str, project: u128) -> Caller {
        caller(subject, &[Role::Read(Uuid::from_u128(project))])
    }

    fn connect(connections: &AuthenticatedConnections, address: Option<&str>) -> ClientConnection {
        let address = address.map(|address| address.parse().unwrap());
        connections.connect(address, CancellationToken::new())
    }

    fn is_closing(client: &ClientConnection) -> bool {
        client.activity().is_closing()
    }

    #[test]
    fn a_user_at_the_limit_loses_the_oldest_idle_connection() {
        let connections =
            AuthenticatedConnections::new(AuthenticatedLimits { user: 2, ..UNLIMITED });
        let clients: Vec<_> = (0..3).map(|_| connect(&connections, None)).collect();
        let request = clients[0].activity().clone().begin();
        for client in &clients {
            client.authenticate(&user("one", 1)).unwrap();
        }
        let closing: Vec<bool> = clients.iter().map(is_closing).collect();
        assert_eq!(closing, [false, true, false], "the oldest one has a request");
        connect(&connections, None).authenticate(&user("other", 1)).unwrap();
        drop((request, clients));
        assert!(connections.open().is_empty(), "closed connections need no memory");
    }

    #[test]
    fn a_user_whose_connections_all_have_requests_is_refused() {
        let connections =
            AuthenticatedConnections::new(AuthenticatedLimits { user: 1, ..UNLIMITED });
        let busy = connect(&connections, None);
        let request = busy.activity().clone().begin();
        busy.authenticate(&user("one", 1)).unwrap();
        busy.authenticate(&user("one", 1)).expect("it counts once");
        let refused = connect(&connections, None);
        assert_eq!(refused.authenticate(&user("one", 1)), Err(ConnectionLimit::PerUser));
        assert!(is_closing(&refused) && !is_closing(&busy));
        drop(request);
        connect(&connections, None).authenticate(&user("one", 1)).expect("the other is idle");
        assert!(is_closing(&busy));
    }

    #[test]
    fn a_user_whose_connections_do_not_end_is_refused() {
        let connections =
            AuthenticatedConnections::new(AuthenticatedLimits { user: 4, ..UNLIMITED });
        let clients: Vec<_> = (0..6).map(|_| connect(&connections, None)).collect();
        let answers: Vec<bool> =
            clients.iter().map(|client| client.authenticate(&user("one", 1)).is_ok()).collect();
        assert_eq!(answers, [true, true, true, true, true, false], "a quarter more");
        let closing: Vec<bool> = clients.iter().map(is_closing).collect();
        assert_eq!(closing, [true, false, false, false, false, true]);
    }

    #[test]
    fn users_of_one_project_share_its_limit() {
        let connections =
            AuthenticatedConnections::new(AuthenticatedLimits { project: 1, ..UNLIMITED });
        let busy = connect(&connections, None);
        let _request = busy.activity().clone().begin();
        busy.authenticate(&user("one", 1)).unwrap();
        let refuse = |caller: &Caller| connect(&connections, None).authenticate(caller);
        assert_eq!(refuse(&user("other", 1)), Err(ConnectionLimit::PerProject));
        let node = caller("host", &[Role::Node(Uuid::from_u128(1))]);
        assert_eq!(refuse(&node), Err(ConnectionLimit::PerProject));
        refuse(&user("one", 2)).expect("another project");
        refuse(&caller("root", &[Role::Administrator])).expect("no project");
    }

    /// A user with roles in some projects.
    fn member(subject: &str, projects: &[u128]) -> Caller {
        let roles = projects.iter().map(|project| Role::Read(Uuid::from_u128(*project)));
        caller(subject, &roles.collect::<Vec<_>>())
    }

    #[test]
    fn users_with_further_projects_share_the_limit_of_a_project() {
        let connections =
            AuthenticatedConnections::new(AuthenticatedLimits { project: 2, ..UNLIMITED });
        let clients: Vec<_> = (0..2).map(|_| connect(&connections, None)).collect();
        let _requests: Vec<_> =
            clients.iter().map(|client| client.activity().clone().begin()).collect();
        clients[0].authenticate(&member("one", &[1])).unwrap();
        clients[1].authenticate(&member("two", &[1, 2])).unwrap();
        let enter = |caller: &Caller| connect(&connections, None).authenticate(caller);
        assert_eq!(enter(&member("three", &[1, 3])), Err(ConnectionLimit::PerProject));
        assert_eq!(enter(&member("four", &[4, 1])), Err(ConnectionLimit::PerProject));
        enter(&member("five", &[2])).expect("the other project has one connection");
        enter(&member("six", &[])).expect("no project");
    }

    #[test]
    fn a_refused_connection_closes_no_idle_one() {
        let limits = AuthenticatedLimits { user: 1, project: 2, ..UNLIMITED };
        let connections = AuthenticatedConnections::new(limits);
        let idle = connect(&connections, None);
        idle.authenticate(&user("one", 2)).unwrap();
        let busy: Vec<_> = (0..2).map(|_| connect(&connections, None)).collect();
        let _requests: Vec<_> =
            busy.iter().map(|client| client.activity().clone().begin()).collect();
        for (client, subject) in busy.iter().zip(["two", "three"]) {
            client.authenticate(&user(subject, 1)).unwrap();
        }
        let refused = connect(&connections, None);
        assert_eq!(refused.authenticate(&user("one", 1)), Err(ConnectionLimit::PerProject));
        assert!(!is_closing(&idle), "the refused connection does not replace it");
    }

    #[test]
    fn one_idle_connection_makes_room_for_its_user_and_for_its_project() {
        let limits = AuthenticatedLimits { user: 2, project: 2, ..UNLIMITED };
        let connections = AuthenticatedConnections::new(limits);
        let clients: Vec<_> = (0..3).map(|_| connect(&connections, None)).collect();
        for client in &clients {
            client.authenticate(&user("one", 1)).unwrap();
        }
        let closing: Vec<bool> = clients.iter().map(is_closing).collect();
        assert_eq!(closing, [true, false, false]);
    }

    #[test]
    fn the_network_of_a_client_has_a_limit_and_a_proxy_has_none() {
        let connections =
            AuthenticatedConnections::new(AuthenticatedLimits { address: 1, ..UNLIMITED });
        let busy = connect(&connections, Some("2001:db8::1"));
        let _request = busy.activity().clone().begin();
        busy.authenticate(&user("one", 1)).unwrap();
        let enter =
            |address: Option<&str>| connect(&connections, address).authenticate(&user("other", 2));
        assert_eq!(enter(Some("2001:db8::2")), Err(ConnectionLimit::PerAddress));
        enter(Some("192.0.2.1")).expect("another network");
        enter(None).expect("a proxy");
    }

    #[test]
    fn a_connection_counts_for_the_address_that_a_proxy_names() {
        let connections =
            AuthenticatedConnections::new(AuthenticatedLimits { address: 1, ..UNLIMITED });
        let connect_client = |address: &str| {
            let mut client = connect(&connections, Some("198.51.100.1"));
            client.set_address(address.parse().unwrap());
            client
        };
        let (busy, other) = (connect_client("192.0.2.7"), connect_client("192.0.2.8"));
        let _requests = [&busy, &other].map(|client| client.activity().clone().begin());
        busy.authenticate(&user("one", 1)).unwrap();
        other.authenticate(&user("other", 1)).expect("another client of the proxy");
        let third = connect_client("192.0.2.7");
        assert_eq!(third.authenticate(&user("third", 1)), Err(ConnectionLimit::PerAddress));
    }

    #[test]
    fn a_shared_connection_counts_for_the_latest_caller() {
        let connections =
            AuthenticatedConnections::new(AuthenticatedLimits { user: 1, ..UNLIMITED });
        let (shared, other) = (connect(&connections, None), connect(&connections, None));
        let _requests = [&shared, &other].map(|client| client.activity().clone().begin());
        shared.authenticate(&user("one", 1)).unwrap();
        shared.authenticate(&user("other", 1)).unwrap();
        other.authenticate(&user("one", 1)).expect("the first one counts for another user");
        let third = connect(&connections, None);
        assert_eq!(third.authenticate(&user("other", 1)), Err(ConnectionLimit::PerUser));
    }
}
