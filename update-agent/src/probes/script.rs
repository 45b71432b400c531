//! The script of a probe, and its interpreter.

use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Access, access};

use super::MAX_PROBE_OUTPUT_BYTES;
use crate::runner::Command;

/// Interpreter of a script without a `#!` line, as in Bcfg2.
const DEFAULT_INTERPRETER: &str = "/bin/sh";

/// Maximum length of a `#!` line in bytes, as in the kernel.
const MAX_FIRST_LINE_BYTES: u64 = 255;

/// A file cannot be run as a script.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("cannot read the script {script}")]
    Unreadable {
        /// Path of the script.
        script: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file is no script.
    #[error("cannot run the script {script}: {reason}")]
    Invalid {
        /// Path of the script.
        script: String,
        /// The reason.
        reason: &'static str,
    },
    /// The interpreter does not exist, or may not be executed.
    #[error("cannot start {interpreter}, the interpreter of the script {script}")]
    Interpreter {
        /// Path of the script.
        script: String,
        /// Path of the interpreter.
        interpreter: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// A script with its interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeScript {
    path: String,
    interpreter: ScriptInterpreter,
}

impl ProbeScript {
    /// Reads the `#!` line of a script. The script needs no permission to be executed: it is an
    /// argument of its interpreter.
    pub fn open(path: &Path) -> Result<Self, ScriptError> {
        let script = path.display().to_string();
        let invalid = |reason| ScriptError::Invalid { script: script.clone(), reason };
        let unreadable = |source| ScriptError::Unreadable { script: script.clone(), source };
        // The script does not run in the current directory.
        let absolute = std::path::absolute(path).map_err(unreadable)?;
        let path = absolute.to_str().ok_or_else(|| invalid("its path is not UTF-8"))?.to_owned();
        // Opening a pipe could wait for ever.
        if !fs::metadata(&path).map_err(unreadable)?.is_file() {
            return Err(invalid("it is not a regular file"));
        }
        let mut line = Vec::new();
        let file = File::open(&path).map_err(unreadable)?;
        BufReader::new(file.take(MAX_FIRST_LINE_BYTES + 1))
            .read_until(b'\n', &mut line)
            .map_err(unreadable)?;
        let interpreter = ScriptInterpreter::parse(&line).map_err(invalid)?;
        check_program(&interpreter.program).map_err(|source| {
            let interpreter = interpreter.program.clone();
            ScriptError::Interpreter { script: script.clone(), interpreter, source }
        })?;
        Ok(Self { path, interpreter })
    }

    /// The absolute path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The command that runs the script.
    pub(super) fn command(&self, timeout: Duration) -> Command {
        let command = Command::new(&self.interpreter.program, timeout)
            .with_arguments(self.interpreter.argument.as_deref())
            .with_arguments([self.path.as_str()])
            .for_script(MAX_PROBE_OUTPUT_BYTES);
        user_variables().fold(command, |command, (name, value)| command.with_variable(name, &value))
    }
}

/// The variables that name the user of this process and its home. The script runs as this user.
#[expect(clippy::disallowed_methods, reason = "they are no configuration")]
fn user_variables() -> impl Iterator<Item = (&'static str, String)> {
    let home = std::env::home_dir().and_then(|home| home.into_os_string().into_string().ok());
    let variables =
        [("HOME", home), ("USER", env::var("USER").ok()), ("LOGNAME", env::var("LOGNAME").ok())];
    variables.into_iter().filter_map(|(name, value)| Some((name, value?)))
}

/// Checks that a file can be executed.
fn check_program(path: &str) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok(access(path, Access::EXEC_OK)?)
}

/// The program that runs a script.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ScriptInterpreter {
    program: String,
    /// The rest of the `#!` line, which is one argument.
    argument: Option<String>,
}

