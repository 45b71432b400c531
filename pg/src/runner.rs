//! The only place of this crate that starts programs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::Error;
use crate::account::Account;

/// Where Postgres' user sees a data directory whose parent folders are closed to them.
const MOUNT_POINT: &str = "/mnt";

/// Mounts its first argument where the user can get at it, then becomes the rest.
const MOUNT_AND_RUN: &str = r#"mount --bind "$1" /mnt; shift; exec "$@""#;

/// What the kernel sends to a program when the thread that started it is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LastWord {
    /// Flush and end.
    Fast,
    /// End at once.
    Immediate,
    /// No choice; for what only prepares.
    Kill,
}

/// Starts programs as the user of Postgres on one data directory.
#[derive(Clone, Debug)]
pub(crate) struct Runner {
    account: Account,
    bin: PathBuf,
    data: PathBuf,
    closed: bool,
}

impl Runner {
    /// Looks whether the account can get at `data`, which must exist.
    pub(crate) fn new(account: Account, bin: PathBuf, data: PathBuf) -> Result<Self, Error> {
        let mut runner = Self {
            account,
            bin,
            data,
            closed: false,
        };
        runner.closed = !runner.can_reach(&runner.data)?;
        Ok(runner)
    }

    /// Whether the account can get into `folder`.
    pub(crate) fn can_reach(&self, folder: &Path) -> Result<bool, Error> {
        let mut command = program("setpriv");
        command.args(self.account.privileges()).arg("--");
        command.args(["test", "-x"]).arg(folder);
        Ok(output(command, "")?.status.success())
    }

    /// Runs `initdb` on the data directory.
    pub(crate) fn initdb(&self, args: &[&str]) -> Result<(), Error> {
        let mut command = self.command(LastWord::Kill, &self.bin.join("initdb"));
        command.arg("-D").arg(self.seen_data()).args(args);
        succeed("initdb", &output(command, "")?)
    }

    /// Runs statements, one per line, on the database `postgres` without a server.
    pub(crate) fn single_user(&self, settings: &[&str], statements: &str) -> Result<(), Error> {
        let mut command = self.command(LastWord::Kill, &self.bin.join("postgres"));
        command.arg("--single").arg("-D").arg(self.seen_data());
        command
            .args(["-c", "exit_on_error=on"])
            .args(settings)
            .arg("postgres");
        succeed("postgres --single", &output(command, statements)?)
    }

    /// Writes a file of the data directory as its owner.
    pub(crate) fn write(&self, file: &str, text: &str) -> Result<(), Error> {
        let mut command = self.command(LastWord::Kill, Path::new("tee"));
        command.arg(self.seen_data().join(file));
        succeed("tee", &output(command, text)?)
    }

    /// Starts Postgres. The kernel sends it `last_word` when the calling thread is gone.
    pub(crate) fn start(&self, settings: &[String], last_word: LastWord) -> Result<Child, Error> {
        let postgres = self.bin.join("postgres");
        let mut command = self.command(last_word, &postgres);
        command.arg("-D").arg(self.seen_data()).args(settings);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let started = command.spawn();
        started.map_err(|source| cannot_start(&command, source))
    }

    fn seen_data(&self) -> &Path {
        if self.closed {
            Path::new(MOUNT_POINT)
        } else {
            &self.data
        }
    }

    /// A command line that ends with `name`, run as the account, in a mount namespace of its own if that is needed.
    fn command(&self, last_word: LastWord, name: &Path) -> Command {
        let mut command = if self.closed {
            let mut command = program("unshare");
            command.args(["--mount", "--propagation", "slave", "--"]);
            command.args(["sh", "-ec", MOUNT_AND_RUN, "evenkeel-pg"]);
            command.arg(&self.data).arg("setpriv");
            command
        } else {
            program("setpriv")
        };
        command.args(self.account.privileges());
        let signal = match last_word {
            LastWord::Fast => "INT",
            LastWord::Immediate => "QUIT",
            LastWord::Kill => "KILL",
        };
        command.args(["--pdeathsig", signal, "--"]).arg(name);
        command
    }
}

/// The line of a user in the system's user database: `name:x:uid:gid:…`. None if there is no such user.
pub(crate) fn look_up_user(name_or_uid: &str) -> Result<Option<String>, Error> {
    let mut command = program("getent");
    command.args(["passwd", name_or_uid]);
    let output = output(command, "")?;
    let line = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(Some(line).filter(|line| output.status.success() && !line.is_empty()))
}

/// A program with a clean environment, at the root, deaf to what a terminal sends to its group.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the runner of this crate"
)]
fn program(name: &str) -> Command {
    use std::os::unix::process::CommandExt;

    let mut command = Command::new(name);
    command
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("LC_ALL", "C.UTF-8")
        .current_dir("/")
        .process_group(0);
    command
}

fn output(mut command: Command, input: &str) -> Result<Output, Error> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let run = |command: &mut Command| {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that ended early is judged by its status.
            stdin.write_all(input.as_bytes()).ok();
        }
        child.wait_with_output()
    };
    run(&mut command).map_err(|source| cannot_start(&command, source))
}

fn succeed(name: &str, output: &Output) -> Result<(), Error> {
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let said = lines[lines.len().saturating_sub(8)..].join("; ");
    Err(Error::Failed {
        program: name.to_owned(),
        said: if said.is_empty() {
            output.status.to_string()
        } else {
            said
        },
    })
}

fn cannot_start(command: &Command, source: std::io::Error) -> Error {
    Error::Program {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    }
}
