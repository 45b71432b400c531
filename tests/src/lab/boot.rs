//! Nodes that boot: systemd runs in a container of theirs, with units, D-Bus, logind, and reboots.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Lab;
use super::machine::{as_root, command, script, succeed, told, until};
use crate::house::tree;

/// What a root needs to boot.
const PACKAGES: &[&str] = &["systemd", "systemd-sysv", "dbus"];

/// How long a boot may take on a busy machine.
const BOOT: Duration = Duration::from_mins(2);

/// Kills what runs in a folder, as soon as that says its number.
const CUT: &str = r#"
left=100
until read -r pid < "$1/pid"; do
  left=$((left - 1)); [ $left -gt 0 ] || exit 1
  sleep 0.1
done
kill -KILL "$pid"
"#;

/// Containers that nobody manages share what counts their processes, so one runs after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A node that was switched on. It is booted again when it asks for that. Dropping it is a power cut.
#[derive(Debug)]
pub struct Booted {
    child: Child,
    work: PathBuf,
    /// Last, so that it goes last.
    _turn: MutexGuard<'static, ()>,
}

impl Booted {
    /// Opens a lab whose nodes can boot. Where there can be none, says so in one line and returns nothing, or fails if
    /// tests of this kind are required.
    pub fn lab() -> Option<Lab> {
        if command("systemd-nspawn").arg("--version").output().is_err() {
            return skipped("systemd-nspawn is not there; install systemd-container");
        }
        let lab = Lab::open_with(None, PACKAGES)?;
        let trial = Self::start(&lab, "trial", &[]);
        if let Err(why) = trial.is_up(Duration::from_mins(1)) {
            return skipped(&format!("no container boots here: {why}"));
        }
        drop(trial);
        Some(lab)
    }

    /// Switches a node of such a lab on. `shown` are files and folders of the outside that it sees, read-only, and where.
    /// Waits until no other node of this program runs.
    pub fn start(lab: &Lab, name: &str, shown: &[(&Path, &str)]) -> Self {
        let turn = ONE_AT_A_TIME.lock();
        let turn = turn.unwrap_or_else(PoisonError::into_inner);
        let work = lab.path(name);
        for old in ["pid", "boots"] {
            let _gone = as_root("rm", &[]).arg("-f").arg(work.join(old)).status();
        }
        let pair = |(outside, inside): &(&Path, &str)| format!("{}:{inside}", outside.display());
        let binds = shown.iter().map(pair).collect::<Vec<_>>().join(" ");
        let log = File::options()
            .create(true)
            .append(true)
            .open(work.with_extension("log"))
            .expect("a log can be written");
        let child = as_root(script("in-booted-root"), &[("BIND", binds.as_str())])
            .arg(lab.base())
            .arg(&work)
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a second handle"))
            .stdout(log)
            .spawn()
            .expect("the container starts");
        Self {
            child,
            work,
            _turn: turn,
        }
    }

    /// Waits until systemd has started everything.
    #[track_caller]
    pub fn until_up(&self) {
        if let Err(why) = self.is_up(BOOT) {
            panic!("the node does not come up: {why}");
        }
    }

    fn is_up(&self, limit: Duration) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let ask = ["timeout", "10", "systemctl", "is-system-running", "--wait"];
            let state = self.run(&ask);
            // `degraded`: a unit failed that no test speaks of.
            let said = String::from_utf8_lossy(&state.stdout);
            if matches!(said.trim(), "running" | "degraded") {
                return Ok(());
            }
            if begun.elapsed() > limit {
                let console = self.console();
                let last = console.lines().last().unwrap_or_default();
                return Err(format!("{} {last}", told(&state).trim()));
            }
        }
    }

    /// Waits until it has been booted so often, and is up.
    #[track_caller]
    pub fn until_boot(&self, number: u32, limit: Duration) {
        let what = || format!("boot number {number}; it printed:\n{}", self.console());
        until(&what(), limit, || (self.boots() >= number).then_some(()));
        self.until_up();
    }

    /// Runs a command beside what runs there.
    pub fn run(&self, words: &[&str]) -> Output {
        let mut entering = as_root(script("into-booted-root"), &[]);
        entering.arg(&self.work).args(words);
        entering.output().expect("the command starts")
    }

    /// Runs a shell script that must succeed beside what runs there, and returns what it printed.
    #[track_caller]
    pub fn sh(&self, text: &str) -> String {
        let mut entering = as_root(script("into-booted-root"), &[]);
        succeed(entering.arg(&self.work).args(["sh", "-ec", text]))
    }

    /// How often it was booted.
    pub fn boots(&self) -> u32 {
        let text = fs::read_to_string(self.work.join("boots"));
        let count = text.ok().and_then(|text| text.trim().parse().ok());
        count.unwrap_or(0)
    }

    /// What its boots printed.
    pub fn console(&self) -> String {
        let console = fs::read(self.work.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&console).into_owned()
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let mut cut = as_root("sh", &[]);
            cut.args(["-c", CUT, "cut"]).arg(&self.work);
            let _sent = cut.stderr(Stdio::null()).status();
        }
        let _ended = self.child.wait();
    }
}

/// The Debian package of an agent, made in a folder.
#[track_caller]
pub fn debian_package(agent: &Path, folder: &Path) -> PathBuf {
    let architecture = succeed(command("dpkg").arg("--print-architecture"));
    let made = succeed(
        command(tree::root().join("deploy/package/build"))
            .env("PROGRAM", agent)
            .arg(architecture.trim())
            .arg(folder),
    );
    PathBuf::from(made.trim())
}

/// Says why a test cannot run here, and gives nothing; fails if tests of this kind are required.
#[expect(clippy::disallowed_methods, reason = "the one switch of these tests")]
pub(super) fn skipped<T>(why: &str) -> Option<T> {
    let is_required = std::env::var_os("EVENKEEL_REQUIRE_OS_TESTS").is_some();
    assert!(!is_required, "tests in a real root are required: {why}");
    let name = thread::current().name().unwrap_or_default().to_owned();
    writeln!(std::io::stderr(), "skipped {name}: {why}").expect("a line on standard error");
    None
}
