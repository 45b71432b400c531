//! Standard input and output of a driver.

use std::io::{BufRead as _, Write as _};

use chrono::TimeDelta;
use evenkeel_kit::{Clock, SystemClock};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::driver_protocol::DriverMessage;

/// The lines of standard input. A separate thread reads them, because reading blocks.
pub fn read_commands() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines();
        for line in lines.map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Writes a message to standard output.
pub fn write_message(message: &DriverMessage) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// The instant of this process for a wall-clock time in milliseconds since 1970.
pub fn instant_at(millis: i64) -> Instant {
    let now = Instant::now();
    let ahead = millis - SystemClock.now().timestamp_millis();
    let length = TimeDelta::milliseconds(ahead).abs().to_std();
    let length = length.unwrap_or_default();
    if ahead < 0 { now.checked_sub(length).unwrap_or(now) } else { now + length }
}
