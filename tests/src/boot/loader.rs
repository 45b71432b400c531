//! The boot loader: entries of the Boot Loader Specification, in the order that systemd-boot uses.

use std::cmp::{Ordering, Reverse};

use super::fat::FatVolume;

/// Folder of the entries on the boot partition.
const ENTRIES_FOLDER: &str = "loader/entries";

/// Path of a slot's kernel up to the letter of the slot.
const KERNEL_PREFIX: &str = "/EFI/evenkeel/slot-";

/// A boot entry with a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderEntry {
    /// File name.
    pub file: String,
    /// Boot counter: attempts left and attempts done. `None` if the loader does not count.
    pub counter: Option<(u32, u32)>,
    pub kernel_path: String,
    sort_key: Option<String>,
    machine_id: String,
    version: String,
}

impl LoaderEntry {
    /// Parses an entry file. Returns `None` if the loader would ignore the file.
    pub fn parse(file: &str, text: &str) -> Option<Self> {
        let name = file.to_ascii_lowercase();
        let stem = name.strip_suffix(".conf")?;
        if stem.starts_with('.') || stem.starts_with("auto-") {
            return None;
        }
        let value = |key: &str| {
            let mut values = text.lines().filter_map(|line| {
                let (found_key, value) = line.trim().split_once([' ', '\t'])?;
                (found_key == key).then(|| value.trim().to_owned())
            });
            values.next_back()
        };
        Some(Self {
            file: file.to_owned(),
            counter: parse_counter(stem),
            kernel_path: value("efi").or_else(|| value("linux"))?.replace('\\', "/"),
            sort_key: value("sort-key"),
            machine_id: value("machine-id").unwrap_or_default(),
            version: value("version").unwrap_or_default(),
        })
    }

    /// Whether the loader counts the boots of this entry.
    pub fn is_counted(&self) -> bool {
        self.counter.is_some()
    }

    /// Order in the loader's menu: `Less` if this entry comes first.
    fn compare(&self, other: &Self) -> Ordering {
        let spent = |entry: &Self| entry.counter.is_some_and(|(left, _)| left == 0);
        let keys = match (&self.sort_key, &other.sort_key) {
            (Some(mine), Some(its)) => mine
                .cmp(its)
                .then_with(|| self.machine_id.cmp(&other.machine_id))
                .then_with(|| compare_versions(&other.version, &self.version)),
            (mine, its) => its.is_some().cmp(&mine.is_some()),
        };
        let tries = || match (self.counter, other.counter) {
            (Some((left, done)), Some((its_left, its_done))) => {
                (Reverse(left), done).cmp(&(Reverse(its_left), its_done))
            }
            _ => Ordering::Equal,
        };
        spent(self)
            .cmp(&spent(other))
            .then(keys)
            .then_with(|| other.file.to_ascii_lowercase().cmp(&self.file.to_ascii_lowercase()))
            .then_with(tries)
    }
}

/// The entry that the loader starts. Unreadable entry files are ignored; fails if no entry is left.
pub fn select_entry(volume: &FatVolume<'_>) -> Result<LoaderEntry, String> {
    let folder = volume.find(ENTRIES_FOLDER).ok_or("there is no folder of entries")?;
    let files = volume.list(&folder).into_iter().filter(|file| !file.is_folder);
    let entries = files.filter_map(|file| {
        let text = volume.read(&file).ok()?;
        LoaderEntry::parse(&file.name, &String::from_utf8_lossy(&text))
    });
    let first = entries.min_by(LoaderEntry::compare);
    first.ok_or_else(|| "there is no boot entry with a kernel".to_owned())
}

/// Letter of the slot whose kernel has this path.
pub fn slot_of_kernel(path: &str) -> Option<char> {
    let (start, rest) = path.split_at_checked(KERNEL_PREFIX.len())?;
    let mut slots = ['a', 'b'].into_iter();
    let is_kernels = start.eq_ignore_ascii_case(KERNEL_PREFIX);
    slots.find(|slot| is_kernels && rest.eq_ignore_ascii_case(&format!("{slot}.efi")))
}

/// Parses the boot counter behind the last `+` of a file name, if there is one.
fn parse_counter(stem: &str) -> Option<(u32, u32)> {
    let (_, counter) = stem.rsplit_once('+')?;
    let (left, done) = counter.split_once('-').unwrap_or((counter, "0"));
    Some((left.parse().ok()?, done.parse().ok()?))
}

/// Compares versions: two numbers by value (our versions are numbers), anything else as text.
fn compare_versions(one: &str, other: &str) -> Ordering {
    let numbers = one.parse::<u64>().ok().zip(other.parse::<u64>().ok());
    numbers.map_or_else(|| one.cmp(other), |(one, other)| one.cmp(&other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(file: &str, version: &str, slot: char) -> LoaderEntry {
        let text = format!(
            "title any\nsort-key evenkeel\nversion {version}\nefi /EFI/evenkeel/slot-{slot}.efi\n"
        );
        LoaderEntry::parse(file, &text).expect("an entry")
    }

    #[test]
    fn the_newest_entry_comes_first_and_one_without_tries_last() {
        let old = entry("evenkeel-000009.conf", "000009", 'a');
        let in_order = [
            entry("evenkeel-000010.conf", "000010", 'b'),
            entry("evenkeel-000010+2.conf", "000010", 'b'),
            entry("evenkeel-000010+1-1.conf", "000010", 'b'),
            old.clone(),
            entry("evenkeel-000010+0-2.conf", "000010", 'b'),
        ];
        for (first, second) in in_order.iter().zip(&in_order[1..]) {
            assert_eq!(first.compare(second), Ordering::Less, "{first:?} {second:?}");
            assert_eq!(second.compare(first), Ordering::Greater);
        }
        let unsorted = LoaderEntry::parse("z.conf", "efi /EFI/evenkeel/slot-b.efi");
        let unsorted = unsorted.expect("an entry");
        assert_eq!(old.compare(&unsorted), Ordering::Less);
    }

    #[test]
    fn files_that_are_not_entries_are_ignored() {
        let text = "efi /EFI/evenkeel/slot-a.efi";
        for file in ["auto-windows.conf", ".evenkeel-000001.conf", "evenkeel-000001.new"] {
            assert_eq!(LoaderEntry::parse(file, text), None, "{file}");
        }
        assert_eq!(LoaderEntry::parse("any.conf", "title any"), None);
        let read = LoaderEntry::parse("ANY+2-1.CONF", "  efi\t\\EFI\\evenkeel\\slot-b.efi \n");
        let read = read.expect("an entry");
        assert_eq!((read.counter, slot_of_kernel(&read.kernel_path)), (Some((2, 1)), Some('b')));
        assert_eq!(slot_of_kernel("/EFI/evenkeel/slot-c.efi"), None);
        assert_eq!(slot_of_kernel("/EFI/other/slot-a.efi"), None);
    }
}
