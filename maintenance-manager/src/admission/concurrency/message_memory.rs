//! The memory that arriving messages use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::retry_queue::MIN_RETRY_DELAY;
use super::{Load, Overloaded};
use crate::connection::ConnectionState;

/// The bytes of each message that are not charged. Almost all messages are shorter, and the number
/// of calls is limited anyway.
pub(super) const UNCHARGED_BYTES: u64 = 64 << 10;

/// The divisor of the memory limit for messages on connections without an authenticated call.
const UNAUTHENTICATED_SHARE: u64 = 4;

/// The received bytes of a message. They are charged until it is dropped.
#[derive(Debug)]
pub struct MessageMemory {
    load: Arc<Load>,
    /// The connection of the message, if the server tracks it.
    connection: Option<ConnectionState>,
    received: u64,
    charged: u64,
    /// The charged bytes that count as unauthenticated.
    charged_unauthenticated: u64,
}

impl MessageMemory {
    /// No bytes received yet.
    pub fn new(load: Arc<Load>, connection: Option<ConnectionState>) -> Self {
        Self { load, connection, received: 0, charged: 0, charged_unauthenticated: 0 }
    }

    /// Charges more received bytes. Fails if the memory limit is reached.
    pub fn charge(&mut self, bytes: usize) -> Result<(), Overloaded> {
        self.received = self.received.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        let more = self.received.saturating_sub(UNCHARGED_BYTES).saturating_sub(self.charged);
        if more == 0 {
            return Ok(());
        }
        self.charged = self.charged.saturating_add(more);
        let before = self.load.message_bytes.fetch_add(more, Ordering::Relaxed);
        let limit = self.load.settings.message_memory_limit;
        let mut fits = before.saturating_add(more) <= limit;
        if self.connection.as_ref().is_some_and(|one| !one.is_authenticated()) {
            self.charged_unauthenticated = self.charged_unauthenticated.saturating_add(more);
            let unauthenticated = &self.load.unauthenticated_message_bytes;
            let before = unauthenticated.fetch_add(more, Ordering::Relaxed);
            fits &= before.saturating_add(more) <= limit / UNAUTHENTICATED_SHARE;
        }
        if limit == 0 || fits {
            return Ok(());
        }
        self.load.metrics.messages.increment(1);
        Err(self.load.retry_after(MIN_RETRY_DELAY))
    }
}

impl Drop for MessageMemory {
    fn drop(&mut self) {
        let load = &self.load;
        load.message_bytes.fetch_sub(self.charged, Ordering::Relaxed);
        load.unauthenticated_message_bytes
            .fetch_sub(self.charged_unauthenticated, Ordering::Relaxed);
    }
}
