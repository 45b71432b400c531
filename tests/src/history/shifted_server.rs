//! A server with a clock of its own.

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_test_support::ServerProcess;

use super::replicas::{Replicas, wait_for_readiness};

/// Number of the server, which distinguishes its files from those of the replicas.
const NUMBER: usize = 100;

/// A server on the database of replicas that neither nodes nor operators call. A test shifts its clock with
/// libfaketime.
#[derive(Debug)]
pub struct ShiftedServer {
    server: ServerProcess,
    /// The file that libfaketime reads every second.
    shift: PathBuf,
}

impl ShiftedServer {
    /// Starts the server with the right time. `settings` is appended to its configuration.
    ///
    /// # Panics
    /// libfaketime is not installed, or the server does not start.
    pub async fn start(replicas: &Replicas, settings: &str) -> Self {
        let shift = replicas.folder().join("clock-shift");
        write_shift(&shift, 0);
        let server = replicas.new_server(NUMBER, settings).await;
        let mut server = server
            .variable("LD_PRELOAD", &find_library().to_string_lossy())
            .variable("FAKETIME_TIMESTAMP_FILE", &shift.to_string_lossy())
            .variable("FAKETIME_CACHE_DURATION", "1")
            // Only the time of day changes: no timer, and no time of a file.
            .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .variable("NO_FAKE_STAT", "1");
        server.start_and_wait().await;
        Self { server, shift }
    }

    /// Shifts the clock to this number of days after the right time, and waits until the server says that it is not
    /// ready, or with 0 days that it is ready.
    ///
    /// # Panics
    /// The server does not notice it in time.
    pub async fn shift_clock(&self, days: i64) {
        write_shift(&self.shift, days);
        wait_for_readiness(&self.server, days == 0).await;
    }

    /// Its log.
    pub fn log(&self) -> String {
        format!("-- server with a shifted clock\n{}", self.server.log())
    }
}

/// Replaces the file at once: libfaketime may read it at any time.
fn write_shift(path: &Path, days: i64) {
    let unfinished = path.with_extension("new");
    fs::write(&unfinished, format!("{days:+}d\n")).expect("a file can be written");
    fs::rename(unfinished, path).expect("a file can be replaced");
}

fn find_library() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").expect("the libraries").flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    let library = libraries.find(|path| path.is_file());
    library.expect("libfaketime: install the Debian package with `make tools`")
}
