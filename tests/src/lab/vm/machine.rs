//! A machine that is emulated including the firmware, and operations on it from outside. Programs on it reach this
//! machine at 10.0.2.2.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;

use super::console::{BootedRelease, Console};
use super::contents::DiskContents;
use super::esp::{Esp, Slot, SlotEntry, partition_range, partition_table};
use super::monitor::{Monitor, Resets};
use super::release::Release;
use super::{script, tool};
use crate::lab::machine::succeed;
use crate::lab::until;

/// How long the emulator may take to start on a busy machine, and a query to finish.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Minimum interval between queries to the server, which runs on the same processors as the emulated machines.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Number of bytes at the start of a slot that differ between releases.
const HEAD_SIZE: usize = 4096;

/// Configuration that the firmware passes to the agent.
#[derive(Clone, Debug, Default)]
pub(super) struct FirmwareConfig {
    /// URL of the server, such as `https://10.0.2.2:50002`.
    pub(super) server: String,
    /// Join token.
    pub(super) token: String,
    /// Base URL for relative image addresses; empty for none.
    pub(super) files: String,
}

/// A machine with its own disk.
#[derive(Debug)]
pub struct Vm {
    folder: TempDir,
    disk: PathBuf,
    esp: Esp,
    /// Offsets of its slots on the disk in bytes.
    slots: (u64, u64),
    name: String,
    uuid: Uuid,
    pub(super) firmware_config: Option<FirmwareConfig>,
    /// ID of its instance; empty before it has joined.
    pub(super) instance: String,
    /// Time of its clock at the start; `None` for the time of this machine.
    clock: Option<String>,
    /// File in which its disk writes are recorded.
    log: Option<PathBuf>,
    has_watchdog: bool,
    /// Its memory in MiB; `None` for the default of `run-machine`.
    pub(super) memory_mib: Option<u32>,
    /// Number of starts.
    starts: u32,
    running: Option<RunningVm>,
}

/// State of a machine that is on.
#[derive(Debug)]
struct RunningVm {
    emulator: EmulatorProcess,
    monitor: Monitor,
    console: Console,
    /// Last field, so that it is dropped last.
    _permit: RunPermit,
}

impl Vm {
    /// Creates a machine with a copy of a disk. Its firmware has no configuration. The machine is off.
    ///
    /// # Panics
    /// The disk cannot be copied.
    #[track_caller]
    pub(super) fn new(folder: TempDir, disk: &Path, name: &str) -> Self {
        let copy = folder.path().join("disk.img");
        let mut copying = tool("cp");
        copying.args(["--reflink=auto", "--sparse=always"]);
        succeed(copying.arg(disk).arg(&copy));
        let table = partition_table(&copy);
        let slot = |name: &str| {
            let is_named = |partition: &Value| partition["name"] == name;
            partition_range(&table, is_named).expect("a slot").0
        };
        Self {
            esp: Esp::open(&copy),
            slots: (slot("root-a"), slot("root-b")),
            folder,
            disk: copy,
            name: name.to_owned(),
            uuid: Uuid::new_v4(),
            firmware_config: None,
            instance: String::new(),
            clock: None,
            log: None,
            has_watchdog: false,
            memory_mib: None,
            starts: 0,
            running: None,
        }
    }

    /// A path in the folder of its disk.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// Serial number that its firmware reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// UUID that its firmware reports.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// ID of its instance, such as `inst-0a1b2c3d`; empty before it has joined.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Writes a release into a slot from outside. The loader may try it `tries` times.
    #[track_caller]
    pub fn put_release(&self, slot: Slot, release: &Release, tries: u32) {
        let mut putting = tool(script("put-release"));
        putting.arg(&self.disk).arg(slot.letter());
        putting.arg(&release.folder);
        succeed(putting.args(["--tries", &tries.to_string()]));
    }

    /// Boot entries of the machine.
    ///
    /// # Panics
    /// The boot partition cannot be read. A power cut cannot cause that.
    #[track_caller]
    pub fn entries(&self) -> Vec<SlotEntry> {
        let entries = self.esp.entries();
        entries.expect("a boot partition that can be read")
    }

    /// The kernel of a slot, if it can be read.
    pub fn kernel(&self, slot: Slot) -> Option<Vec<u8>> {
        self.esp.kernel(slot).ok()
    }

    /// First bytes of a slot. They differ between releases. The machine may be on or off.
    ///
    /// # Panics
    /// The slot does not exist.
    #[track_caller]
    pub fn slot_head(&self, slot: Slot) -> Vec<u8> {
        read_head(&self.disk, self.slot_start(slot))
    }

    /// Whether a slot holds a complete release. The machine must be off.
    #[track_caller]
    pub fn has_release(&self, slot: Slot, release: &Release) -> bool {
        DiskContents::read(&self.disk).slot_digest(slot, release.bytes) == release.sha256
    }

