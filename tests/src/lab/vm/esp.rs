//! The boot partition of a machine: boot entries and their counters.

use std::path::Path;

use serde_json::Value;

use super::tool;
use crate::lab::describe_output;
use crate::lab::disk::try_output;

/// Partition type of an EFI system partition.
const ESP_TYPE: &str = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B";

/// Folder of the boot entries.
const ENTRIES_FOLDER: &str = "::/loader/entries";

/// One of the two partitions for releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Holds the old release.
    A,
    /// Gets the new release.
    B,
}

impl Slot {
    pub fn letter(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    pub fn from_letter(letter: &str) -> Option<Self> {
        let mut slots = [Self::A, Self::B].into_iter();
        slots.find(|slot| slot.letter() == letter)
    }
}

/// Boot counter of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootCount {
    /// The loader does not count.
    Permanent,
    /// The entry is on trial.
    Trial {
        /// Number of tries left.
        left: u32,
        /// Number of tries done.
        done: u32,
    },
}

impl BootCount {
    /// Parses the name of an entry's file: `ID.conf`, `ID+LEFT.conf` or `ID+LEFT-DONE.conf`. `None` for other names.
    pub fn parse(file: &str) -> Option<Self> {
        let stem = file.strip_suffix(".conf")?;
        // A suffix that is not a counter is part of the ID, as for the loader.
        let counter = stem.rsplit_once('+').and_then(|(_, counter)| {
            let (left, done) = counter.split_once('-').unwrap_or((counter, "0"));
            let (left, done) = (left.parse().ok()?, done.parse().ok()?);
            Some(Self::Trial { left, done })
        });
        Some(counter.unwrap_or(Self::Permanent))
    }

