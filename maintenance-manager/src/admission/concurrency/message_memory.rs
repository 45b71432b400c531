//! The memory that arriving messages use.

use std::sync::Arc;

use super::retry_queue::MIN_RETRY_DELAY;
use super::{Load, Overloaded};
use crate::admission::connection::ConnectionState;
use crate::admission::semaphore::{PrioritySemaphore, UnitPermit};

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
    charged: Option<UnitPermit>,
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
        let charged = self.charged.as_ref().map_or(0, UnitPermit::units);
        let more = self.received.saturating_sub(UNCHARGED_BYTES).saturating_sub(charged);
        if more == 0 {
            return Ok(());
        }
        let limit = match load.settings.message_memory_limit {
            0 => u64::MAX,
            limit => limit,
        };
        let is_authenticated =
            self.connection.as_ref().is_none_or(ConnectionState::is_authenticated);
        let fits = grow(&mut self.charged, &load.message_bytes, more, limit)
            && (is_authenticated
                || grow(
                    &mut self.charged_unauthenticated,
                    &load.unauthenticated_message_bytes,
                    more,
                    limit / UNAUTHENTICATED_SHARE,
                ));
        if fits {
            return Ok(());
        }
        load.metrics.messages.increment(1);
        Err(Overloaded::retry_after(MIN_RETRY_DELAY))
    }
}

/// Adds units to a permit, unless they exceed the limit.
fn grow(
    permit: &mut Option<UnitPermit>,
    semaphore: &Arc<PrioritySemaphore>,
    units: u64,
    limit: u64,
) -> bool {
    let Some(more) = semaphore.try_acquire(units, limit) else {
        return false;
    };
    match permit {
        Some(permit) => permit.merge(more),
        None => *permit = Some(more),
    }
    true
}
