//! Entries of the boot loader: how their files are named, read and sorted. Nothing here touches a disk.
//!
//! Names, fields and order are those of the [Boot Loader Specification]; versions are compared as the
//! [version format specification] says.
//!
//! [Boot Loader Specification]: https://uapi-group.org/specifications/specs/boot_loader_specification/
//! [version format specification]: https://uapi-group.org/specifications/specs/version_format_specification/

use std::cmp::Ordering;

use crate::modules::image::slots::{Entry, Slot};

/// The sort key of all entries of the agent, and what their names begin with.
pub const KEY: &str = "evenkeel";

/// The folder of the entries, below the ESP.
pub const FOLDER: &str = "loader/entries";

/// The folder of the kernels, below the ESP.
pub const KERNELS: &str = "EFI/evenkeel";

/// A title has at most so many characters: menus are narrow.
const MOST_TITLE: usize = 120;

/// How often an entry may still be tried, and how often it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Boots that are left to it.
    pub left: u32,
    /// Boots that began and were not blessed.
    pub done: u32,
}

/// What the name of an entry's file says: `ID.conf`, `ID+LEFT.conf` or `ID+LEFT-DONE.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// By this the loader knows the entry, however often it was tried.
    pub id: String,
    /// Absent if the entry is not on trial.
    pub counter: Option<Counter>,
}

impl Name {
    /// Reads a name that ends with a dot and `suffix`. VFAT keeps no case that could be relied on, so none matters.
    /// `None` for a file that the loader passes over.
    pub fn parse(file: &str, suffix: &str) -> Option<Self> {
        let (stem, end) = file.rsplit_once('.')?;
        // The loader keeps names that begin with `auto-` for entries that it finds by itself.
        let is_kept = stem
            .get(..5)
            .is_some_and(|start| start.eq_ignore_ascii_case("auto-"));
        if !end.eq_ignore_ascii_case(suffix) || stem.starts_with('.') || is_kept {
            return None;
        }
        let halves = stem.rsplit_once('+');
        let halves = halves.and_then(|(id, counter)| Some((id, counter_of(counter)?)));
        let (id, counter) = halves.map_or((stem, None), |(id, counter)| (id, Some(counter)));
        Some(Self {
            id: id.to_owned(),
            counter,
        })
    }

    /// Whether the loader has given the entry up.
    pub fn is_spent(&self) -> bool {
        self.counter.is_some_and(|counter| counter.left == 0)
    }

    /// The number in it, if the agent could have given such a name.
    fn sequence(&self) -> Option<u32> {
        let (start, number) = self.id.split_at_checked(KEY.len())?;
        let number = number.strip_prefix('-')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let is_ours = start.eq_ignore_ascii_case(KEY) && is_number;
        is_ours.then(|| number.parse().ok()).flatten()
    }
}

fn counter_of(text: &str) -> Option<Counter> {
    let number = |text: &str| -> Option<u32> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    let (left, done) = match text.split_once('-') {
        Some((left, done)) => (left, number(done)?),
        None => (text, 0),
    };
    Some(Counter {
        left: number(left)?,
        done,
    })
}

/// An entry as it lies in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name of its file.
    pub file: String,
    /// What that name says.
    pub name: Name,
    /// Absent if it has none.
    pub sort_key: Option<String>,
    /// Empty if it names none.
    pub machine_id: String,
    /// Empty if it has none.
    pub version: String,
    /// What it starts, as a path below the ESP with `/` between the parts. Absent if it starts nothing: the loader
    /// passes it over.
    pub starts: Option<String>,
}

impl Listed {
    /// Reads an entry. `None` for a file that is none by its name.
    pub fn parse(file: &str, text: &str) -> Option<Self> {
        let mut entry = Self {
            file: file.to_owned(),
            name: Name::parse(file, "conf")?,
            sort_key: None,
            machine_id: String::new(),
            version: String::new(),
            starts: None,
        };
        for line in text.lines().map(str::trim) {
            let Some((key, value)) = line.split_once([' ', '\t']) else {
                continue;
            };
            let value = value.trim();
            match key {
                "sort-key" => entry.sort_key = Some(value.to_owned()),
                "machine-id" => value.clone_into(&mut entry.machine_id),
                "version" => value.clone_into(&mut entry.version),
                "efi" | "linux" | "uki" => entry.starts = Some(path_below(value)),
                // Comments, and what does not say where the entry belongs.
                _ => {}
            }
        }
        Some(entry)
    }

    /// The slot whose kernel it starts.
    pub fn slot(&self) -> Option<Slot> {
        let starts = self.starts.as_deref()?;
        [Slot::A, Slot::B]
            .into_iter()
            .find(|slot| starts.eq_ignore_ascii_case(&kernel(*slot)))
    }

