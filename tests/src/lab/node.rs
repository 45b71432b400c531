//! A node: its own Debian root in which commands run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use super::machine::{as_root, command, describe_output, script, succeed, until};
use super::{Lab, Repository};

/// A Debian machine, from the point of view of apt and dpkg.
#[derive(Debug)]
pub struct Node {
    /// Lower folders of its overlay, the top one first, separated by colons.
    base: String,
    work: PathBuf,
    binds: Vec<String>,
    small_filesystems: Vec<String>,
    readonly: Vec<String>,
    variables: Vec<String>,
    network: &'static str,
    /// Release of the running kernel; empty for that of this machine.
    kernel: String,
}

/// State of the packages, as dpkg reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpkgStatus {
    /// Version and state of every known package, such as `1.0 installed`.
    packages: BTreeMap<String, String>,
    /// Problems that dpkg finds; empty if there are none.
    pub audit: String,
}

impl DpkgStatus {
    /// Version and state of a package; empty if dpkg does not know it.
    pub fn package(&self, name: &str) -> &str {
        self.packages.get(name).map_or("", String::as_str)
    }
}

impl Node {
    /// Creates a machine.
    pub fn new(lab: &Lab, name: &str) -> Self {
        Self::on_base(lab.base(), lab.path(name))
    }

    /// Creates a machine that is an overlay of `base` and stores its changes in `work`.
    pub fn on_base(base: &Path, work: PathBuf) -> Self {
        Self {
            base: base.display().to_string(),
            work,
            binds: Vec::new(),
            small_filesystems: Vec::new(),
            readonly: Vec::new(),
            variables: Vec::new(),
            network: "host",
            kernel: String::new(),
        }
    }

    /// Adds the changes of another machine ([`Node::layer`]) below this one. The other machine must not run any more.
    #[must_use]
    pub fn on_layer(mut self, layer: &Path) -> Self {
        self.base = format!("{}:{}", layer.display(), self.base);
        self
    }

    /// The folder of this machine's changes.
    pub fn layer(&self) -> PathBuf {
        self.work.join("upper")
    }

    /// Mounts an empty file system of a size, such as `4m` or `4m,nr_inodes=100`, over a folder in every boot.
    #[must_use]
    pub fn with_small_filesystem(mut self, folder: &str, size: &str) -> Self {
        self.small_filesystems.push(format!("{folder}={size}"));
        self
    }

    /// Makes a folder read-only from now on.
    #[must_use]
    pub fn with_readonly(mut self, folder: &str) -> Self {
        self.readonly.push(folder.to_owned());
        self
    }

    /// Makes everything writable again.
    #[must_use]
    pub fn writable(mut self) -> Self {
        self.readonly.clear();
        self
    }

    /// Mounts a file or folder of this machine at a path of the node, read-only.
    #[must_use]
    pub fn with_file(mut self, outside: &Path, inside: &str) -> Self {
        self.binds.push(format!("{}:{inside}", outside.display()));
        self
    }

    /// Disconnects the machine: it has only its own loopback.
    #[must_use]
    pub fn without_network(mut self) -> Self {
        self.network = "no";
        self
    }

    /// Boots this kernel from now on, as far as `/proc/sys/kernel/osrelease` shows it.
    #[must_use]
    pub fn with_kernel(mut self, release: &str) -> Self {
        release.clone_into(&mut self.kernel);
        self
    }

