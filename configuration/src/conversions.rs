//! Serde of [`Entry`] and [`FileMode`].

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::document::{Desired, Entry, FileMode, RawEntry};
use crate::states::read_desired;
use crate::validation::{ErrorList, FieldError, excerpt};
use crate::yaml::Node;

/// Modes as people write them for chmod(1). As decimal numbers they would be other modes, for
/// example 644 is 1204.
const USUAL_MODES: [u64; 18] =
    [400, 440, 444, 500, 550, 555, 600, 640, 644, 660, 664, 666, 700, 750, 755, 770, 775, 777];

impl TryFrom<RawEntry> for Entry {
    type Error = FieldError;

    /// Reads the fields of the component like `native::read`. The path of an error begins with
    /// `desired`.
    fn try_from(raw: RawEntry) -> Result<Self, FieldError> {
        let mut errors = ErrorList::default();
        let fields = Node::from(Value::Object(raw.desired)).without_null_fields();
        let desired = read_desired(raw.component, "desired".to_owned(), Some(fields), &mut errors);
        match errors.into_errors().into_iter().next() {
            Some(error) => Err(error),
            None => Ok(Self { name: raw.name, desired }),
        }
    }
}

impl From<Entry> for RawEntry {
    fn from(entry: Entry) -> Self {
        let component = entry.component();
        let desired = match &entry.desired {
            Desired::File(state) => to_fields(state),
            Desired::Unit(state) => to_fields(state),
            Desired::Package(state) => to_fields(state),
            Desired::PackageSource(state) => to_fields(state),
            Desired::Action(state) => to_fields(state),
            Desired::User(state) => to_fields(state),
            Desired::UserGroup(state) => to_fields(state),
            Desired::Sysctl(state) => to_fields(state),
        };
        Self { component, name: entry.name, desired }
    }
}

impl Serialize for Entry {
    /// Writes the fields of the component in the order of their declaration.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Entry", 3)?;
        fields.serialize_field("component", &self.component())?;
        fields.serialize_field("name", &self.name)?;
        match &self.desired {
            Desired::File(state) => fields.serialize_field("desired", state)?,
            Desired::Unit(state) => fields.serialize_field("desired", state)?,
            Desired::Package(state) => fields.serialize_field("desired", state)?,
            Desired::PackageSource(state) => fields.serialize_field("desired", state)?,
            Desired::Action(state) => fields.serialize_field("desired", state)?,
            Desired::User(state) => fields.serialize_field("desired", state)?,
            Desired::UserGroup(state) => fields.serialize_field("desired", state)?,
            Desired::Sysctl(state) => fields.serialize_field("desired", state)?,
        }
        fields.end()
    }
}

fn to_fields<T: Serialize>(state: &T) -> Map<String, Value> {
    match serde_json::to_value(state) {
        Ok(Value::Object(fields)) => fields,
        _ => unreachable!("every state is a struct whose keys are strings"),
    }
}

impl FileMode {
    /// All permissions, set-user-ID, set-group-ID and the sticky bit.
    pub const MAX: Self = Self(0o7777);

    /// Parses octal digits: `0644`, `1777` or `0o644`. Three digits are refused, because readers do
    /// not agree on whether they are octal.
    ///
    /// # Errors
    /// The text is not a mode. The message names the accepted form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let prefixed = text.strip_prefix("0o");
        let digits = prefixed.unwrap_or(text);
        let is_octal = !digits.is_empty() && digits.bytes().all(|b| (b'0'..=b'7').contains(&b));
        let is_clear = prefixed.is_some() || digits.starts_with('0') || digits.len() == 4;
        let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= Self::MAX.0);
        match mode {
            Some(mode) if is_octal && is_clear => Ok(Self(mode)),
            Some(mode) if is_octal => {
                let text = excerpt(text);
                Err(format!("{text} is ambiguous; write four octal digits: \"{mode:04o}\""))
            }
            _ => {
                let text = excerpt(text);
                Err(format!("{text} is not a mode; write four octal digits, such as \"0644\""))
            }
        }
    }

    /// A mode from its value, such as 420 for 0644.
    ///
    /// # Errors
    /// The value is above 0o7777, or looks like octal digits. The message names the accepted form.
    pub fn from_value(value: u64) -> Result<Self, String> {
        if USUAL_MODES.contains(&value) {
            return Err(format!(
                "{value} is a decimal number, which is the mode {value:04o}; write \"0{value}\""
            ));
        }
        let mode = u32::try_from(value).ok().filter(|mode| *mode <= Self::MAX.0);
        mode.map(Self).ok_or_else(|| {
            format!("{value} is above 4095 (octal 7777); write octal digits as text: \"0644\"")
        })
    }
}

impl FileMode {
    /// Parses a number without quotes in YAML: `0644` and `0o644` are octal, `420` is decimal.
    pub(crate) fn parse_plain(text: &str) -> Result<Self, String> {
        let is_decimal = text.bytes().all(|b| b.is_ascii_digit());
        if text == "0" || !is_decimal || text.starts_with('0') {
            return Self::parse(text);
        }
        Self::from_value(text.parse().unwrap_or(u64::MAX))
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for FileMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FileModeVisitor)
    }
}

struct FileModeVisitor;

impl Visitor<'_> for FileModeVisitor {
    type Value = FileMode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mode: four octal digits in a string, such as \"0644\", or its value")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<FileMode, E> {
        FileMode::from_value(value).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<FileMode, E> {
        FileMode::parse(text).map_err(E::custom)
    }
}