    /// Whether no tries are left, so that the loader takes this entry last.
    fn is_spent(self) -> bool {
        matches!(self, Self::Trial { left: 0, .. })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotEntry {
    /// File name.
    pub file: String,
    /// The slot that it starts.
    pub slot: Slot,
    /// Boot counter in its name.
    pub count: BootCount,
}

/// Boot counters of a slot's entries: at most one, or two if a power cut interrupted a rename.
pub fn counts(entries: &[SlotEntry], slot: Slot) -> Vec<BootCount> {
    let mine = entries.iter().filter(|entry| entry.slot == slot);
    mine.map(|entry| entry.count).collect()
}

/// Slots that the loader may start if slot A has the older entry and slot B the newer one: the newer one unless its
/// tries are used up. Both, if a power cut left two names that disagree.
pub fn startable(entries: &[SlotEntry]) -> Vec<Slot> {
    let newer = counts(entries, Slot::B);
    let spent = newer.iter().filter(|count| count.is_spent()).count();
    if spent == newer.len() {
        vec![Slot::A]
    } else if spent == 0 {
        vec![Slot::B]
    } else {
        vec![Slot::A, Slot::B]
    }
}

/// The boot partition of a disk.
#[derive(Clone, Debug)]
pub(super) struct Esp {
    /// Disk and offset, in the syntax of mtools.
    drive: String,
}

impl Esp {
    /// Finds the boot partition.
    ///
    /// # Panics
    /// The disk has no boot partition.
    #[track_caller]
    pub(super) fn open(disk: &Path) -> Self {
        let table = partition_table(disk);
        let is_esp = |partition: &Value| partition["type"] == ESP_TYPE;
        let (offset, _) = partition_range(&table, is_esp).expect("a boot partition");
        let drive = format!("{}@@{offset}", disk.display());
        Self { drive }
    }

    /// Entries that start a slot, ordered by file name. Other entries are left out.
    ///
    /// # Errors
    /// The partition cannot be read. This is temporary if the machine writes to it.
    pub(super) fn entries(&self) -> Result<Vec<SlotEntry>, String> {
        let listed = self.run_mtool("mdir", &["-b"], ENTRIES_FOLDER)?;
        let mut entries = Vec::new();
        for path in listed.lines() {
            let file = path.rsplit('/').next().unwrap_or_default();
            let Some(count) = BootCount::parse(file) else {
                continue;
            };
            let text = self.run_mtool("mtype", &[], &format!("{ENTRIES_FOLDER}/{file}"))?;
            entries.extend(slot_started_by(&text).map(|slot| SlotEntry {
                file: file.to_owned(),
                slot,
                count,
            }));
        }
        entries.sort_by(|one, other| one.file.cmp(&other.file));
        Ok(entries)
    }

    /// The kernel of a slot.
    ///
    /// # Errors
    /// The kernel is missing or cannot be read.
    pub(super) fn kernel(&self, slot: Slot) -> Result<Vec<u8>, String> {
        let path = format!("::/EFI/evenkeel/slot-{}.efi", slot.letter());
        let mut copying = tool("mcopy");
        copying.env("MTOOLS_SKIP_CHECK", "1");
        copying.args(["-n", "-i", &self.drive, &path, "-"]);
        let output = copying.output().map_err(|error| error.to_string())?;
        if output.status.success() { Ok(output.stdout) } else { Err(describe_output(&output)) }
    }

    fn run_mtool(&self, program: &str, options: &[&str], path: &str) -> Result<String, String> {
        let mut looking = tool(program);
        // mtools would refuse a file system of an unexpected size.
        looking.env("MTOOLS_SKIP_CHECK", "1");
        looking.args(options).args(["-i", &self.drive, path]);
        try_output(&mut looking)
    }
}

/// The partition table of a disk, as sfdisk prints it.
///
/// # Panics
/// There is no table.
#[track_caller]
pub(super) fn partition_table(disk: &Path) -> Value {
    let table = try_output(tool("sfdisk").arg("--json").arg(disk));
    let table = table.expect("a partition table");
    serde_json::from_str(&table).expect("JSON")
}

/// Start and size in bytes of the first matching partition.
pub(super) fn partition_range(
    table: &Value,
    is_match: impl Fn(&Value) -> bool,
) -> Option<(u64, u64)> {
    let table = &table["partitiontable"];
    let mut partitions = table["partitions"].as_array()?.iter();
    let matching = partitions.find(|partition| is_match(partition))?;
    let sector = table["sectorsize"].as_u64().unwrap_or(512);
    let bytes = |key: &str| Some(matching[key].as_u64()? * sector);
    Some((bytes("start")?, bytes("size")?))
}

/// The slot whose kernel an entry starts.
fn slot_started_by(entry: &str) -> Option<Slot> {
    let mut lines = entry.lines();
    let kernel = lines.find_map(|line| line.strip_prefix("efi "))?;
    let name = kernel.trim().strip_prefix("/EFI/evenkeel/slot-")?;
    Slot::from_letter(name.strip_suffix(".efi")?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(file: &str, slot: Slot) -> SlotEntry {
        let count = BootCount::parse(file).expect("the name of an entry");
        SlotEntry { file: file.to_owned(), slot, count }
    }

    #[test]
    fn the_name_of_an_entry_holds_its_number_of_tries() {
        let trial = |left, done| Some(BootCount::Trial { left, done });
        for (file, count) in [
            ("evenkeel-000001.conf", Some(BootCount::Permanent)),
            ("evenkeel-000002+3.conf", trial(3, 0)),
            ("evenkeel-000002+2-1.conf", trial(2, 1)),
            ("evenkeel-000002+0-3.conf", trial(0, 3)),
            ("a+b+10-0.conf", trial(10, 0)),
            ("a+b.conf", Some(BootCount::Permanent)),
            ("a+1-x.conf", Some(BootCount::Permanent)),
            ("evenkeel-000002+3.new", None),
            ("EVENKE~2.CON", None),
            ("", None),
        ] {
            assert_eq!(BootCount::parse(file), count, "{file}");
        }
    }

    #[test]
    fn the_newer_entry_starts_until_it_is_spent() {
        let old = entry("evenkeel-000001.conf", Slot::A);
        let with = |files: &[&str]| {
            let newer = files.iter().map(|file| entry(file, Slot::B));
            startable(&[old.clone()].into_iter().chain(newer).collect::<Vec<_>>())
        };
        assert_eq!(with(&[]), [Slot::A]);
        assert_eq!(with(&["evenkeel-000002+2.conf"]), [Slot::B]);
        assert_eq!(with(&["evenkeel-000002.conf"]), [Slot::B]);
        assert_eq!(with(&["evenkeel-000002+0-2.conf"]), [Slot::A]);
        let torn = ["evenkeel-000002+1-1.conf", "evenkeel-000002+0-2.conf"];
        assert_eq!(with(&torn), [Slot::A, Slot::B]);
        assert_eq!(counts(&[old], Slot::B), []);
    }

    #[test]
    fn an_entry_starts_the_slot_whose_kernel_it_names() {
        let text = "title edge 1.1 (slot b)\nsort-key evenkeel\nversion 000002\nefi /EFI/evenkeel/slot-b.efi\n";
        assert_eq!(slot_started_by(text), Some(Slot::B));
        assert_eq!(slot_started_by("title x\nefi /EFI/evenkeel/slot-a.efi"), Some(Slot::A));
        assert_eq!(slot_started_by("efi /EFI/other/slot-a.efi"), None);
        assert_eq!(slot_started_by("title slot-a.efi"), None);
    }

    #[test]
    fn a_partition_is_found_by_its_attributes() {
        let table = json!({ "partitiontable": { "sectorsize": 512, "partitions": [
            { "start": 34, "size": 8, "type": "0FC63DAF-8483-4772-8E79-3D69D8477DE4", "name": "esp" },
            { "start": 2048, "size": 4096, "type": ESP_TYPE, "name": "boot" },
        ] } });
        let of_type = |partition: &Value| partition["type"] == ESP_TYPE;
        let of_name = |partition: &Value| partition["name"] == "esp";
        assert_eq!(partition_range(&table, of_type), Some((1 << 20, 2 << 20)));
        assert_eq!(partition_range(&table, of_name), Some((34 * 512, 8 * 512)));
        assert_eq!(partition_range(&table, |_| false), None);
        assert_eq!(partition_range(&Value::Null, of_type), None);
    }
}
