//! The boot loader: entries of the Boot Loader Specification, in the order of systemd-boot.

use std::cmp::{Ordering, Reverse};

use super::fat::Volume;

/// Where entries lie.
const ENTRIES: &str = "loader/entries";

/// What stands before the letter of a slot in the path of its kernel.
const KERNELS: &str = "/EFI/evenkeel/slot-";

/// An entry that starts something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of its file.
    pub file: String,
    /// How often it may still be tried, and how often it was; none if it is not on trial.
    pub counter: Option<(u32, u32)>,
    /// The path of what it starts.
    pub starts: String,
    sort_key: Option<String>,
    machine_id: String,
    version: String,
}

impl Entry {
    /// Reads a file among the entries. None for one that the loader passes over.
    pub fn read(file: &str, text: &str) -> Option<Self> {
        let name = file.to_ascii_lowercase();
        let stem = name.strip_suffix(".conf")?;
        if stem.starts_with('.') || stem.starts_with("auto-") {
            return None;
        }
        let value = |key: &str| {
            let mut values = text.lines().filter_map(|line| {
                let (found, value) = line.trim().split_once([' ', '\t'])?;
                (found == key).then(|| value.trim().to_owned())
            });
            values.next_back()
        };
        Some(Self {
            file: file.to_owned(),
            counter: counter(stem),
            starts: value("efi").or_else(|| value("linux"))?.replace('\\', "/"),
            sort_key: value("sort-key"),
            machine_id: value("machine-id").unwrap_or_default(),
            version: value("version").unwrap_or_default(),
        })
    }

    /// Whether the loader counts its boots.
    pub fn is_counted(&self) -> bool {
        self.counter.is_some()
    }

    /// Which of two the loader takes first: `Less` if this one.
    fn order(&self, other: &Self) -> Ordering {
        let spent = |entry: &Self| entry.counter.is_some_and(|(left, _)| left == 0);
        let keys = match (&self.sort_key, &other.sort_key) {
            (Some(mine), Some(its)) => mine
                .cmp(its)
                .then_with(|| self.machine_id.cmp(&other.machine_id))
                .then_with(|| versions(&other.version, &self.version)),
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
            .then_with(|| {
                other
                    .file
                    .to_ascii_lowercase()
                    .cmp(&self.file.to_ascii_lowercase())
            })
            .then_with(tries)
    }
}

/// The entry that the loader of a boot partition takes. Fails if there is none. One whose file cannot be read is passed
/// over.
pub fn first(volume: &Volume<'_>) -> Result<Entry, String> {
    let folder = volume
        .find(ENTRIES)
        .ok_or("there is no folder of entries")?;
    let files = volume
        .list(&folder)
        .into_iter()
        .filter(|file| !file.is_folder);
    let entries = files.filter_map(|file| {
        let text = volume.read(&file).ok()?;
        Entry::read(&file.name, &String::from_utf8_lossy(&text))
    });
    let first = entries.min_by(Entry::order);
    first.ok_or_else(|| "there is no entry that starts anything".to_owned())
}

/// The slot whose kernel has a path: its letter.
pub fn slot(path: &str) -> Option<char> {
    let (start, rest) = path.split_at_checked(KERNELS.len())?;
    let mut slots = ['a', 'b'].into_iter();
    let is_kernels = start.eq_ignore_ascii_case(KERNELS);
    slots.find(|slot| is_kernels && rest.eq_ignore_ascii_case(&format!("{slot}.efi")))
}

/// What stands behind the last `+` of a name, if that is a counter.
fn counter(stem: &str) -> Option<(u32, u32)> {
    let (_, counter) = stem.rsplit_once('+')?;
    let (left, done) = counter.split_once('-').unwrap_or((counter, "0"));
    Some((left.parse().ok()?, done.parse().ok()?))
}

/// Versions that are numbers, as ours are, by their size, and others by their letters.
fn versions(one: &str, other: &str) -> Ordering {
    let numbers = one.parse::<u64>().ok().zip(other.parse::<u64>().ok());
    numbers.map_or_else(|| one.cmp(other), |(one, other)| one.cmp(&other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(file: &str, version: &str, slot: char) -> Entry {
        let text = format!(
            "title any\nsort-key evenkeel\nversion {version}\nefi /EFI/evenkeel/slot-{slot}.efi\n"
        );
        Entry::read(file, &text).expect("an entry")
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
            assert_eq!(first.order(second), Ordering::Less, "{first:?} {second:?}");
            assert_eq!(second.order(first), Ordering::Greater);
        }
        let unsorted = Entry::read("z.conf", "efi /EFI/evenkeel/slot-b.efi");
        let unsorted = unsorted.expect("an entry");
        assert_eq!(old.order(&unsorted), Ordering::Less);
    }

    #[test]
    fn what_is_no_entry_is_passed_over() {
        let text = "efi /EFI/evenkeel/slot-a.efi";
        for file in [
            "auto-windows.conf",
            ".evenkeel-000001.conf",
            "evenkeel-000001.new",
        ] {
            assert_eq!(Entry::read(file, text), None, "{file}");
        }
        assert_eq!(Entry::read("any.conf", "title any"), None);
        let read = Entry::read("ANY+2-1.CONF", "  efi\t\\EFI\\evenkeel\\slot-b.efi \n");
        let read = read.expect("an entry");
        assert_eq!(
            (read.counter, slot(&read.starts)),
            (Some((2, 1)), Some('b'))
        );
        assert_eq!(slot("/EFI/evenkeel/slot-c.efi"), None);
        assert_eq!(slot("/EFI/other/slot-a.efi"), None);
    }
}
