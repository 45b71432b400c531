//! Entries of the boot loader: how their files are named, parsed and sorted. This module does no
//! I/O.
//!
//! The [Boot Loader Specification] defines names, fields and order, the [version format
//! specification] defines how versions are compared.
//!
//! [Boot Loader Specification]: https://uapi-group.org/specifications/specs/boot_loader_specification/
//! [version format specification]: https://uapi-group.org/specifications/specs/version_format_specification/

use std::cmp::Ordering;

use crate::modules::image::slots::{BootEntry, Slot};

/// Sort key of all entries of the agent, and prefix of their names.
pub const SORT_KEY: &str = "evenkeel";

/// Folder of the entries, relative to the ESP.
pub const ENTRIES_FOLDER: &str = "loader/entries";

/// Folder of the kernels, relative to the ESP.
pub const KERNELS_FOLDER: &str = "EFI/evenkeel";

/// Maximum length of a title, in characters: menus are narrow.
const MAX_TITLE_CHARS: usize = 120;

/// Boot counter of an entry on trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootCounter {
    /// Remaining boots.
    pub left: u32,
    /// Boots that started and were not blessed.
    pub done: u32,
}

/// Parsed file name of an entry: `ID.conf`, `ID+LEFT.conf` or `ID+LEFT-DONE.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryName {
    /// ID of the entry for the loader. The counter does not change it.
    pub id: String,
    /// Boot counter; `None` if the entry is not on trial.
    pub counter: Option<BootCounter>,
}

impl EntryName {
    /// Parses a file name that ends with a dot and `suffix`, ignoring case because VFAT does not
    /// preserve it reliably. `None` for a file that the loader ignores.
    pub fn parse(file: &str, suffix: &str) -> Option<Self> {
        let (stem, end) = file.rsplit_once('.')?;
        // The loader reserves names that begin with `auto-` for entries that it generates.
        let is_reserved = stem.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("auto-"));
        if !end.eq_ignore_ascii_case(suffix) || stem.starts_with('.') || is_reserved {
            return None;
        }
        let halves = stem.rsplit_once('+');
        let halves = halves.and_then(|(id, counter)| Some((id, parse_counter(counter)?)));
        let (id, counter) = halves.map_or((stem, None), |(id, counter)| (id, Some(counter)));
        Some(Self { id: id.to_owned(), counter })
    }

    /// Whether no boots remain: the loader starts the entry only if there is no other.
    pub fn is_exhausted(&self) -> bool {
        self.counter.is_some_and(|counter| counter.left == 0)
    }

    /// The sequence number in the name; `None` if the agent did not choose the name.
    fn sequence(&self) -> Option<u32> {
        let (start, number) = self.id.split_at_checked(SORT_KEY.len())?;
        let number = number.strip_prefix('-')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let is_ours = start.eq_ignore_ascii_case(SORT_KEY) && is_number;
        is_ours.then(|| number.parse().ok()).flatten()
    }
}

fn parse_counter(text: &str) -> Option<BootCounter> {
    let number = |text: &str| -> Option<u32> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    let (left, done) = match text.split_once('-') {
        Some((left, done)) => (left, number(done)?),
        None => (text, 0),
    };
    Some(BootCounter { left: number(left)?, done })
}

/// An entry file in the entries folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderEntry {
    /// File name.
    pub file: String,
    /// The parsed file name.
    pub name: EntryName,
    pub sort_key: Option<String>,
    /// Machine ID; empty if the entry has none.
    pub machine_id: String,
    /// Version; empty if the entry has none.
    pub version: String,
    /// Path of the file that the entry starts, relative to the ESP, with `/` as separator. `None`
    /// if it starts nothing; the loader ignores such an entry.
    pub target: Option<String>,
}

