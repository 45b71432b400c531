//! Futures that are dropped before they end, as the calls of clients that disconnect.

use std::pin::pin;
use std::task::Poll;

/// Polls a future as often as it is woken, up to a number of times, and drops it when it is woken
/// again. Returns its output if it has ended before.
pub async fn drop_after_polls<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        let Some(after) = left.checked_sub(1) else {
            return Poll::Ready(None);
        };
        left = after;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_future_ends_or_is_dropped_after_its_last_poll() {
        let yields_twice = async || {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        };
        let ended = [
            drop_after_polls(yields_twice(), 0).await,
            drop_after_polls(yields_twice(), 2).await,
            drop_after_polls(yields_twice(), 3).await,
        ];
        assert_eq!(ended, [None, None, Some(())]);
    }
}
