//! The agent's bookkeeping of windows, with its gaps.

use chrono::TimeDelta;

use crate::clock::Time;
use crate::eim::cron::Repeats;
use crate::truth::Span;

/// What a process of the agent remembers of windows.
#[derive(Clone, Debug, Default)]
pub struct Jobs {
    /// The window that the state file had when the process started. It is compared with and never renewed.
    at_start: Option<Span>,
    single: Option<Job>,
    /// The schedules that the process repeats itself.
    repeated: Vec<Repeats>,
    /// When they were registered. That is done anew with every answer.
    registered: Option<Time>,
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
            ..Self::default()
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

    /// Takes the schedules that the process repeats itself, at an instant of the node's clock. They take the place of
    /// those before.
    pub fn repeat(&mut self, repeated: Vec<Repeats>, now: Time) {
        self.repeated = repeated;
        self.registered = Some(now);
    }

    /// The window that is due at an instant of the node's clock, with the instant at which it began. It is due once.
    pub fn due(&mut self, now: Time) -> Option<(Span, Time)> {
        let repeated = self.due_again(now);
        let due = self
            .single
            .as_mut()
            .and_then(|job| Some((job.window, job.begins.take_if(|begins| *begins <= now)?)));
        due.or(repeated)
    }

    /// The window of a schedule that repeats itself which began since it was registered. One job runs at a time: of
    /// several that are due the first one wins.
    fn due_again(&mut self, now: Time) -> Option<(Span, Time)> {
        let since = self.registered.replace(now)?;
        let all = self.repeated.iter();
        let window = all.filter_map(|one| one.begun(since, now)).min()?;
        Some((window, window.0))
    }

    /// What the process waits for: windows that it will begin in, told apart by whatever tells them apart.
    pub fn awaits(&self) -> Option<(Option<Span>, Vec<Repeats>)> {
        let single = self.single.filter(|job| job.begins.is_some());
        let awaits = (single.map(|job| job.window), self.repeated.clone());
        (awaits.0.is_some() || !awaits.1.is_empty()).then_some(awaits)
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
    fn what_repeats_itself_is_due_at_each_of_its_minutes_once() {
        let every_five = Repeats::read(["0,5,10", "*", "*", "*", "*"], 20).expect("a cron");
        let mut jobs = Jobs::default();
        let seconds = |count| at(0) + TimeDelta::seconds(count);
        jobs.repeat(vec![every_five.clone()], seconds(1));
        assert_eq!(jobs.due(seconds(299)), None);
        let window = (at(5), at(5) + TimeDelta::seconds(20));
        assert_eq!(jobs.due(seconds(301)), Some((window, at(5))));
        assert_eq!(jobs.due(seconds(302)), None);
        jobs.repeat(vec![every_five], seconds(601));
        assert_eq!(jobs.due(seconds(602)), None, "registered after its minute");
        jobs.repeat(Vec::new(), seconds(603));
        assert_eq!(jobs.due(at(60)), None);
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