    /// Sets a variable for all commands on the node.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push(format!("{name}={value}"));
        self
    }

    /// Makes a repository the only source of apt.
    #[must_use]
    pub fn with_repository(self, repository: &Repository) -> Self {
        let node = self.with_file(repository.folder(), repository.inside());
        node.sh(&format!(
            "cp {}/repo.sources /etc/apt/sources.list.d/; apt-get -q update --error-on=any",
            repository.inside()
        ));
        node
    }

    /// Runs a shell script in a separate boot. It must succeed. Returns its output.
    #[track_caller]
    pub fn sh(&self, text: &str) -> String {
        succeed(&mut self.enter_command(&["sh", "-ec", text]))
    }

    /// Runs a command in a separate boot.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.enter_command(arguments).output().expect("the command starts")
    }

    /// Runs a command in a separate boot. It must succeed. Returns its output.
    #[track_caller]
    pub fn succeed(&self, arguments: &[&str]) -> String {
        succeed(&mut self.enter_command(arguments))
    }

    /// Starts a command in a separate boot. Its output goes to a log.
    pub fn start(&self, arguments: &[&str]) -> Running {
        let pid = self.work.join("pid");
        let _old = as_root("rm", &[]).arg("-f").arg(&pid).status();
        let log = self.work.with_extension("log");
        let out =
            File::options().create(true).append(true).open(&log).expect("a log can be written");
        let child = self
            .enter_command(arguments)
            .stdin(Stdio::null())
            .stderr(out.try_clone().expect("a second handle"))
            .stdout(out)
            .spawn()
            .expect("the command starts");
        Running { child, pid, log }
    }

    /// Version and state of a package as dpkg reports it, such as `1.0 installed`; empty if it is not installed.
    pub fn package(&self, name: &str) -> String {
        let format = "${Version} ${db:Status-Status}";
        let output = self.run(&["dpkg-query", "-W", "-f", format, name]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Problems that dpkg finds; empty if there are none.
    #[track_caller]
    pub fn audit(&self) -> String {
        self.succeed(&["dpkg", "--audit"])
    }

    /// State of all packages and problems, read in one boot.
    #[track_caller]
    pub fn dpkg_status(&self) -> DpkgStatus {
        let format = "${Package} ${Version} ${db:Status-Status}\\n";
        let look = format!("dpkg-query -W -f '{format}'; echo; dpkg --audit || true");
        let output = self.sh(&look);
        let (packages, audit) = output.split_once("\n\n").unwrap_or((output.as_str(), ""));
        let packages = packages.lines().filter_map(|line| line.split_once(' '));
        DpkgStatus {
            packages: packages.map(|(name, state)| (name.to_owned(), state.to_owned())).collect(),
            audit: audit.to_owned(),
        }
    }

    /// Whether a path exists on the node.
    pub fn has_path(&self, path: &str) -> bool {
        self.run(&["test", "-e", path]).status.success()
    }

    /// Runs a command in the running boot. It must succeed. Returns its output.
    #[track_caller]
    pub fn succeed_inside(&self, arguments: &[&str]) -> String {
        succeed(&mut self.join_command(arguments))
    }

    /// Runs a command in the running boot.
    pub fn run_inside(&self, arguments: &[&str]) -> Output {
        let output = self.join_command(arguments).output();
        output.expect("the command starts")
    }

    fn join_command(&self, arguments: &[&str]) -> Command {
        let mut command = as_root(script("into-root"), &[]);
        command.arg(&self.work).args(arguments);
        command
    }

    fn enter_command(&self, arguments: &[&str]) -> Command {
        let (binds, variables) = (self.binds.join(" "), self.variables.join(" "));
        let (small, readonly) = (self.small_filesystems.join(" "), self.readonly.join(" "));
        let settings = [
            ("BIND", binds.as_str()),
            ("SMALL", small.as_str()),
            ("READONLY", readonly.as_str()),
            ("GUEST_ENV", variables.as_str()),
            ("NET", self.network),
            ("KERNEL", self.kernel.as_str()),
        ];
        let mut command = as_root(script("in-root"), &settings);
        command.arg(&self.base).arg(&self.work).args(arguments);
        command
    }
}

/// A running command on a node. Dropping it is a power cut.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pid: PathBuf,
    log: PathBuf,
}

impl Running {
    /// Kills all processes of this boot at once.
    pub fn kill(&mut self) -> ExitStatus {
        if let Some(status) = self.exit_status() {
            return status;
        }
        let pid = until("the boot has begun", Duration::from_secs(10), || {
            let text = fs::read_to_string(&self.pid).ok()?;
            text.trim().parse::<u32>().ok()
        });
        let _sent = as_root("kill", &[]).args(["-KILL", &pid.to_string()]).status();
        self.child.wait().expect("a child of ours")
    }

    /// Stops the command (SIGTERM) and waits for its end.
    pub fn stop(&mut self) -> ExitStatus {
        let inside = format!("pkill -TERM -P $(cat {})", self.pid.display());
        let _sent = as_root("sh", &[]).args(["-c", &inside]).status();
        self.wait(Duration::from_secs(30))
    }

    /// Waits until the command ends on its own.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let log = self.log.clone();
        let what = || format!("the command ends; its output:\n{}", tail(&log));
        until(&what(), limit, || self.exit_status())
    }

    /// Exit status of the command, if it has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of ours")
    }

    /// Output so far, including the output of earlier commands on this node.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last lines of a file.
fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Whether dpkg considers one version older than the other.
pub fn is_older(one: &str, other: &str) -> bool {
    let output = command("dpkg")
        .args(["--compare-versions", one, "lt", other])
        .output()
        .expect("dpkg starts");
    assert!(output.stderr.is_empty(), "{}", describe_output(&output));
    output.status.success()
}
