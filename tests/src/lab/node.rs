//! A node: a Debian root of its own in which commands run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use super::machine::{as_root, command, script, succeed, told, until};
use super::{Lab, Repository};

/// A Debian machine, as far as apt and dpkg can tell.
#[derive(Debug)]
pub struct Node {
    /// The folders that it is an overlay of, the upmost first, with colons between them.
    base: String,
    work: PathBuf,
    binds: Vec<String>,
    small: Vec<String>,
    readonly: Vec<String>,
    variables: Vec<String>,
    network: &'static str,
}

/// What dpkg of a node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Version and state of every package that it knows, such as `1.0 installed`.
    packages: BTreeMap<String, String>,
    /// What it finds wrong; empty if nothing is.
    pub audit: String,
}

impl Found {
    /// Version and state of a package; empty if dpkg does not know it.
    pub fn package(&self, name: &str) -> &str {
        self.packages.get(name).map_or("", String::as_str)
    }
}

impl Node {
    /// A fresh machine.
    pub fn new(lab: &Lab, name: &str) -> Self {
        Self::over(lab.base(), lab.path(name))
    }

    /// A fresh machine that is an overlay of `base` and keeps what is changed in `work`.
    pub fn over(base: &Path, work: PathBuf) -> Self {
        Self {
            base: base.display().to_string(),
            work,
            binds: Vec::new(),
            small: Vec::new(),
            readonly: Vec::new(),
            variables: Vec::new(),
            network: "host",
        }
    }

    /// Begins with what another machine changed, as [`Node::layer`] has it. That one must not run any more.
    #[must_use]
    pub fn above(mut self, layer: &Path) -> Self {
        self.base = format!("{}:{}", layer.display(), self.base);
        self
    }

    /// The folder of everything that was changed on this machine.
    pub fn layer(&self) -> PathBuf {
        self.work.join("upper")
    }

    /// Puts an empty file system of a size, such as `4m`, over a folder in every boot.
    #[must_use]
    pub fn with_little_room(mut self, folder: &str, size: &str) -> Self {
        self.small.push(format!("{folder}={size}"));
        self
    }

    /// Lets nothing be changed in a folder from now on.
    #[must_use]
    pub fn with_readonly(mut self, folder: &str) -> Self {
        self.readonly.push(folder.to_owned());
        self
    }

    /// Lets everything be changed again.
    #[must_use]
    pub fn writable(mut self) -> Self {
        self.readonly.clear();
        self
    }

    /// Shows a file or folder of the outside at a path inside, read-only.
    #[must_use]
    pub fn with(mut self, outside: &Path, inside: &str) -> Self {
        self.binds.push(format!("{}:{inside}", outside.display()));
        self
    }

    /// Cuts the machine off: it has a loopback of its own and nothing else.
    #[must_use]
    pub fn without_network(mut self) -> Self {
        self.network = "no";
        self
    }

