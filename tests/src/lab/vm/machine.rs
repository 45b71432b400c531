//! A machine that is emulated from the firmware on, and what can be done to it from outside. What runs on it reaches
//! this machine as 10.0.2.2.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;

use super::console::{Booted, Console};
use super::contents::Contents;
use super::esp::{Entry, Esp, Slot, place, table};
use super::monitor::{Monitor, Resets};
use super::release::Release;
use super::{script, tool};
use crate::lab::machine::succeed;
use crate::lab::until;

/// How long the emulator may take to its start on a busy machine, and a question to its end.
const PATIENCE: Duration = Duration::from_mins(1);

/// Whoever else must answer is asked no more often: it works on the processors that machines are emulated with.
const BEAT: Duration = Duration::from_millis(300);

/// So many bytes of a slot tell one release from the other.
const HEAD: usize = 4096;

/// What the firmware of a machine tells its agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Where the server is, such as `https://10.0.2.2:50002`.
    pub(super) server: String,
    /// With what it joins.
    pub(super) token: String,
    /// What addresses of images are relative to; empty for none.
    pub(super) files: String,
}

/// A machine with a disk of its own.
#[derive(Debug)]
pub struct Vm {
    folder: TempDir,
    disk: PathBuf,
    esp: Esp,
    /// Where its slots begin on the disk, in bytes.
    slots: (u64, u64),
    name: String,
    uuid: Uuid,
    pub(super) told: Option<Told>,
    /// Its instance; empty as long as it is no node.
    pub(super) instance: String,
    /// What its clock says when it is switched on; the time of this machine unless it is given.
    clock: Option<String>,
    /// Where what it writes is recorded.
    log: Option<PathBuf>,
    has_watchdog: bool,
    /// How often it was switched on.
    starts: u32,
    on: Option<On>,
}

/// What there is of a machine while it is on.
#[derive(Debug)]
struct On {
    emulator: Emulator,
    monitor: Monitor,
    console: Console,
    /// Last, so that it goes last.
    _turn: Turn,
}

impl Vm {
    /// A machine with a copy of a disk, and a firmware that knows nothing yet. It is off.
    ///
    /// # Panics
    /// The disk cannot be copied.
    #[track_caller]
    pub(super) fn new(folder: TempDir, disk: &Path, name: &str) -> Self {
        let copy = folder.path().join("disk.img");
        let mut copying = tool("cp");
        copying.args(["--reflink=auto", "--sparse=always"]);
        succeed(copying.arg(disk).arg(&copy));
        let table = table(&copy);
        let slot = |name: &str| {
            let named = |partition: &Value| partition["name"] == name;
            place(&table, named).expect("a slot").0
        };
        Self {
            esp: Esp::of(&copy),
            slots: (slot("root-a"), slot("root-b")),
            folder,
            disk: copy,
            name: name.to_owned(),
            uuid: Uuid::new_v4(),
            told: None,
            instance: String::new(),
            clock: None,
            log: None,
            has_watchdog: false,
            starts: 0,
            on: None,
        }
    }