impl LoaderEntry {
    /// Parses an entry. `None` if the file name is not that of an entry.
    pub fn parse(file: &str, text: &str) -> Option<Self> {
        let mut entry = Self {
            file: file.to_owned(),
            name: EntryName::parse(file, "conf")?,
            sort_key: None,
            machine_id: String::new(),
            version: String::new(),
            target: None,
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
                "efi" | "linux" | "uki" => entry.target = Some(normalize_path(value)),
                // Comments, and fields that do not affect the order.
                _ => {}
            }
        }
        Some(entry)
    }

    /// The slot whose kernel the entry starts.
    pub fn slot(&self) -> Option<Slot> {
        let starts = self.target.as_deref()?;
        [Slot::A, Slot::B].into_iter().find(|slot| starts.eq_ignore_ascii_case(&kernel_path(*slot)))
    }

    /// The sequence number in the name; `None` if the agent did not choose the name.
    pub fn sequence(&self) -> Option<u32> {
        self.name.sequence()
    }

    /// Whether an interrupted write of the agent left this entry: it has a name of ours and starts
    /// nothing.
    pub fn is_incomplete(&self) -> bool {
        self.target.is_none() && self.sequence().is_some()
    }

    /// Why the agent cannot have written this entry of a slot; `None` if it can.
    fn find_fault(&self) -> Option<String> {
        let Some(sequence) = self.sequence() else {
            return Some(format!(
                "the boot entry {} starts a slot and is not named {SORT_KEY}-NUMBER.conf: remove or rename it",
                self.file
            ));
        };
        let version = self.version.parse() == Ok(sequence);
        if self.sort_key.as_deref() != Some(SORT_KEY) || !version || !self.machine_id.is_empty() {
            return Some(format!(
                "the boot entry {} would be sorted wrongly: it must contain \"sort-key {SORT_KEY}\" and \"version {sequence:06}\", \
                 and no machine-id",
                self.file
            ));
        }
        None
    }
}

fn normalize_path(text: &str) -> String {
    let parts: Vec<&str> = text.split(['/', '\\']).filter(|part| !part.is_empty()).collect();
    parts.join("/")
}

pub fn slot_letter(slot: Slot) -> char {
    match slot {
        Slot::A => 'a',
        Slot::B => 'b',
    }
}

/// Path of a slot's kernel, relative to the ESP.
pub fn kernel_path(slot: Slot) -> String {
    format!("{KERNELS_FOLDER}/slot-{}.efi", slot_letter(slot))
}

/// ID of the entry with this sequence number.
pub fn entry_id(sequence: u32) -> String {
    format!("{SORT_KEY}-{sequence:06}")
}

/// Formats the entry for an image of a profile.
pub fn format_entry(slot: Slot, (profile, image): (&str, &str), sequence: u32) -> String {
    // A control character in a foreign name must not start a new line.
    let title: String = format!("{profile} {image}")
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .take(MAX_TITLE_CHARS)
        .collect();
    format!(
        "title {title} (slot {})\nsort-key {SORT_KEY}\nversion {sequence:06}\nefi /{}\n",
        slot_letter(slot),
        kernel_path(slot)
    )
}

/// The boot entry of a slot, as the entry files define it.
pub fn slot_entry(listed: &[LoaderEntry], slot: Slot) -> BootEntry {
    let mine: Vec<&LoaderEntry> =
        listed.iter().filter(|entry| entry.slot() == Some(slot)).collect();
    let Some(first) = mine.first() else {
        return BootEntry::Absent;
    };
    if let Some(oddity) = mine.iter().find_map(|entry| entry.find_fault()) {
        return BootEntry::Invalid(oddity);
    }
    if mine.iter().any(|other| other.sequence() != first.sequence()) {
        let files: Vec<&str> = mine.iter().map(|entry| entry.file.as_str()).collect();
        return BootEntry::Invalid(format!(
            "several boot entries start slot {}: {}; remove all but one",
            slot_letter(slot),
            files.join(", ")
        ));
    }
    // A rename on VFAT is two writes. A power cut between them leaves both names. Only a blessing
    // creates the plain name, so that name is the newer one; of two counters, the one with fewer
    // remaining boots is newer.
    let counters: Option<Vec<BootCounter>> = mine.iter().map(|entry| entry.name.counter).collect();
    let counters = counters.into_iter().flatten();
    let Some(counter) = counters.min_by_key(|counter| counter.left) else {
        return BootEntry::Plain;
    };
    match (u8::try_from(counter.left), u8::try_from(counter.done)) {
        (Ok(left), Ok(done)) => BootEntry::Counted { left, done },
        _ => BootEntry::Invalid(format!(
            "the counter of the boot entry {} is too large: the agent did not write it; remove the entry",
            first.file
        )),
    }
}

/// The slot of the entry that the loader calls `id`, with or without a counter and a suffix.
pub fn find_slot_by_id(listed: &[LoaderEntry], id: &str) -> Option<Slot> {
    let name = EntryName::parse(id, "conf");
    let id = name.as_ref().map_or(id, |name| name.id.as_str());
    listed.iter().find(|entry| entry.name.id.eq_ignore_ascii_case(id))?.slot()
}

/// Parses the name of any file in the entries folder. Returns the sequence number and whether the
/// file is temporary; `None` if the agent did not choose the name.
pub fn parse_own_file_name(file: &str) -> Option<(u32, bool)> {
    let temporary = file.rsplit_once('.').filter(|(_, end)| end.eq_ignore_ascii_case("new"));
    let entry = temporary.map_or(file, |(entry, _)| entry);
    let number = EntryName::parse(entry, "conf")?.sequence()?;
    Some((number, temporary.is_some()))
}

