//! The connections of a driver: some are shared by nodes, others a node has for itself.

use std::collections::VecDeque;

use anyhow::bail;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::connect::Dialer;
use super::plan::Plan;
use crate::report::remark;

/// How many connections are opened beside each other.
const BESIDE: usize = 32;

/// How often a connection may fail to open, in all.
const FAILURES: u32 = 200;

/// Connections that are open, and those that are being opened.
pub struct Lines {
    dialer: Dialer,
    /// Connections that other drivers have.
    before: u32,
    shared: usize,
    kept: usize,
    /// The shared ones stand before the others.
    channels: Vec<Option<Channel>>,
    wanted: VecDeque<usize>,
    dials: JoinSet<(usize, Result<Channel, tonic::transport::Error>)>,
    failures: u32,
    /// Whether what was ordered last is open and was not told.
    is_told: bool,
}

impl Lines {
    /// Begins to open the shared ones.
    pub fn new(dialer: Dialer, plan: &Plan, nodes: usize) -> Self {
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let (shared, kept) = (count(plan.multiplexed), count(plan.kept).min(nodes));
        let mut lines = Self {
            dialer,
            before: plan.connections_before,
            shared,
            kept,
            channels: vec![None; shared + kept],
            wanted: (0..shared).collect(),
            dials: JoinSet::new(),
            failures: 0,
            is_told: false,
        };
        lines.dial();
        lines
    }

    /// Begins to open those that a node has for itself.
    pub fn keep(&mut self) {
        self.wanted.extend(self.shared..self.shared + self.kept);
        self.is_told = false;
        self.dial();
    }

    /// The connection of a node: its own as soon as it is open. None before any is.
    pub fn of(&self, node: usize) -> Option<Channel> {
        let own = if node < self.kept {
            self.channels.get(self.shared + node).cloned().flatten()
        } else {
            None
        };
        own.or_else(|| {
            self.channels
                .get(node % self.shared.max(1))
                .cloned()
                .flatten()
        })
    }

    /// Closes the connection that a node has for itself, if it has one.
    pub fn close(&mut self, node: usize) {
        if let Some(own) = self.own(node) {
            *own = None;
        }
    }

    /// How to open the connection that a node has for itself, if it has one that is not open.
    pub fn missing(&self, node: usize) -> Option<(Dialer, u32)> {
        let place = self.shared + node;
        let is_missing = node < self.kept && self.channels.get(place)?.is_none();
        is_missing.then(|| (self.dialer.clone(), self.number(place)))
    }

    /// Takes the connection of a node that somebody opened for it.
    pub fn put(&mut self, node: usize, channel: Channel) {
        if let Some(own) = self.own(node) {
            *own = Some(channel);
        }
    }

    fn own(&mut self, node: usize) -> Option<&mut Option<Channel>> {
        if self.kept <= node {
            return None;
        }
        self.channels.get_mut(self.shared + node)
    }

    /// The number of a connection among those of all drivers.
    fn number(&self, place: usize) -> u32 {
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        self.before.saturating_add(place)
    }

    /// Waits until a connection is open or has failed to open; for ever if none is being opened.
    pub async fn progress(&mut self) {
        match self.dials.join_next().await {
            None => std::future::pending().await,
            Some(Ok((place, dialled))) => self.note(place, dialled),
            Some(Err(_)) => self.failures = FAILURES,
        }
        self.dial();
    }

    /// Whether all that were to be opened are open; once each time.
    pub fn opened(&mut self) -> anyhow::Result<bool> {
        if FAILURES <= self.failures {
            bail!("the connections cannot be opened");
        }
        let is_done = self.wanted.is_empty() && self.dials.is_empty();
        Ok(is_done && !std::mem::replace(&mut self.is_told, is_done))
    }

    fn note(&mut self, place: usize, dialled: Result<Channel, tonic::transport::Error>) {
        match dialled {
            Ok(channel) => {
                if let Some(slot) = self.channels.get_mut(place) {
                    *slot = Some(channel);
                }
            }
            Err(error) => {
                if self.failures == 0 {
                    remark(&format!("a connection cannot be opened: {error:?}"));
                }
                self.failures += 1;
                self.wanted.push_back(place);
            }
        }
    }

    fn dial(&mut self) {
        while self.dials.len() < BESIDE && self.failures < FAILURES {
            let Some(place) = self.wanted.pop_front() else {
                return;
            };
            let dialer = self.dialer.clone();
            let number = self.number(place);
            self.dials
                .spawn(async move { (place, dialer.dial(number).await) });
        }
    }
}
