//! Groups of planned packages that can be installed one after another, because no package depends on one of another group.
//! Pure.
//!
//! A relation between two planned packages connects them if it is not satisfied both by the installed and by the planned
//! version: then one of them must not be changed without the other. What is not known connects as well.

use std::collections::BTreeMap;

use evenkeel_domain::package::PackageVersion;

use super::plan::StepItem;

/// The relations of versions, by the package's name and version.
pub type PackageRecords = BTreeMap<(String, String), PackageRecord>;

/// The relations of a version to other packages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageRecord {
    /// `Depends` and `Pre-Depends`: of each clause, one alternative must be satisfied.
    depends: Vec<Vec<Relation>>,
    /// `Breaks` and `Conflicts`.
    breaks: Vec<Relation>,
    /// Names of provided packages.
    provides: Vec<String>,
}

/// A package, optionally with a version: `libc6 (>= 2.36)`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Relation {
    name: String,
    /// Operator and version.
    version: Option<(String, String)>,
}

/// Parses the stanzas of `apt-cache show`.
pub fn parse_records(text: &str) -> PackageRecords {
    let record = |stanza: &str| {
        let field = |name: &str| {
            stanza.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key == name).then_some(value.trim())
            })
        };
        let clauses = |name: &str| {
            let clauses = field(name).unwrap_or_default().split(',');
            let clauses =
                clauses.map(|clause| clause.split('|').filter_map(Relation::parse).collect());
            clauses.filter(|clause: &Vec<Relation>| !clause.is_empty()).collect::<Vec<_>>()
        };
        let provides = clauses("Provides").into_iter().flatten().map(|relation| relation.name);
        let record = PackageRecord {
            depends: [clauses("Depends"), clauses("Pre-Depends")].concat(),
            breaks: [clauses("Breaks"), clauses("Conflicts")].concat().concat(),
            provides: provides.collect(),
        };
        Some(((field("Package")?.to_owned(), field("Version")?.to_owned()), record))
    };
    text.split("\n\n").filter_map(record).collect()
}

impl Relation {
    /// Parses `NAME[:ARCHITECTURE] [(OPERATOR VERSION)]`.
    fn parse(text: &str) -> Option<Self> {
        let (name, version) = match text.split_once('(') {
            None => (text, None),
            Some((name, version)) => (name, Some(version.trim().trim_end_matches(')').trim())),
        };
        let name = name.split(':').next().unwrap_or_default().trim();
        let version = version.map(|version: &str| {
            let number = version.trim_start_matches(['<', '=', '>']);
            let operator = version.strip_suffix(number).unwrap_or_default();
            (operator.to_owned(), number.trim().to_owned())
        });
        (!name.is_empty()).then(|| Self { name: name.to_owned(), version })
    }

    /// Whether the relation includes a version of the package that it names; `None` if that is not known.
    fn includes(&self, version: &str) -> Option<bool> {
        let Some((operator, number)) = &self.version else {
            return Some(true);
        };
        let parse = |text: &str| PackageVersion::parse("version", text).ok();
        let (version, number) = (parse(version)?, parse(number)?);
        match operator.as_str() {
            "<<" => Some(version < number),
            "<=" | "<" => Some(version <= number),
            "=" => Some(version == number),
            ">=" | ">" => Some(version >= number),
            ">>" => Some(version > number),
            _ => None,
        }
    }
}

/// A planned package with its versions before and after.
#[derive(Debug)]
struct Member<'a> {
    item: &'a StepItem,
    before: Option<(&'a str, &'a PackageRecord)>,
    after: (&'a str, &'a PackageRecord),
}

