//! What must hold on a node after an update, whatever came between: all of it is there or nothing of it, dpkg finds
//! nothing wrong, and nothing is left over.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::lab::Node;

/// Tells how a node was left. Runs inside of it.
const LOOK_AROUND: &str = include_str!("../lab/look-around");

/// How a node was left.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Aftermath {
    /// Version and state of the packages that were asked for, by name; empty for one that is not there.
    pub packages: BTreeMap<String, String>,
    /// A digest of the names and the content of all their files.
    pub files: String,
    /// The attempt that is open, or not told yet; none if there is none.
    pub journal: Option<Value>,
    /// What there must not be, in words: what dpkg finds wrong, packages in between, files that are missing or left over.
    pub faults: Vec<String>,
    /// The packages' files that the agent keeps.
    pub kept: Vec<String>,
}

impl Aftermath {
    /// The command that tells it, for a node that runs or is off.
    pub fn words<'a>(packages: &[&'a str]) -> Vec<&'a str> {
        let shell = ["sh", "-c", LOOK_AROUND, "look-around"];
        [&shell[..], packages].concat()
    }

    /// Looks at a node, in a boot of its own.
    #[track_caller]
    pub fn of(node: &Node, packages: &[&str]) -> Self {
        Self::read(&node.succeed(&Self::words(packages)))
    }

    /// Understands what the command told. Other lines are passed over.
    pub fn read(told: &str) -> Self {
        let mut found = Self::default();
        for line in told.lines() {
            let (kind, text) = line.split_once(' ').unwrap_or((line, ""));
            match kind {
                "package" => {
                    let (name, state) = text.split_once(' ').unwrap_or((text, ""));
                    found.packages.insert(name.to_owned(), state.to_owned());
                }
                "files" => text.clone_into(&mut found.files),
                "kept" => found.kept.push(text.to_owned()),
                "journal" => match serde_json::from_str(text) {
                    Ok(journal) => found.journal = Some(journal),
                    Err(error) => found.faults.push(format!("the journal: {error}")),
                },
                "audit" | "between" | "missing" | "left" => found.faults.push(line.to_owned()),
                _ => {}
            }
        }
        if found.files.is_empty() {
            found.faults.push("the node tells nothing".to_owned());
        }
        found
    }

    /// How far the attempt has come that is in the journal.
    pub fn phase(&self) -> Option<&str> {
        self.journal.as_ref()?["attempt"]["phase"].as_str()
    }

    /// What happened last in it, such as `finished`.
    pub fn last_news(&self) -> Option<&str> {
        let events = self.journal.as_ref()?["attempt"]["events"].as_array()?;
        let news = &events.last()?["news"];
        // What has nothing to add is a word, all else an object with one member.
        let member = || news.as_object()?.keys().next().map(String::as_str);
        news.as_str().or_else(member)
    }

    fn is_as(&self, other: &Self) -> bool {
        self.packages == other.packages && self.files == other.files
    }
}

/// The two ways in which an update may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Everything is as it was.
    Old,
    /// Everything is as it was planned.
    New,
}

/// How a node is before the update and after it.
#[derive(Clone, Debug)]
pub struct Ends {
    old: Aftermath,
    new: Aftermath,
}

impl Ends {
    /// The ends of an update, from nodes that nothing happened to.
    ///
    /// # Panics
    /// There is something wrong with one of them, or the update changes nothing.
    #[track_caller]
    pub fn new(old: Aftermath, new: Aftermath) -> Self {
        for end in [&old, &new] {
            assert!(end.faults.is_empty(), "{end:#?}");
        }
        let changed = |name: &String| old.packages[name] != new.packages[name];
        assert!(new.packages.keys().all(changed), "{old:#?}\n{new:#?}");
        assert_ne!(old.files, new.files);
        Self { old, new }
    }

    /// Which end a node has come to; none if it is in between.
    pub fn reached(&self, node: &Aftermath) -> Option<End> {
        if node.is_as(&self.new) {
            return Some(End::New);
        }
        node.is_as(&self.old).then_some(End::Old)
    }

    /// What is wrong with a node, which must be at one of the ends; empty if nothing is.
    pub fn faults(&self, node: &Aftermath) -> Vec<String> {
        let mut faults = node.faults.clone();
        if self.reached(node).is_none() {
            faults.push(format!(
                "neither as before nor as planned: {:?}, files {}",
                node.packages, node.files
            ));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(version: &str, more: &str) -> Aftermath {
        Aftermath::read(&format!(
            "package a {version} installed\npackage b {version} installed\nfiles digest-{version}\n{more}"
        ))
    }

    fn ends() -> Ends {
        Ends::new(told("1.0", ""), told("1.1", ""))
    }

    #[test]
    fn a_node_is_as_before_or_as_planned_or_in_between() {
        assert_eq!(
            ends().reached(&told("1.0", "said something")),
            Some(End::Old)
        );
        assert_eq!(ends().reached(&told("1.1", "kept a.deb")), Some(End::New));
        let half = "package a 1.1 installed\npackage b 1.0 installed\nfiles digest-1.1\n";
        let half = Aftermath::read(half);
        assert_eq!(ends().reached(&half), None);
        assert_eq!(ends().faults(&half).len(), 1);
        let torn = "package a 1.1 installed\npackage b 1.1 installed\nfiles other\n";
        assert_eq!(ends().faults(&Aftermath::read(torn)).len(), 1);
    }

    #[test]
    fn whatever_dpkg_or_the_agent_leaves_behind_is_a_fault() {
        for line in [
            "audit The following packages are in a mess",
            "between a half-configured",
            "missing /opt/a",
            "left /opt/a.dpkg-new",
            "journal {\"format\":",
        ] {
            assert_eq!(ends().faults(&told("1.1", line)).len(), 1, "{line}");
        }
        assert_eq!(Aftermath::read("").faults.len(), 1);
    }

    #[test]
    fn the_journal_tells_how_far_it_came_and_what_happened_last() {
        let journal = |news: &str| {
            let events = format!(r#"[{{"news":{{"downloading":{{}}}}}},{{"news":{news}}}]"#);
            let line = format!(r#"journal {{"attempt":{{"phase":"over","events":{events}}}}}"#);
            told("1.1", &line)
        };
        let finished = journal(r#"{"finished":{"results":[]}}"#);
        assert_eq!(finished.phase(), Some("over"));
        assert_eq!(finished.last_news(), Some("finished"));
        assert_eq!(journal(r#""began""#).last_news(), Some("began"));
        assert_eq!(told("1.1", "").phase(), None);
    }
}
