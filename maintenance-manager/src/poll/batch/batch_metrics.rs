//! Metrics of the batches. The handles are created once, because a lookup is slow compared to a
//! poll.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// A gauge for a length.
#[derive(Debug)]
pub struct LengthGauge(Gauge);

impl LengthGauge {
    pub fn set(&self, length: usize) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a queue is shorter than any float is exact"
        )]
        self.0.set(length as f64);
    }
}

/// The metrics of the batcher.
#[derive(Debug)]
pub struct BatchMetrics {
    /// The number of polls in the queue.
    pub waiting: LengthGauge,
    /// The number of polls in a batch.
    pub size: Histogram,
    /// The duration of a batch in seconds.
    pub seconds: Histogram,
    /// The polls that were refused because they waited too long.
    pub overloaded: Counter,
}

impl BatchMetrics {
    pub fn new() -> Self {
        Self {
            waiting: LengthGauge(gauge!("evenkeel_poll_batch_waiting")),
            size: histogram!("evenkeel_poll_batch_size"),
            seconds: histogram!("evenkeel_poll_batch_seconds"),
            overloaded: counter!("evenkeel_overload_refused_total", "kind" => "poll_batch"),
        }
    }
}
