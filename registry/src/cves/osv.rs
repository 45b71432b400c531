//! Documents in the form of OSV.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::sorted::Sorted;
use super::{Cves, bad, cve_in};
use crate::finding::Finding;

/// How many entries of one list within a record are looked at.
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
    database_specific: Option<Specific>,
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
    ecosystem_specific: Option<Specific>,
    database_specific: Option<Specific>,
}

#[derive(Deserialize)]
struct Package {
    #[serde(default)]
    name: Word,
}

#[derive(Deserialize)]
struct Specific {
    #[serde(default)]
    severity: Word,
    #[serde(default)]
    ubuntu_priority: Word,
    #[serde(default)]
    urgency: Word,
    #[serde(default)]
    binaries: Few<Binary>,
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
        let priority = self.priority();
        let packages: Vec<_> = self
            .affected
            .0
            .iter()
            .flat_map(Affected::packages)
            .collect();
        for id in BTreeSet::from_iter(self.ids()) {
            sorted.add(id, priority, packages.iter().copied());
        }
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
        let is_word = |one: &&Severity| !one.kind.0.starts_with("CVSS") && !one.score.0.is_empty();
        if let Some(own) = self.severity.0.iter().find(is_word) {
            return &own.score.0;
        }
        let of_packages = self.affected.0.iter().flat_map(|one| {
            let both = [&one.ecosystem_specific, &one.database_specific];
            both.into_iter().flatten()
        });
        let specifics = self.database_specific.iter().chain(of_packages);
        specifics
            .flat_map(|one| [&one.ubuntu_priority, &one.severity, &one.urgency])
            .map(|word| word.0.as_str())
            .find(|word| !word.is_empty())
            .unwrap_or_default()
    }
}

impl Affected {
    /// The packages that are installed, if they are named, or the one that they are built from.
    fn packages(&self) -> impl Iterator<Item = &str> {
        let binaries = self.ecosystem_specific.iter();
        let binaries = binaries.flat_map(|one| one.binaries.0.iter().flat_map(|one| &one.0));
        let is_source = self
            .ecosystem_specific
            .as_ref()
            .is_none_or(|one| one.binaries.0.is_empty());
        let source = self.package.as_ref().filter(|_| is_source);
        binaries
            .map(String::as_str)
            .chain(source.map(|package| package.name.0.as_str()))
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
        while let Some(record) = records.next_element::<Record>()? {
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
struct Few<T>(Vec<T>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl Few<Word> {
    fn cves(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|word| cve_in(&word.0))
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
        let mut few = Vec::new();
        while few.len() < MOST {
            match entries.next_element()? {
                Some(entry) => few.push(entry),
                None => return Ok(Few(few)),
            }
        }
        while entries.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Few(few))
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

/// Packages that are installed: `{"binary_name": …}`, or names with their versions.
struct Binary(Vec<String>);

impl<'de> Deserialize<'de> for Binary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(BinaryVisitor)
    }
}

struct BinaryVisitor;

impl<'de> Visitor<'de> for BinaryVisitor {
    type Value = Binary;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("packages that are installed")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Binary, A::Error> {
        let mut names = Vec::new();
        while let Some(key) = fields.next_key::<String>()? {
            let value: Word = fields.next_value()?;
            match key.as_str() {
                _ if names.len() >= MOST => {}
                "binary_name" => names.push(value.0),
                "binary_version" => {}
                _ => names.push(key),
            }
        }
        Ok(Binary(names))
    }
}
