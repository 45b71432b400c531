//! How much memory is taken by messages that are on their way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Busy, Load};

/// So much of each message does not count, in bytes: no more calls than may be under way have that, and almost all messages
/// are shorter.
pub(super) const FREE: u64 = 64 << 10;

/// What has come of a message. It takes its share of the memory until it is dropped.
#[derive(Debug)]
pub struct Weight {
    load: Arc<Load>,
    come: u64,
    charged: u64,
}

impl Weight {
    /// Nothing has come.
    pub fn new(load: Arc<Load>) -> Self {
        Self {
            load,
            come: 0,
            charged: 0,
        }
    }

    /// So many more bytes have come; or there is no room for them.
    pub fn add(&mut self, bytes: usize) -> Result<(), Busy> {
        self.come = self
            .come
            .saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        let more = self.come.saturating_sub(FREE).saturating_sub(self.charged);
        if more == 0 {
            return Ok(());
        }
        self.charged = self.charged.saturating_add(more);
        let before = self.load.weight.fetch_add(more, Ordering::Relaxed);
        let most = self.load.settings.message_memory;
        if most == 0 || before.saturating_add(more) <= most {
            return Ok(());
        }
        self.load.told.messages.increment(1);
        Err(self.load.busy())
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.load.weight.fetch_sub(self.charged, Ordering::Relaxed);
    }
}
