//! The window bookkeeping of EIM's agent, with its gaps.

use chrono::TimeDelta;

use crate::clock::Time;
use crate::eim::cron::RepeatedWindows;
use crate::ground_truth::Span;

/// The windows that a process of the agent remembers.
#[derive(Clone, Debug, Default)]
pub struct WindowJobs {
    /// The window in the state file when the process started. It is compared and never updated.
    at_start: Option<Span>,
    single: Option<SingleJob>,
    /// The schedules that the process repeats itself.
    repeated: Vec<RepeatedWindows>,
    /// When they were registered, which happens again with every answer.
    registered: Option<Time>,
}

/// The job of a single window. It stays registered after it has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SingleJob {
    window: Span,
    /// When it begins, by the node's clock; `None` if it has begun or never will.
    begins: Option<Time>,
}

impl WindowJobs {
    /// The memory of a process that starts with this window in its state file.
    #[must_use]
    pub fn with_window(window: Option<Span>) -> Self {
        Self { at_start: window, ..Self::default() }
    }

    /// Accepts the single window of an answer, at an instant of the node's clock. Returns whether
    /// the window is used up.
    ///
    /// A window that differs from that of the registered job is ignored: only an answer without a
    /// window makes room for another.
    pub fn accept_window(
        &mut self,
        single: Option<Span>,
        is_used: bool,
        now: Time,
        pace: super::Pace,
    ) -> bool {
        let Some(window) = single else {
            self.single = None;
            return true;
        };
        if self.at_start == Some(window) && is_used {
            return true;
        }
        let Some(job) = self.single else {
            self.single = Some(SingleJob { window, begins: begin_time(window, now, pace) });
            return false;
        };
        // Only the end of the job is checked.
        job.begins.is_none()
    }

    /// Replaces the schedules that the process repeats itself, at an instant of the node's clock.
    pub fn set_repeated(&mut self, repeated: Vec<RepeatedWindows>, now: Time) {
        self.repeated = repeated;
        self.registered = Some(now);
    }

    /// The window that is due at an instant of the node's clock, and the instant of its beginning.
    /// Each window is due once.
    pub fn take_due(&mut self, now: Time) -> Option<(Span, Time)> {
        let repeated = self.take_due_repeated(now);
        let due = self
            .single
            .as_mut()
            .and_then(|job| Some((job.window, job.begins.take_if(|begins| *begins <= now)?)));
        due.or(repeated)
    }

    /// The window of a repeated schedule that began since the registration. One job runs at a time:
    /// of several due windows the first one wins.
    fn take_due_repeated(&mut self, now: Time) -> Option<(Span, Time)> {
        let since = self.registered.replace(now)?;
        let all = self.repeated.iter();
        let window = all.filter_map(|one| one.last_window_between(since, now)).min()?;
        Some((window, window.0))
    }

    /// The windows in which the process will still begin.
    pub fn awaited(&self) -> Option<(Option<Span>, Vec<RepeatedWindows>)> {
        let single = self.single.filter(|job| job.begins.is_some());
        let awaits = (single.map(|job| job.window), self.repeated.clone());
        (awaits.0.is_some() || !awaits.1.is_empty()).then_some(awaits)
    }
}

/// When a window begins that is delivered now.
fn begin_time((start, end): Span, now: Time, pace: super::Pace) -> Option<Time> {
    if now < start {
        // An open-ended window has the end 0, which is before its start: it is registered and never
        // runs.
        return Some(start).filter(|start| *start < end);
    }
    let is_long_enough = end - now > pace.min_window_left;
    is_long_enough.then(|| now + pace.begin_delay.min(TimeDelta::seconds(1)))
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
        let mut jobs = WindowJobs::default();
        jobs.accept_window(Some(span(10, 30)), false, at(0), Pace::REAL);
        jobs.accept_window(Some(span(40, 60)), false, at(1), Pace::REAL);
        assert_eq!(jobs.take_due(at(10)), Some((span(10, 30), at(10))));
        assert!(jobs.accept_window(Some(span(40, 60)), false, at(35), Pace::REAL));
        assert_eq!(jobs.take_due(at(45)), None, "it ran once in this process");
        jobs.accept_window(None, true, at(46), Pace::REAL);
        jobs.accept_window(Some(span(40, 60)), true, at(47), Pace::REAL);
        assert!(jobs.take_due(at(48)).is_some());
    }

    #[test]
    fn an_open_window_is_used_only_if_ten_minutes_are_left() {
        for (now, is_used) in [(45, true), (51, false)] {
            let mut jobs = WindowJobs::default();
            jobs.accept_window(Some(span(40, 60)), false, at(now), Pace::REAL);
            assert_eq!(jobs.take_due(at(59)).is_some(), is_used, "delivered at minute {now}");
        }
    }

    #[test]
    fn a_repeated_window_is_due_once_at_each_of_its_minutes() {
        let every_five =
            RepeatedWindows::parse(["0,5,10", "*", "*", "*", "*"], 20).expect("a cron");
        let mut jobs = WindowJobs::default();
        let seconds = |count| at(0) + TimeDelta::seconds(count);
        jobs.set_repeated(vec![every_five.clone()], seconds(1));
        assert_eq!(jobs.take_due(seconds(299)), None);
        let window = (at(5), at(5) + TimeDelta::seconds(20));
        assert_eq!(jobs.take_due(seconds(301)), Some((window, at(5))));
        assert_eq!(jobs.take_due(seconds(302)), None);
        jobs.set_repeated(vec![every_five], seconds(601));
        assert_eq!(jobs.take_due(seconds(602)), None, "registered after its minute");
        jobs.set_repeated(Vec::new(), seconds(603));
        assert_eq!(jobs.take_due(at(60)), None);
    }

    #[test]
    fn an_open_ended_window_never_runs() {
        let mut jobs = WindowJobs::default();
        jobs.accept_window(Some((at(10), DateTime::UNIX_EPOCH)), false, at(0), Pace::REAL);
        assert_eq!(jobs.take_due(at(60)), None);
    }

    #[test]
    fn a_process_that_starts_again_does_not_use_a_window_twice() {
        let mut jobs = WindowJobs::with_window(Some(span(10, 60)));
        jobs.accept_window(Some(span(10, 60)), true, at(20), Pace::REAL);
        assert_eq!(jobs.take_due(at(25)), None);
        jobs.accept_window(Some(span(12, 60)), true, at(26), Pace::REAL);
        assert!(jobs.take_due(at(27)).is_some(), "another window is another one");
    }
}