impl<'a> Member<'a> {
    /// `None` if the package is removed, or if a record is missing.
    fn new(item: &'a StepItem, records: &'a PackageRecords) -> Option<Self> {
        let find = |version: &'a String| {
            let key = (item.change.name.clone(), version.clone());
            Some((version.as_str(), records.get(&key)?))
        };
        let before = match &item.change.before {
            None => None,
            Some(version) => Some(find(version)?),
        };
        Some(Self { item, before, after: find(item.change.after.as_ref()?)? })
    }

    fn versions(&self) -> impl Iterator<Item = (&'a str, &'a PackageRecord)> {
        self.before.into_iter().chain([self.after])
    }

    fn is_named(&self, relation: &Relation) -> bool {
        let is_provided = |record: &PackageRecord| record.provides.contains(&relation.name);
        self.item.change.name == relation.name
            || self.versions().any(|(_, record)| is_provided(record))
    }

    /// Whether a version satisfies a relation for certain. A provided name satisfies only a relation without a version.
    fn satisfies(&self, relation: &Relation, (version, record): (&str, &PackageRecord)) -> bool {
        if self.item.change.name == relation.name {
            return relation.includes(version) == Some(true);
        }
        relation.version.is_none() && record.provides.contains(&relation.name)
    }

    /// Whether the relation is satisfied before and after the change of this package.
    fn always_satisfies(&self, relation: &Relation) -> bool {
        self.before.is_some() && self.versions().all(|version| self.satisfies(relation, version))
    }

    /// Whether a relation may be about one of the versions.
    fn may_match(&self, relation: &Relation) -> bool {
        let has_name = self.item.change.name == relation.name;
        self.is_named(relation)
            && (!has_name
                || self.versions().any(|(version, _)| relation.includes(version) != Some(false)))
    }
}

/// The groups of the planned packages, by their names in apt, in the order of their first packages. One group if a record
/// is missing.
pub fn find_groups(items: &[StepItem], records: &PackageRecords) -> Vec<Vec<String>> {
    let members: Option<Vec<_>> = items.iter().map(|item| Member::new(item, records)).collect();
    let Some(members) = members else {
        return vec![items.iter().map(|item| item.package.clone()).collect()];
    };
    let mut group_of: Vec<usize> = (0..members.len()).collect();
    for (at, member) in members.iter().enumerate() {
        for other in connected_members(at, member, &members) {
            merge_groups(&mut group_of, at, other);
        }
    }
    let mut groups: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (group, member) in group_of.iter().zip(&members) {
        groups.entry(*group).or_default().push(member.item.package.clone());
    }
    groups.into_values().collect()
}

/// The planned packages that must not be changed without this one.
fn connected_members(at: usize, member: &Member<'_>, members: &[Member<'_>]) -> Vec<usize> {
    let others = || members.iter().enumerate().filter(|(other, _)| *other != at);
    // The architectures of one package are changed together.
    let same_name = others().filter(|(_, other)| other.item.change.name == member.item.change.name);
    let mut connected: Vec<usize> = same_name.map(|(other, _)| other).collect();
    for (_, record) in member.versions() {
        for clause in &record.depends {
            let is_safe = others()
                .any(|(_, other)| clause.iter().any(|relation| other.always_satisfies(relation)));
            if !is_safe {
                let named = others()
                    .filter(|(_, other)| clause.iter().any(|relation| other.is_named(relation)));
                connected.extend(named.map(|(other, _)| other));
            }
        }
        for relation in &record.breaks {
            let matching = others().filter(|(_, other)| other.may_match(relation));
            connected.extend(matching.map(|(other, _)| other));
        }
    }
    connected
}

