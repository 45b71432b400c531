//! The machine that the tests run on, where no double would do.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// A program of this machine, also one that only its administrator finds.
#[expect(
    clippy::disallowed_methods,
    reason = "what is compared with the agent, or stands below it, is other programs"
)]
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("sh");
    let script = "PATH=$PATH:/usr/sbin:/sbin; exec \"$@\"";
    command.args(["-c", script, "sh"]).arg(name);
    command
}

/// The same, run by root: by sudo if this process is not root.
fn as_root(name: &str) -> Command {
    if rustix::process::geteuid().is_root() {
        return program(name);
    }
    let mut command = program("sudo");
    command.args(["-n", name]);
    command
}

/// What a program printed, or why it failed.
pub fn words_of(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        let words = String::from_utf8_lossy(&output.stdout);
        return Ok(words.trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().last().unwrap_or("it said nothing").to_owned())
}

/// Says something to whoever watches the tests.
pub fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("a line on standard error");
}

/// Says in one line why something is not tried here, or fails if tests of this kind are required.
#[expect(clippy::disallowed_methods, reason = "the one switch of these tests")]
pub fn skip(why: &str) {
    let is_required = std::env::var_os("EVENKEEL_REQUIRE_OS_TESTS").is_some();
    assert!(!is_required, "tests of a real machine are required: {why}");
    let name = thread::current().name().unwrap_or_default().to_owned();
    say(&format!("skipped {name}: {why}"));
}

/// A device with blocks, made of a file. It ends with this.
pub struct Loop {
    device: PathBuf,
}

impl Loop {
    /// One with blocks of so many bytes; where there can be none, nothing, and a word why.
    pub fn of(file: &Path, block: u32) -> Option<Self> {
        Self::attach(file, block).map_err(|why| skip(&why)).ok()
    }

    fn attach(file: &Path, block: u32) -> Result<Self, String> {
        let block = block.to_string();
        let mut attaching = as_root("losetup");
        attaching.args(["--find", "--show", "--sector-size", &block]);
        let device = words_of(attaching.arg(file))
            .map_err(|why| format!("no device can be made of a file: {why}"))?;
        let device = Self {
            device: PathBuf::from(device),
        };
        device.give_to(rustix::process::geteuid().as_raw())?;
        Ok(device)
    }

    /// Lets a user open it; if all is done by root, it is root's already.
    fn give_to(&self, user: u32) -> Result<(), String> {
        if rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let mut giving = as_root("chown");
        giving.arg(user.to_string()).arg(&self.device);
        let given = words_of(&mut giving);
        given.map_err(|why| format!("a device stays root's: {why}"))?;
        Ok(())
    }

    /// Where the device is.
    pub fn path(&self) -> &Path {
        &self.device
    }

    /// Mounts it; where nothing can be mounted, nothing, and a word why.
    pub fn mount(&self, place: &Path) -> Option<Mount> {
        let mounted = words_of(as_root("mount").arg(&self.device).arg(place));
        let mounted = mounted.map(|_| Mount {
            place: place.to_owned(),
        });
        mounted
            .map_err(|why| skip(&format!("nothing can be mounted: {why}")))
            .ok()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _returned = self.give_to(0);
        let _gone = as_root("losetup")
            .arg("--detach")
            .arg(&self.device)
            .status();
    }
}

/// A device that is mounted. That ends with this.
pub struct Mount {
    place: PathBuf,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _gone = as_root("umount").arg(&self.place).status();
    }
}
