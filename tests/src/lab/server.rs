//! A real server: `evenkeeld all` with a Postgres of its own.

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

    /// Starts a server with an empty database and these variables.
    pub fn start_with(lab: &Lab, settings: &[(&str, &str)]) -> Self {
        Self::start_in(lab.folder(), settings)
    }

    /// Starts a server with an empty database and these variables, that keeps what it has in a folder. Postgres, which
    /// is not root, must get through to it.
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

    /// Starts a killed server again on the same data and ports.
    pub fn restart(&self) {
        let southbound = self.address("southbound");
        let rest = self.address("rest");
        fs::remove_file(&self.ready).expect("the file of a server that was ready");
        let fixed = [
            ("EVENKEELD_SOUTHBOUND__LISTEN", southbound),
            ("EVENKEELD_REST__LISTEN", rest),
        ];
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

    /// A session of an operator who may read and write in the project `default`.
    pub fn rest(&self) -> Rest {
        Rest::new(&self.address("rest"), "default", &self.token())
    }

    /// What the operator's command line says to these words. It must succeed.
    #[track_caller]
    pub fn cli(&self, words: &[&str]) -> String {
        succeed(
            command(&Binaries::get().cli)
                .args(words)
                .env("EVENKEEL_CONFIG", self.data.with_extension("contexts"))
                .env(
                    "EVENKEEL_SERVER",
                    format!("http://{}", self.address("rest")),
                )
                .env("EVENKEEL_TOKEN", self.token()),
        )
    }

    /// What the database answers to a statement of its superuser: for what no caller of the server can bring about, such
    /// as a time that lies long ago.
    #[track_caller]
    pub fn sql(&self, statement: &str) -> String {
        let postgres = self.data.join("postgres");
        let beside = postgres.join("socket");
        let noted = fs::read_to_string(postgres.join("socket-at")).unwrap_or_default();
        let socket = [beside, PathBuf::from(noted.trim())]
            .into_iter()
            .find(|folder| folder.join(".s.PGSQL.5432").exists());
        succeed(
            command("psql")
                .args(["-U", "postgres", "-d", "evenkeel", "-v", "ON_ERROR_STOP=1"])
                .args(["-qAtX", "-c", statement, "-h"])
                .arg(socket.expect("the socket of the server's Postgres")),
        )
    }

    /// The number of its process.
    pub(super) fn process(&self) -> u32 {
        self.child().id()
    }

    fn token(&self) -> String {
        let token = fs::read_to_string(self.data.join("operator-token"));
        token.expect("a token").trim().to_owned()
    }

    /// What the server logged.
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

    /// A test that failed meanwhile changes nothing about the process.
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    /// Stops it in order, so that its Postgres stops as well.
    fn drop(&mut self) {
        let mut child = self.child();
        // One that was killed and waited for may have left its number to another process.
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
