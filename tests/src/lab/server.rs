//! A real server: `evenkeeld all` with its own Postgres.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_test_support::ServerProcess;

use super::machine::{command, succeed};
use super::{Binaries, Lab, Rest};

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    process: Mutex<ServerProcess>,
    data: PathBuf,
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
        let process = ServerProcess::new(&Binaries::get().server, folder, "server");
        let process = process.option("--data-dir", &data);
        let with =
            |process: ServerProcess, (name, value): &(&str, &str)| process.variable(name, value);
        let mut process = settings.iter().fold(process, with);
        process.start();
        Self { process: Mutex::new(process), data }
    }

    /// Kills the server (SIGKILL).
    pub fn kill(&self) {
        self.lock().kill();
    }

    /// Starts a killed server again with the same data and ports.
    pub fn restart(&self) {
        self.lock().start();
    }

    /// The address of a listener: `rest`, `southbound` or `admin`.
    pub fn address(&self, listener: &str) -> String {
        self.lock().address(listener)
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
        self.lock().id()
    }

    fn token(&self) -> String {
        let token = fs::read_to_string(self.data.join("operator-token"));
        token.expect("a token").trim().to_owned()
    }

    pub fn log(&self) -> String {
        self.lock().log()
    }

    /// The lock of the process. A panic of another test does not affect the process, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, ServerProcess> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    /// Stops the server gracefully, so that its Postgres stops as well.
    fn drop(&mut self) {
        self.lock().stop();
    }
}
