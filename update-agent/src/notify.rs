//! Notifies the service manager of the agent's state: ready, status, alive, stopping.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// State of the agent for the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceState<'a> {
    /// The agent is ready.
    Ready,
    /// Current activity, in one line.
    Status(&'a str),
    /// The main loop is alive.
    Alive,
    /// The agent is stopping.
    Stopping,
}

pub trait ServiceManager: Debug + Send + Sync {
    /// Notifies the manager. Errors are ignored, because they must not stop the agent.
    fn notify(&self, service_state: ServiceState<'_>);
}

/// systemd, if it started the process and expects notifications; otherwise does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Systemd;

impl Systemd {
    /// Interval of the alive notifications: half of the watchdog timeout of the service. `None` if
    /// the service has no watchdog.
    pub fn watchdog_interval() -> Option<Duration> {
        let period = sd_notify::watchdog_enabled()? / 2;
        (!period.is_zero()).then_some(period)
    }
}

impl ServiceManager for Systemd {
    fn notify(&self, service_state: ServiceState<'_>) {
        let line;
        let state = match service_state {
            ServiceState::Ready => NotifyState::Ready,
            ServiceState::Status(text) => {
                // A line break would start another message.
                line = text.replace(['\n', '\r'], " ");
                NotifyState::Status(&line)
            }
            ServiceState::Alive => NotifyState::Watchdog,
            ServiceState::Stopping => NotifyState::Stopping,
        };
        if let Err(error) = sd_notify::notify(&[state]) {
            tracing::debug!(%error, "cannot notify the service manager");
        }
    }
}

/// Does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoServiceManager;

impl ServiceManager for NoServiceManager {
    fn notify(&self, _sign: ServiceState<'_>) {}
}

/// Notifies the manager at each interval that the agent is alive, and once that it is stopping.
pub async fn notify_watchdog(
    manager: Arc<dyn ServiceManager>,
    period: Option<Duration>,
    stop: CancellationToken,
) {
    let ticks = async {
        let Some(period) = period else {
            return std::future::pending().await;
        };
        let mut interval = tokio::time::interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            manager.notify(ServiceState::Alive);
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = ticks => {}
    }
    manager.notify(ServiceState::Stopping);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Records the notifications.
    #[derive(Debug, Default)]
    struct NotifyLog(Mutex<Vec<String>>);

    impl ServiceManager for NotifyLog {
        fn notify(&self, service_state: ServiceState<'_>) {
            self.0.lock().unwrap().push(format!("{service_state:?}"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_watchdog_is_notified_at_every_interval_until_the_stop() {
        let log = Arc::new(NotifyLog::default());
        let stop = CancellationToken::new();
        let period = Duration::from_secs(30);
        let stop_later = async {
            tokio::time::sleep(Duration::from_secs(70)).await;
            stop.cancel();
        };
        let notifying = notify_watchdog(log.clone(), Some(period), stop.clone());
        tokio::join!(notifying, stop_later);
        assert_eq!(*log.0.lock().unwrap(), ["Alive", "Alive", "Alive", "Stopping"]);
    }

    #[tokio::test]
    async fn a_manager_without_a_watchdog_is_notified_of_the_stop_only() {
        let log = Arc::new(NotifyLog::default());
        let stop = CancellationToken::new();
        stop.cancel();
        notify_watchdog(log.clone(), None, stop).await;
        assert_eq!(*log.0.lock().unwrap(), ["Stopping"]);
    }

    #[test]
    fn without_a_service_manager_notifying_does_not_fail() {
        Systemd.notify(ServiceState::Status("two\nlines"));
        Systemd.notify(ServiceState::Ready);
    }
}