    /// A path of its own, beside the disk.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its disk.
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// What its firmware says that it is.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Its instance, such as `inst-0a1b2c3d`; empty as long as it is no node.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Puts a release into a slot from outside, and lets the loader try it so often.
    #[track_caller]
    pub fn put(&self, slot: Slot, release: &Release, tries: u32) {
        let mut putting = tool(script("put-release"));
        putting.arg(&self.disk).arg(slot.letter());
        putting.arg(&release.folder);
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

    /// The kernel of a slot; none if there is none.
    pub fn kernel(&self, slot: Slot) -> Option<Vec<u8>> {
        self.esp.kernel(slot).ok()
    }

    /// The first bytes of a slot, on or off: another release has others.
    ///
    /// # Panics
    /// There is no such slot.
    #[track_caller]
    pub fn head(&self, slot: Slot) -> Vec<u8> {
        head(&self.disk, self.start_of(slot))
    }

    /// Whether all of a release lies in a slot. The machine must be off.
    #[track_caller]
    pub fn holds(&self, slot: Slot, release: &Release) -> bool {
        Contents::of(&self.disk).slot(slot, release.bytes) == release.sha256
    }

    /// Waits until the first bytes of a slot fit.
    #[track_caller]
    pub fn until_head(&mut self, slot: Slot, limit: Duration, fits: impl Fn(&[u8]) -> bool) {
        let (disk, start) = (self.disk.clone(), self.start_of(slot));
        self.watch("what is in the slot", limit, |_, _| {
            fits(&head(&disk, start)).then_some(())
        });
    }

    fn start_of(&self, slot: Slot) -> u64 {
        match slot {
            Slot::A => self.slots.0,
            Slot::B => self.slots.1,
        }
    }

    /// From the next start on its clock goes wrong: it says this then, such as `2001-02-03T04:05:06`. Or right again.
    pub fn set_clock(&mut self, clock: Option<&str>) {
        self.clock = clock.map(str::to_owned);
    }

    /// From the next start on it has a watchdog that resets it, of which only a generic kernel knows.
    pub fn give_watchdog(&mut self) {
        self.has_watchdog = true;
    }

    /// From the next start on all that the disk is told is recorded, in the form of dm-log-writes. A log that is there is
    /// written over by each start.
    pub fn record(&mut self, log: &Path) {
        self.log = Some(log.to_owned());
    }

    /// Switches it on, as soon as not too many others are.
    #[track_caller]
    pub fn start(&mut self) {
        assert!(self.on.is_none(), "{} is on", self.name);
        let turn = Turn::take();
        self.starts += 1;
        let number = self.starts;
        let [serial, socket, said] =
            ["serial", "qmp", "said"].map(|name| self.path(&format!("{name}-{number}")));
        let log = File::create(&said).expect("a file");
        let child = self
            .starting(&serial, &socket)
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
        self.on = Some(On {
            emulator,
            monitor,
            console: Console::of(serial),
            _turn: turn,
        });
    }

    /// The command that becomes the machine.
    fn starting(&self, serial: &Path, socket: &Path) -> Command {
        // However this program ends, the emulator ends with it: with the thread that starts it, to be exact.
        let mut starting = tool("setpriv");
        starting.args(["--pdeathsig", "KILL", "--"]);
        starting.arg(script("run-machine")).arg(&self.disk);
        starting.arg("--serial").arg(serial);
        starting.arg("--qmp").arg(socket);
        starting.args(["--name", &self.name]);
        starting.args(["--uuid", &self.uuid.to_string()]);
        if let Some(told) = &self.told {
            starting.args(["--server", &told.server, "--token", &told.token]);
            starting.args(["--files", &told.files]);
        }
        if let Some(clock) = &self.clock {
            starting.args(["--rtc", clock]);
        }
        if self.has_watchdog {
            starting.args(["--watchdog", "yes"]);
        }
        if let Some(log) = &self.log {
            starting.arg("--log").arg(log);
        }
        starting
    }

    /// Cuts the power: what the disk was told is on the disk, and nothing else is left.
    pub fn cut(&mut self) {
        self.on = None;
    }

    /// Resets it from outside.
    #[track_caller]
    pub fn reset(&mut self) {
        self.on().monitor.reset();
    }

    /// How often it was reset since it was switched on.
    #[track_caller]
    pub fn resets(&mut self) -> Resets {
        self.on().monitor.resets()
    }

    /// What it printed since it was switched on.
    #[track_caller]
    pub fn serial(&mut self) -> String {
        self.on().console.text()
    }

    /// The release that came up last since it was switched on.
    #[track_caller]
    pub fn last_booted(&mut self) -> Option<Booted> {
        self.on().console.last(Booted::read)
    }

    /// Waits for an answer, whoever gives it, as long as the machine is on.
    ///
    /// # Panics
    /// There is none in time, or the emulator ends; the message has what was printed last. So with all that waits.
    #[track_caller]
    pub fn until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut ask: impl FnMut() -> Option<T>,
    ) -> T {
        let mut pace = Pace::default();
        self.watch(what, limit, |_, _| pace.is_due().then(&mut ask).flatten())
    }

