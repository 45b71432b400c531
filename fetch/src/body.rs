//! Bodies of responses that stall or are too slow.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};

/// What happened while a body was read.
#[derive(Debug)]
pub enum BodyEvent<E> {
    /// The next bytes.
    Bytes(Bytes),
    /// The body is complete.
    End,
    /// No bytes for now.
    Idle,
    /// The body ended early.
    Broken(E),
}

/// Minimum transfer of a body before it is aborted. Only the time spent reading counts.
#[derive(Clone, Copy, Debug)]
pub struct StallLimits {
    /// Time without any bytes after which the body is aborted.
    pub idle_timeout: Duration,
    /// Interval over which `min_bytes` is checked.
    pub rate_window: Duration,
    /// Minimum number of bytes per `rate_window`.
    pub min_bytes: u64,
}

/// Why a body is aborted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StallError {
    /// No bytes came for this time.
    #[error("no data arrived for {}", format_duration(*.0))]
    Idle(Duration),
    /// Too few bytes came.
    #[error("only {bytes} bytes arrived in {}", format_duration(*.span))]
    Slow {
        /// Number of bytes.
        bytes: u64,
        /// Time in which they came.
        span: Duration,
    },
}

impl From<StallError> for String {
    fn from(error: StallError) -> Self {
        error.to_string()
    }
}

/// Bytes and time while a body was read.
#[derive(Debug, Default)]
pub struct StallWatch {
    /// Time since the last bytes.
    silence: Duration,
    /// Time of reading in the current window.
    elapsed: Duration,
    /// Bytes received in the current window.
    bytes: u64,
}

impl StallWatch {
    /// Waits for the next bytes of a body until `until` or until a limit is reached. `next` returns
    /// `None` at the end of the body, and loses nothing when it is dropped. It is polled at least
    /// once, unless a limit was reached before.
    pub async fn next_event<E: From<StallError>>(
        &mut self,
        limits: &StallLimits,
        until: Option<Instant>,
        next: impl Future<Output = Result<Option<Bytes>, E>>,
    ) -> BodyEvent<E> {
        // Check the limits before reading, so that late bytes are not lost.
        if let Some(error) = self.find_stall(limits) {
            return BodyEvent::Broken(error.into());
        }
        let started = Instant::now();
        let left = limits
            .idle_timeout
            .saturating_sub(self.silence)
            .min(limits.rate_window.saturating_sub(self.elapsed))
            .min(until.map_or(Duration::MAX, |until| until.saturating_duration_since(started)));
        let event = match timeout(left, next).await {
            Err(_) => BodyEvent::Idle,
            Ok(Ok(None)) => BodyEvent::End,
            Ok(Ok(Some(bytes))) if bytes.is_empty() => BodyEvent::Idle,
            Ok(Ok(Some(bytes))) => BodyEvent::Bytes(bytes),
            Ok(Err(error)) => BodyEvent::Broken(error),
        };
        let bytes = match &event {
            BodyEvent::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        self.add(started.elapsed(), bytes);
        event
    }

    /// Adds bytes that came during some time of reading.
    fn add(&mut self, time: Duration, bytes: usize) {
        if bytes == 0 {
            self.silence += time;
        } else {
            self.silence = Duration::ZERO;
        }
        self.elapsed += time;
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// Why the transfer is too slow; `None` if it is fast enough or it is too early to decide.
    fn find_stall(&mut self, limits: &StallLimits) -> Option<StallError> {
        if self.silence >= limits.idle_timeout {
            return Some(StallError::Idle(limits.idle_timeout));
        }
        if self.elapsed < limits.rate_window {
            return None;
        }
        if self.bytes < limits.min_bytes {
            return Some(StallError::Slow { bytes: self.bytes, span: limits.rate_window });
        }
        self.elapsed = Duration::ZERO;
        self.bytes = 0;
        None
    }
}

/// Formats a duration for people.
pub fn format_duration(time: Duration) -> String {
    if time.subsec_millis() == 0 {
        format!("{} s", time.as_secs())
    } else {
        format!("{} ms", time.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StallLimits = StallLimits {
        idle_timeout: Duration::from_mins(1),
        rate_window: Duration::from_mins(10),
        min_bytes: 64 << 10,
    };

    fn stall_reason(watch: &mut StallWatch) -> Option<String> {
        watch.find_stall(&LIMITS).map(String::from)
    }

    /// Why and after how many minutes a body is aborted if this many bytes come at the end of each
    /// minute.
    fn stalled_after(bytes: usize) -> Option<(u32, String)> {
        let mut watch = StallWatch::default();
        (0..100).find_map(|minutes| {
            if let Some(why) = stall_reason(&mut watch) {
                return Some((minutes, why));
            }
            watch.add(Duration::from_secs(59), 0);
            watch.add(Duration::from_secs(1), bytes);
            None
        })
    }

    #[test]
    fn a_slow_response_is_aborted() {
        let why = "only 10 bytes arrived in 600 s".to_owned();
        assert_eq!(stalled_after(1), Some((10, why)));
        assert!(stalled_after(6_553).is_some(), "below the average");
        assert_eq!(stalled_after(6_554), None);
    }

    #[test]
    fn an_early_burst_does_not_excuse_a_later_stall() {
        let mut watch = StallWatch::default();
        watch.add(LIMITS.rate_window, 1 << 30);
        assert_eq!(stall_reason(&mut watch), None);
        watch.add(LIMITS.rate_window, 1);
        assert!(stall_reason(&mut watch).is_some());
    }

    #[test]
    fn a_silent_response_is_aborted_sooner() {
        let mut watch = StallWatch::default();
        watch.add(Duration::from_secs(59), 0);
        assert_eq!(stall_reason(&mut watch), None);
        watch.add(Duration::from_secs(1), 0);
        assert_eq!(stall_reason(&mut watch).unwrap(), "no data arrived for 60 s");
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_bytes_counts_across_several_reads() {
        let mut watch = StallWatch::default();
        for _ in 0..3 {
            let until = Instant::now() + Duration::from_secs(20);
            let event = watch.next_event::<String>(&LIMITS, Some(until), std::future::pending());
            assert!(matches!(event.await, BodyEvent::Idle));
        }
        let event = watch.next_event::<String>(&LIMITS, None, std::future::pending()).await;
        assert!(matches!(event, BodyEvent::Broken(why) if why.contains("60 s")));
    }
}
