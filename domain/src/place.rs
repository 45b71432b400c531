//! Where hosts stand: sites, and the regions that they lie in.

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::id::{RegionId, SiteId};
use crate::invalid::Invalid;
use crate::text::Name;

/// How many regions may lie inside each other (northbound section 1.3).
pub const MAX_DEPTH: usize = 5;

/// A label: a key with a value (northbound section 1.3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// May have a prefix, before a slash.
    pub key: String,
    /// May be empty.
    pub value: String,
}

/// The labels of a thing, in the order in which they were given; no key twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metadata(Vec<Label>);

impl Metadata {
    /// The most labels of one thing.
    pub const MAX: usize = 100;

    /// Reads labels.
    ///
    /// # Errors
    /// There are too many, a key stands twice, or a key or value is not one.
    pub fn parse(labels: impl IntoIterator<Item = (String, String)>) -> Result<Self, Invalid> {
        let mut read = Vec::new();
        for (key, value) in labels {
            if read.len() == Self::MAX {
                return Err(Invalid::new("metadata", "more than 100 labels"));
            }
            if !is_key(&key) {
                return Err(Invalid::new("metadata", format!("`{key}` is not a key")));
            }
            if !is_word(&value, 63) {
                return Err(Invalid::new(
                    "metadata",
                    format!("`{value}` is not a value"),
                ));
            }
            if read.iter().any(|label: &Label| label.key == key) {
                return Err(Invalid::new("metadata", format!("`{key}` stands twice")));
            }
            read.push(Label { key, value });
        }
        Ok(Self(read))
    }

    /// The labels.
    #[must_use]
    pub fn as_slice(&self) -> &[Label] {
        &self.0
    }

    /// The labels that a thing with these labels of its own inherits from places, nearest first: the nearest value of a
    /// key wins, and its own keys are left out.
    #[must_use]
    pub fn inherited<'a>(&self, places: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut inherited: Vec<Label> = Vec::new();
        for label in places.into_iter().flat_map(|place| &place.0) {
            let known = |labels: &[Label]| labels.iter().any(|known| known.key == label.key);
            if !known(&self.0) && !known(&inherited) {
                inherited.push(label.clone());
            }
        }
        Self(inherited)
    }
}

/// A key is a word, or a prefix of lower-case letters and dots, a slash, and perhaps a word.
fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => {
            let is_letter = |b: u8| b.is_ascii_lowercase() || b == b'.';
            !prefix.is_empty()
                && prefix.len() <= 253
                && prefix.bytes().all(is_letter)
                && is_word(name, 63)
        }
        None => !key.is_empty() && is_word(key, 63),
    }
}

/// Lower-case letters and digits, with `-_.` inside; may be empty.
fn is_word(word: &str, max: usize) -> bool {
    let is_end = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = word.as_bytes();
    word.len() <= max
        && bytes.iter().all(|b| is_end(b) || b"-_.".contains(b))
        && bytes.first().is_none_or(is_end)
        && bytes.last().is_none_or(is_end)
}

/// A part of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its id.
    pub id: RegionId,
    /// What it is.
    pub spec: RegionSpec,
    /// When it was made.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

/// What a region is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionSpec {
    /// May be empty; not unique.
    pub name: Name,
    /// The region that it lies in.
    pub parent: Option<RegionId>,
    /// Its labels.
    pub metadata: Metadata,
}

/// A place where hosts stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Its id.
    pub id: SiteId,
    /// What it is.
    pub spec: SiteSpec,
    /// When it was made.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

/// What a site is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteSpec {
    /// May be empty; not unique.
    pub name: Name,
    /// The region that it lies in.
    pub region: Option<RegionId>,
    /// In degrees times ten million, north positive.
    pub latitude: i32,
    /// In degrees times ten million, east positive.
    pub longitude: i32,
    /// Its labels.
    pub metadata: Metadata,
}

impl SiteSpec {
    /// Reads a position.
    ///
    /// # Errors
    /// It is not on the globe.
    pub fn position(latitude: i32, longitude: i32) -> Result<(i32, i32), Invalid> {
        if latitude.unsigned_abs() > 900_000_000 {
            return Err(Invalid::new(
                "siteLat",
                "not between -900000000 and 900000000",
            ));
        }
        if longitude.unsigned_abs() > 1_800_000_000 {
            return Err(Invalid::new(
                "siteLng",
                "not between -1800000000 and 1800000000",
            ));
        }
        Ok((latitude, longitude))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Result<Metadata, Invalid> {
        Metadata::parse(
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
        )
    }

    #[test]
    fn a_label_is_a_key_with_a_value() {
        for good in ["a", "city", "a-b_c.1", "example.com/", "example.com/rack"] {
            assert!(labels(&[(good, "")]).is_ok(), "{good}");
        }
        for bad in ["", "A", "-a", "a-", "/a", "a/b/c", "1a/b", "ä"] {
            assert!(labels(&[(bad, "")]).is_err(), "{bad}");
        }
        assert!(labels(&[("a", "B")]).is_err());
        assert!(labels(&[("a", "1"), ("a", "2")]).is_err(), "twice");
    }

    #[test]
    fn the_nearest_value_is_inherited() {
        let own = labels(&[("rack", "1")]).expect("labels");
        let site = labels(&[("rack", "2"), ("city", "ulm")]).expect("labels");
        let region = labels(&[("city", "bonn"), ("country", "de")]).expect("labels");
        let inherited = own.inherited([&site, &region]);
        assert_eq!(
            inherited,
            labels(&[("city", "ulm"), ("country", "de")]).expect("labels")
        );
    }

    #[test]
    fn a_site_is_on_the_globe() {
        assert!(SiteSpec::position(900_000_000, -1_800_000_000).is_ok());
        assert_eq!(
            SiteSpec::position(i32::MIN, 0).expect_err("beyond").field,
            "siteLat"
        );
        assert_eq!(
            SiteSpec::position(0, i32::MAX).expect_err("beyond").field,
            "siteLng"
        );
    }
}
