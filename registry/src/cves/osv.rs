//! Reader for OSV documents.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use super::installed::{InstalledPackages, SourceVersion};
use super::lenient::{BoundedList, LenientString, MAX_LIST_ENTRIES};
use super::list_builder::{CveListBuilder, PackageName, Priority, is_label, is_package_name};
use super::ranges::{AffectedVersions, VersionRange};
use super::{CveList, find_cve_id, invalid, invalid_format, too_large};
use crate::finding::Finding;

/// Largest record, in bytes. Reading a record takes up to ten times as much memory: a name of one
/// letter needs six bytes in the document and about sixty in memory. Larger records are skipped.
const MAX_RECORD_BYTES: usize = 4 * 1024 * 1024;

/// Reads a list of records.
pub(super) fn read_list(
    text: &str,
    installed: Option<&InstalledPackages>,
) -> Result<CveList, Finding> {
    let mut sorted = CveListBuilder::new(installed);
    let mut json = serde_json::Deserializer::from_str(text);
    let read = RecordListSeed(&mut sorted).deserialize(&mut json);
    read.and_then(|()| json.end()).map_err(invalid)?;
    Ok(sorted.build())
}

/// Reads a single record, or a response of a server with records.
pub(super) fn read_object(
    text: &str,
    installed: Option<&InstalledPackages>,
) -> Result<CveList, Finding> {
    #[derive(Deserialize)]
    struct ObjectKeys {
        vulns: Option<IgnoredAny>,
        id: Option<IgnoredAny>,
    }

    let shape: ObjectKeys = serde_json::from_str(text).map_err(invalid)?;
    let mut sorted = CveListBuilder::new(installed);
    match (shape.vulns, shape.id) {
        (Some(_), _) => {
            let mut json = serde_json::Deserializer::from_str(text);
            let read = json.deserialize_map(OsvResponse(&mut sorted));
            read.and_then(|()| json.end()).map_err(invalid)?;
        }
        (None, Some(_)) if text.len() > MAX_RECORD_BYTES => {
            return Err(too_large(MAX_RECORD_BYTES as u64));
        }
        (None, Some(_)) => {
            serde_json::from_str::<OsvRecord>(text).map_err(invalid)?.add_to(&mut sorted);
        }
        (None, None) => return Err(invalid_format(text, "it has neither an id nor vulns")),
    }
    Ok(sorted.build())
}

/// The fields of a record that are used.
#[derive(Deserialize)]
struct OsvRecord {
    id: String,
    #[serde(default)]
    aliases: BoundedList<LenientString>,
    #[serde(default)]
    upstream: BoundedList<LenientString>,
    #[serde(default)]
    related: BoundedList<LenientString>,
    #[serde(default)]
    withdrawn: LenientString,
    #[serde(default)]
    severity: BoundedList<OsvSeverity>,
    #[serde(default)]
    affected: BoundedList<AffectedEntry>,
    database_specific: Option<SpecificFields<IgnoredAny>>,
}

#[derive(Deserialize)]
struct OsvSeverity {
    #[serde(default, rename = "type")]
    kind: LenientString,
    #[serde(default)]
    score: LenientString,
}

#[derive(Deserialize)]
struct AffectedEntry {
    package: Option<OsvPackage>,
    ecosystem_specific: Option<SpecificFields<Binaries>>,
    database_specific: Option<SpecificFields<IgnoredAny>>,
    #[serde(default)]
    ranges: BoundedList<VersionRange>,
    /// Affected versions besides those in the ranges.
    #[serde(default)]
    versions: BoundedList<LenientString>,
}

#[derive(Deserialize)]
struct OsvPackage {
    #[serde(default)]
    name: LenientString,
    #[serde(default)]
    ecosystem: LenientString,
}

/// Fields that only some databases have. `B` is the type of the list of installed packages, which
/// is not read from `database_specific`.
#[derive(Deserialize)]
struct SpecificFields<B> {
    #[serde(default)]
    severity: LenientString,
    #[serde(default)]
    ubuntu_priority: LenientString,
    #[serde(default)]
    urgency: LenientString,
    #[serde(default)]
    binaries: B,
}

