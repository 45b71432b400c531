//! The memory that arriving messages use.

use super::retry_queue::MIN_RETRY_DELAY;
use super::{Load, Overloaded, sender_limits};
use crate::admission::connection::{ConnectionState, SenderProject};
use crate::admission::semaphore::{ProjectUnitPermit, UnitPermit};

/// The bytes of each message that are not charged. Almost all messages are shorter, and the number
/// of calls is limited anyway.
pub(super) const UNCHARGED_BYTES: u64 = 64 << 10;

/// The divisor of the memory limit for messages on connections without an authenticated call.
const UNAUTHENTICATED_SHARE: u64 = 4;

/// The received bytes of a message. They are charged until it is dropped.
#[derive(Debug)]
pub struct MessageMemory {
    /// The connection of the message, if the server tracks it.
    connection: Option<ConnectionState>,
    received: u64,
    charged: Option<ProjectUnitPermit<SenderProject>>,
    /// The charged bytes that count as unauthenticated.
    charged_unauthenticated: Option<UnitPermit>,
}

impl MessageMemory {
    /// No bytes received yet.
    pub fn new(connection: Option<ConnectionState>) -> Self {
        Self { connection, received: 0, charged: None, charged_unauthenticated: None }
    }

    /// Charges more received bytes. Fails if the memory limit is reached.
    pub fn charge(&mut self, bytes: usize, load: &Load) -> Result<(), Overloaded> {
        self.received = self.received.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        let charged = self.charged.as_ref().map_or(0, ProjectUnitPermit::units);
        let more = self.received.saturating_sub(UNCHARGED_BYTES).saturating_sub(charged);
        if more == 0 {
            return Ok(());
        }
        let is_authenticated =
            self.connection.as_ref().is_none_or(ConnectionState::is_authenticated);
        let fits = self.charge_project(more, load)
            && (is_authenticated || self.charge_unauthenticated(more, load));
        if fits {
            return Ok(());
        }
        load.metrics.messages.increment(1);
        Err(Overloaded::retry_after(MIN_RETRY_DELAY))
    }

    /// The connection of the message, if the server tracks it.
    pub fn connection(&self) -> Option<&ConnectionState> {
        self.connection.as_ref()
    }

    /// Charges bytes to all messages, and to those of the same project.
    fn charge_project(&mut self, bytes: u64, load: &Load) -> bool {
        let connection = self.connection.as_ref();
        let limits = sender_limits(load.settings.message_memory_limit, connection);
        if let Some(charged) = &mut self.charged {
            return charged.try_grow(bytes, limits);
        }
        let sender = SenderProject::from_connection(connection);
        self.charged = load.message_bytes.try_acquire(sender, bytes, limits);
        self.charged.is_some()
    }

    /// Charges bytes to the messages on connections without an authenticated call.
    fn charge_unauthenticated(&mut self, bytes: u64, load: &Load) -> bool {
        let limit = match load.settings.message_memory_limit {
            0 => u64::MAX,
            limit => limit / UNAUTHENTICATED_SHARE,
        };
        let Some(more) = load.unauthenticated_message_bytes.try_acquire(bytes, limit) else {
            return false;
        };
        match &mut self.charged_unauthenticated {
            Some(permit) => permit.merge(more),
            None => self.charged_unauthenticated = Some(more),
        }
        true
    }
}
