//! Builds a list in EIM's format from OSV and OVAL documents.

use std::collections::{BTreeMap, BTreeSet};

use super::{CveList, InstalledPackages, MAX_JSON_BYTES};

/// Approximate limit of the memory for the list, in bytes.
const MAX_MEMORY_BYTES: usize = 64 * 1024 * 1024;

/// Maximum number of names to check in total. It bounds the time for small documents that refer to
/// the same names again and again.
const MAX_NAMES: usize = 20_000_000;

/// Maximum number of packages of an entry.
const MAX_PACKAGES_PER_ENTRY: usize = 20_000;

/// Approximate memory overhead of an entry, in bytes.
const OVERHEAD_BYTES: usize = 128;

/// Longest name of a package, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Longest ID and longest priority, in bytes.
const MAX_LABEL_BYTES: usize = 64;

/// Collects vulnerabilities, each once, sorted by ID.
#[derive(Debug)]
pub(super) struct CveListBuilder<'a> {
    installed: Option<&'a InstalledPackages>,
    entries: BTreeMap<String, CveEntry>,
    size: usize,
    name_count: usize,
    is_truncated: bool,
}

/// Name of an affected package.
#[derive(Clone, Copy, Debug)]
pub(super) enum PackageName<'a> {
    /// An installed package. Images without it are not affected.
    Installed(&'a str),
    /// A source package. The installed packages that are built from it may have other names.
    Source(&'a str),
}

/// The affected packages of a vulnerability.
#[derive(Debug)]
pub(super) struct PackageMatch<'a> {
    packages: BTreeSet<&'a str>,
    /// Whether the document names packages at all, installed or not.
    pub names_packages: bool,
    /// Whether the document certainly names no package, so the vulnerability may affect every
    /// image.
    is_unrestricted: bool,
}

/// Priority of a vulnerability as assigned by the database.
#[derive(Clone, Copy, Debug)]
pub(super) struct Priority<'a> {
    /// The priority, such as `high`; empty if there is none.
    pub label: &'a str,
    /// Whether it was assigned to this vulnerability, not to an advisory with several.
    pub is_own: bool,
}

#[derive(Debug, Default)]
struct CveEntry {
    priority: String,
    is_own: bool,
    packages: BTreeSet<String>,
}

#[derive(serde::Serialize)]
struct CveJson<'a> {
    cve_id: &'a str,
    priority: &'a str,
    affected_packages: &'a BTreeSet<String>,
}

impl<'a> CveListBuilder<'a> {
    /// An empty list. If `installed` is given, only vulnerabilities of these packages are added.
    pub fn new(installed: Option<&'a InstalledPackages>) -> Self {
        Self { installed, entries: BTreeMap::new(), size: 0, name_count: 0, is_truncated: false }
    }

    /// The packages of the image, if they are known.
    pub fn installed(&self) -> Option<&'a InstalledPackages> {
        self.installed
    }

    /// Records that entries or packages are missing.
    pub fn mark_truncated(&mut self) {
        self.is_truncated = true;
    }

    /// Whether a limit is reached, so nothing more is added.
    pub fn is_full(&self) -> bool {
        self.size > MAX_MEMORY_BYTES || self.name_count > MAX_NAMES
    }

    /// Counts comparisons of versions as names, because both take time.
    pub fn count_comparisons(&mut self, count: usize) {
        self.name_count = self.name_count.saturating_add(count);
    }

    /// Selects the affected packages that are installed. `are_all` tells whether `names` is
    /// complete: an incomplete list without names does not mean that the document names none.
    pub fn select<'b>(
        &mut self,
        names: impl Iterator<Item = PackageName<'b>>,
        are_all: bool,
    ) -> PackageMatch<'b> {
        let (mut packages, mut is_named) = (BTreeSet::new(), false);
        let mut is_whole = are_all;
        for name in names {
            if self.is_full() {
                is_whole = false;
                break;
            }
            self.name_count += 1;
            let (name, is_had) = match name {
                PackageName::Installed(name) => {
                    (name, self.installed.is_none_or(|installed| installed.contains(name)))
                }
                PackageName::Source(name) => (name, true),
            };
            if !is_package_name(name) {
                continue;
            }
            is_named = true;
            if is_had && packages.len() < MAX_PACKAGES_PER_ENTRY {
                packages.insert(name);
            } else if is_had {
                is_whole &= packages.contains(name);
            }
        }
        self.is_truncated |= !is_whole;
        PackageMatch { packages, names_packages: is_named, is_unrestricted: !is_named && is_whole }
    }

    /// Adds a vulnerability, or adds packages to an existing entry.
    pub fn add(&mut self, id: &str, priority: Priority<'_>, concern: &PackageMatch<'_>) {
        if self.is_full() {
            self.is_truncated = true;
            return;
        }
        self.name_count += 1 + concern.packages.len();
        if concern.packages.is_empty() && !concern.is_unrestricted {
            return;
        }
        if !is_label(id) {
            self.is_truncated = true;
            return;
        }
        let entry = self.entries.entry(id.to_owned()).or_insert_with(|| {
            self.size += id.len() + OVERHEAD_BYTES;
            CveEntry::default()
        });
        let is_better = entry.priority.is_empty() || (priority.is_own && !entry.is_own);
        if is_better && is_label(priority.label) {
            entry.priority = priority.label.to_ascii_lowercase();
            entry.is_own = priority.is_own;
        }
        for name in &concern.packages {
            if entry.packages.insert((*name).to_owned()) {
                self.size += name.len() + OVERHEAD_BYTES / 2;
            }
        }
    }

    /// Renders the list, up to the size limit.
    pub fn build(self) -> CveList {
        let (mut json, mut is_truncated) = ("[".to_owned(), self.is_truncated);
        for (id, entry) in &self.entries {
            let entry_json = CveJson {
                cve_id: id,
                priority: match entry.priority.as_str() {
                    "" => "unknown",
                    priority => priority,
                },
                affected_packages: &entry.packages,
            };
            // Serializing strings cannot fail.
            let Ok(one) = serde_json::to_string(&entry_json) else {
                continue;
            };
            if json.len() + one.len() + 2 > MAX_JSON_BYTES {
                is_truncated = true;
                break;
            }
            if json.len() > 1 {
                json.push(',');
            }
            json.push_str(&one);
        }
        json.push(']');
        CveList { json, is_truncated }
    }
}

/// Whether a text is a valid package name.
pub(super) fn is_package_name(name: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b"+-._:/@".contains(&b);
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(inside)
}

/// Whether a text is a valid ID or priority.
pub(super) fn is_label(text: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    !text.is_empty() && text.len() <= MAX_LABEL_BYTES && text.bytes().all(inside)
}