impl ScriptInterpreter {
    /// Parses the first line of a script. It may end with CR and LF.
    fn parse(line: &[u8]) -> Result<Self, &'static str> {
        let default = || Self { program: DEFAULT_INTERPRETER.to_owned(), argument: None };
        let Some(rest) = line.strip_prefix(b"#!") else { return Ok(default()) };
        if line.len() as u64 > MAX_FIRST_LINE_BYTES && !line.ends_with(b"\n") {
            return Err("its #! line is longer than 255 bytes");
        }
        let rest = str::from_utf8(rest).map_err(|_| "its #! line is not UTF-8")?.trim_ascii();
        let (program, argument) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
        if program.is_empty() {
            return Ok(default());
        }
        if !program.starts_with('/') {
            return Err("its #! line does not name an interpreter by an absolute path");
        }
        let argument = Some(argument.trim_ascii_start().to_owned());
        Ok(Self { program: program.to_owned(), argument: argument.filter(|text| !text.is_empty()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_names_the_interpreter_and_one_argument() {
        let cases: [(&[u8], &str, Option<&str>); 12] = [
            (b"", "/bin/sh", None),
            (b"echo hello\n", "/bin/sh", None),
            (b" #!/bin/bash\n", "/bin/sh", None),
            (b"#!\n", "/bin/sh", None),
            (b"#!/bin/bash\n", "/bin/bash", None),
            (b"#!/bin/bash", "/bin/bash", None),
            (b"#! /bin/bash \n", "/bin/bash", None),
            (b"#!/bin/bash\r\n", "/bin/bash", None),
            (b"#!/bin/sh -e\n", "/bin/sh", Some("-e")),
            (b"#!/bin/sh\t -e  -u \r\n", "/bin/sh", Some("-e  -u")),
            (b"#!/usr/bin/env python3\n", "/usr/bin/env", Some("python3")),
            (b"#!/usr/bin/env -S a b\n", "/usr/bin/env", Some("-S a b")),
        ];
        for (line, program, argument) in cases {
            let interpreter = ScriptInterpreter::parse(line).unwrap();
            let text = String::from_utf8_lossy(line);
            assert_eq!(
                (interpreter.program.as_str(), interpreter.argument.as_deref()),
                (program, argument),
                "{text}"
            );
        }
    }

    #[test]
    fn a_first_line_that_names_no_program_is_an_error() {
        let long = [b"#!/bin/", [b'x'; 300].as_slice()].concat();
        let cases: [(&[u8], &str); 3] = [
            (b"#!python3\n", "its #! line does not name an interpreter by an absolute path"),
            (b"#!/bin/\xff\n", "its #! line is not UTF-8"),
            (&long[..256], "its #! line is longer than 255 bytes"),
        ];
        for (line, expected) in cases {
            assert_eq!(ScriptInterpreter::parse(line), Err(expected));
        }
    }

    #[test]
    fn a_script_has_the_home_of_its_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script");
        fs::write(&path, "").unwrap();
        let command = ProbeScript::open(&path).unwrap().command(Duration::MAX);
        let home = env::home_dir().unwrap().to_str().unwrap().to_owned();
        assert_eq!(command.variables[0], ("HOME".to_owned(), home));
    }

    #[test]
    fn a_file_that_cannot_be_run_is_an_error_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script");
        let path_text = path.display();
        let open = || ProbeScript::open(&path).unwrap_err();
        let missing = open();
        assert_eq!(missing.to_string(), format!("cannot read the script {path_text}"));
        assert!(matches!(missing, ScriptError::Unreadable { .. }));

        fs::create_dir(&path).unwrap();
        let expected = format!("cannot run the script {path_text}: it is not a regular file");
        assert_eq!(open().to_string(), expected);
        fs::remove_dir(&path).unwrap();

        fs::write(&path, "#!/no/such/program -x\n").unwrap();
        let expected =
            format!("cannot start /no/such/program, the interpreter of the script {path_text}");
        assert_eq!(open().to_string(), expected);

        fs::write(&path, "#!/tmp\n").unwrap();
        let expected = format!("cannot start /tmp, the interpreter of the script {path_text}");
        assert_eq!(open().to_string(), expected);
    }
}
