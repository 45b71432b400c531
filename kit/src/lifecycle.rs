//! Lifecycle of the process: starts all tasks, and stops the process when a long-running task ends.

use std::future::Future;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Owns the tasks of the process. When a long-running task ends for any reason, all tasks are stopped.
///
/// ```
/// # use evenkeel_kit::Lifecycle;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let life = Lifecycle::default();
/// let stopping = life.stopping();
/// life.spawn("listener", async move {
///     stopping.cancelled().await;
///     Ok(())
/// });
/// life.stop();
/// let exit = life.run_until_stopped(std::time::Duration::from_secs(5)).await;
/// # assert_eq!(format!("{exit:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    stop: CancellationToken,
    stop_at_once: CancellationToken,
    failed: CancellationToken,
    tasks: TaskTracker,
}

impl Lifecycle {
    /// A lifecycle without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Token that is cancelled when tasks should stop. It belongs to the lifecycle: cancel a child token, never this one.
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Stops all tasks at the first SIGTERM or SIGINT from now on. The second one ends the wait for them.
    ///
    /// Call it before the process reports that it is ready: until then a signal kills the process.
    ///
    /// # Errors
    /// The process cannot listen to signals.
    pub fn stop_on_signals(&self) -> io::Result<()> {
        let mut signals = Signals::listen()?;
        let life = self.clone();
        Self::detach(async move {
            let signal = signals.next().await;
            tracing::info!(signal, "asked to stop");
            life.stop();
            let signal = signals.next().await;
            tracing::warn!(signal, "asked to stop again, not waiting any longer");
            life.stop_at_once.cancel();
        });
        Ok(())
    }

