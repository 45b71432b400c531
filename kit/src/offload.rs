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

/// Half of the processors, so that tasks get the other half although there may be many large messages.
static LARGE_WORK_PERMITS: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = available_parallelism().map_or(1, NonZeroUsize::get);
    Semaphore::new((processors / 2).max(1))
});

/// Does work on this number of bytes. Work on more than [`MAX_INLINE_BYTES`] waits for a permit, and the thread runs no
/// other tasks meanwhile: another thread takes them over. Other parts of the same task wait.
pub async fn offload<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes <= MAX_INLINE_BYTES {
        return work();
    }
    // Nothing closes the semaphore.
    let _permit = LARGE_WORK_PERMITS.acquire().await;
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
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::sync::oneshot;

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
        let done = Lifecycle::detach(async move { offload(MAX_INLINE_BYTES + 1, work).await });
        assert!(done.await.expect("no panic"));
        let work = work_for_another_task();
        let done = Lifecycle::detach(async move { offload_now(MAX_INLINE_BYTES + 1, work) });
        assert!(done.await.expect("no panic"));
    }

    #[tokio::test]
    async fn large_work_is_done_on_a_runtime_of_one_thread() {
        assert_eq!(offload(MAX_INLINE_BYTES + 1, || 7).await, 7);
        assert_eq!(offload_now(MAX_INLINE_BYTES + 1, || 7), 7);
    }

    #[test]
    fn large_work_is_done_without_a_runtime() {
        assert_eq!(offload_now(MAX_INLINE_BYTES + 1, || 7), 7);
    }
}
