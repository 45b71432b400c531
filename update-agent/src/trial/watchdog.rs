//! The machine's watchdog while an image is on trial: a circuit that resets the machine unless it is told again and
//! again that somebody lives. See the kernel's document "The Linux Watchdog driver API".
//!
//! systemd may feed it already (`RuntimeWatchdogSec=`): then the device is busy, and is left to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{BEAT, guard};
use crate::config::Watchdog as Policy;
use crate::durable;
use crate::os::first_line;
use crate::place::Place;

const DEVICE: &str = "/dev/watchdog0";

/// What the kernel tells of it, below sysfs (its ABI document, sysfs-class-watchdog).
const CLASS: &str = "class/watchdog/watchdog0";

/// `1` if a watchdog that was started cannot be stopped any more.
const NO_WAY_OUT: &str = "/sys/class/watchdog/watchdog0/nowayout";

/// A watchdog that waits less long, in seconds, may reset a machine whose agent only flushes a slow disk.
const SHORT: u64 = 15;

/// There while a watchdog runs that the agent started.
const OURS: &str = "/run/evenkeel/watchdog";

/// Any byte feeds it. This one, written last, says that it is closed on purpose: it stops then.
const GOODBYE: &[u8] = b"V";
const FOOD: &[u8] = b".";

/// The machine's watchdog.
#[derive(Debug)]
pub(super) struct Watchdog {
    place: Place,
    is_required: bool,
    is_ignored: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Nobody feeds one, and why.
    None(String),
    /// Somebody else does.
    Others,
    Ours(File),
}

impl Watchdog {
    /// Opens it, and so starts it, unless it is to be ignored.
    pub fn new(place: &Place, policy: Policy) -> Self {
        let watchdog = Self {
            place: place.clone(),
            is_required: matches!(policy, Policy::Require),
            is_ignored: matches!(policy, Policy::Ignore),
            state: Mutex::new(State::None("it was not looked for".to_owned())),
        };
        watchdog.look();
        watchdog
    }

    /// What is wrong with it, if there must be one.
    pub fn fault(&self) -> Option<String> {
        match &*self.state() {
            State::None(why) if self.is_required => {
                Some(format!("a watchdog is required, and there is none: {why}"))
            }
            State::None(_) | State::Others | State::Ours(_) => None,
        }
    }

