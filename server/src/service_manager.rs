//! Notifies the service manager, such as systemd, of the state of the server. Without a service
//! manager that expects notifications, does nothing.

use evenkeel_kit::Lifecycle;
use sd_notify::NotifyState;

/// Describes the current step of the start or stop, in one line.
pub(crate) fn notify_status(status: &str) {
    notify(&[NotifyState::Status(&one_line(status))]);
}

/// Notifies that all services are ready. `status` describes the running server, in one line.
pub(crate) fn notify_ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// Notifies that the server is stopping, as soon as a stop is requested.
pub(crate) fn notify_when_stopping(life: &Lifecycle) {
    let stopping = life.stopping();
    life.spawn("service manager", async move {
        stopping.cancelled().await;
        notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
        Ok(())
    });
}

/// A line break would begin another message.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// An error does not stop the server: the service manager notices a missing notification.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(one_line("a\nREADY=1\r\nb"), "a READY=1  b");
    }
}
