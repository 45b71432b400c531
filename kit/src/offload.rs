//! Long work on data of a peer, outside of the threads that run tasks.

use std::num::NonZeroUsize;
use std::sync::LazyLock;
use std::thread::available_parallelism;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::block_in_place;

/// Maximum size of data that an async worker converts itself, in bytes. It takes about a millisecond, and other tasks may
/// wait that long.
pub const MAX_INLINE_BYTES: usize = 64 << 10;

/// For whom large work is done. Work of one share never waits for work of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadShare {
    /// Messages of nodes.
    Nodes,
    /// Requests to the REST API.
    Rest,
}

static NODE_PERMITS: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(OffloadShare::Nodes.size(processors())));
static REST_PERMITS: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(OffloadShare::Rest.size(processors())));

fn processors() -> usize {
    available_parallelism().map_or(1, NonZeroUsize::get)
}

impl OffloadShare {
    /// How much work of the share is done at the same time. All shares have half of the processors, so that tasks get the
    /// other half although there may be many large messages; but each share has at least one.
    fn size(self, processors: usize) -> usize {
        let rest = processors / 4;
        let size = match self {
            Self::Nodes => processors / 2 - rest,
            Self::Rest => rest,
        };
        size.max(1)
    }

    fn permits(self) -> &'static Semaphore {
        match self {
            Self::Nodes => &NODE_PERMITS,
            Self::Rest => &REST_PERMITS,
        }
    }
}

/// Does work on this number of bytes. Work on more than [`MAX_INLINE_BYTES`] waits for a permit of the share, and the thread
/// runs no other tasks meanwhile: another thread takes them over. Other parts of the same task wait.
pub async fn offload<T>(share: OffloadShare, bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes <= MAX_INLINE_BYTES {
        return work();
    }
    // Nothing closes the semaphore.
    let _permit = share.permits().acquire().await;
    run_outside(work)
}

/// As [`offload`], without waiting for a permit. For work inside a transaction, whose locks others wait for.
pub fn offload_now<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes <= MAX_INLINE_BYTES { work() } else { run_outside(work) }
}

/// Runs the work on this thread after its tasks were handed over, if the runtime has other threads.
fn run_outside<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;
    use crate::Lifecycle;

    /// Starts work that ends when another task has seen its begin. Returns whether it did before a deadline.
    fn work_for_another_task() -> impl FnOnce() -> bool + Send {
        let (start, started) = oneshot::channel();
        let (answer, answered) = mpsc::channel();
        Lifecycle::detach(async move {
            started.await.expect("the work begins");
            answer.send(()).expect("the work waits");
        });
        move || {
            start.send(()).expect("the task waits");
            answered.recv_timeout(Duration::from_mins(1)).is_ok()
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_run_during_large_work() {
        let work = work_for_another_task();
        let done = Lifecycle::detach(async move {
            offload(OffloadShare::Nodes, MAX_INLINE_BYTES + 1, work).await
        });
        assert!(done.await.expect("no panic"));
        let work = work_for_another_task();
        let done = Lifecycle::detach(async move { offload_now(MAX_INLINE_BYTES + 1, work) });
        assert!(done.await.expect("no panic"));
    }

    #[tokio::test]
    async fn large_work_is_done_on_a_runtime_of_one_thread() {
        assert_eq!(offload(OffloadShare::Nodes, MAX_INLINE_BYTES + 1, || 7).await, 7);
        assert_eq!(offload_now(MAX_INLINE_BYTES + 1, || 7), 7);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn large_work_of_one_share_does_not_wait_for_that_of_the_other() {
        use OffloadShare::{Nodes, Rest};

        let mut context = Context::from_waker(Waker::noop());
        for (used, other) in [(Rest, Nodes), (Nodes, Rest)] {
            let size = u32::try_from(used.size(processors())).expect("a small number");
            let all = used.permits().acquire_many(size).await.expect("an open semaphore");
            let mut waiting = pin!(offload(used, MAX_INLINE_BYTES + 1, || 7));
            assert!(waiting.as_mut().poll(&mut context).is_pending(), "{used:?}");
            let done = timeout(Duration::from_mins(1), offload(other, MAX_INLINE_BYTES + 1, || 8));
            assert_eq!(done.await, Ok(8), "{other:?}");
            // Short work needs no permit.
            assert_eq!(offload(used, MAX_INLINE_BYTES, || 9).await, 9);
            drop(all);
            assert_eq!(waiting.await, 7);
        }
    }

    #[test]
    fn the_shares_have_half_of_the_processors_and_at_least_one_each() {
        let sizes = |processors| {
            (OffloadShare::Nodes.size(processors), OffloadShare::Rest.size(processors))
        };
        assert_eq!(
            [1, 2, 4, 6, 8, 16].map(sizes),
            [(1, 1), (1, 1), (1, 1), (2, 1), (2, 2), (4, 4)]
        );
    }

    #[test]
    fn large_work_is_done_without_a_runtime() {
        assert_eq!(offload_now(MAX_INLINE_BYTES + 1, || 7), 7);
    }
}
