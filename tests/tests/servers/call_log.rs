//! Answers and outages of a node that calls servers all the time.

use std::time::{Duration, Instant};

/// The calls of one node of one kind.
#[derive(Debug)]
pub struct CallLog {
    pub answered: usize,
    pub failed: usize,
    pub last_failure: String,
    last_answer: Instant,
    /// The longest time between two answers, or from the first call or to the last one.
    pub longest_outage: Duration,
}

impl CallLog {
    /// A log without calls, of a node that begins to call now.
    pub fn begin(now: Instant) -> Self {
        Self {
            answered: 0,
            failed: 0,
            last_failure: String::new(),
            last_answer: now,
            longest_outage: Duration::ZERO,
        }
    }

    /// Records the end of a call: an answer, or the text of a failure.
    pub fn record(&mut self, now: Instant, result: Result<(), String>) {
        self.longest_outage = self.longest_outage.max(now - self.last_answer);
        match result {
            Ok(()) => {
                self.answered += 1;
                self.last_answer = now;
            }
            Err(failure) => {
                self.failed += 1;
                self.last_failure = failure;
            }
        }
    }
}

#[test]
fn an_outage_lasts_from_one_answer_to_the_next() {
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    let failure = || Err("away".to_owned());
    let longest = |polls: &[(u64, Result<(), String>)]| {
        let mut log = CallLog::begin(begun);
        for (seconds, result) in polls {
            log.record(at(*seconds), result.clone());
        }
        log.longest_outage.as_secs()
    };
    assert_eq!(longest(&[(1, Ok(())), (5, Ok(())), (6, Ok(()))]), 4, "a poll that hangs");
    assert_eq!(longest(&[(1, Ok(())), (2, failure()), (4, Ok(()))]), 3, "a poll that fails");
    assert_eq!(longest(&[(3, Ok(())), (4, Ok(()))]), 3, "the first answer is late");
    assert_eq!(longest(&[(1, Ok(())), (3, failure())]), 2, "there is no later answer");
}