    /// Tells all tasks to stop.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Whether a task failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.is_cancelled()
    }

    /// Starts a long-running task, which may end only after a stop was requested. If it fails, panics or just ends, the
    /// process stops, so that the service manager notices.
    #[expect(clippy::disallowed_methods, reason = "this is the only place that starts tasks")]
    pub fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let life = self.clone();
        self.tasks.spawn(async move {
            // A separate task, so that a panic is reported instead of being lost.
            match tokio::spawn(task).await {
                Ok(Ok(())) if life.stop.is_cancelled() => tracing::debug!(task = name, "stopped"),
                Ok(Ok(())) => life.fail(name, "ended on its own"),
                Ok(Err(error)) => life.fail(name, &format!("{error:#}")),
                Err(panic) => life.fail(name, &panic.to_string()),
            }
        });
    }

    /// Starts a task that ends by itself, such as serving one connection. Its end has no effect on the process; a panic
    /// in it is logged. A stop waits for it as for any other task.
    pub fn spawn_brief(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        #[expect(clippy::disallowed_methods, reason = "this is the only place that starts tasks")]
        self.tasks.spawn(async move {
            if let Err(panic) = tokio::spawn(task).await {
                tracing::error!(task = name, error = %panic, "task failed");
            }
        });
    }

    /// Starts a task that ends by itself and that a stop does not wait for; callers wait for the returned handle if they
    /// need the result. For code that has no `Lifecycle`.
    #[expect(clippy::disallowed_methods, reason = "this is the only place that starts tasks")]
    pub fn detach<T: Send + 'static>(
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        tokio::spawn(task)
    }

    fn fail(&self, task: &'static str, error: &str) {
        tracing::error!(task, error, "task failed, stopping the process");
        self.failed.cancel();
        self.stop.cancel();
    }

    /// Waits for [`Lifecycle::stop`], a failure or a signal, then gives the tasks `grace` to finish. A second signal ends
    /// the grace period at once.
    ///
    /// Returns a failure exit code if a task failed or did not finish in time.
    pub async fn run_until_stopped(self, grace: Duration) -> ExitCode {
        self.stop.cancelled().await;
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => {}
            () = self.stop_at_once.cancelled() => return ExitCode::FAILURE,
            () = tokio::time::sleep(grace) => {
                tracing::warn!(?grace, unfinished = self.tasks.len(), "some tasks did not stop in time");
                return ExitCode::FAILURE;
            }
        }
        if self.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::Mutex;

    use super::*;

    const GRACE: Duration = Duration::from_secs(20);

    /// Held by a test that sends a signal, because all tests of the process get it.
    static SIGNAL_LOCK: Mutex<()> = Mutex::const_new(());

    fn same(left: ExitCode, right: ExitCode) -> bool {
        format!("{left:?}") == format!("{right:?}")
    }

    /// A task that runs until it is told to stop, then cleans up.
    fn spawn_well_behaved_task(life: &Lifecycle) -> Arc<AtomicBool> {
        let stopping = life.stopping();
        let cleaned_up = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&cleaned_up);
        life.spawn("well-behaved", async move {
            stopping.cancelled().await;
            tokio::task::yield_now().await;
            flag.store(true, Ordering::SeqCst);
            Ok(())
        });
        cleaned_up
    }

    #[tokio::test]
    async fn a_stop_waits_until_the_tasks_have_cleaned_up() {
        let life = Lifecycle::new();
        let cleaned_up = spawn_well_behaved_task(&life);
        life.stop();

        let exit = life.run_until_stopped(GRACE).await;

        assert!(same(exit, ExitCode::SUCCESS));
        assert!(cleaned_up.load(Ordering::SeqCst));
    }

    #[expect(clippy::disallowed_methods, reason = "the process of the test is its own target")]
    fn send_signal(name: &str) {
        let pid = std::process::id().to_string();
        let sent = std::process::Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.expect("the command `kill`").success());
    }

    #[tokio::test]
    async fn a_signal_before_the_wait_for_a_stop_is_not_lost() {
        let _alone = SIGNAL_LOCK.lock().await;
        for name in ["TERM", "INT"] {
            let life = Lifecycle::new();
            life.stop_on_signals().expect("signals");
            let cleaned_up = spawn_well_behaved_task(&life);

            send_signal(name);
            life.stopping().cancelled().await;

            assert!(same(life.run_until_stopped(GRACE).await, ExitCode::SUCCESS));
            assert!(cleaned_up.load(Ordering::SeqCst));
        }
    }

    #[tokio::test]
    async fn a_second_signal_ends_the_wait_for_the_tasks() {
        let _alone = SIGNAL_LOCK.lock().await;
        let life = Lifecycle::new();
        life.stop_on_signals().expect("signals");
        life.spawn("deaf", std::future::pending());

        send_signal("TERM");
        life.stopping().cancelled().await;
        send_signal("TERM");

        assert!(same(life.run_until_stopped(Duration::MAX).await, ExitCode::FAILURE));
    }

    #[tokio::test]
    async fn a_task_that_fails_stops_the_process() {
        let life = Lifecycle::new();
        let cleaned_up = spawn_well_behaved_task(&life);
        life.spawn("broken", async { anyhow::bail!("no more paper") });

        let exit = life.run_until_stopped(GRACE).await;

        assert!(same(exit, ExitCode::FAILURE));
        assert!(cleaned_up.load(Ordering::SeqCst), "the other tasks were stopped");
    }

    #[tokio::test]
    async fn a_task_that_panics_stops_the_process() {
        let life = Lifecycle::new();
        let cleaned_up = spawn_well_behaved_task(&life);
        life.spawn("clumsy", async { panic!("oops") });

        let exit = life.run_until_stopped(GRACE).await;

        assert!(same(exit, ExitCode::FAILURE));
        assert!(cleaned_up.load(Ordering::SeqCst), "the other tasks were stopped");
    }

    #[tokio::test]
    async fn a_task_that_just_ends_stops_the_process() {
        let life = Lifecycle::new();
        life.spawn("short", async { Ok(()) });

        let exit = life.run_until_stopped(GRACE).await;

        assert!(same(exit, ExitCode::FAILURE));
    }

    #[tokio::test]
    async fn a_task_that_fails_while_it_stops_is_a_failure() {
        let life = Lifecycle::new();
        let stopping = life.stopping();
        life.spawn("untidy", async move {
            stopping.cancelled().await;
            anyhow::bail!("cannot flush")
        });
        life.stop();

        assert!(same(life.run_until_stopped(GRACE).await, ExitCode::FAILURE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_stop_is_left_behind_after_the_grace() {
        let life = Lifecycle::new();
        life.spawn("deaf", std::future::pending());
        life.stop();
        let begun = tokio::time::Instant::now();

        let exit = life.run_until_stopped(GRACE).await;

        assert!(same(exit, ExitCode::FAILURE));
        assert_eq!(begun.elapsed(), GRACE);
    }

    #[tokio::test]
    async fn a_brief_task_may_end_or_panic_without_any_consequence() {
        let life = Lifecycle::new();
        life.spawn_brief("connection", async {});
        life.spawn_brief("connection", async { panic!("oops") });
        let cleaned_up = spawn_well_behaved_task(&life);
        tokio::task::yield_now().await;
        assert!(!life.stopping().is_cancelled());
        life.stop();

        assert!(same(life.run_until_stopped(GRACE).await, ExitCode::SUCCESS));
        assert!(cleaned_up.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_stop_waits_for_brief_tasks_as_well() {
        let life = Lifecycle::new();
        let (say, heard) = tokio::sync::oneshot::channel::<()>();
        let done = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&done);
        life.spawn_brief("connection", async move {
            heard.await.ok();
            flag.store(true, Ordering::SeqCst);
        });
        let stopping = life.stopping();
        life.spawn("closing message", async move {
            stopping.cancelled().await;
            say.send(()).ok();
            Ok(())
        });
        life.stop();

        assert!(same(life.run_until_stopped(GRACE).await, ExitCode::SUCCESS));
        assert!(done.load(Ordering::SeqCst));
    }
}
