//! Starts programs. No other module of this crate does.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::Error;
use crate::account::Account;

/// Where the user of Postgres sees a data directory with inaccessible parent folders.
const MOUNT_POINT: &str = "/mnt";

/// Mounts its first argument where the user can reach it, then executes the rest.
const MOUNT_AND_RUN: &str = r#"mount --bind "$1" /mnt; shift; exec "$@""#;

/// The signal that the kernel sends to a program when the thread that started it is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ParentDeathSignal {
    /// Flush and end.
    Fast,
    /// End at once, without a flush.
    Immediate,
    /// Kill; for programs that only prepare the data directory.
    Kill,
}

/// Starts programs as the user of Postgres, on one data directory.
#[derive(Clone, Debug)]
pub(crate) struct Runner {
    account: Account,
    bin: PathBuf,
    data: PathBuf,
    needs_mount: bool,
}

impl Runner {
    /// Checks whether the account can reach `data`, which must exist.
    pub(crate) fn new(account: Account, bin: PathBuf, data: PathBuf) -> Result<Self, Error> {
        let mut runner = Self { account, bin, data, needs_mount: false };
        runner.needs_mount = !runner.can_reach(&runner.data)?;
        Ok(runner)
    }

    /// Whether the account can enter `folder`.
    pub(crate) fn can_reach(&self, folder: &Path) -> Result<bool, Error> {
        let mut command = clean_command("setpriv");
        command.args(self.account.privileges()).arg("--");
        command.args(["test", "-x"]).arg(folder);
        Ok(output(command, "")?.status.success())
    }

    /// Runs `initdb` on the data directory.
    pub(crate) fn initdb(&self, args: &[&str]) -> Result<(), Error> {
        let mut command = self.command(ParentDeathSignal::Kill, &self.bin.join("initdb"));
        command.arg("-D").arg(self.visible_data()).args(args);
        check_success("initdb", &output(command, "")?)
    }

    /// Executes statements, one per line, on the database `postgres` without a server.
    pub(crate) fn single_user(&self, settings: &[&str], statements: &str) -> Result<(), Error> {
        let mut command = self.command(ParentDeathSignal::Kill, &self.bin.join("postgres"));
        command.arg("--single").arg("-D").arg(self.visible_data());
        command.args(["-c", "exit_on_error=on"]).args(settings).arg("postgres");
        check_success("postgres --single", &output(command, statements)?)
    }

    /// Writes a file in the data directory as the user of Postgres.
    pub(crate) fn write(&self, file: &str, text: &str) -> Result<(), Error> {
        let mut command = self.command(ParentDeathSignal::Kill, Path::new("tee"));
        command.arg(self.visible_data().join(file));
        check_success("tee", &output(command, text)?)
    }

    /// Starts Postgres. The kernel sends it `parent_death_signal` when the calling thread is gone.
    pub(crate) fn start(
        &self,
        settings: &[String],
        parent_death_signal: ParentDeathSignal,
    ) -> Result<Child, Error> {
        let postgres = self.bin.join("postgres");
        let mut command = self.command(parent_death_signal, &postgres);
        command.arg("-D").arg(self.visible_data()).args(settings);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let started = command.spawn();
        started.map_err(|source| start_error(&command, source))
    }

    fn visible_data(&self) -> &Path {
        if self.needs_mount { Path::new(MOUNT_POINT) } else { &self.data }
    }

    /// A command line that runs `name` as the account, in its own mount namespace if the data directory needs one.
    fn command(&self, parent_death_signal: ParentDeathSignal, name: &Path) -> Command {
        let mut command = if self.needs_mount {
            let mut command = clean_command("unshare");
            command.args(["--mount", "--propagation", "slave", "--"]);
            command.args(["sh", "-ec", MOUNT_AND_RUN, "evenkeel-pg"]);
            command.arg(&self.data).arg("setpriv");
            command
        } else {
            clean_command("setpriv")
        };
        command.args(self.account.privileges());
        let signal = match parent_death_signal {
            ParentDeathSignal::Fast => "INT",
            ParentDeathSignal::Immediate => "QUIT",
            ParentDeathSignal::Kill => "KILL",
        };
        command.args(["--pdeathsig", signal, "--"]).arg(name);
        command
    }
}

/// The entry of a user in the system's user database: `name:x:uid:gid:…`. `None` if there is no such user.
pub(crate) fn look_up_user(name_or_uid: &str) -> Result<Option<String>, Error> {
    let mut command = clean_command("getent");
    command.args(["passwd", name_or_uid]);
    let output = output(command, "")?;
    let line = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(Some(line).filter(|line| output.status.success() && !line.is_empty()))
}

/// A program with a clean environment, in `/`, in its own process group, so that terminal signals do not reach it.
#[expect(clippy::disallowed_methods, reason = "this is the runner of this crate")]
fn clean_command(name: &str) -> Command {
    use std::os::unix::process::CommandExt;

    let mut command = Command::new(name);
    command
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C.UTF-8")
        .current_dir("/")
        .process_group(0);
    command
}

fn output(mut command: Command, input: &str) -> Result<Output, Error> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = |command: &mut Command| {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program may end before it has read its input; its exit status decides.
            stdin.write_all(input.as_bytes()).ok();
        }
        child.wait_with_output()
    };
    run(&mut command).map_err(|source| start_error(&command, source))
}

fn check_success(name: &str, output: &Output) -> Result<(), Error> {
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let output_tail = lines[lines.len().saturating_sub(8)..].join("; ");
    Err(Error::Failed {
        program: name.to_owned(),
        output: if output_tail.is_empty() { output.status.to_string() } else { output_tail },
    })
}

fn start_error(command: &Command, source: std::io::Error) -> Error {
    Error::Program { program: command.get_program().to_string_lossy().into_owned(), source }
}
