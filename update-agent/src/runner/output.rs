//! Files in memory for the output of a program, of limited size.
//!
//! The files of a program are in a file system of their own, so that a program cannot fill the
//! memory between two checks of the agent, or while no agent runs. At its limit, writes of the
//! program fail as on a full disk.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, Mode, OFlags, fchmod, fcntl_setfl, memfd_create, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use rustix::process::Pid;

/// Maximum output of a program in bytes. More is an error, because it cannot be the expected
/// output.
pub const MAX_OUTPUT_BYTES: u64 = 64 << 20;

/// Size of the file system for the output of a program. It has space for an output that is too long.
const MAX_MEMORY_BYTES: u64 = MAX_OUTPUT_BYTES + (16 << 20);

/// When the output of a change is longer, its older part is discarded.
const MAX_CHANGE_OUTPUT_BYTES: u64 = 4 << 20;

/// How much of the discarded part is retained: its end.
const RETAINED_BYTES: u64 = 64 << 10;

/// Precedes output whose beginning was discarded.
const DISCARDED: &str = "[earlier output is discarded]\n";

/// The output of a running program.
#[derive(Debug)]
pub struct OutputFiles {
    out: File,
    /// `None` if both outputs are merged, as they are for a change.
    err: Option<File>,
    /// End of the output that was discarded.
    retained: String,
}

impl OutputFiles {
    pub fn new(merged: bool) -> io::Result<Self> {
        let memory = mount_memory();
        let file = |name: &str| -> io::Result<File> {
            let file = match memory.as_ref().map(create_file) {
                Ok(Ok(file)) => file,
                // Only a privileged process may mount a file system, and only since Linux 5.2.
                Ok(Err(error)) | Err(&error) => {
                    tracing::debug!(%error, "the output of a program is checked, but not limited");
                    File::from(memfd_create(name, MemfdFlags::CLOEXEC)?)
                }
            };
            // Then the program continues at the new end after the file was truncated.
            fcntl_setfl(&file, OFlags::RDWR | OFlags::APPEND)?;
            Ok(file)
        };
        let err = if merged { None } else { Some(file("stderr")?) };
        Ok(Self { out: file("stdout")?, err, retained: String::new() })
    }

    /// The output of a running change that another process of the agent has started. Fails if the
    /// output of the process is no file in memory.
    pub fn open_of_change(process: Pid) -> io::Result<Self> {
        let path = format!("/proc/{}/fd/1", process.as_raw_pid());
        let target = fs::read_link(&path)?;
        let target = target.to_string_lossy();
        // A file without a name, in the root of a file system without a path.
        let is_unnamed = target.starts_with("/#") && target.ends_with(" (deleted)");
        if !is_unnamed && !target.starts_with("/memfd:") {
            return Err(io::Error::other("the output is no file in memory"));
        }
        let out = File::options().read(true).append(true).open(&path)?;
        Ok(Self { out, err: None, retained: String::new() })
    }

    pub fn attach_to(&self, process: &mut tokio::process::Command) -> io::Result<()> {
        process.stdout(self.out.try_clone()?);
        process.stderr(self.err.as_ref().unwrap_or(&self.out).try_clone()?);
        Ok(())
    }

    /// Discards old output of a change. Fails if another program has written too much.
    pub fn limit(&mut self) -> io::Result<()> {
        if let Some(err) = &self.err {
            return check_lengths(&self.out, err);
        }
        let length = self.out.metadata()?.len();
        if length > MAX_CHANGE_OUTPUT_BYTES {
            self.retained = read_end(&self.out, length, RETAINED_BYTES)?;
            self.out.set_len(0)?;
        }
        Ok(())
    }

    /// Standard output, or the end of all output of a change.
    pub fn read_stdout(&self) -> io::Result<String> {
        if let Some(err) = &self.err {
            // Otherwise one of them may lack what did not fit into the memory.
            check_lengths(&self.out, err)?;
            return read_all(&self.out);
        }
        let length = self.out.metadata()?.len();
        let end = read_end(&self.out, length, MAX_CHANGE_OUTPUT_BYTES)?;
        let is_complete = self.retained.is_empty() && length <= MAX_CHANGE_OUTPUT_BYTES;
        let heading = if is_complete { "" } else { DISCARDED };
        Ok(format!("{heading}{}{end}", self.retained))
    }

    /// Standard error; empty if the outputs are merged.
    pub fn read_stderr(&self) -> io::Result<String> {
        let Some(err) = &self.err else { return Ok(String::new()) };
        check_lengths(&self.out, err)?;
        read_all(err)
    }
}

