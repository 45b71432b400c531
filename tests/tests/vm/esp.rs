//! The boot partition of a machine, read from outside: what its loader would start, and how often it has tried.

use std::path::Path;

use serde_json::Value;

use crate::tools::{command, try_run};

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
#[derive(Debug)]
pub struct Esp {
    /// The disk and the offset in it, as mtools take them.
    drive: String,
}

impl Esp {
    /// Finds it.
    ///
    /// # Panics
    /// The disk has none.
    #[track_caller]
    pub fn of(disk: &Path) -> Self {
        let table = try_run(command("sfdisk").arg("--json").arg(disk));
        let table = table.expect("a table of partitions");
        let table = serde_json::from_str(&table).expect("JSON");
        let offset = offset(&table).expect("a boot partition");
        let drive = format!("{}@@{offset}", disk.display());
        Self { drive }
    }

    /// Its entries that start a slot, by the names of their files. Those of others are left out.
    ///
    /// # Errors
    /// It cannot be read. That passes if the machine is on and writes to it.
    pub fn entries(&self) -> Result<Vec<Entry>, String> {
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

    fn look(&self, program: &str, options: &[&str], path: &str) -> Result<String, String> {
        let mut looking = command(program);
        // They would refuse a file system whose size they do not expect.
        looking.env("MTOOLS_SKIP_CHECK", "1");
        looking.args(options).args(["-i", &self.drive, path]);
        try_run(&mut looking)
    }
}

/// Where the boot partition begins, in bytes, as sfdisk tells it.
fn offset(table: &Value) -> Option<u64> {
    let table = &table["partitiontable"];
    let mut partitions = table["partitions"].as_array()?.iter();
    let esp = partitions.find(|partition| partition["type"] == ESP)?;
    let sector = table["sectorsize"].as_u64().unwrap_or(512);
    Some(esp["start"].as_u64()? * sector)
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
    fn the_boot_partition_is_found_by_its_type() {
        let table = json!({ "partitiontable": { "sectorsize": 512, "partitions": [
            { "start": 34, "type": "0FC63DAF-8483-4772-8E79-3D69D8477DE4", "name": "esp" },
            { "start": 2048, "type": ESP, "name": "boot" },
        ] } });
        assert_eq!(offset(&table), Some(1 << 20));
        assert_eq!(
            offset(&json!({ "partitiontable": { "partitions": [] } })),
            None
        );
        assert_eq!(offset(&Value::Null), None);
    }
}