impl<B> SpecificFields<B> {
    /// The fields that may hold the priority, the most reliable first.
    fn priorities(&self) -> [&str; 3] {
        [&self.ubuntu_priority, &self.severity, &self.urgency].map(|text| text.0.as_str())
    }
}

impl OsvRecord {
    fn add_to(&self, sorted: &mut CveListBuilder<'_>) {
        if !self.withdrawn.0.is_empty() {
            return;
        }
        if sorted.is_full() {
            sorted.mark_truncated();
            return;
        }
        let installed = sorted.installed();
        let all = &self.affected.entries;
        let affected: Vec<_> = all.iter().filter(|one| one.may_concern(installed)).collect();
        if affected.is_empty() && !all.is_empty() {
            return;
        }
        // One entry of a source may list its installed packages while another entry does not.
        let by_binaries: HashSet<&str> = affected
            .iter()
            .copied()
            .filter(|one| !one.binaries().is_empty())
            .filter_map(AffectedEntry::source)
            .collect();
        let (is_fixed, comparisons) = (&Cell::new(false), &Cell::new(0));
        let names = affected.iter().copied().flat_map(|one| {
            one.package_names(&by_binaries).filter(move |name| {
                let is_affected = one.affects(*name, installed);
                comparisons.set(comparisons.get() + one.versions().count());
                is_fixed.set(is_fixed.get() || !is_affected);
                is_affected
            })
        });
        let concern = sorted.select(names, !self.is_truncated());
        sorted.count_comparisons(comparisons.get());
        if is_fixed.get() && !concern.names_packages {
            return;
        }
        let priority = Priority { label: self.priority(), is_own: true };
        for id in BTreeSet::from_iter(self.cve_ids()) {
            sorted.add(id, priority, &concern);
        }
    }

    /// Whether one of its lists is longer than the limit.
    fn is_truncated(&self) -> bool {
        let ids = [&self.aliases, &self.upstream, &self.related];
        ids.into_iter().any(|few| few.is_truncated)
            || self.severity.is_truncated
            || self.affected.is_truncated
            || self.affected.entries.iter().any(AffectedEntry::is_truncated)
    }

    /// CVE IDs of the record, or its own ID if it names none.
    fn cve_ids(&self) -> Vec<&str> {
        if let Some(id) = find_cve_id(&self.id) {
            return vec![id];
        }
        let mut ids: Vec<_> = self.aliases.cve_ids().chain(self.upstream.cve_ids()).collect();
        if ids.is_empty() {
            ids.extend(self.related.cve_ids());
        }
        if ids.is_empty() {
            ids.push(&self.id);
        }
        ids
    }

    /// Priority as assigned by the database. CVSS vectors are ignored.
    fn priority(&self) -> &str {
        let own = self.severity.entries.iter();
        let own = own.filter(|one| !one.kind.0.starts_with("CVSS"));
        let own = own.map(|one| one.score.0.as_str());
        let of_all = self.database_specific.iter();
        let of_all = of_all.flat_map(SpecificFields::priorities);
        let of_packages = self.affected.entries.iter().flat_map(|one| {
            let of_ecosystem = one.ecosystem_specific.iter();
            let of_database = one.database_specific.iter();
            of_ecosystem
                .flat_map(SpecificFields::priorities)
                .chain(of_database.flat_map(SpecificFields::priorities))
        });
        own.chain(of_all).chain(of_packages).find(|text| is_label(text)).unwrap_or_default()
    }
}

