//! State of a whole Debian root: packages, marks, configuration files and names of files. It shows whether two updates had
//! the same result, and what an update changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::lab::Node;

/// Prints the state of a root. Runs on the node.
const DESCRIBE_SCRIPT: &str = include_str!("../lab/describe-root");

/// Kinds of facts that every root has. Without one of them the script failed.
const REQUIRED_KINDS: [&str; 5] = ["package", "automatic", "file", "link", "name"];

/// State of a root, as the script prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootState {
    facts: BTreeSet<String>,
}

/// Versions of a package before and after an update; empty if it was not installed.
pub type VersionChange = (String, String);

impl RootState {
    /// Reads the state of a node in a separate boot.
    #[track_caller]
    pub fn read(node: &Node) -> Self {
        Self::parse(&node.succeed(&["sh", "-c", DESCRIBE_SCRIPT, "describe-root"]))
    }

    /// Parses the output of the script.
    ///
    /// # Panics
    /// The output contains no fact of a kind that every root has.
    #[track_caller]
    pub fn parse(output: &str) -> Self {
        let state = Self { facts: output.lines().map(str::to_owned).collect() };
        for kind in REQUIRED_KINDS {
            assert!(state.facts_of(kind).next().is_some(), "no fact of the kind {kind:?}");
        }
        state
    }

    /// Facts of only one of the two roots: `-` for this one, `+` for the other.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let missing = self.facts.difference(&other.facts).map(|fact| format!("-{fact}"));
        let additional = other.facts.difference(&self.facts).map(|fact| format!("+{fact}"));
        missing.chain(additional).collect()
    }

    /// Problems that dpkg finds; empty if there are none.
    pub fn audit(&self) -> Vec<&str> {
        self.facts_of("audit").collect()
    }

    /// Every package whose version differs in `after`, by name.
    pub fn package_changes(&self, after: &Self) -> BTreeMap<String, VersionChange> {
        let (old, new) = (self.installed_versions(), after.installed_versions());
        let names: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
        let mut changes = BTreeMap::new();
        for name in names {
            let version = |versions: &BTreeMap<&str, &str>| {
                versions.get(name).copied().unwrap_or_default().to_owned()
            };
            let change = (version(&old), version(&new));
            if change.0 != change.1 {
                changes.insert(name.to_owned(), change);
            }
        }
        changes
    }

    /// Configuration files that an update retained although the package has another version: that version is next to
    /// the file in `after`, and was not there before.
    pub fn retained_conffiles(&self, after: &Self) -> BTreeSet<String> {
        &after.conffile_copies() - &self.conffile_copies()
    }

    fn conffile_copies(&self) -> BTreeSet<String> {
        let paths = self.facts_of("file").filter_map(|fact| fact.split(' ').next());
        let copies = paths.filter_map(|path| {
            path.strip_suffix(".dpkg-dist").or_else(|| path.strip_suffix(".ucf-dist"))
        });
        copies.map(str::to_owned).collect()
    }

    fn installed_versions(&self) -> BTreeMap<&str, &str> {
        let installed = self.facts_of("package").filter_map(|fact| {
            let mut words = fact.split(' ');
            let (name, version, state) = (words.next()?, words.next()?, words.next()?);
            (state == "installed").then_some((name, version))
        });
        installed.collect()
    }

    /// Facts of one kind, without the name of the kind.
    fn facts_of(&self, kind: &'static str) -> impl Iterator<Item = &str> {
        self.facts.iter().filter_map(move |fact| {
            let (fact_kind, rest) = fact.split_once(' ')?;
            (fact_kind == kind).then_some(rest)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMON: &str =
        "automatic b\nfile /etc/a 644 root:root 01\nlink /etc/b a\nname f /usr/a\n";

    fn root(facts: &str) -> RootState {
        RootState::parse(&format!("{COMMON}{facts}"))
    }

    #[test]
    fn any_fact_of_only_one_root_is_a_difference() {
        let one = root("package a 1.0 installed amd64 install\n");
        assert_eq!(one.differences(&one), [""; 0]);
        let other = root("package a 1.0 installed amd64 hold\nfile /etc/c 600 root:root 02\n");
        assert_eq!(
            one.differences(&other),
            [
                "-package a 1.0 installed amd64 install",
                "+file /etc/c 600 root:root 02",
                "+package a 1.0 installed amd64 hold",
            ]
        );
    }

    #[test]
    fn a_changed_a_new_and_a_removed_package_are_changes() {
        let before = root(
            "package a 1.0 installed amd64 install\npackage b 1.0 installed all install\n\
             package c 1.0 installed all install\n",
        );
        let after = root(
            "package a 1.1 installed amd64 install\npackage b 1.0 installed all install\n\
             package c 1.0 config-files all deinstall\npackage d 2.0 installed all install\n",
        );
        let change = |before: &str, after: &str| (before.to_owned(), after.to_owned());
        let expected = [
            ("a".to_owned(), change("1.0", "1.1")),
            ("c".to_owned(), change("1.0", "")),
            ("d".to_owned(), change("", "2.0")),
        ];
        assert_eq!(before.package_changes(&after), expected.into());
    }

    #[test]
    fn a_conffile_is_retained_if_the_version_of_the_package_is_new_next_to_it() {
        let package = "package a 1.0 installed amd64 install\n";
        let old = "file /etc/a.dpkg-dist 644 root:root 02\n";
        let before = root(&format!("{package}{old}"));
        let new =
            "file /etc/d/b.dpkg-dist 644 root:root 03\nfile /etc/u.ucf-dist 644 root:root 04\n";
        let after = root(&format!("{package}{old}{new}audit b is broken\n"));
        assert_eq!(
            before.retained_conffiles(&after),
            ["/etc/d/b", "/etc/u"].map(str::to_owned).into()
        );
        assert_eq!(before.audit(), [""; 0]);
        assert_eq!(after.audit(), ["b is broken"]);
    }

    #[test]
    #[should_panic(expected = "no fact of the kind \"package\"")]
    fn the_output_of_a_failed_script_is_no_state() {
        root("");
    }
}
