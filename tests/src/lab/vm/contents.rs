//! What lies on the disk of a machine that is off.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use evenkeel_registry::Digest;
use serde_json::Value;
use tempfile::TempDir;

use super::esp::{Slot, place, table};
use super::tool;
use crate::lab::machine::succeed;
use crate::lab::told;

/// Where the agent keeps its state, on the partition of data.
const STATE: &str = "/agent";

/// Partitions begin and end at so many bytes.
const MIB: u64 = 1 << 20;

/// A disk that nobody writes to.
#[derive(Debug)]
pub(super) struct Contents {
    disk: PathBuf,
    table: Value,
    /// A copy of the partition of data, mended as a mount would mend it.
    data: PathBuf,
    _folder: TempDir,
}

impl Contents {
    /// Looks into a disk.
    ///
    /// # Panics
    /// It has no partition of data, or that cannot be mended.
    #[track_caller]
    pub(super) fn of(disk: &Path) -> Self {
        let table = table(disk);
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        let named = |partition: &Value| partition["name"] == "data";
        let (start, length) = place(&table, named).expect("a partition of data");
        let mut copying = tool("dd");
        copying.arg(format!("if={}", disk.display()));
        copying.arg(format!("of={}", data.display()));
        copying.args(["bs=1M", "conv=sparse", "status=none"]);
        copying.arg(format!("skip={}", start / MIB));
        succeed(copying.arg(format!("count={}", length / MIB)));
        let checked = tool("e2fsck").args(["-p", "-f"]).arg(&data).output();
        let checked = checked.expect("e2fsck starts");
        // 1: something was mended, such as what a journal of the file system mends.
        let is_sound = matches!(checked.status.code(), Some(0 | 1));
        assert!(is_sound, "the partition of data: {}", told(&checked));
        Self {
            disk: disk.to_owned(),
            table,
            data,
            _folder: folder,
        }
    }

    /// The digest of the first bytes of a slot.
    ///
    /// # Panics
    /// There is no such slot, or it is shorter.
    #[track_caller]
    pub(super) fn slot(&self, slot: Slot, bytes: u64) -> String {
        let name = format!("root-{}", slot.letter());
        let named = |partition: &Value| partition["name"] == name.as_str();
        let (start, _) = place(&self.table, named).expect("a slot");
        let mut disk = File::open(&self.disk).expect("a disk");
        disk.seek(SeekFrom::Start(start)).expect("a slot");
        let mut content = vec![0; usize::try_from(bytes).expect("a length")];
        disk.read_exact(&mut content).expect("a slot");
        Digest::of(&content).hex()
    }

    /// A file of the agent's state; empty if it is not there.
    pub(super) fn state(&self, name: &str) -> String {
        self.look(&format!("cat {STATE}/{name}"))
    }

    /// The names of what is in a folder of the agent's state; none if it is not there.
    pub(super) fn listed(&self, folder: &str) -> Vec<String> {
        let listed = self.look(&format!("ls -p {STATE}/{folder}"));
        // A line is `/inode/mode/user/group/name/size/`.
        let names = listed.lines().filter_map(|line| line.split('/').nth(5));
        let own = names.filter(|name| !matches!(*name, "" | "." | ".."));
        own.map(str::to_owned).collect()
    }

    fn look(&self, request: &str) -> String {
        let mut looking = tool("debugfs");
        looking.args(["-R", request]).arg(&self.data);
        succeed(&mut looking)
    }
}