    /// The number in its name, if the agent could have given it that name.
    pub fn sequence(&self) -> Option<u32> {
        self.name.sequence()
    }

    /// Whether it is what an interrupted write of the agent left: a name of ours, and nothing to start.
    pub fn is_left_over(&self) -> bool {
        self.starts.is_none() && self.sequence().is_some()
    }

    /// Why an entry of a slot is not one that the agent could have written; `None` if it is.
    fn oddity(&self) -> Option<String> {
        let Some(sequence) = self.sequence() else {
            return Some(format!(
                "the boot entry {} starts a slot and is not named {KEY}-NUMBER.conf: remove it, or give it such a name",
                self.file
            ));
        };
        let version = self.version.parse() == Ok(sequence);
        if self.sort_key.as_deref() != Some(KEY) || !version || !self.machine_id.is_empty() {
            return Some(format!(
                "the boot entry {} would be sorted wrongly: it must say \"sort-key {KEY}\" and \"version {sequence:06}\", and \
                 must not name a machine-id",
                self.file
            ));
        }
        None
    }
}

fn path_below(text: &str) -> String {
    let parts: Vec<&str> = text
        .split(['/', '\\'])
        .filter(|part| !part.is_empty())
        .collect();
    parts.join("/")
}

/// The letter of a slot.
pub fn letter(slot: Slot) -> char {
    match slot {
        Slot::A => 'a',
        Slot::B => 'b',
    }
}

/// The kernel of a slot, as a path below the ESP.
pub fn kernel(slot: Slot) -> String {
    format!("{KERNELS}/slot-{}.efi", letter(slot))
}

/// The id of the entry with this number.
pub fn id(sequence: u32) -> String {
    format!("{KEY}-{sequence:06}")
}

/// The text of an entry for an image of a profile.
pub fn text(slot: Slot, (profile, image): (&str, &str), sequence: u32) -> String {
    // What others named must not become a line of its own.
    let title: String = format!("{profile} {image}")
        .chars()
        .map(|character| {
            if character.is_control() {
                ' '
            } else {
                character
            }
        })
        .take(MOST_TITLE)
        .collect();
    format!(
        "title {title} (slot {})\nsort-key {KEY}\nversion {sequence:06}\nefi /{}\n",
        letter(slot),
        kernel(slot)
    )
}

/// What the entries say of a slot.
pub fn of_slot(listed: &[Listed], slot: Slot) -> Entry {
    let mine: Vec<&Listed> = listed
        .iter()
        .filter(|entry| entry.slot() == Some(slot))
        .collect();
    let Some(first) = mine.first() else {
        return Entry::Absent;
    };
    if let Some(oddity) = mine.iter().find_map(|entry| entry.oddity()) {
        return Entry::Strange(oddity);
    }
    if mine
        .iter()
        .any(|other| other.sequence() != first.sequence())
    {
        let files: Vec<&str> = mine.iter().map(|entry| entry.file.as_str()).collect();
        return Entry::Strange(format!(
            "several boot entries start slot {}: {}; remove all but one",
            letter(slot),
            files.join(", ")
        ));
    }
    // A rename on VFAT is two writes, and a power cut between them leaves both names. Only a blessing makes the plain
    // one, so it counts; of two counters the one that was tried more often is the newer one.
    let counters: Option<Vec<Counter>> = mine.iter().map(|entry| entry.name.counter).collect();
    let counters = counters.into_iter().flatten();
    let Some(counter) = counters.min_by_key(|counter| counter.left) else {
        return Entry::Plain;
    };
    match (u8::try_from(counter.left), u8::try_from(counter.done)) {
        (Ok(left), Ok(done)) => Entry::Counted { left, done },
        _ => Entry::Strange(format!(
            "the counter of the boot entry {} is too large to be the agent's: remove the entry",
            first.file
        )),
    }
}

/// The slot of the entry that the loader calls `id`, with or without a counter and an ending.
pub fn slot_of_id(listed: &[Listed], id: &str) -> Option<Slot> {
    let name = Name::parse(id, "conf");
    let id = name.as_ref().map_or(id, |name| name.id.as_str());
    listed
        .iter()
        .find(|entry| entry.name.id.eq_ignore_ascii_case(id))?
        .slot()
}

/// What the name of a file beside the entries says of it, if the agent could have given it that name: the number of the
/// entry, and whether it only was to become one.
pub fn ours(file: &str) -> Option<(u32, bool)> {
    let beside = file
        .rsplit_once('.')
        .filter(|(_, end)| end.eq_ignore_ascii_case("new"));
    let entry = beside.map_or(file, |(entry, _)| entry);
    let number = Name::parse(entry, "conf")?.sequence()?;
    Some((number, beside.is_some()))
}

