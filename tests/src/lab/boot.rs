//! Nodes that boot: systemd runs in a container, with units, D-Bus, logind and reboots.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Lab;
use super::machine::{as_root, command, describe_output, script, succeed, until};

/// Packages that a root needs to boot.
const SYSTEMD_PACKAGES: &[&str] = &["systemd", "systemd-sysv", "dbus"];

/// Time limit of a boot on a busy machine.
const BOOT_TIMEOUT: Duration = Duration::from_mins(2);

/// Kills the processes of a node as soon as its process ID is in the file `pid` of its folder.
const KILL_SCRIPT: &str = r#"
left=100
until read -r pid < "$1/pid"; do
  left=$((left - 1)); [ $left -gt 0 ] || exit 1
  sleep 0.1
done
kill -KILL "$pid"
"#;

/// Containers without a manager share one cgroup, so they run one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A node that is switched on. It boots again when it requests a reboot. Dropping it is a power cut.
#[derive(Debug)]
pub struct BootedNode {
    child: Child,
    work: PathBuf,
    /// Last field, so that it is dropped last.
    _turn: MutexGuard<'static, ()>,
}

impl BootedNode {
    /// Opens a lab whose nodes can boot. If that is impossible here, prints one line and returns `None`, or fails if
    /// these tests are required.
    pub fn open_lab() -> Option<Lab> {
        Self::open_lab_with(&[])
    }

    /// Opens such a lab whose nodes also have these packages.
    pub fn open_lab_with(packages: &[&str]) -> Option<Lab> {
        if command("systemd-nspawn").arg("--version").output().is_err() {
            return skip_test("systemd-nspawn is missing; install systemd-container");
        }
        let lab = Lab::open_with(None, &[SYSTEMD_PACKAGES, packages].concat())?;
        let trial = Self::start(&lab, "trial", &[]);
        if let Err(why) = trial.is_up(Duration::from_mins(1)) {
            return skip_test(&format!("no container boots here: {why}"));
        }
        drop(trial);
        Some(lab)
    }

    /// Switches on a node of such a lab. `mounts` are files and folders of this machine that the node sees, read-only,
    /// each with its path on the node. Waits until no other node of this program runs.
    pub fn start(lab: &Lab, name: &str, mounts: &[(&Path, &str)]) -> Self {
        Self::start_with(lab, name, mounts, "host")
    }

    /// Switches on a node that has only its own loopback, so that its ports do not collide with those of this machine.
    pub fn start_without_network(lab: &Lab, name: &str, mounts: &[(&Path, &str)]) -> Self {
        Self::start_with(lab, name, mounts, "no")
    }

    fn start_with(lab: &Lab, name: &str, mounts: &[(&Path, &str)], network: &str) -> Self {
        let turn = ONE_AT_A_TIME.lock();
        let turn = turn.unwrap_or_else(PoisonError::into_inner);
        let work = lab.path(name);
        for old in ["pid", "boots"] {
            let _gone = as_root("rm", &[]).arg("-f").arg(work.join(old)).status();
        }
        let pair = |(outside, inside): &(&Path, &str)| format!("{}:{inside}", outside.display());
        let binds = mounts.iter().map(pair).collect::<Vec<_>>().join(" ");
        let log = File::options()
            .create(true)
            .append(true)
            .open(work.with_extension("log"))
            .expect("a log can be written");
        let settings = [("BIND", binds.as_str()), ("NET", network)];
        let child = as_root(script("in-booted-root"), &settings)
            .arg(lab.base())
            .arg(&work)
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a second handle"))
            .stdout(log)
            .spawn()
            .expect("the container starts");
        Self { child, work, _turn: turn }
    }

    /// Waits until systemd has started all units.
    #[track_caller]
    pub fn until_up(&self) {
        if let Err(why) = self.is_up(BOOT_TIMEOUT) {
            panic!("the node does not come up: {why}");
        }
    }

    fn is_up(&self, limit: Duration) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let query = ["timeout", "10", "systemctl", "is-system-running", "--wait"];
            let state = self.run(&query);
            // `degraded`: a unit failed that has nothing to do with the test.
            let status = String::from_utf8_lossy(&state.stdout);
            if matches!(status.trim(), "running" | "degraded") {
                return Ok(());
            }
            if begun.elapsed() > limit {
                let console = self.console();
                let last = console.lines().last().unwrap_or_default();
                return Err(format!("{} {last}", describe_output(&state).trim()));
            }
        }
    }

    /// Waits until the boot with this number is up.
    #[track_caller]
    pub fn until_boot(&self, number: u32, limit: Duration) {
        let what = || format!("boot number {number}; it printed:\n{}", self.console());
        until(&what(), limit, || (self.boots() >= number).then_some(()));
        self.until_up();
    }

    /// Runs a command in the running node.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut entering = as_root(script("into-booted-root"), &[]);
        entering.arg(&self.work).args(arguments);
        entering.output().expect("the command starts")
    }

    /// Runs a shell script in the running node, which must succeed, and returns its output.
    #[track_caller]
    pub fn sh(&self, text: &str) -> String {
        let mut entering = as_root(script("into-booted-root"), &[]);
        succeed(entering.arg(&self.work).args(["sh", "-ec", text]))
    }

    /// Number of boots.
    pub fn boots(&self) -> u32 {
        let text = fs::read_to_string(self.work.join("boots"));
        let count = text.ok().and_then(|text| text.trim().parse().ok());
        count.unwrap_or(0)
    }

    /// Console output of all boots.
    pub fn console(&self) -> String {
        let console = fs::read(self.work.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&console).into_owned()
    }
}

impl Drop for BootedNode {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let mut cut = as_root("sh", &[]);
            cut.args(["-c", KILL_SCRIPT, "cut"]).arg(&self.work);
            let _sent = cut.stderr(Stdio::null()).status();
        }
        let _ended = self.child.wait();
    }
}

/// Prints why a test cannot run here and returns `None`. Fails if these tests are required.
#[expect(clippy::disallowed_methods, reason = "the one switch of these tests")]
pub(super) fn skip_test<T>(why: &str) -> Option<T> {
    let is_required = std::env::var_os("EVENKEEL_REQUIRE_OS_TESTS").is_some();
    assert!(!is_required, "tests in a real root are required: {why}");
    let name = thread::current().name().unwrap_or_default().to_owned();
    writeln!(std::io::stderr(), "skipped {name}: {why}").expect("a line on standard error");
    None
}
