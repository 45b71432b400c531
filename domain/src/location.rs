//! Locations of hosts: sites, and the regions that contain them.

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::id::{RegionId, SiteId};
use crate::invalid::Invalid;
use crate::text::Name;

/// Maximum nesting depth of regions.
pub const MAX_REGION_DEPTH: usize = 5;

/// A label: a key with a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// May have a prefix before a slash.
    pub key: String,
    /// May be empty.
    pub value: String,
}

/// Labels of a resource, in the given order; keys are unique.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metadata(Vec<Label>);

impl Metadata {
    /// Maximum number of labels of a resource.
    pub const MAX_LABELS: usize = 100;

    /// Parses labels.
    ///
    /// # Errors
    /// There are too many labels, a key is listed twice, or a key or value is invalid.
    pub fn parse(labels: impl IntoIterator<Item = (String, String)>) -> Result<Self, Invalid> {
        let mut read = Vec::new();
        for (key, value) in labels {
            if read.len() == Self::MAX_LABELS {
                return Err(Invalid::new("metadata", "more than 100 labels"));
            }
            if !is_key(&key) {
                return Err(Invalid::new("metadata", format!("`{key}` is not a valid key")));
            }
            if !is_label_text(&value, 63) {
                return Err(Invalid::new("metadata", format!("`{value}` is not a valid value")));
            }
            if read.iter().any(|label: &Label| label.key == key) {
                return Err(Invalid::new("metadata", format!("`{key}` is listed twice")));
            }
            read.push(Label { key, value });
        }
        Ok(Self(read))
    }

    #[must_use]
    pub fn as_slice(&self) -> &[Label] {
        &self.0
    }

    /// Labels that a resource with these labels inherits from locations, nearest first. The nearest value of a key wins,
    /// and the keys of the resource itself are left out.
    #[must_use]
    pub fn inherited_from<'a>(&self, locations: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut inherited: Vec<Label> = Vec::new();
        for label in locations.into_iter().flat_map(|location| &location.0) {
            let has_key = |labels: &[Label]| labels.iter().any(|other| other.key == label.key);
            if !has_key(&self.0) && !has_key(&inherited) {
                inherited.push(label.clone());
            }
        }
        Self(inherited)
    }
}

/// A key is a label text, or a prefix of lower-case letters and dots, a slash, and optionally a label text.
fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => {
            let is_letter = |b: u8| b.is_ascii_lowercase() || b == b'.';
            !prefix.is_empty()
                && prefix.len() <= 253
                && prefix.bytes().all(is_letter)
                && is_label_text(name, 63)
        }
        None => !key.is_empty() && is_label_text(key, 63),
    }
}

/// Lower-case letters and digits, with `-_.` inside; may be empty.
fn is_label_text(text: &str, max: usize) -> bool {
    let is_end = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    text.len() <= max
        && bytes.iter().all(|b| is_end(b) || b"-_.".contains(b))
        && bytes.first().is_none_or(is_end)
        && bytes.last().is_none_or(is_end)
}

/// A region: a geographical or organisational area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub id: RegionId,
    pub spec: RegionSpec,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Content of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionSpec {
    /// May be empty; not unique.
    pub name: Name,
    /// The region that contains it.
    pub parent: Option<RegionId>,
    pub metadata: Metadata,
}

/// A site: a location with hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    pub id: SiteId,
    pub spec: SiteSpec,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Content of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteSpec {
    /// May be empty; not unique.
    pub name: Name,
    /// The region that contains it.
    pub region: Option<RegionId>,
    /// Degrees times ten million, north positive.
    pub latitude: i32,
    /// Degrees times ten million, east positive.
    pub longitude: i32,
    pub metadata: Metadata,
}

impl SiteSpec {
    /// Parses a geographical position.
    ///
    /// # Errors
    /// The latitude or longitude is out of range.
    pub fn parse_position(latitude: i32, longitude: i32) -> Result<(i32, i32), Invalid> {
        if latitude.unsigned_abs() > 900_000_000 {
            return Err(Invalid::new("siteLat", "not between -900000000 and 900000000"));
        }
        if longitude.unsigned_abs() > 1_800_000_000 {
            return Err(Invalid::new("siteLng", "not between -1800000000 and 1800000000"));
        }
        Ok((latitude, longitude))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Result<Metadata, Invalid> {
        Metadata::parse(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
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
        let inherited = own.inherited_from([&site, &region]);
        assert_eq!(inherited, labels(&[("city", "ulm"), ("country", "de")]).expect("labels"));
    }

    #[test]
    fn a_site_is_on_the_globe() {
        assert!(SiteSpec::parse_position(900_000_000, -1_800_000_000).is_ok());
        assert_eq!(SiteSpec::parse_position(i32::MIN, 0).expect_err("beyond").field, "siteLat");
        assert_eq!(SiteSpec::parse_position(0, i32::MAX).expect_err("beyond").field, "siteLng");
    }
}
