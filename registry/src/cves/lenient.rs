//! Values of OSV records that are read with limits, whatever their type.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::find_cve_id;

/// Maximum number of entries per list of a record, and of installed packages per source package.
pub(super) const MAX_LIST_ENTRIES: usize = 4_000;

/// The first entries of a list. `null` counts as an empty list.
pub(super) struct BoundedList<T> {
    pub entries: Vec<T>,
    /// Whether the list has more entries.
    pub is_truncated: bool,
}

impl<T> Default for BoundedList<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), is_truncated: false }
    }
}

impl BoundedList<LenientString> {
    pub fn cve_ids(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|text| find_cve_id(&text.0))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for BoundedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BoundedListVisitor(PhantomData))
    }
}

struct BoundedListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for BoundedListVisitor<T> {
    type Value = BoundedList<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<BoundedList<T>, E> {
        Ok(BoundedList::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<BoundedList<T>, A::Error> {
        let mut few = BoundedList::default();
        while few.entries.len() < MAX_LIST_ENTRIES {
            match entries.next_element()? {
                Some(entry) => few.entries.push(entry),
                None => return Ok(few),
            }
        }
        while entries.next_element::<IgnoredAny>()?.is_some() {
            few.is_truncated = true;
        }
        Ok(few)
    }
}

/// A string. Other JSON types are read as an empty string.
#[derive(Default)]
pub(super) struct LenientString(pub String);

impl<'de> Deserialize<'de> for LenientString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LenientStringVisitor)
    }
}

struct LenientStringVisitor;

impl<'de> Visitor<'de> for LenientStringVisitor {
    type Value = LenientString;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<LenientString, E> {
        Ok(LenientString(text.to_owned()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<LenientString, E> {
        Ok(LenientString::default())
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<LenientString, E> {
        Ok(LenientString::default())
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<LenientString, E> {
        Ok(LenientString::default())
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<LenientString, E> {
        Ok(LenientString::default())
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<LenientString, E> {
        Ok(LenientString::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<LenientString, A::Error> {
        while entries.next_element::<IgnoredAny>()?.is_some() {}
        Ok(LenientString::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<LenientString, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(LenientString::default())
    }
}
