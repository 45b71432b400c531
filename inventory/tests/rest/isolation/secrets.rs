//! Texts of a project that no other project may read.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use uuid::Uuid;

use super::test_project::TestProject;
use crate::test_server::TestServer;

/// The ids and names of a project.
pub struct Secrets {
    /// The mark that is in all names.
    pub mark: &'static str,
    /// All ids, UUIDs and names that occur in this project and not in the other one.
    pub all: Vec<String>,
    /// The ids by their prefix.
    ids: BTreeMap<String, Vec<String>>,
    lookup: HashSet<String>,
    /// The first digits after the last dash of each, to search for all of them at once.
    digits: HashSet<String>,
}

/// Number of digits of an id.
const DIGITS: usize = 8;

impl Secrets {
    /// Collects the texts of a project that do not occur in the other one.
    pub async fn collect(project: &TestProject, other: &TestProject, server: &TestServer) -> Self {
        let (own_text, elsewhere) = (project.read_all(server).await, other.read_all(server).await);
        let elsewhere: HashSet<&str> = split_candidates(&elsewhere).collect();
        let mut all: BTreeSet<String> = split_candidates(&own_text)
            .filter(|candidate| {
                is_distinctive(candidate, project.mark) && !elsewhere.contains(candidate)
            })
            .map(str::to_owned)
            .collect();
        all.insert(project.tenant.to_string());
        let mut ids: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut digits = HashSet::new();
        for candidate in &all {
            let Some((prefix, end)) = candidate.rsplit_once('-') else {
                continue;
            };
            if is_id(candidate) {
                ids.entry(prefix.to_owned()).or_default().push(candidate.clone());
            }
            if let Some(first) = end.get(..DIGITS) {
                digits.insert(first.to_owned());
            }
        }
        Self {
            mark: project.mark,
            lookup: all.iter().cloned().collect(),
            all: all.into_iter().collect(),
            ids,
            digits,
        }
    }

    pub fn ids_with_prefix(&self, prefix: &str) -> &[String] {
        self.ids.get(prefix).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn ids(&self) -> impl Iterator<Item = &String> {
        self.ids.values().flatten()
    }

    /// The first secret in a response that the caller did not send itself.
    pub fn find_leak<'t>(&self, text: &'t str, input: &str) -> Option<&'t str> {
        let mut dashes = text.match_indices('-');
        let has_digits = dashes.any(|(at, _)| {
            let behind = text.get(at + 1..at + 1 + DIGITS);
            behind.is_some_and(|digits| self.digits.contains(digits))
        });
        let has_mark = || text.to_ascii_lowercase().contains(self.mark);
        if !has_digits && !has_mark() {
            return None;
        }
        let is_secret = |candidate: &&str| {
            self.lookup.contains(*candidate) || contains_mark(candidate, self.mark)
        };
        split_candidates(text).filter(is_secret).find(|candidate| !input.contains(*candidate))
    }
}

/// Splits a text into what may be ids or names.
fn split_candidates(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
}

fn contains_mark(candidate: &str, mark: &str) -> bool {
    candidate.to_ascii_lowercase().contains(mark)
}

fn is_distinctive(candidate: &str, mark: &str) -> bool {
    let is_uuid = candidate.len() == 36 && Uuid::try_parse(candidate).is_ok();
    is_id(candidate) || is_uuid || contains_mark(candidate, mark)
}

/// Whether it looks like `host-0a1b2c3d`.
fn is_id(candidate: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    candidate.split_once('-').is_some_and(|(prefix, digits)| {
        let is_prefix = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_lowercase());
        is_prefix && digits.len() == DIGITS && digits.bytes().all(is_digit)
    })
}
