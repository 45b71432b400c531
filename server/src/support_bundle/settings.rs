//! The settings without secrets: a text is shown only if it is in a list, so that a new setting with
//! a secret is hidden until someone adds it.

use serde_json::Value;

/// Texts that are shown. `*` stands for any name.
const SHOWN_TEXTS: [&str; 15] = [
    "data_dir",
    "log.format",
    "log.level",
    "database.binaries",
    "rest.listen",
    "southbound.listen",
    "admin.listen",
    "files.auth",
    "files.prefetch",
    "maintenance_manager.housekeeping_schedule",
    "maintenance_manager.smtp.tls",
    "os_resource_manager.sync_schedule",
    "os_resource_manager.registries.*.trust",
    "auth.issuers.*.allowed_roles.*",
    "files.listen",
];

/// Stands for a text that is not shown.
const HIDDEN: &str = "[set]";

/// Replaces each text that is not known to be harmless. Numbers, booleans, durations and the names of
/// settings and registries stay.
pub(super) fn hide_texts(settings: &mut Value) {
    hide_below(settings, &mut Vec::new());
}

fn hide_below(value: &mut Value, path: &mut Vec<String>) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => {
            let is_duration = humantime::parse_duration(text).is_ok();
            if !text.is_empty() && !is_duration && !is_shown(path) {
                HIDDEN.clone_into(text);
            }
        }
        Value::Array(items) => {
            for item in items {
                path.push("*".to_owned());
                hide_below(item, path);
                path.pop();
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                path.push(name.clone());
                hide_below(member, path);
                path.pop();
            }
        }
    }
}

fn is_shown(path: &[String]) -> bool {
    SHOWN_TEXTS.iter().any(|pattern| {
        let parts: Vec<&str> = pattern.split('.').collect();
        parts.len() == path.len()
            && parts.iter().zip(path).all(|(part, name)| *part == "*" || part == name)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Replaces every text of the settings, and each empty list and missing value.
    fn plant(value: &mut Value) {
        match value {
            Value::Null => *value = json!("hush"),
            Value::String(text) => "hush".clone_into(text),
            Value::Array(items) if items.is_empty() => items.push(json!("hush")),
            Value::Array(items) => items.iter_mut().for_each(plant),
            Value::Object(members) => members.values_mut().for_each(plant),
            Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The paths of the texts that contain the planted secret.
    fn planted_paths(value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::String(text) if text == "hush" => found.push(path.to_owned()),
            Value::Array(items) => {
                for item in items {
                    planted_paths(item, &format!("{path}.*"), found);
                }
            }
            Value::Object(members) => {
                for (name, member) in members {
                    let below =
                        if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    planted_paths(member, &below, found);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn only_the_listed_settings_show_their_text() {
        let mut settings = crate::config::default_settings().unwrap();
        plant(&mut settings);
        let mut all = Vec::new();
        planted_paths(&settings, "", &mut all);
        assert!(all.iter().any(|path| path == "database.password_file"), "{all:?}");
        hide_texts(&mut settings);
        let mut shown = Vec::new();
        planted_paths(&settings, "", &mut shown);
        let mut shown: Vec<String> =
            shown.into_iter().map(|path| path.replace(".NAME.", ".*.")).collect();
        shown.sort();
        shown.dedup();
        let mut expected = SHOWN_TEXTS.map(str::to_owned);
        expected.sort();
        assert_eq!(shown, expected);
    }
}
