//! Groups of planned packages that can be installed one after another, because no package depends on one of another group.
//! Pure.
//!
//! A relation between two planned packages connects them if it is not satisfied both by the installed and by the planned
//! version: then one of them must not be changed without the other. What is not known connects as well.

use std::collections::{BTreeMap, BTreeSet};

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

    /// The names that relations can use for it: its own and those that its versions provide.
    fn names(&self) -> impl Iterator<Item = &'a str> {
        let provided = self.versions().flat_map(|(_, record)| &record.provides);
        std::iter::once(&self.item.change.name).chain(provided).map(String::as_str)
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

    /// Whether a relation to one of the names may be about one of the versions.
    fn may_match(&self, relation: &Relation) -> bool {
        let has_name = self.item.change.name == relation.name;
        !has_name || self.versions().any(|(version, _)| relation.includes(version) != Some(false))
    }
}

/// The planned packages, and the numbers of those that have or provide a name. A comparison of each package with each other
/// one would take minutes for the update of thousands of packages.
#[derive(Debug)]
struct MemberIndex<'a> {
    members: Vec<Member<'a>>,
    by_name: BTreeMap<&'a str, BTreeSet<usize>>,
}

impl<'a> MemberIndex<'a> {
    fn new(members: Vec<Member<'a>>) -> Self {
        let mut by_name: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        for (number, member) in members.iter().enumerate() {
            for name in member.names() {
                by_name.entry(name).or_default().insert(number);
            }
        }
        Self { members, by_name }
    }

    /// The packages that have or provide a name, except one.
    fn find_others(&self, at: usize, name: &str) -> impl Iterator<Item = (usize, &Member<'a>)> {
        let numbers = self.by_name.get(name).into_iter().flatten().copied();
        let members = numbers.filter_map(move |number| Some((number, self.members.get(number)?)));
        members.filter(move |(number, _)| *number != at).inspect(|_| count_comparison())
    }

    /// The planned packages that must not be changed without this one.
    fn connected_members(&self, at: usize, member: &Member<'_>) -> Vec<usize> {
        // The architectures of one package are changed together.
        let name = &member.item.change.name;
        let same_name = self.find_others(at, name);
        let same_name = same_name.filter(|(_, other)| other.item.change.name == *name);
        let mut connected: Vec<usize> = same_name.map(|(other, _)| other).collect();
        for (_, record) in member.versions() {
            for clause in &record.depends {
                let is_satisfied = |relation: &Relation| {
                    let mut others = self.find_others(at, &relation.name);
                    others.any(|(_, other)| other.always_satisfies(relation))
                };
                if !clause.iter().any(is_satisfied) {
                    let named =
                        clause.iter().flat_map(|relation| self.find_others(at, &relation.name));
                    connected.extend(named.map(|(other, _)| other));
                }
            }
            for relation in &record.breaks {
                let others = self.find_others(at, &relation.name);
                let matching = others.filter(|(_, other)| other.may_match(relation));
                connected.extend(matching.map(|(other, _)| other));
            }
        }
        connected
    }
}

/// Counts the comparisons of two packages in tests.
fn count_comparison() {
    #[cfg(test)]
    tests::COMPARISONS.with(|count| count.set(count.get() + 1));
}

/// The groups of the planned packages, by their names in apt, in the order of their first packages. One group if a record
/// is missing.
pub fn find_groups(items: &[StepItem], records: &PackageRecords) -> Vec<Vec<String>> {
    let members: Option<Vec<_>> = items.iter().map(|item| Member::new(item, records)).collect();
    let Some(members) = members else {
        return vec![items.iter().map(|item| item.package.clone()).collect()];
    };
    let index = MemberIndex::new(members);
    // Each package leads to an earlier one of its group; the first one leads to itself.
    let mut earlier: Vec<usize> = (0..items.len()).collect();
    for (at, member) in index.members.iter().enumerate() {
        for other in index.connected_members(at, member) {
            merge_groups(&mut earlier, at, other);
        }
    }
    let mut groups: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        let first = find_first(&mut earlier, at);
        groups.entry(first).or_default().push(item.package.clone());
    }
    groups.into_values().collect()
}

/// Makes one group of two: its first package is the earlier one, so that groups stay in the order of their first packages.
fn merge_groups(earlier: &mut [usize], one: usize, other: usize) {
    let (one, other) = (find_first(earlier, one), find_first(earlier, other));
    if let Some(later) = earlier.get_mut(one.max(other)) {
        *later = one.min(other);
    }
}

/// The first package of a group. Shortens the way to it for the next time.
fn find_first(earlier: &mut [usize], mut at: usize) -> usize {
    while let Some(next) = earlier.get(at).copied().filter(|next| *next != at) {
        let after_next = earlier.get(next).copied().unwrap_or(next);
        if let Some(here) = earlier.get_mut(at) {
            *here = after_next;
        }
        at = after_next;
    }
    at
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::model::PackageChange;

    thread_local! {
        pub(super) static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    fn item(name: &str, before: Option<&str>, after: &str) -> StepItem {
        StepItem {
            package: name.into(),
            change: PackageChange {
                name: name.split(':').next().unwrap().into(),
                architecture: "all".into(),
                before: before.map(str::to_owned),
                after: Some(after.into()),
                ..PackageChange::default()
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

    /// As in the update of a whole system: everything depends on a library, and each package on the one before it.
    #[test]
    fn each_package_is_compared_only_with_those_that_its_relations_name() {
        let count = 3_000;
        let names: Vec<_> = (0..count).map(|number| format!("p{number}")).collect();
        let depends: Vec<_> = (0..count)
            .map(|number: usize| match number.checked_sub(1) {
                None => String::new(),
                Some(before) if number.is_multiple_of(3) => {
                    format!("Depends: p0, p{before} (>= 1)")
                }
                Some(before) => format!("Depends: p0 (>= 1), p{before} (>= 2)"),
            })
            .collect();
        let packages: Vec<_> = names
            .iter()
            .zip(&depends)
            .map(|(name, depends)| (name.as_str(), "Breaks: gone (<< 1)", depends.as_str()))
            .collect();
        COMPARISONS.set(0);
        let found = groups(&packages);
        assert!(found.starts_with("p0 p1 p2 | p3 p4 p5 | p6"), "{}", &found[..40]);
        assert_eq!(found.split(" | ").count(), count / 3);
        let comparisons = COMPARISONS.get();
        assert!((count..6 * count).contains(&comparisons), "{comparisons} comparisons");
    }
}