    /// Waits for the first answer to a line of its serial console, among those that nobody has looked at.
    #[track_caller]
    pub fn until_line<T>(
        &mut self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&str) -> Option<T>,
    ) -> T {
        self.watch(what, limit, |on, _| on.console.find(&wanted))
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
        self.watch(what, limit, |_, esp| {
            // In the middle of a write it cannot always be read.
            let entries = esp.entries().ok()?;
            wanted(&entries).then_some(())
        });
    }

    /// Lets it run for so long.
    #[track_caller]
    pub fn wait(&mut self, length: Duration) {
        let begun = Instant::now();
        self.watch("the instant", length + PATIENCE, |_, _| {
            (begun.elapsed() >= length).then_some(())
        });
    }

    /// Waits until what came up last fits, and returns it; none if that does not come about, or the machine goes off.
    pub(super) fn settles(
        &mut self,
        limit: Duration,
        mut fits: impl FnMut(&Booted) -> bool,
    ) -> Option<Booted> {
        let on = self.on();
        let (begun, mut pace) = (Instant::now(), Pace::default());
        until("a machine at rest", limit + PATIENCE, || {
            let is_over = begun.elapsed() > limit || !on.emulator.is_on();
            let booted = on.console.last(Booted::read);
            let booted = booted.filter(|booted| pace.is_due() && fits(booted));
            (booted.is_some() || is_over).then_some(booted)
        })
    }

    /// What it printed last.
    pub(super) fn tail(&mut self) -> String {
        self.on().console.tail()
    }

    /// Waits until it has printed nothing for so long.
    #[track_caller]
    pub fn until_silent(&mut self, length: Duration, limit: Duration) {
        let mut last = (self.on().console.length(), Instant::now());
        self.watch("silence", limit, |on, _| {
            let printed = on.console.length();
            if printed != last.0 {
                last = (printed, Instant::now());
            }
            (last.1.elapsed() >= length).then_some(())
        });
    }

    #[track_caller]
    fn on(&mut self) -> &mut On {
        self.on.as_mut().expect("a machine that is on")
    }

    #[track_caller]
    fn watch<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut ask: impl FnMut(&mut On, &Esp) -> Option<T>,
    ) -> T {
        let Self { on, esp, name, .. } = self;
        let on = on.as_mut().expect("a machine that is on");
        let begun = Instant::now();
        let found = until(what, limit + PATIENCE, || {
            let is_over = begun.elapsed() > limit || !on.emulator.is_on();
            let found = ask(on, esp);
            (found.is_some() || is_over).then_some(found)
        });
        found.unwrap_or_else(|| {
            let (passed, tail) = (begun.elapsed(), on.console.tail());
            panic!(
                "{name}: not within {limit:?}, after {passed:?}: {what}; it printed last:\n{tail}"
            )
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

/// The first bytes from a place of a disk on.
#[track_caller]
fn head(disk: &Path, start: u64) -> Vec<u8> {
    let mut disk = File::open(disk).expect("a disk");
    disk.seek(SeekFrom::Start(start)).expect("a slot");
    let mut head = vec![0; HEAD];
    disk.read_exact(&mut head).expect("a slot");
    head
}

/// Says when somebody may be asked again.
#[derive(Debug, Default)]
struct Pace(Option<Instant>);

impl Pace {
    fn is_due(&mut self) -> bool {
        let is_due = self.0.is_none_or(|last| last.elapsed() >= BEAT);
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
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