    /// Feeds it while something is done, but not longer than `time`. Its driver may be loaded later than the agent: it
    /// is looked for again and again.
    pub async fn feed_during<T>(&self, time: Duration, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let begun = Instant::now();
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = sleep(BEAT) => {}
            }
            if begun.elapsed() < time {
                self.look();
            }
        }
    }

    /// Stops it, if it is ours.
    pub fn stop(&self) {
        let none = State::None("it was stopped".to_owned());
        let state = std::mem::replace(&mut *self.state(), none);
        if let State::Ours(device) = state {
            say_goodbye(&self.place, device);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Feeds it if it is ours, and looks for it if there is none.
    fn look(&self) {
        let mut state = self.state();
        match &mut *state {
            State::Ours(device) => {
                if let Err(error) = device.write_all(FOOD) {
                    tracing::warn!(%error, "the watchdog cannot be fed");
                }
            }
            State::Others => {}
            State::None(_) if self.is_ignored => {}
            State::None(before) => {
                let found = self.open();
                match &found {
                    State::None(why) if *why == *before => {}
                    State::None(why) => tracing::info!(why, "no watchdog"),
                    State::Others => tracing::info!("the watchdog is fed by somebody else"),
                    State::Ours(_) => tracing::info!("the watchdog runs until the trial is over"),
                }
                *state = found;
            }
        }
    }

    fn open(&self) -> State {
        // Committed, the image would be reset by it for ever: whoever wants such a one has systemd feed it.
        if first_line(&self.place.inside(NO_WAY_OUT)).as_deref() == Some("1") {
            if is_fed_by_another(&self.place.inside("/sys")) {
                return State::Others;
            }
            return State::None(format!("{NO_WAY_OUT} says that it cannot be stopped"));
        }
        // Before it is started: an agent that is killed in between leaves a word too many, not a watchdog that nobody
        // stops.
        if let Err(error) = guard::mark(self.place.inside(OURS)) {
            return State::None(error.to_string());
        }
        match open(&self.place) {
            Ok(device) => {
                if let Some(seconds) = short_timeout(&self.place.inside("/sys")) {
                    tracing::warn!(seconds, "the watchdog waits for a short time only");
                }
                State::Ours(device)
            }
            Err(error) => {
                unmark(&self.place);
                if error.kind() == io::ErrorKind::ResourceBusy {
                    return State::Others;
                }
                State::None(format!("{DEVICE}: {error}"))
            }
        }
    }
}

/// Whether somebody else feeds the machine's watchdog, such as systemd. Only to be asked while the agent does not.
pub(crate) fn is_fed_by_another(sys: &Path) -> bool {
    first_line(&sys.join(CLASS).join("state")).as_deref() == Some("active")
}

/// How many seconds the watchdog waits for its food, if that is not long.
fn short_timeout(sys: &Path) -> Option<u64> {
    let seconds = first_line(&sys.join(CLASS).join("timeout"))?;
    seconds.parse().ok().filter(|seconds| *seconds < SHORT)
}

/// Stops a watchdog that an earlier agent of this boot started and did not stop.
pub(super) fn stop_left_open(place: &Place) {
    if !place.inside(OURS).exists() {
        return;
    }
    match open(place) {
        Ok(device) => say_goodbye(place, device),
        Err(error) => {
            tracing::error!(%error, "the watchdog cannot be stopped; it will reset the machine");
        }
    }
}

fn open(place: &Place) -> io::Result<File> {
    OpenOptions::new().write(true).open(place.inside(DEVICE))
}

fn say_goodbye(place: &Place, mut device: File) {
    if let Err(error) = device.write_all(GOODBYE) {
        tracing::error!(%error, "the watchdog cannot be stopped; it will reset the machine");
        return;
    }
    drop(device);
    unmark(place);
}

fn unmark(place: &Place) {
    if let Err(error) = durable::remove(&place.inside(OURS)) {
        tracing::debug!(%error, "the mark of the watchdog stays");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::hooks::fake;

    fn machine() -> (tempfile::TempDir, Place) {
        let root = tempfile::tempdir().expect("a folder");
        fake::folder(root.path(), "/dev");
        fs::write(root.path().join("dev/watchdog0"), "").expect("a device");
        let place = Place::new(root.path(), None);
        (root, place)
    }

    fn eaten(place: &Place) -> String {
        fs::read_to_string(place.inside(DEVICE)).expect("the device")
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_fed_for_its_time_and_stopped_by_a_word() {
        let (_root, place) = machine();
        let watchdog = Watchdog::new(&place, Policy::Use);
        assert!(place.inside(OURS).exists());
        let work = sleep(Duration::from_mins(1));
        watchdog.feed_during(Duration::from_secs(7), work).await;
        assert_eq!(eaten(&place), "...", "at 2, 4 and 6 seconds");
        watchdog.stop();
        assert_eq!(eaten(&place), "...V");
        assert!(!place.inside(OURS).exists());
    }

    #[test]
    fn one_that_is_dropped_is_not_stopped_and_a_later_agent_stops_it() {
        let (_root, place) = machine();
        drop(Watchdog::new(&place, Policy::Use));
        assert_eq!(eaten(&place), "");
        stop_left_open(&place);
        assert_eq!(eaten(&place), "V");
        stop_left_open(&place);
        assert_eq!(eaten(&place), "V", "once");
    }

    #[test]
    fn one_that_cannot_be_stopped_is_not_started() {
        let (root, place) = machine();
        fake::folder(root.path(), "/sys/class/watchdog/watchdog0");
        fs::write(place.inside(NO_WAY_OUT), "1\n").unwrap();
        let watchdog = Watchdog::new(&place, Policy::Require);
        let fault = watchdog.fault().unwrap();
        assert!(fault.ends_with("says that it cannot be stopped"), "{fault}");
        assert!(!place.inside(OURS).exists());
        fs::write(place.inside(NO_WAY_OUT), "0\n").unwrap();
        assert_eq!(Watchdog::new(&place, Policy::Require).fault(), None);
    }

    #[test]
    fn one_that_cannot_be_stopped_and_that_somebody_else_feeds_is_enough() {
        let (root, place) = machine();
        fake::folder(root.path(), "/sys/class/watchdog/watchdog0");
        fs::write(place.inside(NO_WAY_OUT), "1\n").unwrap();
        let state = place.inside("/sys").join(CLASS).join("state");
        fs::write(&state, "inactive\n").unwrap();
        assert!(Watchdog::new(&place, Policy::Require).fault().is_some());
        fs::write(&state, "active\n").unwrap();
        assert_eq!(Watchdog::new(&place, Policy::Require).fault(), None);
        assert_eq!(eaten(&place), "");
        assert!(!place.inside(OURS).exists());
    }

    #[test]
    fn a_time_below_fifteen_seconds_is_short() {
        let (root, place) = machine();
        let sys = place.inside("/sys");
        assert_eq!(short_timeout(&sys), None);
        fake::folder(root.path(), "/sys/class/watchdog/watchdog0");
        for (told, short) in [("10\n", Some(10)), ("15\n", None), ("soon\n", None)] {
            fs::write(sys.join(CLASS).join("timeout"), told).unwrap();
            assert_eq!(short_timeout(&sys), short);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn where_there_is_none_it_counts_only_if_one_is_required_and_may_come_later() {
        let (_root, place) = machine();
        fs::remove_file(place.inside(DEVICE)).unwrap();
        assert_eq!(Watchdog::new(&place, Policy::Use).fault(), None);
        let watchdog = Watchdog::new(&place, Policy::Require);
        assert!(watchdog.fault().is_some());
        assert!(!place.inside(OURS).exists());
        fs::write(place.inside(DEVICE), "").unwrap();
        watchdog.feed_during(BEAT * 9, sleep(BEAT * 2)).await;
        assert_eq!(watchdog.fault(), None);
    }

    #[test]
    fn one_that_is_to_be_ignored_is_not_touched() {
        let (_root, place) = machine();
        let watchdog = Watchdog::new(&place, Policy::Ignore);
        assert_eq!(watchdog.fault(), None);
        watchdog.stop();
        assert_eq!(eaten(&place), "");
        assert!(!place.inside(OURS).exists());
    }
}