    /// Sets a variable for everything that runs inside.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push(format!("{name}={value}"));
        self
    }

    /// Makes the machine use a repository, and no other source, for apt.
    #[must_use]
    pub fn with_repository(self, repository: &Repository) -> Self {
        let node = self.with(repository.folder(), repository.inside());
        node.sh(&format!(
            "cp {}/repo.sources /etc/apt/sources.list.d/; apt-get -q update --error-on=any",
            repository.inside()
        ));
        node
    }

    /// Runs a shell script that must succeed, in a boot of its own, and returns what it printed.
    #[track_caller]
    pub fn sh(&self, text: &str) -> String {
        succeed(&mut self.entering(&["sh", "-ec", text]))
    }

    /// Runs a command, in a boot of its own.
    pub fn run(&self, words: &[&str]) -> Output {
        self.entering(words).output().expect("the command starts")
    }

    /// Runs a command that must succeed, in a boot of its own, and returns what it printed.
    #[track_caller]
    pub fn succeed(&self, words: &[&str]) -> String {
        succeed(&mut self.entering(words))
    }

    /// Starts a command in a boot of its own. What it prints goes to a log of its own.
    pub fn start(&self, words: &[&str]) -> Running {
        let pid = self.work.join("pid");
        let _old = as_root("rm", &[]).arg("-f").arg(&pid).status();
        let log = self.work.with_extension("log");
        let out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log can be written");
        let child = self
            .entering(words)
            .stdin(Stdio::null())
            .stderr(out.try_clone().expect("a second handle"))
            .stdout(out)
            .spawn()
            .expect("the command starts");
        Running { child, pid, log }
    }

    /// The version of a package as dpkg has it, with its state, such as `1.0 installed`; empty if it is not there.
    pub fn package(&self, name: &str) -> String {
        let format = "${Version} ${db:Status-Status}";
        let output = self.run(&["dpkg-query", "-W", "-f", format, name]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What dpkg finds wrong; empty if nothing is.
    #[track_caller]
    pub fn audit(&self) -> String {
        self.succeed(&["dpkg", "--audit"])
    }

    /// All that dpkg says, in one boot.
    #[track_caller]
    pub fn found(&self) -> Found {
        let format = "${Package} ${Version} ${db:Status-Status}\\n";
        let look = format!("dpkg-query -W -f '{format}'; echo; dpkg --audit || true");
        let said = self.sh(&look);
        let (packages, audit) = said.split_once("\n\n").unwrap_or((said.as_str(), ""));
        let packages = packages.lines().filter_map(|line| line.split_once(' '));
        Found {
            packages: packages
                .map(|(name, state)| (name.to_owned(), state.to_owned()))
                .collect(),
            audit: audit.to_owned(),
        }
    }

    /// Whether there is a file at a path inside.
    pub fn has(&self, path: &str) -> bool {
        self.run(&["test", "-e", path]).status.success()
    }

    /// Runs a command that must succeed in the boot that is running, and returns what it printed.
    #[track_caller]
    pub fn inside(&self, words: &[&str]) -> String {
        succeed(&mut self.going_inside(words))
    }

    /// Runs a command in the boot that is running.
    pub fn run_inside(&self, words: &[&str]) -> Output {
        let output = self.going_inside(words).output();
        output.expect("the command starts")
    }

    fn going_inside(&self, words: &[&str]) -> Command {
        let mut command = as_root(script("into-root"), &[]);
        command.arg(&self.work).args(words);
        command
    }

    fn entering(&self, words: &[&str]) -> Command {
        let (binds, variables) = (self.binds.join(" "), self.variables.join(" "));
        let (small, readonly) = (self.small.join(" "), self.readonly.join(" "));
        let settings = [
            ("BIND", binds.as_str()),
            ("SMALL", small.as_str()),
            ("READONLY", readonly.as_str()),
            ("GUEST_ENV", variables.as_str()),
            ("NET", self.network),
        ];
        let mut command = as_root(script("in-root"), &settings);
        command.arg(&self.base).arg(&self.work).args(words);
        command
    }
}

/// Something that runs on a node. Dropping it is a power cut.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pid: PathBuf,
    log: PathBuf,
}

impl Running {
    /// Kills everything that runs in this boot, at once.
    pub fn kill(&mut self) -> ExitStatus {
        if let Some(status) = self.ended() {
            return status;
        }
        let pid = until("the boot has begun", Duration::from_secs(10), || {
            let text = fs::read_to_string(&self.pid).ok()?;
            text.trim().parse::<u32>().ok()
        });
        let _sent = as_root("kill", &[])
            .args(["-KILL", &pid.to_string()])
            .status();
        self.child.wait().expect("a child of ours")
    }

    /// Asks the command to stop (SIGTERM) and waits for its end.
    pub fn stop(&mut self) -> ExitStatus {
        let inside = format!("pkill -TERM -P $(cat {})", self.pid.display());
        let _sent = as_root("sh", &[]).args(["-c", &inside]).status();
        self.wait(Duration::from_secs(30))
    }

    /// Waits until the command has ended by itself.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let log = self.log.clone();
        let what = || format!("the command ends; it said:\n{}", tail(&log));
        until(&what(), limit, || self.ended())
    }

    /// How the command ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of ours")
    }

    /// What it printed so far, and what those before it on this node printed.
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

/// Whether Debian's own program says that one version is older than another.
pub fn is_older(one: &str, other: &str) -> bool {
    let output = command("dpkg")
        .args(["--compare-versions", one, "lt", other])
        .output()
        .expect("dpkg starts");
    assert!(output.stderr.is_empty(), "{}", told(&output));
    output.status.success()
}
