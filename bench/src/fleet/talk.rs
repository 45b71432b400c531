//! How a driver hears what it is to do, and says what came of it.

use std::io::{BufRead as _, Write as _};

use chrono::TimeDelta;
use evenkeel_kit::{Clock, SystemClock};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::plan::Told;

/// The lines of standard input. A thread reads them: nothing else waits for it.
pub fn heard_orders() -> mpsc::UnboundedReceiver<String> {
    let (give, take) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lock().lines();
        for line in lines.map_while(Result::ok) {
            if give.send(line).is_err() {
                return;
            }
        }
    });
    take
}

/// Tells on standard output.
pub fn say(told: &Told) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, told)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// The instant of this process at which the clock shows so many milliseconds since 1970.
pub fn instant(millis: i64) -> Instant {
    let now = Instant::now();
    let ahead = millis - SystemClock.now().timestamp_millis();
    let length = TimeDelta::milliseconds(ahead).abs().to_std();
    let length = length.unwrap_or_default();
    if ahead < 0 {
        now.checked_sub(length).unwrap_or(now)
    } else {
        now + length
    }
}
