//! A machine that is emulated from the firmware on, and what can be done to it from outside. What runs on it reaches
//! this machine as 10.0.2.2.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_tests::lab::until;
use tempfile::TempDir;

use crate::esp::{Entry, Esp, Slot};
use crate::monitor::{Monitor, Resets};
use crate::serial::{Booted, Console};
use crate::tools::{command, script, succeed};

/// How long the emulator may take to its start on a busy machine, and a question to its end.
const PATIENCE: Duration = Duration::from_mins(1);

/// A machine with a disk of its own. It is off: [`Machine::power_on`] gives one that is on.
#[derive(Debug)]
pub struct Machine {
    folder: TempDir,
    disk: PathBuf,
    esp: Esp,
    /// How often it was switched on.
    starts: u32,
}

impl Machine {
    /// A machine with a copy of a disk, and a firmware that knows nothing yet.
    ///
    /// # Panics
    /// The disk cannot be copied.
    #[track_caller]
    pub fn new(folder: TempDir, disk: &Path) -> Self {
        let copy = folder.path().join("disk.img");
        let mut copying = command("cp");
        copying.args(["--reflink=auto", "--sparse=always"]);
        succeed(copying.arg(disk).arg(&copy));
        Self {
            esp: Esp::of(&copy),
            folder,
            disk: copy,
            starts: 0,
        }
    }

    /// A path of its own, beside the disk.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a release into a slot from outside, and lets the loader try it so often.
    #[track_caller]
    pub fn put(&self, slot: Slot, release: &Path, tries: u32) {
        let mut putting = command(script("put-release"));
        putting.arg(&self.disk).arg(slot.letter()).arg(release);
        succeed(putting.args(["--tries", &tries.to_string()]));
    }

    /// What its loader would find.
    ///
    /// # Panics
    /// The boot partition cannot be read, which does not come from a power cut.
    #[track_caller]
    pub fn entries(&self) -> Vec<Entry> {
        let entries = self.esp.entries();
        entries.expect("a boot partition that can be read")
    }

    /// Switches it on, as soon as not too many others are.
    #[track_caller]
    pub fn power_on(&mut self) -> Running<'_> {
        let turn = Turn::take();
        self.starts += 1;
        let [serial, socket, said] =
            ["serial", "qmp", "said"].map(|name| self.path(&format!("{name}-{}", self.starts)));
        let log = File::create(&said).expect("a file");
        // However this program ends, the emulator ends with it: with the thread that starts it, to be exact.
        let mut starting = command("setpriv");
        starting.args(["--pdeathsig", "KILL", "--"]);
        starting.arg(script("run-machine")).arg(&self.disk);
        starting.arg("--serial").arg(&serial);
        starting.arg("--qmp").arg(&socket);
        let child = starting
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the emulator starts");
        let mut emulator = Emulator(child);
        let monitor = until("the emulator's monitor", PATIENCE, || {
            let is_on = emulator.is_on();
            let said = || fs::read_to_string(&said).unwrap_or_default();
            assert!(is_on, "the emulator ended: {}", said());
            Monitor::connect(&socket)
        });
        Running {
            emulator,
            monitor,
            console: Console::of(serial),
            machine: self,
            _turn: turn,
        }
    }
}

/// A machine that is on. Dropping it is a power cut: what the disk was told is on the disk, and nothing else is left.
#[derive(Debug)]
pub struct Running<'a> {
    emulator: Emulator,
    monitor: Monitor,
    console: Console,
    machine: &'a Machine,
    /// Last, so that it goes last.
    _turn: Turn,
}

impl Running<'_> {
    /// Waits for the first answer to a line of its serial console, among those that nobody has looked at.
    ///
    /// # Panics
    /// There is none in time, or the emulator ends; the message has what was printed last. So with all that waits.
    #[track_caller]
    pub fn until_line<T>(
        &mut self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&str) -> Option<T>,
    ) -> T {
        self.watch(what, limit, |running| running.console.find(&wanted))
    }

    /// Waits until the user space of a release runs, whichever it is.
    #[track_caller]
    pub fn until_booted(&mut self, limit: Duration) -> Booted {
        self.until_line("a release comes up", limit, Booted::read)
    }

    /// Waits until its boot partition has such entries.
    #[track_caller]
    pub fn until_entries(
        &mut self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&[Entry]) -> bool,
    ) {
        self.watch(what, limit, |running| {
            // In the middle of a write it cannot always be read.
            let entries = running.machine.esp.entries().ok()?;
            wanted(&entries).then_some(())
        });
    }

    /// Waits until it has printed nothing for so long.
    #[track_caller]
    pub fn until_silent(&mut self, length: Duration, limit: Duration) {
        let mut last = (self.console.length(), Instant::now());
        self.watch("silence", limit, |running| {
            let printed = running.console.length();
            if printed != last.0 {
                last = (printed, Instant::now());
            }
            (last.1.elapsed() >= length).then_some(())
        });
    }

    /// Resets it from outside.
    pub fn reset(&mut self) {
        self.monitor.reset();
    }

    /// How often it was reset since it was switched on.
    pub fn resets(&mut self) -> Resets {
        self.monitor.resets()
    }

    #[track_caller]
    fn watch<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut ask: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let begun = Instant::now();
        let found = until(what, limit + PATIENCE, || {
            let is_over = begun.elapsed() > limit || !self.emulator.is_on();
            let found = ask(self);
            (found.is_some() || is_over).then_some(found)
        });
        found.unwrap_or_else(|| {
            let (passed, tail) = (begun.elapsed(), self.console.tail());
            panic!("not within {limit:?}, after {passed:?}: {what}; it printed last:\n{tail}")
        })
    }
}

/// The process that a machine is.
#[derive(Debug)]
struct Emulator(Child);

impl Emulator {
    fn is_on(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _sent = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// Leave to be on: each machine takes a processor of this one.
#[derive(Debug)]
struct Turn;

static FREE: Mutex<usize> = Mutex::new(2);
static FREED: Condvar = Condvar::new();

impl Turn {
    fn take() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = FREED.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        FREED.notify_one();
    }
}
