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

#[derive(Debug, Default)]
struct Entry {
    priority: String,
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

    /// Adds what is known about a vulnerability to what was known.
    pub fn add<'b>(&mut self, id: &str, priority: &str, packages: impl Iterator<Item = &'b str>) {
        if self.is_full() {
            self.cut = true;
            return;
        }
        self.names += 1;
        let looked_at = packages
            .take(MOST_NAMES_AT_ONCE)
            .inspect(|_| self.names += 1);
        let mut named = looked_at.filter(|name| is_name(name)).peekable();
        let concerns_all = named.peek().is_none();
        let of = self.of;
        let is_had = |name: &&str| of.is_none_or(|of| of.contains(*name));
        let packages: BTreeSet<&str> = named.filter(is_had).collect();
        if !is_word(id) || (packages.is_empty() && !concerns_all) {
            return;
        }
        let entry = self.entries.entry(id.to_owned()).or_insert_with(|| {
            self.size += id.len() + EACH;
            Entry::default()
        });
        if entry.priority.is_empty() && is_word(priority) {
            entry.priority = priority.to_ascii_lowercase();
        }
        for name in packages {
            if entry.packages.insert(name.to_owned()) {
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
fn is_word(text: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    !text.is_empty() && text.len() <= LONGEST_WORD && text.bytes().all(inside)
}