    /// Waits until `fits` accepts the first bytes of a slot.
    #[track_caller]
    pub fn until_head(&mut self, slot: Slot, limit: Duration, fits: impl Fn(&[u8]) -> bool) {
        let (disk, start) = (self.disk.clone(), self.slot_start(slot));
        self.watch("what is in the slot", limit, |_, _| {
            fits(&read_head(&disk, start)).then_some(())
        });
    }

    fn slot_start(&self, slot: Slot) -> u64 {
        match slot {
            Slot::A => self.slots.0,
            Slot::B => self.slots.1,
        }
    }

    /// Sets the time of its clock at the next start, such as `2001-02-03T04:05:06`. `None` for the right time.
    pub fn set_clock(&mut self, clock: Option<&str>) {
        self.clock = clock.map(str::to_owned);
    }

    /// Adds a watchdog that resets the machine, from the next start on. Only the generic kernel supports it.
    pub fn give_watchdog(&mut self) {
        self.has_watchdog = true;
    }

    /// Records all disk writes from the next start on, in the format of dm-log-writes. Each start overwrites the log.
    pub fn record(&mut self, log: &Path) {
        self.log = Some(log.to_owned());
    }

    /// Switches it on. Waits while too many other machines are on.
    #[track_caller]
    pub fn start(&mut self) {
        assert!(self.running.is_none(), "{} is on", self.name);
        let permit = RunPermit::acquire();
        self.starts += 1;
        let number = self.starts;
        let [serial, socket, output] =
            ["serial", "qmp", "output"].map(|name| self.path(&format!("{name}-{number}")));
        let log = File::create(&output).expect("a file");
        let child = self
            .start_command(&serial, &socket)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the emulator starts");
        let mut emulator = EmulatorProcess(child);
        let monitor = until("the emulator's monitor", ANSWER_TIMEOUT, || {
            let is_on = emulator.is_on();
            let read_output = || fs::read_to_string(&output).unwrap_or_default();
            assert!(is_on, "the emulator ended: {}", read_output());
            Monitor::connect(&socket)
        });
        self.running =
            Some(RunningVm { emulator, monitor, console: Console::new(serial), _permit: permit });
    }

    /// The command that starts the emulator.
    fn start_command(&self, serial: &Path, socket: &Path) -> Command {
        // The emulator ends when the thread that starts it ends, however that happens.
        let mut starting = tool("setpriv");
        starting.args(["--pdeathsig", "KILL", "--"]);
        starting.arg(script("run-machine")).arg(&self.disk);
        starting.arg("--serial").arg(serial);
        starting.arg("--qmp").arg(socket);
        starting.args(["--name", &self.name]);
        starting.args(["--uuid", &self.uuid.to_string()]);
        if let Some(config) = &self.firmware_config {
            starting.args(["--server", &config.server, "--token", &config.token]);
            starting.args(["--files", &config.files]);
        }
        if let Some(clock) = &self.clock {
            starting.args(["--rtc", clock]);
        }
        if self.has_watchdog {
            starting.args(["--watchdog", "yes"]);
        }
        if let Some(memory) = self.memory_mib {
            starting.args(["--memory", &memory.to_string()]);
        }
        if let Some(log) = &self.log {
            starting.arg("--log").arg(log);
        }
        starting
    }

    /// Cuts the power. All disk writes so far are on the disk; everything else is lost.
    pub fn cut(&mut self) {
        self.running = None;
    }

    /// Presses the reset button.
    #[track_caller]
    pub fn reset(&mut self) {
        self.running().monitor.reset();
    }

    /// Number of resets since it was switched on.
    #[track_caller]
    pub fn resets(&mut self) -> Resets {
        self.running().monitor.resets()
    }

    /// Console output since it was switched on.
    #[track_caller]
    pub fn serial_output(&mut self) -> String {
        self.running().console.text()
    }

    /// The last release that has booted since the machine was switched on.
    #[track_caller]
    pub fn last_booted(&mut self) -> Option<BootedRelease> {
        self.running().console.last(BootedRelease::parse)
    }

