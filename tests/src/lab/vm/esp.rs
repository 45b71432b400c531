//! The boot partition of a machine, read from outside: what its loader would start, and how often it has tried.

use std::path::Path;

use serde_json::Value;

use super::tool;
use crate::lab::disk::words_of;
use crate::lab::told;

/// The type of an EFI system partition.
const ESP: &str = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B";

/// Where the loader has its entries.
const ENTRIES: &str = "::/loader/entries";

/// One of two places for a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Where the old release is.
    A,
    /// Where the new one goes.
    B,
}

impl Slot {
    /// Its letter.
    pub fn letter(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    /// The one beside it.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// The slot with this letter.
    pub fn read(letter: &str) -> Option<Self> {
        let mut slots = [Self::A, Self::B].into_iter();
        slots.find(|slot| slot.letter() == letter)
    }
}

/// How the loader counts an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Not at all.
    Kept,
    /// On trial.
    Trial {
        /// How often it may still be started.
        left: u32,
        /// How often it was.
        done: u32,
    },
}

impl Count {
    /// What the name of an entry's file says: `ID.conf`, `ID+LEFT.conf` or `ID+LEFT-DONE.conf`. None if it is none.
    pub fn of(file: &str) -> Option<Self> {
        let stem = file.strip_suffix(".conf")?;
        // What cannot be a counter is a part of the name, as it is to the loader.
        let counter = stem.rsplit_once('+').and_then(|(_, counter)| {
            let (left, done) = counter.split_once('-').unwrap_or((counter, "0"));
            let (left, done) = (left.parse().ok()?, done.parse().ok()?);
            Some(Self::Trial { left, done })
        });
        Some(counter.unwrap_or(Self::Kept))
    }

    /// Whether the loader takes it last of all.
    fn is_spent(self) -> bool {
        matches!(self, Self::Trial { left: 0, .. })
    }
}

/// An entry that starts a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of its file.
    pub file: String,
    /// What it starts.
    pub slot: Slot,
    /// What its name says.
    pub count: Count,
}

/// How a slot's entries are counted: one at most, unless a power cut left two names of it.
pub fn counts(entries: &[Entry], slot: Slot) -> Vec<Count> {
    let mine = entries.iter().filter(|entry| entry.slot == slot);
    mine.map(|entry| entry.count).collect()
}

/// What the loader may start if slot A has the older entry and slot B the newer one: the newer one unless it is spent.
/// Both, if a power cut left two names of it that do not agree.
pub fn startable(entries: &[Entry]) -> Vec<Slot> {
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
    /// The disk and the offset in it, as mtools take them.
    drive: String,
}

impl Esp {
    /// Finds it.
    ///
    /// # Panics
    /// The disk has none.
    #[track_caller]
    pub(super) fn of(disk: &Path) -> Self {
        let table = table(disk);
        let is_esp = |partition: &Value| partition["type"] == ESP;
        let (offset, _) = place(&table, is_esp).expect("a boot partition");
        let drive = format!("{}@@{offset}", disk.display());
        Self { drive }
    }

