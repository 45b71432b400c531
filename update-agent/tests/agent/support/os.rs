//! The machine that runs the tests, where a double is not enough.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use super::skipping::{print_line, skip_test};

/// A program of this machine, also from the administrator's folders.
#[expect(
    clippy::disallowed_methods,
    reason = "the tests compare the agent with other programs, or prepare devices with them"
)]
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("sh");
    let script = "PATH=$PATH:/usr/sbin:/sbin; exec \"$@\"";
    command.args(["-c", script, "sh"]).arg(name);
    command
}

/// The same, run by root: with sudo if this process is not root.
fn root_command(name: &str) -> Command {
    if rustix::process::geteuid().is_root() {
        return program(name);
    }
    let mut command = program("sudo");
    command.args(["-n", name]);
    command
}

/// Output of a program, or its last error line.
pub fn run_output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        let stdout = String::from_utf8_lossy(&output.stdout);
        return Ok(stdout.trim().to_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(stderr.lines().last().unwrap_or("no error text").to_owned())
}

/// A block device on a file. Dropping it detaches the device.
pub struct LoopDevice {
    device: PathBuf,
}

impl LoopDevice {
    /// Creates a device with this block size. Prints why and returns `None` if that is not possible.
    pub fn attach_or_skip(file: &Path, block: u32) -> Option<Self> {
        Self::attach(file, block).map_err(|why| skip_test(&why)).ok()
    }

    fn attach(file: &Path, block: u32) -> Result<Self, String> {
        let block = block.to_string();
        let mut attaching = root_command("losetup");
        attaching.args(["--find", "--show", "--sector-size", &block]);
        let device = run_output(attaching.arg(file))
            .map_err(|why| format!("cannot create a loop device: {why}"))?;
        let device = Self { device: PathBuf::from(device) };
        device.change_owner(rustix::process::geteuid().as_raw())?;
        Ok(device)
    }

    /// Lets a user open the device. As root there is nothing to do.
    fn change_owner(&self, user: u32) -> Result<(), String> {
        if rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let mut giving = root_command("chown");
        giving.arg(user.to_string()).arg(&self.device);
        let result = run_output(&mut giving);
        result.map_err(|why| format!("cannot change the owner of a device: {why}"))?;
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.device
    }

    /// Mounts the device. Prints why and returns `None` if that is not possible.
    pub fn mount_or_skip(&self, mount_point: &Path) -> Option<MountedDevice> {
        let mounted = run_output(root_command("mount").arg(&self.device).arg(mount_point));
        let mounted = mounted.map(|_| MountedDevice { mount_point: mount_point.to_owned() });
        mounted.map_err(|why| skip_test(&format!("cannot mount the device: {why}"))).ok()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _returned = self.change_owner(0);
        let _gone = root_command("losetup").arg("--detach").arg(&self.device).status();
    }
}

/// A mounted device. Dropping it unmounts the device.
pub struct MountedDevice {
    mount_point: PathBuf,
}

impl Drop for MountedDevice {
    fn drop(&mut self) {
        let _gone = root_command("umount").arg(&self.mount_point).status();
    }
}
