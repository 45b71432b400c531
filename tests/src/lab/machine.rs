//! The machine that the lab runs on: how scripts run as root, and whether they can.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::Suite;
use crate::architecture::tree;

/// A folder for nodes and repositories.
#[derive(Debug)]
pub struct Lab {
    /// Debian root below the overlay of every node.
    base: PathBuf,
    scratch: TempDir,
}

impl Lab {
    /// Opens a lab whose nodes have the Debian release of this machine. If that is impossible here, prints one line and
    /// returns `None`, or fails if these tests are required.
    pub fn open() -> Option<Self> {
        Self::open_with(None, &[])
    }

    /// Opens a lab whose nodes have this release of Debian, with the programs that create users. Debian
    /// 13 does not install them by itself.
    pub fn open_in(suite: Suite) -> Option<Self> {
        Self::open_with(Some(suite), &["passwd"])
    }

    /// Opens a lab whose nodes have a release of Debian (by default this machine's release) and these packages.
    #[expect(clippy::disallowed_methods, reason = "the one switch of these tests")]
    pub fn open_with(suite: Option<Suite>, packages: &[&str]) -> Option<Self> {
        match base(suite, packages) {
            Ok(base) => {
                // Postgres does not run as root and must be able to reach its data.
                let scratch = tempfile::Builder::new()
                    .prefix("evenkeel-lab.")
                    .permissions(Permissions::from_mode(0o711))
                    .tempdir()
                    .expect("a temporary folder");
                Some(Self { base, scratch })
            }
            Err(why) => {
                let is_required = std::env::var_os("EVENKEEL_REQUIRE_OS_TESTS").is_some();
                assert!(!is_required, "tests in a real root are required: {why}");
                let name = thread::current().name().unwrap_or_default().to_owned();
                let line = writeln!(std::io::stderr(), "skipped {name}: {why}");
                line.expect("a line on standard error");
                None
            }
        }
    }

    /// Debian root below the overlay of every node.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Folder of all files of the lab.
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// A path in the folder of the lab.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Files of nodes belong to root.
        let _gone = as_root("rm", &[]).arg("-rf").arg(self.scratch.path()).status();
    }
}

pub(super) fn script(name: &str) -> PathBuf {
    tree::root().join("tests/lab").join(name)
}

#[expect(clippy::disallowed_methods, reason = "the lab is made of other programs")]
pub(super) fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// A command that runs as root with these variables, with sudo if this process is not root.
pub(super) fn as_root(program: impl AsRef<OsStr>, variables: &[(&str, &str)]) -> Command {
    let mut command = if is_root() {
        command("env")
    } else {
        let mut command = command("sudo");
        command.args(["-n", "env"]);
        command
    };
    command.args(variables.iter().map(|(name, value)| format!("{name}={value}")));
    command.arg(program);
    command
}

/// The output of a command that must succeed.
#[track_caller]
pub(super) fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{command:?}: {}", describe_output(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Status and output of a command.
pub fn describe_output(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// Polls until there is a result, for at most `limit`.
///
/// # Panics
/// There is no result in time. The message contains `what`.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut poll: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn is_root() -> bool {
    static IS_ROOT: OnceLock<bool> = OnceLock::new();
    *IS_ROOT.get_or_init(|| {
        let id = command("id").arg("-u").output();
        id.is_ok_and(|output| output.stdout.starts_with(b"0"))
    })
}

/// The Debian root of a suite with these packages. Prepared once per program.
fn base(suite: Option<Suite>, packages: &[&str]) -> Result<PathBuf, String> {
    static BASES: Mutex<BTreeMap<String, Result<PathBuf, String>>> = Mutex::new(BTreeMap::new());
    let name = suite.map_or("", Suite::name);
    let key = format!("{name} {}", packages.join(" "));
    let mut bases = BASES.lock().unwrap_or_else(PoisonError::into_inner);
    let base = bases.entry(key).or_insert_with(|| prepare(suite, packages));
    base.clone()
}

/// Creates or finds the Debian root, and checks that an overlay of it can be entered.
#[expect(clippy::disallowed_methods, reason = "where the cache is")]
fn prepare(suite: Option<Suite>, packages: &[&str]) -> Result<PathBuf, String> {
    let cache = std::env::var("EVENKEEL_LAB_CACHE").unwrap_or_default();
    let mut variables = vec![("EVENKEEL_LAB_CACHE", cache.as_str())];
    variables.extend(suite.map(|suite| ("SUITE", suite.name())));
    let base = try_run(as_root(script("make-base-root"), &variables).arg("-").args(packages))?;
    let base = PathBuf::from(base.trim());
    let trial = tempfile::tempdir().map_err(|error| error.to_string())?;
    let entered = try_run(as_root(script("in-root"), &[]).arg(&base).arg(trial.path()).arg("true"));
    let _gone = as_root("rm", &[]).arg("-rf").arg(trial.path()).status();
    entered.map(|_| base)
}

fn try_run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().last().unwrap_or("no error message").to_owned();
    Err(format!("no Debian root can be entered here: {last}"))
}