/// Mounts a limited file system in memory that has no path. It exists while one of its files is open.
fn mount_memory() -> rustix::io::Result<OwnedFd> {
    let settings = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&settings, "size", MAX_MEMORY_BYTES.to_string())?;
    fsconfig_create(&settings)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&settings, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn create_file(memory: &OwnedFd) -> rustix::io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(memory, ".", flags, Mode::RUSR | Mode::WUSR)?;
    // A program of another user may open it again as `/dev/stdout`. No other process can reach it.
    fchmod(&file, Mode::from_raw_mode(0o666))?;
    Ok(File::from(file))
}

fn check_lengths(out: &File, err: &File) -> io::Result<()> {
    if out.metadata()?.len().saturating_add(err.metadata()?.len()) <= MAX_OUTPUT_BYTES {
        return Ok(());
    }
    let limit = MAX_OUTPUT_BYTES >> 20;
    Err(io::Error::other(format!("the output is longer than {limit} MiB")))
}

fn read_all(file: &File) -> io::Result<String> {
    read_end(file, file.metadata()?.len(), MAX_OUTPUT_BYTES)
}

/// At most `most` bytes before the position `end`.
fn read_end(file: &File, end: u64, most: u64) -> io::Result<String> {
    let start = end.saturating_sub(most);
    let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, start)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::io::Write as _;

    use rustix::io::Errno;

    use super::*;

    /// Writes this number of bytes in lines, with the number of the line at the end.
    fn write_lines(mut file: &File, lines: u32) {
        let mut text = String::new();
        for line in 0..lines {
            writeln!(text, "{line:099}").unwrap();
        }
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn a_change_keeps_the_end_of_a_long_output_and_continues_after_it() {
        let mut files = OutputFiles::new(true).unwrap();
        for _ in 0..5 {
            write_lines(&files.out, 50_000);
            files.limit().unwrap();
            assert_eq!(files.out.metadata().unwrap().len(), 0, "it was discarded");
        }
        (&files.out).write_all(b"the end\n").unwrap();
        let output = files.read_stdout().unwrap();
        assert!(output.starts_with(DISCARDED));
        assert!(output.ends_with("49999\nthe end\n"));
        assert!(output.len() < 80 << 10, "{}", output.len());
        assert_eq!(files.read_stderr().unwrap(), "");
    }

    #[test]
    fn both_outputs_of_a_program_count() {
        let files = OutputFiles::new(false).unwrap();
        files.out.set_len(MAX_OUTPUT_BYTES / 2).unwrap();
        let err = files.err.as_ref().unwrap();
        err.set_len(MAX_OUTPUT_BYTES / 2).unwrap();
        check_lengths(&files.out, err).unwrap();
        err.set_len(MAX_OUTPUT_BYTES / 2 + 1).unwrap();
        let error = files.read_stdout().unwrap_err().to_string();
        assert_eq!(error, "the output is longer than 64 MiB");
    }

    /// A program may write fast, or while no agent runs, so that nothing is discarded meanwhile.
    #[test]
    fn a_program_cannot_fill_the_memory_before_its_output_is_checked() {
        match mount_memory() {
            // Neither a user nor root in a restricted container may mount a file system.
            Err(Errno::PERM) => return,
            memory => drop(memory.unwrap()),
        }
        let mut files = OutputFiles::new(true).unwrap();
        let block = vec![b'x'; 1 << 20];
        let written = (0..100).take_while(|_| (&files.out).write_all(&block).is_ok()).count();
        assert!((64..=80).contains(&written), "{written} MiB");
        let error = (&files.out).write_all(&block).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);

        files.limit().unwrap();
        (&files.out).write_all(b"the end\n").unwrap();
        assert!(files.read_stdout().unwrap().ends_with("xxthe end\n"));
    }

    #[test]
    fn a_short_output_of_a_change_is_complete() {
        let mut files = OutputFiles::new(true).unwrap();
        (&files.out).write_all(b"one\n").unwrap();
        files.limit().unwrap();
        assert_eq!(files.read_stdout().unwrap(), "one\n");
    }

    #[test]
    fn a_long_output_of_another_program_is_an_error() {
        let mut files = OutputFiles::new(false).unwrap();
        files.limit().unwrap();
        files.err.as_ref().unwrap().set_len(MAX_OUTPUT_BYTES + 1).unwrap();
        let error = files.limit().unwrap_err();
        assert_eq!(error.to_string(), "the output is longer than 64 MiB");
        files.read_stderr().unwrap_err();
    }
}
