//! State of a node after an update or an interruption: packages, files, journal and everything that is wrong.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::lab::Node;

/// Prints the state of a node. Runs on the node.
const INSPECT_SCRIPT: &str = include_str!("../lab/look-around");

/// State of a node, as the script prints it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    /// Version and state of each requested package, by name. Empty if dpkg does not know the package.
    pub packages: BTreeMap<String, String>,
    /// Digest of the names and contents of all files of the packages.
    pub files: String,
    /// The agent's journal, if it has one. It holds the attempt that is open or not fully reported.
    pub journal: Option<Value>,
    /// Everything that is wrong: findings of dpkg, half-configured packages, missing and stale files.
    pub faults: Vec<String>,
    /// Package files that the agent keeps on disk.
    pub cached_debs: Vec<String>,
}

impl NodeState {
    /// The command that prints the state. Works on a running node and on a node that is off.
    pub fn inspect_command<'a>(packages: &[&'a str]) -> Vec<&'a str> {
        let shell = ["sh", "-c", INSPECT_SCRIPT, "look-around"];
        [&shell[..], packages].concat()
    }

    /// Reads the state of a node in a separate boot.
    #[track_caller]
    pub fn inspect(node: &Node, packages: &[&str]) -> Self {
        Self::parse(&node.succeed(&Self::inspect_command(packages)))
    }

    /// Parses the output of the command. Unknown lines are ignored.
    pub fn parse(output: &str) -> Self {
        let mut result = Self::default();
        for line in output.lines() {
            let (kind, text) = line.split_once(' ').unwrap_or((line, ""));
            match kind {
                "package" => {
                    let (name, state) = text.split_once(' ').unwrap_or((text, ""));
                    result.packages.insert(name.to_owned(), state.to_owned());
                }
                "files" => text.clone_into(&mut result.files),
                "kept" => result.cached_debs.push(text.to_owned()),
                "journal" => match serde_json::from_str(text) {
                    Ok(journal) => result.journal = Some(journal),
                    Err(error) => result.faults.push(format!("the journal: {error}")),
                },
                "audit" | "between" | "missing" | "left" => result.faults.push(line.to_owned()),
                _ => {}
            }
        }
        if result.files.is_empty() {
            result.faults.push("the script printed no digest of the files".to_owned());
        }
        result
    }

    /// Phase of the attempt in the journal.
    pub fn phase(&self) -> Option<&str> {
        self.journal.as_ref()?["attempt"]["phase"].as_str()
    }

    /// Kind of the last event of the attempt, such as `finished`.
    pub fn last_event_kind(&self) -> Option<&str> {
        let events = self.journal.as_ref()?["attempt"]["events"].as_array()?;
        let kind = &events.last()?["kind"];
        // A kind without data is a string. A kind with data is an object with one member.
        let member = || kind.as_object()?.keys().next().map(String::as_str);
        kind.as_str().or_else(member)
    }

    fn matches(&self, other: &Self) -> bool {
        self.packages == other.packages && self.files == other.files
    }
}

/// The two states in which an update may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndState {
    /// Nothing has changed.
    Old,
    /// Everything has changed as planned.
    New,
}

/// States of a node before and after the update.
#[derive(Clone, Debug)]
pub struct ExpectedStates {
    old: NodeState,
    new: NodeState,
}

impl ExpectedStates {
    /// Creates the expected states from two undisturbed nodes.
    ///
    /// # Panics
    /// A state has faults, or the update changes nothing.
    #[track_caller]
    pub fn new(old: NodeState, new: NodeState) -> Self {
        for end in [&old, &new] {
            assert!(end.faults.is_empty(), "{end:#?}");
        }
        let changed = |name: &String| old.packages[name] != new.packages[name];
        assert!(new.packages.keys().all(changed), "{old:#?}\n{new:#?}");
        assert_ne!(old.files, new.files);
        Self { old, new }
    }

    /// The state that the node has reached, or `None` if it is in between.
    pub fn reached(&self, node: &NodeState) -> Option<EndState> {
        if node.matches(&self.new) {
            return Some(EndState::New);
        }
        node.matches(&self.old).then_some(EndState::Old)
    }

    /// Faults of a node that must be in one of the two states. Empty if there are none.
    pub fn faults(&self, node: &NodeState) -> Vec<String> {
        let mut faults = node.faults.clone();
        if self.reached(node).is_none() {
            faults.push(format!(
                "the node is neither in the old nor in the new state: {:?}, files {}",
                node.packages, node.files
            ));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node_state(version: &str, more: &str) -> NodeState {
        NodeState::parse(&format!(
            "package a {version} installed\npackage b {version} installed\nfiles digest-{version}\n{more}"
        ))
    }

    fn expected() -> ExpectedStates {
        ExpectedStates::new(node_state("1.0", ""), node_state("1.1", ""))
    }

    #[test]
    fn a_node_is_in_the_old_state_the_new_state_or_in_between() {
        assert_eq!(expected().reached(&node_state("1.0", "unknown line")), Some(EndState::Old));
        assert_eq!(expected().reached(&node_state("1.1", "kept a.deb")), Some(EndState::New));
        let half = "package a 1.1 installed\npackage b 1.0 installed\nfiles digest-1.1\n";
        let half = NodeState::parse(half);
        assert_eq!(expected().reached(&half), None);
        assert_eq!(expected().faults(&half).len(), 1);
        let torn = "package a 1.1 installed\npackage b 1.1 installed\nfiles other\n";
        assert_eq!(expected().faults(&NodeState::parse(torn)).len(), 1);
    }

    #[test]
    fn every_problem_that_the_script_prints_is_a_fault() {
        for line in [
            "audit The following packages are in a mess",
            "between a half-configured",
            "missing /opt/a",
            "left /opt/a.dpkg-new",
            "journal {\"format\":",
        ] {
            assert_eq!(expected().faults(&node_state("1.1", line)).len(), 1, "{line}");
        }
        assert_eq!(NodeState::parse("").faults.len(), 1);
    }

    #[test]
    fn the_journal_yields_the_phase_and_the_kind_of_the_last_event() {
        let journal = |kind: &str| {
            let events = format!(r#"[{{"kind":{{"downloading":{{}}}}}},{{"kind":{kind}}}]"#);
            let line = format!(r#"journal {{"attempt":{{"phase":"ended","events":{events}}}}}"#);
            node_state("1.1", &line)
        };
        let finished = journal(r#"{"finished":{"results":[]}}"#);
        assert_eq!(finished.phase(), Some("ended"));
        assert_eq!(finished.last_event_kind(), Some("finished"));
        assert_eq!(journal(r#""began""#).last_event_kind(), Some("began"));
        assert_eq!(node_state("1.1", "").phase(), None);
    }
}
