//! How many answers are under way, in all and for each who asks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::callers::Holder;

/// The answers that are under way.
#[derive(Debug)]
pub(super) struct Transfers {
    places: Arc<Semaphore>,
    /// The most for one who asks; 0 is without limit.
    each: usize,
    held: Arc<Mutex<HashMap<Holder, usize>>>,
}

/// Why there is no room for one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// There are too many in all.
    InAll,
    /// Who asks has as many as anybody may have.
    ForYou,
}

/// One answer. It counts until it is dropped.
#[derive(Debug)]
pub(super) struct Transfer {
    held: Arc<Mutex<HashMap<Holder, usize>>>,
    holder: Holder,
    _place: OwnedSemaphorePermit,
}

impl Transfers {
    pub fn new(most: usize, each: usize) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(most)),
            each,
            held: Arc::default(),
        }
    }

    /// One more answer for somebody.
    pub fn take(&self, holder: Holder) -> Result<Transfer, NoRoom> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.get(&holder).copied().unwrap_or_default();
        if self.each > 0 && count >= self.each {
            return Err(NoRoom::ForYou);
        }
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| NoRoom::InAll)?;
        held.insert(holder.clone(), count + 1);
        drop(held);
        Ok(Transfer {
            held: Arc::clone(&self.held),
            holder,
            _place: place,
        })
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match held.get_mut(&self.holder) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                held.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Holder {
        Holder::Subject(name.to_owned())
    }

    #[test]
    fn nobody_has_more_than_a_share_and_all_together_not_more_than_there_is() {
        let transfers = Transfers::new(3, 2);
        let first = transfers.take(node("one")).expect("room");
        let second = transfers.take(node("one")).expect("room");
        assert_eq!(transfers.take(node("one")).unwrap_err(), NoRoom::ForYou);
        let third = transfers.take(node("two")).expect("room");
        assert_eq!(transfers.take(node("three")).unwrap_err(), NoRoom::InAll);
        drop(first);
        assert!(transfers.take(node("three")).is_ok());
        drop((second, third));
        assert!(
            transfers.held.lock().expect("a lock").is_empty(),
            "nothing is kept of who has nothing"
        );
    }

    #[test]
    fn a_share_may_be_without_limit() {
        let transfers = Transfers::new(9, 0);
        let all: Vec<_> = (0..9).map(|_| transfers.take(node("one"))).collect();
        assert!(all.iter().all(Result::is_ok));
    }
}
