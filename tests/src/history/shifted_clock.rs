//! A time of day that a test shifts, for other programs.

use std::fs;
use std::path::PathBuf;

use chrono::TimeDelta;
use evenkeel_test_support::ServerProcess;

/// The time of day of programs that run with libfaketime, which reads its shift from a file.
#[derive(Debug)]
pub struct ShiftedClock {
    /// libfaketime reads it every second.
    file: PathBuf,
}

impl ShiftedClock {
    /// A clock that is shifted by this time.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn new(file: PathBuf, by: TimeDelta) -> Self {
        let clock = Self { file };
        clock.shift(by);
        clock
    }

    /// Shifts the clock to this time after the right one. Programs notice it within about a second.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn shift(&self, by: TimeDelta) {
        // Replaces the file at once: libfaketime may read it at any time.
        let unfinished = self.file.with_extension("new");
        fs::write(&unfinished, format!("{:+}\n", by.num_seconds())).expect("a file can be written");
        fs::rename(unfinished, &self.file).expect("a file can be replaced");
    }

    /// Environment variables of a program that uses the clock.
    ///
    /// # Panics
    /// libfaketime is not installed.
    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("LD_PRELOAD", find_library().to_string_lossy().into_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.to_string_lossy().into_owned()),
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            // Only the time of day changes: no timer, and no time of a file.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("NO_FAKE_STAT", "1".to_owned()),
        ]
    }

    /// The same server, which uses the clock.
    pub fn apply(&self, server: ServerProcess) -> ServerProcess {
        let variables = self.variables().into_iter();
        variables.fold(server, |server, (name, value)| server.variable(name, &value))
    }
}

fn find_library() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").expect("the libraries").flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    let library = libraries.find(|path| path.is_file());
    library.expect("libfaketime: install the Debian package with `make tools`")
}