impl AffectedEntry {
    /// Installed packages if they are named, otherwise the source package. A source package is left
    /// out if another entry of the record names its installed packages (`by_binaries`).
    fn package_names<'a>(
        &'a self,
        by_binaries: &HashSet<&str>,
    ) -> impl Iterator<Item = PackageName<'a>> {
        let names = self.binaries();
        let source = self.source().filter(|_| names.is_empty());
        let source = source.filter(|source| !by_binaries.contains(source));
        let installed = names.iter().map(|name| PackageName::Installed(name));
        installed.chain(source.map(PackageName::Source))
    }

    /// Whether the entry may be about the distribution of the image.
    fn may_concern(&self, installed: Option<&InstalledPackages>) -> bool {
        let ecosystem = self.package.as_ref().map(|package| package.ecosystem.0.as_str());
        installed.is_none_or(|installed| installed.may_be_in(ecosystem.unwrap_or_default()))
    }

    /// Whether a package of the image may be affected.
    fn affects(&self, name: PackageName<'_>, installed: Option<&InstalledPackages>) -> bool {
        let Some(installed) = installed else {
            return true;
        };
        let version = match name {
            PackageName::Installed(name) => installed.version(name),
            PackageName::Source(name) => match installed.source_version(name) {
                SourceVersion::Absent => return false,
                SourceVersion::Unknown => None,
                SourceVersion::Known(version) => Some(version),
            },
        };
        version.is_none_or(|version| self.versions().include(version))
    }

    fn versions(&self) -> AffectedVersions<'_> {
        AffectedVersions { ranges: &self.ranges, versions: &self.versions }
    }

    fn binaries(&self) -> &[String] {
        let own = self.ecosystem_specific.as_ref();
        own.map_or(&[][..], |own| own.binaries.names.as_slice())
    }

    /// Name of the source package.
    fn source(&self) -> Option<&str> {
        Some(&self.package.as_ref()?.name.0)
    }

    fn is_truncated(&self) -> bool {
        let own = self.ecosystem_specific.as_ref();
        own.is_some_and(|own| own.binaries.is_truncated)
    }
}

/// Reads records one by one into a list.
struct RecordListSeed<'a, 'b>(&'a mut CveListBuilder<'b>);

impl<'de> DeserializeSeed<'de> for RecordListSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for RecordListSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of records")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut records: A) -> Result<(), A::Error> {
        let mut number = 0_usize;
        while let Some(raw) = records.next_element::<&'de RawValue>()? {
            number += 1;
            if raw.get().len() > MAX_RECORD_BYTES {
                self.0.mark_truncated();
                continue;
            }
            let record: OsvRecord = serde_json::from_str(raw.get())
                .map_err(|error| A::Error::custom(format!("record {number}: {error}")))?;
            record.add_to(self.0);
        }
        Ok(())
    }
}

/// Reads the response of a server, which has its records in `vulns`.
struct OsvResponse<'a, 'b>(&'a mut CveListBuilder<'b>);

impl<'de> Visitor<'de> for OsvResponse<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a response with records")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let mut is_read = false;
        while let Some(key) = fields.next_key::<String>()? {
            match key.as_str() {
                "vulns" if is_read => return Err(A::Error::duplicate_field("vulns")),
                "vulns" => {
                    fields.next_value_seed(RecordListSeed(self.0))?;
                    is_read = true;
                }
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Installed packages that are built from a source package: a list of `{"binary_name": …}`, or of
/// objects with names as keys and versions as values.
#[derive(Default)]
struct Binaries {
    names: Vec<String>,
    /// Whether there are more.
    is_truncated: bool,
}

impl<'de> Deserialize<'de> for Binaries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BinariesVisitor)
    }
}

struct BinariesVisitor;

impl<'de> Visitor<'de> for BinariesVisitor {
    type Value = Binaries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of installed packages")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Binaries, E> {
        Ok(Binaries::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Binaries, A::Error> {
        let mut binaries = Binaries::default();
        while entries.next_element_seed(BinaryEntrySeed(&mut binaries))?.is_some() {}
        Ok(binaries)
    }
}

/// Reads one entry of a list of installed packages.
struct BinaryEntrySeed<'a>(&'a mut Binaries);

impl BinaryEntrySeed<'_> {
    fn add_name(&mut self, name: String) {
        if !is_package_name(&name) {
            return;
        }
        if self.0.names.len() < MAX_LIST_ENTRIES {
            self.0.names.push(name);
        } else {
            self.0.is_truncated = true;
        }
    }
}

impl<'de> DeserializeSeed<'de> for BinaryEntrySeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for BinaryEntrySeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("installed packages")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<(), A::Error> {
        while let Some(key) = fields.next_key::<String>()? {
            let value: LenientString = fields.next_value()?;
            match key.as_str() {
                "binary_name" => self.add_name(value.0),
                "binary_version" => {}
                _ => self.add_name(key),
            }
        }
        Ok(())
    }
}
