//! What modules store in the journal and in reports.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Failure, FailureKind};

/// One value per module, by the module's name. Only the module knows its type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ModuleParts(BTreeMap<String, Value>);

impl ModuleParts {
    /// The part of one module, and no other.
    pub fn of(module: &str, part: &impl Serialize) -> Result<Self, Failure> {
        let mut parts = Self::default();
        parts.insert(module, encode_part(module, part)?);
        Ok(parts)
    }

    /// Sets the part of a module.
    pub fn insert(&mut self, module: &str, part: Value) {
        self.0.insert(module.to_owned(), part);
    }

    pub fn get(&self, module: &str) -> Option<&Value> {
        self.0.get(module)
    }

    /// The part of a module, to change it; null if there was none.
    pub fn entry(&mut self, module: &str) -> &mut Value {
        self.0.entry(module.to_owned()).or_default()
    }

    /// The part of a module as its type; `None` if there is none or it cannot be read.
    pub fn read<T: DeserializeOwned>(&self, module: &str) -> Option<T> {
        T::deserialize(self.get(module)?).ok()
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps only the first items of each list.
    pub fn truncate_lists(&mut self, most: usize) {
        for part in self.0.values_mut() {
            truncate_lists(part, most);
        }
    }

    /// Whether there are no parts.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn truncate_lists(value: &mut Value, most: usize) {
    match value {
        Value::Array(items) => {
            items.truncate(most);
            for item in items {
                truncate_lists(item, most);
            }
        }
        Value::Object(fields) => {
            for field in fields.values_mut() {
                truncate_lists(field, most);
            }
        }
        _ => {}
    }
}

pub fn encode_part(module: &str, part: &impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(part).map_err(|error| {
        let reason = format!("cannot serialize the data of the module {module}: {error}");
        Failure::new(FailureKind::Plan, reason)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_truncated_at_any_depth() {
        let mut parts =
            ModuleParts::of("demo", &json!({ "a": [1, 2, 3], "b": { "c": [[4, 5, 6]] } }));
        let parts = parts.as_mut().unwrap();
        parts.truncate_lists(2);
        assert_eq!(parts.get("demo"), Some(&json!({ "a": [1, 2], "b": { "c": [[4, 5]] } })));
    }
}