    /// Its entries that start a slot, by the names of their files. Those of others are left out.
    ///
    /// # Errors
    /// It cannot be read. That passes if the machine is on and writes to it.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, String> {
        let listed = self.look("mdir", &["-b"], ENTRIES)?;
        let mut entries = Vec::new();
        for path in listed.lines() {
            let file = path.rsplit('/').next().unwrap_or_default();
            let Some(count) = Count::of(file) else {
                continue;
            };
            let text = self.look("mtype", &[], &format!("{ENTRIES}/{file}"))?;
            entries.extend(started_by(&text).map(|slot| Entry {
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
    /// It is not there, or cannot be read.
    pub(super) fn kernel(&self, slot: Slot) -> Result<Vec<u8>, String> {
        let path = format!("::/EFI/evenkeel/slot-{}.efi", slot.letter());
        let mut copying = tool("mcopy");
        copying.env("MTOOLS_SKIP_CHECK", "1");
        copying.args(["-n", "-i", &self.drive, &path, "-"]);
        let output = copying.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(output.stdout)
        } else {
            Err(told(&output))
        }
    }

    fn look(&self, program: &str, options: &[&str], path: &str) -> Result<String, String> {
        let mut looking = tool(program);
        // They would refuse a file system whose size they do not expect.
        looking.env("MTOOLS_SKIP_CHECK", "1");
        looking.args(options).args(["-i", &self.drive, path]);
        words_of(&mut looking)
    }
}

/// The table of a disk's partitions, as sfdisk tells it.
///
/// # Panics
/// There is none.
#[track_caller]
pub(super) fn table(disk: &Path) -> Value {
    let table = words_of(tool("sfdisk").arg("--json").arg(disk));
    let table = table.expect("a table of partitions");
    serde_json::from_str(&table).expect("JSON")
}

/// Where the first such partition of a table begins, and how long it is, in bytes.
pub(super) fn place(table: &Value, wanted: impl Fn(&Value) -> bool) -> Option<(u64, u64)> {
    let table = &table["partitiontable"];
    let mut partitions = table["partitions"].as_array()?.iter();
    let found = partitions.find(|partition| wanted(partition))?;
    let sector = table["sectorsize"].as_u64().unwrap_or(512);
    let bytes = |key: &str| Some(found[key].as_u64()? * sector);
    Some((bytes("start")?, bytes("size")?))
}

/// The slot whose kernel an entry starts.
fn started_by(entry: &str) -> Option<Slot> {
    let mut lines = entry.lines();
    let kernel = lines.find_map(|line| line.strip_prefix("efi "))?;
    let name = kernel.trim().strip_prefix("/EFI/evenkeel/slot-")?;
    Slot::read(name.strip_suffix(".efi")?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(file: &str, slot: Slot) -> Entry {
        let count = Count::of(file).expect("the name of an entry");
        Entry {
            file: file.to_owned(),
            slot,
            count,
        }
    }

    #[test]
    fn the_name_of_an_entry_says_how_often_it_was_tried() {
        let trial = |left, done| Some(Count::Trial { left, done });
        for (file, count) in [
            ("evenkeel-000001.conf", Some(Count::Kept)),
            ("evenkeel-000002+3.conf", trial(3, 0)),
            ("evenkeel-000002+2-1.conf", trial(2, 1)),
            ("evenkeel-000002+0-3.conf", trial(0, 3)),
            ("a+b+10-0.conf", trial(10, 0)),
            ("a+b.conf", Some(Count::Kept)),
            ("a+1-x.conf", Some(Count::Kept)),
            ("evenkeel-000002+3.new", None),
            ("EVENKE~2.CON", None),
            ("", None),
        ] {
            assert_eq!(Count::of(file), count, "{file}");
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
        assert_eq!(started_by(text), Some(Slot::B));
        assert_eq!(
            started_by("title x\nefi /EFI/evenkeel/slot-a.efi"),
            Some(Slot::A)
        );
        assert_eq!(started_by("efi /EFI/other/slot-a.efi"), None);
        assert_eq!(started_by("title slot-a.efi"), None);
    }

    #[test]
    fn a_partition_is_found_by_what_the_table_says_of_it() {
        let table = json!({ "partitiontable": { "sectorsize": 512, "partitions": [
            { "start": 34, "size": 8, "type": "0FC63DAF-8483-4772-8E79-3D69D8477DE4", "name": "esp" },
            { "start": 2048, "size": 4096, "type": ESP, "name": "boot" },
        ] } });
        let of_type = |partition: &Value| partition["type"] == ESP;
        let named = |partition: &Value| partition["name"] == "esp";
        assert_eq!(place(&table, of_type), Some((1 << 20, 2 << 20)));
        assert_eq!(place(&table, named), Some((34 * 512, 8 * 512)));
        assert_eq!(place(&table, |_| false), None);
        assert_eq!(place(&Value::Null, of_type), None);
    }
}
