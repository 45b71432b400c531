//! What the service manager is told: that the agent is up, what it is at, that it is alive, that it stops.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign<'a> {
    /// The agent works.
    Ready,
    /// What it is at, in one line.
    Status(&'a str),
    /// Its loop turns.
    Alive,
    /// It was asked to stop and does so as soon as it may.
    Stopping,
}

/// Who is told.
pub trait Manager: Debug + Send + Sync {
    /// Tells it. What it does not hear does not hinder the agent.
    fn tell(&self, sign: Sign<'_>);
}

/// systemd, if it started the process and wants to be told; else nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Systemd;

impl Systemd {
    /// How often it wants to hear that the agent is alive: twice in the time after which it would end the agent. `None`
    /// if it does not.
    pub fn beat() -> Option<Duration> {
        let beat = sd_notify::watchdog_enabled()? / 2;
        (!beat.is_zero()).then_some(beat)
    }
}

impl Manager for Systemd {
    fn tell(&self, sign: Sign<'_>) {
        let line;
        let state = match sign {
            Sign::Ready => NotifyState::Ready,
            Sign::Status(text) => {
                // A line end would begin another message.
                line = text.replace(['\n', '\r'], " ");
                NotifyState::Status(&line)
            }
            Sign::Alive => NotifyState::Watchdog,
            Sign::Stopping => NotifyState::Stopping,
        };
        if let Err(error) = sd_notify::notify(&[state]) {
            tracing::debug!(%error, "the service manager cannot be told");
        }
    }
}

/// Nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Manager for Nobody {
    fn tell(&self, _sign: Sign<'_>) {}
}

/// Tells the manager with every beat that the agent is alive, and once that it stops.
pub async fn keep_telling(
    manager: Arc<dyn Manager>,
    beat: Option<Duration>,
    stop: CancellationToken,
) {
    let beats = async {
        let Some(beat) = beat else {
            return std::future::pending().await;
        };
        let mut interval = tokio::time::interval(beat);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            manager.tell(Sign::Alive);
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = beats => {}
    }
    manager.tell(Sign::Stopping);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Writes down what it is told.
    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<String>>);

    impl Manager for Heard {
        fn tell(&self, sign: Sign<'_>) {
            self.0.lock().unwrap().push(format!("{sign:?}"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_watchdog_hears_with_every_beat_until_the_stop() {
        let heard = Arc::new(Heard::default());
        let stop = CancellationToken::new();
        let beat = Duration::from_secs(30);
        let asked_to_stop = async {
            tokio::time::sleep(Duration::from_secs(70)).await;
            stop.cancel();
        };
        let telling = keep_telling(heard.clone(), Some(beat), stop.clone());
        tokio::join!(telling, asked_to_stop);
        assert_eq!(
            *heard.0.lock().unwrap(),
            ["Alive", "Alive", "Alive", "Stopping"]
        );
    }

    #[tokio::test]
    async fn a_manager_without_a_watchdog_hears_of_the_stop_only() {
        let heard = Arc::new(Heard::default());
        let stop = CancellationToken::new();
        stop.cancel();
        keep_telling(heard.clone(), None, stop).await;
        assert_eq!(*heard.0.lock().unwrap(), ["Stopping"]);
    }

    #[test]
    fn where_no_manager_is_nobody_is_told_and_nothing_fails() {
        Systemd.tell(Sign::Status("two\nlines"));
        Systemd.tell(Sign::Ready);
    }
}