/// The sequence number for an entry that is to precede these.
pub fn next_sequence<'a>(listed: impl IntoIterator<Item = &'a LoaderEntry>) -> u32 {
    let newest = listed.into_iter().filter_map(LoaderEntry::sequence).max();
    newest.map_or(1, |newest| newest.saturating_add(1))
}

/// Foreign entries that start something.
pub fn foreign_entries(listed: &[LoaderEntry]) -> impl Iterator<Item = &LoaderEntry> {
    listed.iter().filter(|entry| entry.target.is_some() && entry.slot().is_none())
}

/// Foreign entries that the loader would prefer to one of ours, or to our next one.
pub fn foreign_entries_before_ours(listed: &[LoaderEntry]) -> Vec<&LoaderEntry> {
    let next = next_sequence(listed);
    let next = LoaderEntry {
        file: format!("{}+1.conf", entry_id(next)),
        name: EntryName { id: entry_id(next), counter: Some(BootCounter { left: 1, done: 0 }) },
        sort_key: Some(SORT_KEY.to_owned()),
        machine_id: String::new(),
        version: format!("{next:06}"),
        target: None,
    };
    let ours = listed.iter().filter(|entry| entry.slot().is_some() && !entry.name.is_exhausted());
    let ours: Vec<&LoaderEntry> = ours.chain([&next]).collect();
    foreign_entries(listed)
        .filter(|other| ours.iter().any(|entry| compare_entries(other, entry) == Ordering::Less))
        .collect()
}

/// The order in which the loader lists entries. It starts the first one.
pub fn compare_entries(one: &LoaderEntry, other: &LoaderEntry) -> Ordering {
    one.name
        .is_exhausted()
        .cmp(&other.name.is_exhausted())
        .then_with(|| one.sort_key.is_none().cmp(&other.sort_key.is_none()))
        .then_with(|| match (&one.sort_key, &other.sort_key) {
            (Some(key), Some(other_key)) => key
                .cmp(other_key)
                .then_with(|| one.machine_id.cmp(&other.machine_id))
                // Newest first.
                .then_with(|| compare_versions(&other.version, &one.version)),
            _ => Ordering::Equal,
        })
        .then_with(|| compare_versions(&other.name.id, &one.name.id))
        .then_with(|| match (one.name.counter, other.name.counter) {
            (Some(counter), Some(other)) => {
                other.left.cmp(&counter.left).then(counter.done.cmp(&other.done))
            }
            _ => Ordering::Equal,
        })
}

/// Compares two versions.
pub fn compare_versions(one: &str, other: &str) -> Ordering {
    let (mut one, mut other) = (one.as_bytes(), other.as_bytes());
    loop {
        one = split_prefix(one, |byte| !is_version_byte(byte)).1;
        other = split_prefix(other, |byte| !is_version_byte(byte)).1;
        let (first, second) = (one.first().copied(), other.first().copied());
        // A version that continues with a tilde precedes one that ends here.
        let marks: &[u8] = match (first, second) {
            (Some(b'~'), _) | (_, Some(b'~')) => b"~",
            (None, _) | (_, None) => return first.is_some().cmp(&second.is_some()),
            _ => b"-^.",
        };
        let mark = marks.iter().find(|mark| first == Some(**mark) || second == Some(**mark));
        if let Some(mark) = mark {
            if first != second {
                return (first != Some(*mark)).cmp(&(second != Some(*mark)));
            }
            (one, other) = (&one[1..], &other[1..]);
            continue;
        }
        let is_number = [first, second].iter().flatten().any(u8::is_ascii_digit);
        let is_part = |byte: u8| {
            if is_number { byte.is_ascii_digit() } else { byte.is_ascii_alphabetic() }
        };
        let (part, rest) = split_prefix(one, is_part);
        let (other_part, other_rest) = split_prefix(other, is_part);
        (one, other) = (rest, other_rest);
        let decided =
            if is_number { compare_numbers(part, other_part) } else { part.cmp(other_part) };
        if decided != Ordering::Equal {
            return decided;
        }
    }
}

fn is_version_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-.~^".contains(&byte)
}

/// Splits the leading bytes for which `is` is true from the rest.
fn split_prefix(bytes: &[u8], is: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| !is(*byte));
    bytes.split_at(end.unwrap_or(bytes.len()))
}

/// Compares digits as numbers of any length. No digits count as zero.
fn compare_numbers(one: &[u8], other: &[u8]) -> Ordering {
    let one = split_prefix(one, |byte| byte == b'0').1;
    let other = split_prefix(other, |byte| byte == b'0').1;
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

#[cfg(test)]
mod tests;
