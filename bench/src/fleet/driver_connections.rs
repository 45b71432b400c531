//! The connections of a driver: shared ones, and dedicated ones of a single node each.

use std::collections::VecDeque;

use anyhow::bail;
use rustls::sign::CertifiedKey;
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
    /// The client certificates that dedicated connections show, by node.
    certificates: Vec<Option<CertifiedKey>>,
    /// The shared connections come first, then the dedicated ones.
    channels: Vec<Option<Channel>>,
    pending: VecDeque<usize>,
    dials: JoinSet<(usize, Result<Channel, tonic::transport::Error>)>,
    failures: u32,
    /// Whether the completion of the last dials was reported.
    is_reported: bool,
}

impl DriverConnections {
    /// Starts to open the shared connections. `certificates` are the client certificates of all
    /// nodes.
    pub fn new(dialer: Dialer, plan: &DriverPlan, certificates: Vec<Option<CertifiedKey>>) -> Self {
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let (shared, dedicated) =
            (count(plan.multiplexed), count(plan.dedicated_connections).min(certificates.len()));
        let mut connections = Self {
            dialer,
            first_number: plan.connections_before,
            shared,
            dedicated,
            certificates,
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

    /// Whether the connection of a node shows the client certificate of the node.
    pub fn shows_certificate(&self, node: usize) -> bool {
        let own = self.channels.get(self.shared + node).filter(|_| node < self.dedicated);
        self.certificate(node).is_some() && own.is_some_and(Option::is_some)
    }

    /// The client certificate that the dedicated connection of a node shows.
    fn certificate(&self, node: usize) -> Option<&CertifiedKey> {
        self.certificates.get(node).and_then(Option::as_ref)
    }

    /// The dialer for a connection.
    fn dialer(&self, index: usize) -> Dialer {
        let node = index.checked_sub(self.shared);
        match node.and_then(|node| self.certificate(node)) {
            Some(certificate) => self.dialer.with_certificate(certificate.clone()),
            None => self.dialer.clone(),
        }
    }

    /// Closes the dedicated connection of a node, if it has one.
    pub fn close_dedicated(&mut self, node: usize) {
        if let Some(own) = self.dedicated_mut(node) {
            *own = None;
        }
    }

    /// The dialer and the number of a node's dedicated connection, if the node has one that is not
    /// open, and whether that connection shows the client certificate of the node.
    pub fn missing(&self, node: usize) -> Option<(Dialer, u32, bool)> {
        let index = self.shared + node;
        let is_missing = node < self.dedicated && self.channels.get(index)?.is_none();
        let shows_certificate = self.certificate(node).is_some();
        is_missing.then(|| (self.dialer(index), self.connection_number(index), shows_certificate))
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
            let dialer = self.dialer(index);
            let number = self.connection_number(index);
            self.dials.spawn(async move { (index, dialer.dial(number).await) });
        }
    }
}
