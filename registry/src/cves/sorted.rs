//! The list of vulnerabilities that is made of documents of others.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{Cves, MAX_JSON};

/// How much is gathered, in bytes about.
const MOST: usize = 64 * 1024 * 1024;

/// How many names are looked at in all, so that small documents that repeat themselves do not take long.
const MOST_NAMES: usize = 20_000_000;

/// How many names of packages an entry has at most.
const MOST_NAMES_AT_ONCE: usize = 20_000;

/// What an entry costs besides its texts, in bytes about.
const EACH: usize = 128;

/// The longest name of a package, in bytes.
const LONGEST_NAME: usize = 256;

/// The longest id and the longest priority, in bytes.
const LONGEST_WORD: usize = 64;

/// Vulnerabilities by their ids, each once.
#[derive(Debug)]
pub(super) struct Sorted<'a> {
    of: Option<&'a HashSet<String>>,
    entries: BTreeMap<String, Entry>,
    size: usize,
    names: usize,
    cut: bool,
}

/// The name of a package that a vulnerability concerns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name<'a> {
    /// What is installed has this name, so an image that has no such package is not concerned.
    Installed(&'a str),
    /// What is installed is built from it and may have other names.
    Source(&'a str),
}

/// Which packages a vulnerability concerns.
#[derive(Debug)]
pub(super) struct Concern<'a> {
    packages: BTreeSet<&'a str>,
    /// Whether packages are named at all, be they installed or not.
    pub is_named: bool,
    /// Whether it is known that none are named, so that whoever reads it has to see.
    is_unclear: bool,
}

/// How bad a vulnerability is, in the words of whoever judged it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Priority<'a> {
    /// The word; empty if there is none.
    pub word: &'a str,
    /// Whether it is said of this very vulnerability, and not of several together.
    pub is_own: bool,
}

#[derive(Debug, Default)]
struct Entry {
    priority: String,
    is_own: bool,
    packages: BTreeSet<String>,
}

#[derive(serde::Serialize)]
struct Shown<'a> {
    cve_id: &'a str,
    priority: &'a str,
    affected_packages: &'a BTreeSet<String>,
}

impl<'a> Sorted<'a> {
    /// An empty list, of what concerns these packages if they are known.
    pub fn new(of: Option<&'a HashSet<String>>) -> Self {
        Self {
            of,
            entries: BTreeMap::new(),
            size: 0,
            names: 0,
            cut: false,
        }
    }

    /// Notes that not everything was gathered.
    pub fn cut_short(&mut self) {
        self.cut = true;
    }

    /// Whether nothing more is added.
    pub fn is_full(&self) -> bool {
        self.size > MOST || self.names > MOST_NAMES
    }

    /// Which of the packages somebody has. `are_all` says whether these are all names that were given: if some could not
    /// be read, nothing follows from there being none.
    pub fn concern<'b>(
        &mut self,
        names: impl Iterator<Item = Name<'b>>,
        are_all: bool,
    ) -> Concern<'b> {
        let (mut packages, mut is_named) = (BTreeSet::new(), false);
        let mut is_whole = are_all;
        for name in names {
            if self.is_full() {
                is_whole = false;
                break;
            }
            self.names += 1;
            let (name, is_had) = match name {
                Name::Installed(name) => (name, self.of.is_none_or(|of| of.contains(name))),
                Name::Source(name) => (name, true),
            };
            if !is_name(name) {
                continue;
            }
            is_named = true;
            if is_had && packages.len() < MOST_NAMES_AT_ONCE {
                packages.insert(name);
            } else if is_had {
                is_whole &= packages.contains(name);
            }
        }
        self.cut |= !is_whole;
        Concern {
            packages,
            is_named,
            is_unclear: !is_named && is_whole,
        }
    }

    /// Adds what is known about a vulnerability to what was known.
    pub fn add(&mut self, id: &str, priority: Priority<'_>, concern: &Concern<'_>) {
        if self.is_full() {
            self.cut = true;
            return;
        }
        self.names += 1 + concern.packages.len();
        if concern.packages.is_empty() && !concern.is_unclear {
            return;
        }
        if !is_word(id) {
            self.cut = true;
            return;
        }
        let entry = self.entries.entry(id.to_owned()).or_insert_with(|| {
            self.size += id.len() + EACH;
            Entry::default()
        });
        let is_better = entry.priority.is_empty() || (priority.is_own && !entry.is_own);
        if is_better && is_word(priority.word) {
            entry.priority = priority.word.to_ascii_lowercase();
            entry.is_own = priority.is_own;
        }
        for name in &concern.packages {
            if entry.packages.insert((*name).to_owned()) {
                self.size += name.len() + EACH / 2;
            }
        }
    }

    /// The list, as much as has room.
    pub fn shown(self) -> Cves {
        let (mut json, mut cut) = ("[".to_owned(), self.cut);
        for (id, entry) in &self.entries {
            let shown = Shown {
                cve_id: id,
                priority: match entry.priority.as_str() {
                    "" => "unknown",
                    priority => priority,
                },
                affected_packages: &entry.packages,
            };
            // Texts always become JSON.
            let Ok(one) = serde_json::to_string(&shown) else {
                continue;
            };
            if json.len() + one.len() + 2 > MAX_JSON {
                cut = true;
                break;
            }
            if json.len() > 1 {
                json.push(',');
            }
            json.push_str(&one);
        }
        json.push(']');
        Cves { json, cut }
    }
}

/// Whether it can be the name of a package.
pub(super) fn is_name(name: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b"+-._:/@".contains(&b);
    !name.is_empty() && name.len() <= LONGEST_NAME && name.bytes().all(inside)
}

/// Whether it can be an id or a priority.
pub(super) fn is_word(text: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    !text.is_empty() && text.len() <= LONGEST_WORD && text.bytes().all(inside)
}
