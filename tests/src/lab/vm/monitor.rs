//! The buttons and lamps of a machine: qemu's monitor protocol, one JSON object a line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// How often a machine was reset since it was switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resets {
    /// By what ran on it: firmware, kernel, or a process.
    pub by_itself: u32,
    /// By the button.
    pub from_outside: u32,
}

impl Resets {
    /// Counts what the monitor said, if that is a reset.
    fn note(&mut self, said: &Value) {
        if said["event"] != "RESET" {
            return;
        }
        if said["data"]["guest"] == true {
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
    /// Takes the monitor that listens on a socket. None if nobody listens there yet.
    ///
    /// # Panics
    /// What listens there is no monitor.
    pub(super) fn connect(socket: &Path) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        let limited = stream.set_read_timeout(Some(PATIENCE));
        limited.expect("a limit of time");
        let mut monitor = Self {
            stream: BufReader::new(stream),
            resets: Resets::default(),
        };
        let greeting = monitor.hear();
        assert!(greeting["QMP"].is_object(), "{greeting}");
        monitor.order("qmp_capabilities");
        Some(monitor)
    }

    /// Presses the button. The reset comes about a moment later.
    pub(super) fn reset(&mut self) {
        self.order("system_reset");
    }

    /// How often the machine was reset.
    pub(super) fn resets(&mut self) -> Resets {
        // Whatever happened before the answer was said before it.
        self.order("query-status");
        self.resets
    }

    /// Says a command and waits until it is answered.
    fn order(&mut self, command: &str) {
        let order = format!("{}\n", json!({ "execute": command }));
        let told = self.stream.get_mut().write_all(order.as_bytes());
        told.expect("a machine that is on");
        loop {
            let said = self.hear();
            assert!(said.get("error").is_none(), "{command}: {said}");
            if said.get("return").is_some() {
                return;
            }
            self.resets.note(&said);
        }
    }

    fn hear(&mut self) -> Value {
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
    fn resets_are_told_apart_by_who_made_them() {
        let reset =
            |guest: bool| json!({ "event": "RESET", "data": { "guest": guest, "reason": "any" } });
        let mut resets = Resets::default();
        for said in [
            reset(true),
            json!({ "event": "SHUTDOWN", "data": { "guest": true } }),
            reset(false),
            reset(true),
            json!({ "return": {} }),
        ] {
            resets.note(&said);
        }
        let counted = Resets {
            by_itself: 2,
            from_outside: 1,
        };
        assert_eq!(resets, counted);
    }
}
