//! The agent's bookkeeping of windows, with its gaps.

use chrono::TimeDelta;

use crate::clock::Time;
use crate::truth::Span;

/// What a process of the agent remembers of windows.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    /// The window that the state file had when the process started. It is compared with and never renewed.
    at_start: Option<Span>,
    single: Option<Job>,
}

/// The one job that is registered for a single window. It stays registered when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Job {
    window: Span,
    /// When it begins, by the node's clock; none if it began, or never will.
    begins: Option<Time>,
}

impl Jobs {
    /// The memory of a process that starts with this window in its state file.
    #[must_use]
    pub fn at_start(window: Option<Span>) -> Self {
        Self {
            at_start: window,
            single: None,
        }
    }

    /// Takes what an answer says of the single window, at an instant of the node's clock. Returns whether the window
    /// counts as used up now.
    ///
    /// A window that differs from the one of the job that is registered is not noticed: only an answer without any
    /// makes room for another.
    pub fn hear(
        &mut self,
        told: Option<Span>,
        is_used: bool,
        now: Time,
        pace: super::Pace,
    ) -> bool {
        let Some(window) = told else {
            self.single = None;
            return true;
        };
        if self.at_start == Some(window) && is_used {
            return true;
        }
        let Some(job) = self.single else {
            self.single = Some(Job {
                window,
                begins: begins(window, now, pace),
            });
            return false;
        };
        // The job is only asked whether it is over.
        job.begins.is_none()
    }

    /// The window that is due at an instant of the node's clock, with the instant at which it began. It is due once.
    pub fn due(&mut self, now: Time) -> Option<(Span, Time)> {
        let job = self.single.as_mut()?;
        let begins = job.begins.filter(|begins| *begins <= now)?;
        job.begins = None;
        Some((job.window, begins))
    }
}

/// When a window is begun that is told now.
fn begins((start, end): Span, now: Time, pace: super::Pace) -> Option<Time> {
    if now < start {
        // The end of an open-ended one is 0, which is before its start: it is registered and refuses to run.
        return Some(start).filter(|start| *start < end);
    }
    let is_long_enough = end - now > pace.least_left;
    is_long_enough.then(|| now + pace.begin_after.min(TimeDelta::seconds(1)))
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::eim::Pace;

    fn at(minutes: i64) -> Time {
        DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
    }

    fn span(from: i64, to: i64) -> Span {
        (at(from), at(to))
    }

    #[test]
    fn a_changed_window_is_not_noticed_until_an_answer_had_none() {
        let mut jobs = Jobs::default();
        jobs.hear(Some(span(10, 30)), false, at(0), Pace::REAL);
        jobs.hear(Some(span(40, 60)), false, at(1), Pace::REAL);
        assert_eq!(jobs.due(at(10)), Some((span(10, 30), at(10))));
        assert!(jobs.hear(Some(span(40, 60)), false, at(35), Pace::REAL));
        assert_eq!(jobs.due(at(45)), None, "it ran once in this process");
        jobs.hear(None, true, at(46), Pace::REAL);
        jobs.hear(Some(span(40, 60)), true, at(47), Pace::REAL);
        assert!(jobs.due(at(48)).is_some());
    }

    #[test]
    fn an_open_window_is_used_only_if_ten_minutes_are_left() {
        for (now, is_used) in [(45, true), (51, false)] {
            let mut jobs = Jobs::default();
            jobs.hear(Some(span(40, 60)), false, at(now), Pace::REAL);
            assert_eq!(jobs.due(at(59)).is_some(), is_used, "told at minute {now}");
        }
    }

    #[test]
    fn an_open_ended_window_never_runs() {
        let mut jobs = Jobs::default();
        jobs.hear(
            Some((at(10), DateTime::UNIX_EPOCH)),
            false,
            at(0),
            Pace::REAL,
        );
        assert_eq!(jobs.due(at(60)), None);
    }

    #[test]
    fn a_process_that_starts_again_does_not_use_a_window_twice() {
        let mut jobs = Jobs::at_start(Some(span(10, 60)));
        jobs.hear(Some(span(10, 60)), true, at(20), Pace::REAL);
        assert_eq!(jobs.due(at(25)), None);
        jobs.hear(Some(span(12, 60)), true, at(26), Pace::REAL);
        assert!(jobs.due(at(27)).is_some(), "another window is another one");
    }
}
