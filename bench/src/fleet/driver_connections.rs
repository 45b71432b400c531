//! The connections of a driver: shared ones, and dedicated ones of a single node each.

use std::collections::VecDeque;

use anyhow::bail;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::connect::Dialer;
use super::driver_protocol::DriverPlan;
use crate::report::print_status;

/// Maximum number of connections that are opened concurrently.
const MAX_CONCURRENT_DIALS: usize = 32;

/// Number of failed dials after which the driver gives up.
const MAX_DIAL_FAILURES: u32 = 200;

/// Open connections, and connections that are being opened.
pub struct DriverConnections {
    dialer: Dialer,
    /// Number of the first connection: the connections of other drivers come before.
    first_number: u32,
    shared: usize,
    dedicated: usize,
    /// The shared connections come first, then the dedicated ones.
    channels: Vec<Option<Channel>>,
    pending: VecDeque<usize>,
    dials: JoinSet<(usize, Result<Channel, tonic::transport::Error>)>,
    failures: u32,
    /// Whether the completion of the last dials was reported.
    is_reported: bool,
}

impl DriverConnections {
    /// Starts to open the shared connections.
    pub fn new(dialer: Dialer, plan: &DriverPlan, nodes: usize) -> Self {
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let (shared, dedicated) =
            (count(plan.multiplexed), count(plan.dedicated_connections).min(nodes));
        let mut connections = Self {
            dialer,
            first_number: plan.connections_before,
            shared,
            dedicated,
            channels: vec![None; shared + dedicated],
            pending: (0..shared).collect(),
            dials: JoinSet::new(),
            failures: 0,
            is_reported: false,
        };
        connections.start_dials();
        connections
    }

    /// Starts to open the dedicated connections.
    pub fn open_dedicated(&mut self) {
        self.pending.extend(self.shared..self.shared + self.dedicated);
        self.is_reported = false;
        self.start_dials();
    }

    /// The connection of a node: its dedicated one if it is open, otherwise a shared one. `None` if
    /// neither is open.
    pub fn channel(&self, node: usize) -> Option<Channel> {
        let own = if node < self.dedicated {
            self.channels.get(self.shared + node).cloned().flatten()
        } else {
            None
        };
        own.or_else(|| self.channels.get(node % self.shared.max(1)).cloned().flatten())
    }

    /// Closes the dedicated connection of a node, if it has one.
    pub fn close_dedicated(&mut self, node: usize) {
        if let Some(own) = self.dedicated_mut(node) {
            *own = None;
        }
    }

    /// The dialer and the number of a node's dedicated connection, if the node has one that is not
    /// open.
    pub fn missing(&self, node: usize) -> Option<(Dialer, u32)> {
        let index = self.shared + node;
        let is_missing = node < self.dedicated && self.channels.get(index)?.is_none();
        is_missing.then(|| (self.dialer.clone(), self.connection_number(index)))
    }

    /// Stores the dedicated connection of a node that was opened elsewhere.
    pub fn set_dedicated(&mut self, node: usize, channel: Channel) {
        if let Some(own) = self.dedicated_mut(node) {
            *own = Some(channel);
        }
    }

    fn dedicated_mut(&mut self, node: usize) -> Option<&mut Option<Channel>> {
        if self.dedicated <= node {
            return None;
        }
        self.channels.get_mut(self.shared + node)
    }

    /// Number of a connection among the connections of all drivers.
    fn connection_number(&self, index: usize) -> u32 {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.first_number.saturating_add(index)
    }

    /// Waits until a dial succeeds or fails; forever if none is running.
    pub async fn progress(&mut self) {
        match self.dials.join_next().await {
            None => std::future::pending().await,
            Some(Ok((index, dialled))) => self.record_dial(index, dialled),
            Some(Err(_)) => self.failures = MAX_DIAL_FAILURES,
        }
        self.start_dials();
    }

    /// Returns `true` once after all requested connections were opened.
    pub fn take_opened(&mut self) -> anyhow::Result<bool> {
        if MAX_DIAL_FAILURES <= self.failures {
            bail!("cannot open the connections: {MAX_DIAL_FAILURES} attempts failed");
        }
        let is_done = self.pending.is_empty() && self.dials.is_empty();
        Ok(is_done && !std::mem::replace(&mut self.is_reported, is_done))
    }

    fn record_dial(&mut self, index: usize, dialled: Result<Channel, tonic::transport::Error>) {
        match dialled {
            Ok(channel) => {
                if let Some(slot) = self.channels.get_mut(index) {
                    *slot = Some(channel);
                }
            }
            Err(error) => {
                if self.failures == 0 {
                    print_status(&format!("cannot open a connection: {error:?}"));
                }
                self.failures += 1;
                self.pending.push_back(index);
            }
        }
    }

    fn start_dials(&mut self) {
        while self.dials.len() < MAX_CONCURRENT_DIALS && self.failures < MAX_DIAL_FAILURES {
            let Some(index) = self.pending.pop_front() else {
                return;
            };
            let dialer = self.dialer.clone();
            let number = self.connection_number(index);
            self.dials.spawn(async move { (index, dialer.dial(number).await) });
        }
    }
}
