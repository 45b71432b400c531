//! What nobody outside of a project may be told.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use uuid::Uuid;

use super::side::Side;
use crate::house::House;

/// The ids and names of a project.
pub struct Secrets {
    /// The word that is in all names.
    pub mark: &'static str,
    /// All that is told in the project and tells it from the other one.
    pub all: Vec<String>,
    /// The ids by what stands before their dash.
    ids: BTreeMap<String, Vec<String>>,
    known: HashSet<String>,
    /// The first digits behind the last dash of each, to look for all of them at once.
    digits: HashSet<String>,
}

/// How many digits an id has.
const DIGITS: usize = 8;

impl Secrets {
    /// What there is to be told of a project that is not true of the other one as well.
    pub async fn of(side: &Side, other: &Side, house: &House) -> Self {
        let (told, elsewhere) = (side.told(house).await, other.told(house).await);
        let elsewhere: HashSet<&str> = words(&elsewhere).collect();
        let mut all: BTreeSet<String> = words(&told)
            .filter(|word| is_telling(word, side.mark) && !elsewhere.contains(word))
            .map(str::to_owned)
            .collect();
        all.insert(side.tenant.to_string());
        let mut ids: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut digits = HashSet::new();
        for word in &all {
            let Some((prefix, end)) = word.rsplit_once('-') else {
                continue;
            };
            if is_id(word) {
                ids.entry(prefix.to_owned()).or_default().push(word.clone());
            }
            if let Some(first) = end.get(..DIGITS) {
                digits.insert(first.to_owned());
            }
        }
        Self {
            mark: side.mark,
            known: all.iter().cloned().collect(),
            all: all.into_iter().collect(),
            ids,
            digits,
        }
    }

    /// The ids of a kind, by what stands before their dash.
    pub fn ids_of(&self, prefix: &str) -> &[String] {
        self.ids.get(prefix).map(Vec::as_slice).unwrap_or_default()
    }

    /// All ids.
    pub fn ids(&self) -> impl Iterator<Item = &String> {
        self.ids.values().flatten()
    }

    /// The first secret that a text has and that whoever got it had not said already.
    pub fn told_in<'t>(&self, text: &'t str, said: &str) -> Option<&'t str> {
        let mut dashes = text.match_indices('-');
        let has_digits = dashes.any(|(at, _)| {
            let behind = text.get(at + 1..at + 1 + DIGITS);
            behind.is_some_and(|digits| self.digits.contains(digits))
        });
        let has_mark = || text.to_ascii_lowercase().contains(self.mark);
        if !has_digits && !has_mark() {
            return None;
        }
        let is_secret = |word: &&str| self.known.contains(*word) || has(word, self.mark);
        words(text)
            .filter(is_secret)
            .find(|word| !said.contains(*word))
    }
}

/// What may be an id or a name.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
}

fn has(word: &str, mark: &str) -> bool {
    word.to_ascii_lowercase().contains(mark)
}

fn is_telling(word: &str, mark: &str) -> bool {
    let is_uuid = word.len() == 36 && Uuid::try_parse(word).is_ok();
    is_id(word) || is_uuid || has(word, mark)
}

/// Whether it looks like `host-0a1b2c3d`.
fn is_id(word: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    word.split_once('-').is_some_and(|(prefix, digits)| {
        let is_prefix = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_lowercase());
        is_prefix && digits.len() == DIGITS && digits.bytes().all(is_digit)
    })
}