/// The number of an entry that comes before these.
pub fn next<'a>(listed: impl IntoIterator<Item = &'a Listed>) -> u32 {
    let newest = listed.into_iter().filter_map(Listed::sequence).max();
    newest.map_or(1, |newest| newest.saturating_add(1))
}

/// Entries of others that start something.
pub fn foreign(listed: &[Listed]) -> impl Iterator<Item = &Listed> {
    listed
        .iter()
        .filter(|entry| entry.starts.is_some() && entry.slot().is_none())
}

/// Entries of others that the loader would take before one of ours, or before the next one of ours.
pub fn foreign_first(listed: &[Listed]) -> Vec<&Listed> {
    let next = next(listed);
    let next = Listed {
        file: format!("{}+1.conf", id(next)),
        name: Name {
            id: id(next),
            counter: Some(Counter { left: 1, done: 0 }),
        },
        sort_key: Some(KEY.to_owned()),
        machine_id: String::new(),
        version: format!("{next:06}"),
        starts: None,
    };
    let ours = listed
        .iter()
        .filter(|entry| entry.slot().is_some() && !entry.name.is_spent());
    let ours: Vec<&Listed> = ours.chain([&next]).collect();
    foreign(listed)
        .filter(|other| {
            ours.iter()
                .any(|entry| order(other, entry) == Ordering::Less)
        })
        .collect()
}

/// The order in which the loader lists entries; it starts the first.
pub fn order(one: &Listed, other: &Listed) -> Ordering {
    one.name
        .is_spent()
        .cmp(&other.name.is_spent())
        .then_with(|| one.sort_key.is_none().cmp(&other.sort_key.is_none()))
        .then_with(|| match (&one.sort_key, &other.sort_key) {
            (Some(key), Some(other_key)) => key
                .cmp(other_key)
                .then_with(|| one.machine_id.cmp(&other.machine_id))
                // Newer ones first.
                .then_with(|| version_order(&other.version, &one.version)),
            _ => Ordering::Equal,
        })
        .then_with(|| version_order(&other.name.id, &one.name.id))
        .then_with(|| match (one.name.counter, other.name.counter) {
            (Some(counter), Some(other)) => other
                .left
                .cmp(&counter.left)
                .then(counter.done.cmp(&other.done)),
            _ => Ordering::Equal,
        })
}

/// Compares two versions.
pub fn version_order(one: &str, other: &str) -> Ordering {
    let (mut one, mut other) = (one.as_bytes(), other.as_bytes());
    loop {
        one = cut(one, |byte| !is_of_version(byte)).1;
        other = cut(other, |byte| !is_of_version(byte)).1;
        let (first, second) = (one.first().copied(), other.first().copied());
        // What begins with a tilde is before what ends here.
        let marks: &[u8] = match (first, second) {
            (Some(b'~'), _) | (_, Some(b'~')) => b"~",
            (None, _) | (_, None) => return first.is_some().cmp(&second.is_some()),
            _ => b"-^.",
        };
        let mark = marks
            .iter()
            .find(|mark| first == Some(**mark) || second == Some(**mark));
        if let Some(mark) = mark {
            if first != second {
                return (first != Some(*mark)).cmp(&(second != Some(*mark)));
            }
            (one, other) = (&one[1..], &other[1..]);
            continue;
        }
        let is_number = [first, second].iter().flatten().any(u8::is_ascii_digit);
        let is_part = |byte: u8| {
            if is_number {
                byte.is_ascii_digit()
            } else {
                byte.is_ascii_alphabetic()
            }
        };
        let (part, rest) = cut(one, is_part);
        let (other_part, other_rest) = cut(other, is_part);
        (one, other) = (rest, other_rest);
        let decided = if is_number {
            number_order(part, other_part)
        } else {
            part.cmp(other_part)
        };
        if decided != Ordering::Equal {
            return decided;
        }
    }
}

fn is_of_version(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-.~^".contains(&byte)
}

/// The bytes at the beginning for which `is` holds, and the rest.
fn cut(bytes: &[u8], is: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| !is(*byte));
    bytes.split_at(end.unwrap_or(bytes.len()))
}

/// Compares digits as numbers of any length; no digits are zero.
fn number_order(one: &[u8], other: &[u8]) -> Ordering {
    let one = cut(one, |byte| byte == b'0').1;
    let other = cut(other, |byte| byte == b'0').1;
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

#[cfg(test)]
mod tests;
