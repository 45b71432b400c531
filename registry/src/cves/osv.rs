//! Documents in the form of OSV.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use super::sorted::{Name, Priority, Sorted, is_name, is_word};
use super::{Cves, bad, cve_in, too_large};
use crate::finding::Finding;

/// The largest record, in bytes. What it becomes while it is read takes up to ten times as much memory, for a name of one
/// letter needs six bytes there and about sixty here. So a larger one is not even begun.
const MAX_RECORD: usize = 4 * 1024 * 1024;

/// How many entries of one list within a record are looked at, and how many packages are installed of one source.
const MOST: usize = 4_000;

/// Reads a list of records.
pub(super) fn list(text: &str, of: Option<&HashSet<String>>) -> Result<Cves, Finding> {
    let mut sorted = Sorted::new(of);
    let mut json = serde_json::Deserializer::from_str(text);
    let read = Records(&mut sorted).deserialize(&mut json);
    read.and_then(|()| json.end()).map_err(bad)?;
    Ok(sorted.shown())
}

/// Reads a record, or an answer with records.
pub(super) fn object(text: &str, of: Option<&HashSet<String>>) -> Result<Cves, Finding> {
    #[derive(Deserialize)]
    struct Shape {
        vulns: Option<IgnoredAny>,
        id: Option<IgnoredAny>,
    }

    let shape: Shape = serde_json::from_str(text).map_err(bad)?;
    let mut sorted = Sorted::new(of);
    match (shape.vulns, shape.id) {
        (Some(_), _) => {
            let mut json = serde_json::Deserializer::from_str(text);
            let read = json.deserialize_map(Answer(&mut sorted));
            read.and_then(|()| json.end()).map_err(bad)?;
        }
        (None, Some(_)) if text.len() > MAX_RECORD => return Err(too_large(MAX_RECORD as u64)),
        (None, Some(_)) => serde_json::from_str::<Record>(text)
            .map_err(bad)?
            .add_to(&mut sorted),
        (None, None) => return Err(bad("it has neither an id nor vulns")),
    }
    Ok(sorted.shown())
}

/// What a record says, as far as it is of use.
#[derive(Deserialize)]
struct Record {
    id: String,
    #[serde(default)]
    aliases: Few<Word>,
    #[serde(default)]
    upstream: Few<Word>,
    #[serde(default)]
    related: Few<Word>,
    #[serde(default)]
    withdrawn: Word,
    #[serde(default)]
    severity: Few<Severity>,
    #[serde(default)]
    affected: Few<Affected>,
    database_specific: Option<Specific<IgnoredAny>>,
}

#[derive(Deserialize)]
struct Severity {
    #[serde(default, rename = "type")]
    kind: Word,
    #[serde(default)]
    score: Word,
}

#[derive(Deserialize)]
struct Affected {
    package: Option<Package>,
    ecosystem_specific: Option<Specific<Binaries>>,
    database_specific: Option<Specific<IgnoredAny>>,
}

#[derive(Deserialize)]
struct Package {
    #[serde(default)]
    name: Word,
}

/// What only some say. `B` is how the packages are read that are installed: databases name none.
#[derive(Deserialize)]
struct Specific<B> {
    #[serde(default)]
    severity: Word,
    #[serde(default)]
    ubuntu_priority: Word,
    #[serde(default)]
    urgency: Word,
    #[serde(default)]
    binaries: B,
}

impl<B> Specific<B> {
    /// What it says about how bad a vulnerability is, the best first.
    fn priorities(&self) -> [&str; 3] {
        [&self.ubuntu_priority, &self.severity, &self.urgency].map(|word| word.0.as_str())
    }
}

impl Record {
    fn add_to(&self, sorted: &mut Sorted<'_>) {
        if !self.withdrawn.0.is_empty() {
            return;
        }
        if sorted.is_full() {
            sorted.cut_short();
            return;
        }
        let affected = &self.affected.entries;
        // One part of a source may be installed by these names and another part not at all.
        let by_binaries: HashSet<&str> = affected
            .iter()
            .filter(|one| !one.binaries().is_empty())
            .filter_map(Affected::source)
            .collect();
        let names = affected.iter().flat_map(|one| one.names(&by_binaries));
        let concern = sorted.concern(names, !self.is_cut());
        let priority = Priority {
            word: self.priority(),
            is_own: true,
        };
        for id in BTreeSet::from_iter(self.ids()) {
            sorted.add(id, priority, &concern);
        }
    }

    /// Whether one of its lists is longer than what is looked at.
    fn is_cut(&self) -> bool {
        let ids = [&self.aliases, &self.upstream, &self.related];
        ids.into_iter().any(|few| few.is_cut)
            || self.severity.is_cut
            || self.affected.is_cut
            || self.affected.entries.iter().any(Affected::is_cut)
    }

    /// The vulnerabilities that it is about; what it calls itself if it names none.
    fn ids(&self) -> Vec<&str> {
        if let Some(id) = cve_in(&self.id) {
            return vec![id];
        }
        let mut ids: Vec<_> = self.aliases.cves().chain(self.upstream.cves()).collect();
        if ids.is_empty() {
            ids.extend(self.related.cves());
        }
        if ids.is_empty() {
            ids.push(&self.id);
        }
        ids
    }

