//! Serde of [`Entry`] and [`FileMode`].

use std::fmt;

use serde::de::{self, DeserializeOwned, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::document::{Component, Desired, Entry, FileMode, RawEntry};
use crate::validation::FieldError;

impl TryFrom<RawEntry> for Entry {
    type Error = FieldError;

    /// Reads the fields of the component. The path of an error begins with `desired`.
    fn try_from(raw: RawEntry) -> Result<Self, FieldError> {
        let fields = raw.desired;
        let desired = match raw.component {
            Component::File => Desired::File(parse_fields(fields)?),
            Component::Unit => Desired::Unit(parse_fields(fields)?),
            Component::Package => Desired::Package(parse_fields(fields)?),
            Component::PackageSource => Desired::PackageSource(parse_fields(fields)?),
            Component::Action => Desired::Action(parse_fields(fields)?),
            Component::User => Desired::User(parse_fields(fields)?),
            Component::UserGroup => Desired::UserGroup(parse_fields(fields)?),
            Component::Sysctl => Desired::Sysctl(parse_fields(fields)?),
        };
        Ok(Self { name: raw.name, desired })
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

fn parse_fields<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, FieldError> {
    serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { "desired".to_owned() } else { format!("desired.{path}") };
        FieldError::new(path, error.into_inner().to_string())
    })
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
                Err(format!("\"{text}\" is ambiguous; write four octal digits: \"{mode:04o}\""))
            }
            _ => {
                Err(format!("\"{text}\" is not a mode; write four octal digits, such as \"0644\""))
            }
        }
    }

    /// A mode from its value, such as 420 for 0644.
    ///
    /// # Errors
    /// The value is above 0o7777. The message names the accepted form.
    pub fn from_value(value: u64) -> Result<Self, String> {
        let mode = u32::try_from(value).ok().filter(|mode| *mode <= Self::MAX.0);
        mode.map(Self).ok_or_else(|| {
            format!("{value} is above 4095 (octal 7777); write octal digits as text: \"0644\"")
        })
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
