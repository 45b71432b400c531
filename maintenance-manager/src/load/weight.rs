//! How much memory is taken by messages that are on their way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::line::SOON;
use super::{Busy, Load};
use crate::carried::Carried;

/// So much of each message does not count, in bytes: no more calls than may be under way have that, and almost all messages
/// are shorter.
pub(super) const FREE: u64 = 64 << 10;

/// Which part of the memory the messages of those may take of whom nothing is known.
const THEIRS: u64 = 4;

/// What has come of a message. It takes its share of the memory until it is dropped.
#[derive(Debug)]
pub struct Weight {
    load: Arc<Load>,
    /// The connection that it comes over, if the server tells them apart.
    carried: Option<Carried>,
    come: u64,
    charged: u64,
    /// What of that counts among those of strangers.
    of_strangers: u64,
}

impl Weight {
    /// Nothing has come.
    pub fn new(load: Arc<Load>, carried: Option<Carried>) -> Self {
        Self {
            load,
            carried,
            come: 0,
            charged: 0,
            of_strangers: 0,
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
        let mut fits = before.saturating_add(more) <= most;
        if self.carried.as_ref().is_some_and(|one| !one.is_known()) {
            self.of_strangers = self.of_strangers.saturating_add(more);
            let strangers = &self.load.weight_of_strangers;
            let before = strangers.fetch_add(more, Ordering::Relaxed);
            fits &= before.saturating_add(more) <= most / THEIRS;
        }
        if most == 0 || fits {
            return Ok(());
        }
        self.load.told.messages.increment(1);
        Err(self.load.again(SOON))
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        let load = &self.load;
        load.weight.fetch_sub(self.charged, Ordering::Relaxed);
        load.weight_of_strangers
            .fetch_sub(self.of_strangers, Ordering::Relaxed);
    }
}
