//! A real server: `evenkeeld all` with its own Postgres.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::machine::{command, succeed, until};
use super::{Binaries, Lab, Rest};

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    child: Mutex<Child>,
    data: PathBuf,
    ready: PathBuf,
    log: PathBuf,
    settings: Vec<(String, String)>,
}

impl Server {
    /// Starts a server with an empty database.
    pub fn start(lab: &Lab) -> Self {
        Self::start_with(lab, &[])
    }

    /// Starts a server with an empty database and these environment variables.
    pub fn start_with(lab: &Lab, settings: &[(&str, &str)]) -> Self {
        Self::start_in(lab.folder(), settings)
    }

    /// Starts a server with an empty database and these environment variables. Its data is in `folder`, which
    /// Postgres must be able to reach although it is not root.
    pub(super) fn start_in(folder: &Path, settings: &[(&str, &str)]) -> Self {
        let data = folder.join("server");
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let settings: Vec<_> = settings.iter().map(own).collect();
        let (ready, log) = (folder.join("ready.json"), folder.join("server.log"));
        let server = Self {
            child: Mutex::new(spawn(&data, &ready, &log, &settings)),
            data,
            ready,
            log,
            settings,
        };
        server.wait();
        server
    }

    /// Kills the server (SIGKILL).
    pub fn kill(&self) {
        let mut child = self.child();
        child.kill().expect("a child of ours");
        child.wait().expect("a child of ours");
    }

    /// Starts a killed server again with the same data and ports.
    pub fn restart(&self) {
        let southbound = self.address("southbound");
        let rest = self.address("rest");
        fs::remove_file(&self.ready).expect("the ready file of the server");
        let fixed =
            [("EVENKEELD_SOUTHBOUND__LISTEN", southbound), ("EVENKEELD_REST__LISTEN", rest)];
        let fixed = fixed.map(|(name, value)| (name.to_owned(), value));
        let settings: Vec<_> = self.settings.iter().cloned().chain(fixed).collect();
        *self.child() = spawn(&self.data, &self.ready, &self.log, &settings);
        self.wait();
    }

    /// The address of a listener: `rest`, `southbound` or `admin`.
    pub fn address(&self, listener: &str) -> String {
        let text = fs::read_to_string(&self.ready).expect("a server that is ready");
        let addresses: Value = serde_json::from_str(&text).expect("JSON");
        let address = addresses[listener].as_str().expect("an address");
        address.replace("0.0.0.0", "127.0.0.1")
    }

    /// Session of an operator who may read and write in the project `default`.
    pub fn rest(&self) -> Rest {
        Rest::new(&self.address("rest"), "default", &self.token())
    }

    /// Runs the command line with these arguments and returns its output. It must succeed.
    #[track_caller]
    pub fn cli(&self, arguments: &[&str]) -> String {
        succeed(
            command(&Binaries::get().cli)
                .args(arguments)
                .env("EVENKEEL_CONFIG", self.data.with_extension("contexts"))
                .env("EVENKEEL_SERVER", format!("http://{}", self.address("rest")))
                .env("EVENKEEL_TOKEN", self.token()),
        )
    }

    /// Runs an SQL statement as superuser and returns its output. For states that no client of the server can create,
    /// such as a time in the past.
    #[track_caller]
    pub fn sql(&self, statement: &str) -> String {
        let postgres = self.data.join("postgres");
        let default_socket = postgres.join("socket");
        let other_socket = fs::read_to_string(postgres.join("socket-at")).unwrap_or_default();
        let socket = [default_socket, PathBuf::from(other_socket.trim())]
            .into_iter()
            .find(|folder| folder.join(".s.PGSQL.5432").exists());
        succeed(
            command("psql")
                .args(["-U", "postgres", "-d", "evenkeel", "-v", "ON_ERROR_STOP=1"])
                .args(["-qAtX", "-c", statement, "-h"])
                .arg(socket.expect("the socket of the server's Postgres")),
        )
    }

    /// Process ID.
    pub(super) fn process(&self) -> u32 {
        self.child().id()
    }

    fn token(&self) -> String {
        let token = fs::read_to_string(self.data.join("operator-token"));
        token.expect("a token").trim().to_owned()
    }

    /// Log of the server.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn wait(&self) {
        until("the server is ready", Duration::from_mins(1), || {
            if let Some(status) = self.child().try_wait().expect("a child of ours") {
                panic!("the server ended with {status}:\n{}", self.log());
            }
            self.ready.exists().then_some(())
        });
    }

    /// The lock of the process. A panic of another test does not affect the process, so poisoning is ignored.
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    /// Stops the server gracefully, so that its Postgres stops as well.
    fn drop(&mut self) {
        let mut child = self.child();
        // After a killed process was waited for, its ID may belong to another process.
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        let pid = child.id().to_string();
        let _sent = command("kill").args(["-TERM", &pid]).status();
        let _ended = child.wait();
    }
}

fn spawn(data: &Path, ready: &Path, log: &Path, settings: &[(String, String)]) -> Child {
    let out = File::options().create(true).append(true).open(log);
    let out = out.expect("a log can be written");
    command(&Binaries::get().server)
        .arg("all")
        .arg("--data-dir")
        .arg(data)
        .arg("--ready-file")
        .arg(ready)
        .env("EVENKEELD_REST__LISTEN", "127.0.0.1:0")
        .env("EVENKEELD_SOUTHBOUND__LISTEN", "127.0.0.1:0")
        .env("EVENKEELD_ADMIN__LISTEN", "127.0.0.1:0")
        .envs(settings.iter().cloned())
        .stdin(Stdio::null())
        .stderr(out.try_clone().expect("a second handle"))
        .stdout(out)
        .spawn()
        .expect("the server starts")
}