    /// Polls until there is a result. The machine must stay on.
    ///
    /// # Panics
    /// There is no result in time, or the emulator ends. The message contains the last output. The same applies to
    /// all functions here that wait.
    #[track_caller]
    pub fn until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut poll: impl FnMut() -> Option<T>,
    ) -> T {
        let mut pace = Pace::default();
        self.watch(what, limit, |_, _| pace.is_due().then(&mut poll).flatten())
    }

    /// Waits for the first result among the console lines that were not searched before.
    #[track_caller]
    pub fn until_line<T>(
        &mut self,
        what: &str,
        limit: Duration,
        parse: impl Fn(&str) -> Option<T>,
    ) -> T {
        self.watch(what, limit, |on, _| on.console.find(&parse))
    }

    /// Waits until the user space of any release runs.
    #[track_caller]
    pub fn until_booted(&mut self, limit: Duration) -> BootedRelease {
        self.until_line("a release comes up", limit, BootedRelease::parse)
    }

    /// Waits until `accept` accepts the entries of the boot partition.
    #[track_caller]
    pub fn until_entries(
        &mut self,
        what: &str,
        limit: Duration,
        accept: impl Fn(&[SlotEntry]) -> bool,
    ) {
        self.watch(what, limit, |_, esp| {
            // During a write it may be unreadable.
            let entries = esp.entries().ok()?;
            accept(&entries).then_some(())
        });
    }

    /// Lets the machine run for this time.
    #[track_caller]
    pub fn run_for(&mut self, length: Duration) {
        let begun = Instant::now();
        self.watch("the end of the waiting time", length + ANSWER_TIMEOUT, |_, _| {
            (begun.elapsed() >= length).then_some(())
        });
    }

    /// Waits until `fits` accepts the last booted release. Returns `None` after the limit, or if the machine goes off.
    pub(super) fn until_settled(
        &mut self,
        limit: Duration,
        mut fits: impl FnMut(&BootedRelease) -> bool,
    ) -> Option<BootedRelease> {
        let on = self.running();
        let (begun, mut pace) = (Instant::now(), Pace::default());
        until("a machine at rest", limit + ANSWER_TIMEOUT, || {
            let is_over = begun.elapsed() > limit || !on.emulator.is_on();
            let booted = on.console.last(BootedRelease::parse);
            let booted = booted.filter(|booted| pace.is_due() && fits(booted));
            (booted.is_some() || is_over).then_some(booted)
        })
    }

    /// Last console output.
    pub(super) fn tail(&mut self) -> String {
        self.running().console.tail()
    }

    /// Waits until there was no console output for `length`.
    #[track_caller]
    pub fn until_silent(&mut self, length: Duration, limit: Duration) {
        let mut last = (self.running().console.length(), Instant::now());
        self.watch("silence", limit, |on, _| {
            let printed = on.console.length();
            if printed != last.0 {
                last = (printed, Instant::now());
            }
            (last.1.elapsed() >= length).then_some(())
        });
    }

    #[track_caller]
    fn running(&mut self) -> &mut RunningVm {
        self.running.as_mut().expect("a machine that is on")
    }

    #[track_caller]
    fn watch<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut poll: impl FnMut(&mut RunningVm, &Esp) -> Option<T>,
    ) -> T {
        let Self { running: on, esp, name, .. } = self;
        let on = on.as_mut().expect("a machine that is on");
        let begun = Instant::now();
        let result = until(what, limit + ANSWER_TIMEOUT, || {
            let is_over = begun.elapsed() > limit || !on.emulator.is_on();
            let result = poll(on, esp);
            (result.is_some() || is_over).then_some(result)
        });
        result.unwrap_or_else(|| {
            let (elapsed, tail) = (begun.elapsed(), on.console.tail());
            panic!(
                "{name}: not within {limit:?}, after {elapsed:?}: {what}; it printed last:\n{tail}"
            )
        })
    }
}

/// Process of the emulator. Dropping it kills the process.
#[derive(Debug)]
struct EmulatorProcess(Child);

impl EmulatorProcess {
    fn is_on(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for EmulatorProcess {
    fn drop(&mut self) {
        let _sent = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// First bytes at an offset of a disk.
#[track_caller]
fn read_head(disk: &Path, start: u64) -> Vec<u8> {
    let mut disk = File::open(disk).expect("a disk");
    disk.seek(SeekFrom::Start(start)).expect("a slot");
    let mut head = vec![0; HEAD_SIZE];
    disk.read_exact(&mut head).expect("a slot");
    head
}

/// Limits how often something is polled.
#[derive(Debug, Default)]
struct Pace(Option<Instant>);

impl Pace {
    fn is_due(&mut self) -> bool {
        let is_due = self.0.is_none_or(|last| last.elapsed() >= MIN_POLL_INTERVAL);
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}

/// Permit to run a machine. Each machine uses one processor of this one.
#[derive(Debug)]
struct RunPermit;

static FREE_PERMITS: Mutex<usize> = Mutex::new(2);
static PERMIT_RELEASED: Condvar = Condvar::new();

impl RunPermit {
    fn acquire() -> Self {
        let free = FREE_PERMITS.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = PERMIT_RELEASED.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Self
    }
}

impl Drop for RunPermit {
    fn drop(&mut self) {
        *FREE_PERMITS.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        PERMIT_RELEASED.notify_one();
    }
}
