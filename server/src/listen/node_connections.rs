//! Connections per node. A node has one or two; without a limit, one node could take all slots of
//! the listener.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;

use evenkeel_auth::{KeyFingerprint, NodeCertificate};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Host and key of a client certificate. The key is part of the identity, so that the holder of an
/// old key cannot close the connections of a host that was enrolled again.
type NodeIdentity = (String, KeyFingerprint);

/// The connections that show a client certificate, by node. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct NodeConnections(Arc<NodeConnectionsInner>);

#[derive(Debug)]
struct NodeConnectionsInner {
    /// Maximum number per node; 0 for no limit.
    max: usize,
    registry: Mutex<NodeRegistry>,
}

#[derive(Debug, Default)]
struct NodeRegistry {
    next_number: u64,
    /// Of each node, the oldest first.
    open: HashMap<NodeIdentity, VecDeque<OpenNodeConnection>>,
}

#[derive(Debug)]
struct OpenNodeConnection {
    number: u64,
    close: CancellationToken,
}

/// Slot of a connection among those of its node; returned on drop.
#[derive(Debug)]
pub(crate) struct NodeSlot {
    connections: NodeConnections,
    node: NodeIdentity,
    number: u64,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl NodeConnections {
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(NodeConnectionsInner { max, registry: Mutex::default() }))
    }

    /// Counts a connection of a node, which has proved in the handshake that it has the key. If the
    /// node has too many, its oldest one is closed: it is most likely the one that a NAT router has
    /// lost, so a refusal would lock the node out. None if there is no limit.
    pub(crate) fn enter(&self, certificate: &NodeCertificate) -> Option<NodeSlot> {
        if self.0.max == 0 {
            return None;
        }
        let node: NodeIdentity = (certificate.host.clone(), certificate.key.clone());
        let close = CancellationToken::new();
        let closed = Box::pin(close.clone().cancelled_owned());
        let mut registry = self.registry();
        let number = registry.next_number;
        registry.next_number += 1;
        let open = registry.open.entry(node.clone()).or_default();
        if open.len() >= self.0.max
            && let Some(oldest) = open.pop_front()
        {
            oldest.close.cancel();
            metrics::counter!("evenkeel_connections_replaced_total").increment(1);
        }
        open.push_back(OpenNodeConnection { number, close });
        drop(registry);
        Some(NodeSlot { connections: self.clone(), node, number, closed })
    }

    fn registry(&self) -> MutexGuard<'_, NodeRegistry> {
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeSlot {
    /// Whether a newer connection of the node has replaced this one. Otherwise the task is woken
    /// when that happens.
    pub(crate) fn is_replaced(&mut self, context: &mut Context<'_>) -> bool {
        self.closed.as_mut().poll(context).is_ready()
    }
}

impl Drop for NodeSlot {
    fn drop(&mut self) {
        let mut registry = self.connections.registry();
        let Some(open) = registry.open.get_mut(&self.node) else {
            return;
        };
        open.retain(|connection| connection.number != self.number);
        if open.is_empty() {
            registry.open.remove(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use chrono::DateTime;
    use uuid::Uuid;

    use super::*;

    fn certificate(host: &str, key: &[u8]) -> NodeCertificate {
        NodeCertificate {
            project: Uuid::nil(),
            host: host.to_owned(),
            key: KeyFingerprint::from_public_key(key),
            issued_at: DateTime::UNIX_EPOCH,
            expires_at: DateTime::UNIX_EPOCH,
        }
    }

    fn is_replaced(slot: &mut NodeSlot) -> bool {
        slot.is_replaced(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_new_connection_of_a_node_replaces_its_oldest_one() {
        let connections = NodeConnections::new(2);
        let node = certificate("host-1", b"key");
        let mut slots: Vec<NodeSlot> = (0..4).map(|_| connections.enter(&node).unwrap()).collect();
        let replaced: Vec<bool> = slots.iter_mut().map(is_replaced).collect();
        assert_eq!(replaced, [true, true, false, false]);
        // A slot that is returned is free for the next connection.
        slots.pop();
        let mut next = connections.enter(&node).unwrap();
        assert!(!is_replaced(&mut slots[2]) && !is_replaced(&mut next));
    }

    #[test]
    fn nodes_and_keys_are_counted_separately() {
        let connections = NodeConnections::new(1);
        let nodes = [
            certificate("host-1", b"key"),
            certificate("host-2", b"key"),
            certificate("host-1", b"old key"),
        ];
        let mut slots = nodes.map(|node| connections.enter(&node).unwrap());
        assert!(!slots.iter_mut().any(is_replaced));
        drop(slots);
        assert!(connections.registry().open.is_empty());
    }

    #[test]
    fn zero_is_no_limit() {
        assert!(NodeConnections::new(0).enter(&certificate("host-1", b"key")).is_none());
    }
}