/// Gives both groups the smaller number, so that groups stay in the order of their first packages.
fn merge_groups(group_of: &mut [usize], one: usize, other: usize) {
    let (Some(&one), Some(&other)) = (group_of.get(one), group_of.get(other)) else {
        return;
    };
    for group in group_of.iter_mut().filter(|group| **group == one.max(other)) {
        *group = one.min(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PackageChange;

    fn item(name: &str, before: Option<&str>, after: &str) -> StepItem {
        StepItem {
            package: name.into(),
            change: PackageChange {
                name: name.split(':').next().unwrap().into(),
                architecture: "all".into(),
                before: before.map(str::to_owned),
                after: Some(after.into()),
                suite: String::new(),
                download_bytes: 0,
            },
        }
    }

    /// Packages that are upgraded from 1 to 2, with the fields of both versions.
    fn groups(packages: &[(&str, &str, &str)]) -> String {
        let items: Vec<_> = packages.iter().map(|(name, ..)| item(name, Some("1"), "2")).collect();
        let stanza = |name: &str, version: &str, fields: &str| {
            let name = name.split(':').next().unwrap();
            format!("Package: {name}\nVersion: {version}\nArchitecture: all\n{fields}\n\n")
        };
        let text: String = packages
            .iter()
            .flat_map(|(name, old, new)| [stanza(name, "1", old), stanza(name, "2", new)])
            .collect();
        describe(find_groups(&items, &parse_records(&text)))
    }

    fn describe(groups: Vec<Vec<String>>) -> String {
        groups.into_iter().map(|group| group.join(" ")).collect::<Vec<_>>().join(" | ")
    }

    /// Packages with the fields of both versions, and the expected groups.
    type GroupCase<'a> = (&'a [(&'a str, &'a str, &'a str)], &'a str);

    #[test]
    fn packages_that_need_each_others_new_versions_are_one_group() {
        let cases: [GroupCase<'_>; 13] = [
            (&[("a", "", ""), ("b", "", "")], "a | b"),
            // Satisfied by the old and by the new version.
            (&[("a", "Depends: b", "Depends: b (>= 1)"), ("b", "", "")], "a | b"),
            // The new version needs the new one.
            (&[("a", "Depends: b", "Depends: b (>= 2), c"), ("b", "", "")], "a b"),
            // The old version needs the old one.
            (&[("a", "Pre-Depends: b (= 1)", ""), ("b", "", "")], "a b"),
            // An alternative that does not change is not enough to be certain, one that is always there is.
            (&[("a", "", "Depends: x | b (>= 2)"), ("b", "", "")], "a b"),
            (&[("a", "", "Depends: b (>= 2) | c"), ("b", "", ""), ("c", "", "")], "a | b | c"),
            (&[("a", "", ""), ("b", "", "Breaks: a (<< 2)")], "a b"),
            (&[("a", "", ""), ("b", "", "Conflicts: a (<< 1)")], "a | b"),
            (&[("a", "Depends: mail", "Depends: mail"), ("b", "Provides: mail", "")], "a b"),
            (
                &[("a", "", "Depends: mail"), ("b", "Provides: mail", "Provides: mail (= 2)")],
                "a | b",
            ),
            (&[("a:i386", "", ""), ("b", "", ""), ("a", "", "")], "a:i386 a | b"),
            (&[("a", "", "Depends: c (>= 2)"), ("b", "", ""), ("c", "", "")], "a c | b"),
            (&[("a", "", "Depends: b:any (>= not a version)"), ("b", "", "")], "a b"),
        ];
        for (packages, expected) in cases {
            assert_eq!(groups(packages), expected, "{packages:?}");
        }
    }

    #[test]
    fn a_new_package_belongs_to_the_packages_that_need_it() {
        let items = [item("a", Some("1"), "2"), item("b", None, "1"), item("c", Some("1"), "2")];
        let text = "Package: a\nVersion: 1\n\nPackage: a\nVersion: 2\nDepends: b\n\n\
            Package: b\nVersion: 1\n\nPackage: c\nVersion: 1\n\nPackage: c\nVersion: 2\n";
        assert_eq!(describe(find_groups(&items, &parse_records(text))), "a b | c");
    }

    #[test]
    fn without_all_records_there_is_one_group() {
        let items = [item("a", Some("1"), "2"), item("b", Some("1"), "2")];
        let text = "Package: a\nVersion: 1\n\nPackage: a\nVersion: 2\n\nPackage: b\nVersion: 2\n";
        assert_eq!(describe(find_groups(&items, &parse_records(text))), "a b");
        assert!(find_groups(&[], &PackageRecords::new()).is_empty());
    }
}
