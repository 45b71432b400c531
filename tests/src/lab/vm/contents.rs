//! Content of the disk of a machine that is off.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use evenkeel_registry::Digest;
use serde_json::Value;
use tempfile::TempDir;

use super::esp::{Slot, partition_range, partition_table};
use super::tool;
use crate::lab::describe_output;
use crate::lab::machine::succeed;

/// Folder of the agent's state on the data partition.
const STATE_FOLDER: &str = "/agent";

/// Alignment of partitions in bytes.
const MIB: u64 = 1 << 20;

/// A disk that is not in use.
#[derive(Debug)]
pub(super) struct DiskContents {
    disk: PathBuf,
    table: Value,
    /// A copy of the data partition, repaired as a mount would repair it.
    data: PathBuf,
    _folder: TempDir,
}

impl DiskContents {
    /// Reads a disk.
    ///
    /// # Panics
    /// The disk has no data partition, or the partition cannot be repaired.
    #[track_caller]
    pub(super) fn read(disk: &Path) -> Self {
        let table = partition_table(disk);
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        let is_data = |partition: &Value| partition["name"] == "data";
        let (start, length) = partition_range(&table, is_data).expect("a data partition");
        let mut copying = tool("dd");
        copying.arg(format!("if={}", disk.display()));
        copying.arg(format!("of={}", data.display()));
        copying.args(["bs=1M", "conv=sparse", "status=none"]);
        copying.arg(format!("skip={}", start / MIB));
        succeed(copying.arg(format!("count={}", length / MIB)));
        let checked = tool("e2fsck").args(["-p", "-f"]).arg(&data).output();
        let checked = checked.expect("e2fsck starts");
        // 1: the check repaired something, for example by replaying the journal.
        let is_sound = matches!(checked.status.code(), Some(0 | 1));
        assert!(is_sound, "the data partition: {}", describe_output(&checked));
        Self { disk: disk.to_owned(), table, data, _folder: folder }
    }

    /// Digest of the first bytes of a slot.
    ///
    /// # Panics
    /// The slot does not exist or is shorter.
    #[track_caller]
    pub(super) fn slot_digest(&self, slot: Slot, bytes: u64) -> String {
        let name = format!("root-{}", slot.letter());
        let is_slot = |partition: &Value| partition["name"] == name.as_str();
        let (start, _) = partition_range(&self.table, is_slot).expect("a slot");
        let mut disk = File::open(&self.disk).expect("a disk");
        disk.seek(SeekFrom::Start(start)).expect("a slot");
        let mut content = vec![0; usize::try_from(bytes).expect("a length")];
        disk.read_exact(&mut content).expect("a slot");
        Digest::compute(&content).hex()
    }

    /// A file of the agent's state; empty if it does not exist.
    pub(super) fn state_file(&self, name: &str) -> String {
        self.debugfs(&format!("cat {STATE_FOLDER}/{name}"))
    }

    /// Names in a folder of the agent's state; none if it does not exist.
    pub(super) fn list_folder(&self, folder: &str) -> Vec<String> {
        let listed = self.debugfs(&format!("ls -p {STATE_FOLDER}/{folder}"));
        // A line is `/inode/mode/user/group/name/size/`.
        let names = listed.lines().filter_map(|line| line.split('/').nth(5));
        let own = names.filter(|name| !matches!(*name, "" | "." | ".."));
        own.map(str::to_owned).collect()
    }

    fn debugfs(&self, request: &str) -> String {
        let mut looking = tool("debugfs");
        looking.args(["-R", request]).arg(&self.data);
        succeed(&mut looking)
    }
}