    /// How bad it is, in the words of whoever judged it. Vectors of CVSS are no words.
    fn priority(&self) -> &str {
        let own = self.severity.entries.iter();
        let own = own.filter(|one| !one.kind.0.starts_with("CVSS"));
        let own = own.map(|one| one.score.0.as_str());
        let of_all = self.database_specific.iter();
        let of_all = of_all.flat_map(Specific::priorities);
        let of_packages = self.affected.entries.iter().flat_map(|one| {
            let of_ecosystem = one.ecosystem_specific.iter();
            let of_database = one.database_specific.iter();
            of_ecosystem
                .flat_map(Specific::priorities)
                .chain(of_database.flat_map(Specific::priorities))
        });
        own.chain(of_all)
            .chain(of_packages)
            .find(|word| is_word(word))
            .unwrap_or_default()
    }
}

impl Affected {
    /// The packages that are installed, if they are named, or the one that they are built from, unless that is one of
    /// those of which the record says elsewhere what is installed.
    fn names<'a>(&'a self, by_binaries: &HashSet<&str>) -> impl Iterator<Item = Name<'a>> {
        let names = self.binaries();
        let source = self.source().filter(|_| names.is_empty());
        let source = source.filter(|source| !by_binaries.contains(source));
        let installed = names.iter().map(|name| Name::Installed(name));
        installed.chain(source.map(Name::Source))
    }

    fn binaries(&self) -> &[String] {
        let own = self.ecosystem_specific.as_ref();
        own.map_or(&[][..], |own| own.binaries.names.as_slice())
    }

    /// The package that it is about.
    fn source(&self) -> Option<&str> {
        Some(&self.package.as_ref()?.name.0)
    }

    fn is_cut(&self) -> bool {
        let own = self.ecosystem_specific.as_ref();
        own.is_some_and(|own| own.binaries.is_cut)
    }
}

/// Reads records one by one into a list.
struct Records<'a, 'b>(&'a mut Sorted<'b>);

impl<'de> DeserializeSeed<'de> for Records<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Records<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of records")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut records: A) -> Result<(), A::Error> {
        let mut number = 0_usize;
        while let Some(raw) = records.next_element::<&'de RawValue>()? {
            number += 1;
            if raw.get().len() > MAX_RECORD {
                self.0.cut_short();
                continue;
            }
            let record: Record = serde_json::from_str(raw.get())
                .map_err(|error| A::Error::custom(format!("record {number}: {error}")))?;
            record.add_to(self.0);
        }
        Ok(())
    }
}

/// Reads an answer of a server: its records are in `vulns`.
struct Answer<'a, 'b>(&'a mut Sorted<'b>);

impl<'de> Visitor<'de> for Answer<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer with records")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let mut is_read = false;
        while let Some(key) = fields.next_key::<String>()? {
            match key.as_str() {
                "vulns" if is_read => return Err(A::Error::duplicate_field("vulns")),
                "vulns" => {
                    fields.next_value_seed(Records(self.0))?;
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

/// The first entries of a list; none if there is null in its place.
struct Few<T> {
    entries: Vec<T>,
    /// Whether there are more.
    is_cut: bool,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            is_cut: false,
        }
    }
}

impl Few<Word> {
    fn cves(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|word| cve_in(&word.0))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FewVisitor(PhantomData))
    }
}

struct FewVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FewVisitor<T> {
    type Value = Few<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Few<T>, E> {
        Ok(Few::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Few<T>, A::Error> {
        let mut few = Few::default();
        while few.entries.len() < MOST {
            match entries.next_element()? {
                Some(entry) => few.entries.push(entry),
                None => return Ok(few),
            }
        }
        while entries.next_element::<IgnoredAny>()?.is_some() {
            few.is_cut = true;
        }
        Ok(few)
    }
}

/// A text; empty if something else stands in its place.
#[derive(Default)]
struct Word(String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordVisitor)
    }
}

struct WordVisitor;

impl<'de> Visitor<'de> for WordVisitor {
    type Value = Word;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Word, E> {
        Ok(Word(text.to_owned()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Word, E> {
        Ok(Word::default())
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<Word, E> {
        Ok(Word::default())
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<Word, E> {
        Ok(Word::default())
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Word, E> {
        Ok(Word::default())
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Word, E> {
        Ok(Word::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Word, A::Error> {
        while entries.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Word::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Word, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Word::default())
    }
}

/// The packages that are built from a source and installed: a list of `{"binary_name": …}`, or of names with versions.
#[derive(Default)]
struct Binaries {
    names: Vec<String>,
    /// Whether there are more.
    is_cut: bool,
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
        f.write_str("a list of packages that are installed")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Binaries, E> {
        Ok(Binaries::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Binaries, A::Error> {
        let mut binaries = Binaries::default();
        while entries.next_element_seed(More(&mut binaries))?.is_some() {}
        Ok(binaries)
    }
}

/// Reads one entry of a list of packages that are installed.
struct More<'a>(&'a mut Binaries);

impl More<'_> {
    fn name(&mut self, name: String) {
        if !is_name(&name) {
            return;
        }
        if self.0.names.len() < MOST {
            self.0.names.push(name);
        } else {
            self.0.is_cut = true;
        }
    }
}

impl<'de> DeserializeSeed<'de> for More<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for More<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("packages that are installed")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<(), A::Error> {
        while let Some(key) = fields.next_key::<String>()? {
            let value: Word = fields.next_value()?;
            match key.as_str() {
                "binary_name" => self.name(value.0),
                "binary_version" => {}
                _ => self.name(key),
            }
        }
        Ok(())
    }
}
