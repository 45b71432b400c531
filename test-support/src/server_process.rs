//! The server as a process of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a server may take to start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_mins(2);

/// Delay between two looks at the ready file.
const READY_INTERVAL: Duration = Duration::from_millis(20);

/// The maximum number of errors of the log that a failed test prints, and of characters of each.
const MAX_PRINTED_ERRORS: usize = 10;
const MAX_PRINTED_CHARS: usize = 600;

/// Listeners that keep their address when the server is started again.
const FIXED_LISTENERS: [&str; 4] = ["rest", "southbound", "files", "admin"];

/// `evenkeeld all`, which can be killed and started again. It is killed when this value is dropped.
#[derive(Debug)]
pub struct ServerProcess {
    program: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    ready: PathBuf,
    log: PathBuf,
    addresses: BTreeMap<String, String>,
    child: Option<Child>,
}

impl ServerProcess {
    /// A server that is not started yet. Its log and its ready file are in `folder`, with `name` in
    /// their names. It listens on free ports of the loopback interface.
    pub fn new(program: &Path, folder: &Path, name: &str) -> Self {
        let variable = |listener: &str| (listen_variable(listener), "127.0.0.1:0".to_owned());
        Self {
            program: program.to_owned(),
            arguments: Vec::new(),
            variables: ["rest", "southbound", "admin"].map(variable).to_vec(),
            ready: folder.join(format!("{name}.ready.json")),
            log: folder.join(format!("{name}.log")),
            addresses: BTreeMap::new(),
            child: None,
        }
    }

    /// Adds an option with its value.
    #[must_use]
    pub fn option(mut self, option: &str, value: &Path) -> Self {
        self.arguments.extend([option.to_owned(), value.to_string_lossy().into_owned()]);
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Uses another program from the next start on.
    pub fn set_program(&mut self, program: &Path) {
        program.clone_into(&mut self.program);
    }

    /// Starts the server and blocks until it is ready.
    pub fn start(&mut self) {
        self.spawn();
        let begun = Instant::now();
        while !self.is_ready(begun) {
            std::thread::sleep(READY_INTERVAL);
        }
    }

    /// Starts the server and waits until it is ready.
    pub async fn start_and_wait(&mut self) {
        self.spawn();
        let begun = Instant::now();
        while !self.is_ready(begun) {
            tokio::time::sleep(READY_INTERVAL).await;
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the server is another program")]
    fn spawn(&mut self) {
        let _not_there = fs::remove_file(&self.ready);
        let out = File::options().create(true).append(true).open(&self.log);
        let out = out.expect("a log can be written");
        let fixed = FIXED_LISTENERS.iter().filter_map(|listener| {
            Some((listen_variable(listener), self.addresses.get(*listener)?.clone()))
        });
        let child = Command::new(&self.program)
            .arg("all")
            .args(&self.arguments)
            .arg("--ready-file")
            .arg(&self.ready)
            .envs(self.variables.iter().cloned())
            .envs(fixed)
            .stdin(Stdio::null())
            .stderr(out.try_clone().expect("a second handle"))
            .stdout(out)
            .spawn();
        self.child = Some(child.expect("the server starts"));
    }

    /// Whether the server has written its addresses. Panics if it has ended or takes too long.
    fn is_ready(&mut self, begun: Instant) -> bool {
        if let Ok(text) = fs::read_to_string(&self.ready) {
            self.addresses = serde_json::from_str(&text).expect("addresses");
            return true;
        }
        assert!(self.is_running(), "the server ended:\n{}", self.log());
        assert!(begun.elapsed() < START_TIMEOUT, "the server does not start:\n{}", self.log());
        false
    }

    /// Whether it was started and not killed since then.
    pub const fn is_started(&self) -> bool {
        self.child.is_some()
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| {
            let ended = child.try_wait().expect("a child of ours");
            ended.is_none()
        })
    }

    /// Kills the server (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child of ours");
            child.wait().expect("a child of ours");
        }
    }

    /// Stops the server gracefully (SIGTERM) and waits for its end.
    pub fn stop(&mut self) {
        if self.is_running() {
            let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
            kill_process(id.expect("a process id"), Signal::TERM).expect("a child of ours");
        }
        if let Some(mut child) = self.child.take() {
            child.wait().expect("a child of ours");
        }
    }

    pub fn id(&self) -> u32 {
        self.child.as_ref().map(Child::id).expect("a server that was started")
    }

    /// The address of a listener, as this machine reaches it.
    pub fn address(&self, listener: &str) -> String {
        let address = self.addresses.get(listener);
        let address = address.unwrap_or_else(|| panic!("there is no listener {listener}"));
        address.replace("0.0.0.0", "127.0.0.1")
    }

    /// The log since the first start.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Prints the last errors of the log. A response names no cause of an internal error, and the
    /// folder of the log is removed with the test.
    fn print_errors(&self) {
        let log = self.log();
        let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
        let last =
            errors.get(errors.len().saturating_sub(MAX_PRINTED_ERRORS)..).unwrap_or_default();
        for error in last {
            let text: String = error.chars().take(MAX_PRINTED_CHARS).collect();
            let _printed = writeln!(io::stderr(), "{}: {text}", self.log.display());
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ended = child.kill();
            let _ended = child.wait();
        }
        if thread::panicking() {
            self.print_errors();
        }
    }
}

fn listen_variable(listener: &str) -> String {
    format!("EVENKEELD_{}__LISTEN", listener.to_uppercase())
}
