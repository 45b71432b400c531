//! The monitor of a machine: resets by button and counts resets. Uses qemu's QMP, one JSON object per line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// How long an answer may take on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Number of resets since a machine was switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resets {
    /// Caused by firmware, kernel or a process of the machine.
    pub by_itself: u32,
    /// Caused by the reset button.
    pub from_outside: u32,
}

impl Resets {
    /// Counts a message of the monitor if it is a reset.
    fn record_event(&mut self, message: &Value) {
        if message["event"] != "RESET" {
            return;
        }
        if message["data"]["guest"] == true {
            self.by_itself += 1;
        } else {
            self.from_outside += 1;
        }
    }
}

/// The monitor of a machine that is on.
#[derive(Debug)]
pub(super) struct Monitor {
    stream: BufReader<UnixStream>,
    resets: Resets,
}

impl Monitor {
    /// Connects to the monitor at a socket. `None` if nothing listens there yet.
    ///
    /// # Panics
    /// The program that listens is not qemu's monitor.
    pub(super) fn connect(socket: &Path) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        let limited = stream.set_read_timeout(Some(ANSWER_TIMEOUT));
        limited.expect("a read timeout");
        let mut monitor = Self { stream: BufReader::new(stream), resets: Resets::default() };
        let greeting = monitor.read_message();
        assert!(greeting["QMP"].is_object(), "{greeting}");
        monitor.execute("qmp_capabilities");
        Some(monitor)
    }

    /// Presses the reset button. The reset follows a moment later.
    pub(super) fn reset(&mut self) {
        self.execute("system_reset");
    }

    /// Number of resets of the machine.
    pub(super) fn resets(&mut self) -> Resets {
        // The monitor sends all earlier events before the answer.
        self.execute("query-status");
        self.resets
    }

    /// Sends a command and waits for its answer.
    fn execute(&mut self, command: &str) {
        let order = format!("{}\n", json!({ "execute": command }));
        let sent = self.stream.get_mut().write_all(order.as_bytes());
        sent.expect("a machine that is on");
        loop {
            let message = self.read_message();
            assert!(message.get("error").is_none(), "{command}: {message}");
            if message.get("return").is_some() {
                return;
            }
            self.resets.record_event(&message);
        }
    }

    fn read_message(&mut self) -> Value {
        let mut line = String::new();
        let heard = self.stream.read_line(&mut line);
        heard.expect("a machine that answers in time");
        serde_json::from_str(&line).expect("the monitor of a machine that is on")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_are_counted_by_their_cause() {
        let reset =
            |guest: bool| json!({ "event": "RESET", "data": { "guest": guest, "reason": "any" } });
        let mut resets = Resets::default();
        for message in [
            reset(true),
            json!({ "event": "SHUTDOWN", "data": { "guest": true } }),
            reset(false),
            reset(true),
            json!({ "return": {} }),
        ] {
            resets.record_event(&message);
        }
        let counted = Resets { by_itself: 2, from_outside: 1 };
        assert_eq!(resets, counted);
    }
}
