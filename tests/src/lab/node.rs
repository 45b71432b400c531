//! A node: a Debian root of its own in which commands run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use super::machine::{as_root, command, script, succeed, told, until};
use super::{Lab, Repository};

/// A Debian machine, as far as apt and dpkg can tell.
#[derive(Debug)]
pub struct Node {
    base: PathBuf,
    work: PathBuf,
    binds: Vec<String>,
    variables: Vec<String>,
    network: &'static str,
}

impl Node {
    /// A fresh machine.
    pub fn new(lab: &Lab, name: &str) -> Self {
        Self {
            base: lab.base().to_owned(),
            work: lab.path(name),
            binds: Vec::new(),
            variables: Vec::new(),
            network: "host",
        }
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
        let node = self.with(repository.folder(), Repository::INSIDE);
        node.sh(&format!(
            "cp {}/repo.sources /etc/apt/sources.list.d/; apt-get -q update --error-on=any",
            Repository::INSIDE
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

    /// Whether there is a file at a path inside.
    pub fn has(&self, path: &str) -> bool {
        self.run(&["test", "-e", path]).status.success()
    }

    /// Runs a command that must succeed in the boot that is running, and returns what it printed.
    #[track_caller]
    pub fn inside(&self, words: &[&str]) -> String {
        succeed(
            as_root(script("into-root"), &[])
                .arg(&self.work)
                .args(words),
        )
    }

    fn entering(&self, words: &[&str]) -> Command {
        let (binds, variables) = (self.binds.join(" "), self.variables.join(" "));
        let settings = [
            ("BIND", binds.as_str()),
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
