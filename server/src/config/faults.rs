//! Faults of the configuration: the setting, where it is set, and what to do. Without the value of a URL, which may contain a
//! password.

use evenkeel_kit::describe_setting_type;
use figment::error::{Actual, Kind};
use figment::value::Value;
use figment::{Error, Figment, Metadata, Source};
use serde::de::DeserializeOwned;

/// Maximum number of reported faults.
const MAX_FAULTS: usize = 20;

/// Maximum number of names in a message.
const MAX_NAMES: usize = 12;

/// Reads settings. Reports all faults, not only the first one.
pub(super) fn extract<T: DeserializeOwned>(figment: &Figment) -> Result<T, Vec<String>> {
    let root = figment.find_value("");
    let mut settings = root.map_err(|error| vec![describe_unreadable(&error)])?;
    let mut faults = Vec::new();
    loop {
        match settings.deserialize() {
            Ok(config) if faults.is_empty() => return Ok(config),
            Ok(_) => return Err(faults),
            Err(error) => {
                faults.push(describe(&error, &settings, figment));
                // Without the faulty setting, the next fault is found.
                if faults.len() == MAX_FAULTS || !remove(&mut settings, &error.path) {
                    return Err(faults);
                }
            }
        }
    }
}

/// Removes a setting. Returns whether it existed.
fn remove(settings: &mut Value, path: &[String]) -> bool {
    let Some((name, below)) = path.split_first() else {
        return false;
    };
    match settings {
        Value::Dict(_, members) if below.is_empty() => members.remove(name).is_some(),
        Value::Dict(_, members) => members.get_mut(name).is_some_and(|value| remove(value, below)),
        Value::Array(_, items) => match name.parse::<usize>() {
            Ok(at) if at < items.len() && below.is_empty() => {
                items.remove(at);
                true
            }
            Ok(at) => items.get_mut(at).is_some_and(|value| remove(value, below)),
            Err(_) => false,
        },
        _ => false,
    }
}

/// Describes a file that is missing or no TOML.
fn describe_unreadable(error: &Error) -> String {
    let source = error.metadata.as_ref().and_then(|metadata| metadata.source.as_ref());
    match source {
        Some(Source::File(path)) => format!("{}: {}", path.display(), describe_kind(&error.kind)),
        _ => describe_kind(&error.kind),
    }
}

/// Omits the lines of the file in a message of the TOML parser: `2 | url = …`.
fn describe_kind(kind: &Kind) -> String {
    let is_excerpt = |line: &&str| {
        line.trim_start_matches(|char: char| char.is_ascii_digit() || char == ' ').starts_with('|')
    };
    kind.to_string().lines().filter(|line| !is_excerpt(line)).collect::<Vec<_>>().join("\n")
}

fn describe(error: &Error, settings: &Value, figment: &Figment) -> String {
    let mut path = error.path.clone();
    if let Kind::UnknownField(name, _) = &error.kind
        && path.last() != Some(name)
    {
        path.push(name.clone());
    }
    let setting = path.join(".");
    let source = describe_source(settings, &path, figment);
    match &error.kind {
        Kind::UnknownField(name, known) => {
            format!("unknown setting {setting}{source}{}", suggest(name, known))
        }
        Kind::MissingField(name) => {
            path.push(name.to_string());
            format!("{} is missing{source}", path.join("."))
        }
        Kind::UnknownVariant(value, known) => {
            format!("{setting}{source} is {value:?}; the values are {}", known.join(", "))
        }
        Kind::InvalidType(value, expected) | Kind::InvalidValue(value, expected) => {
            let expected = describe_setting_type(expected);
            format!("{setting}{source} is {}, expected {expected}", describe_value(value))
        }
        other if setting.is_empty() => describe_kind(other),
        other => format!("{setting}{source}: {}", describe_kind(other)),
    }
}

fn describe_value(value: &Actual) -> String {
    match value {
        Actual::Bool(value) => value.to_string(),
        Actual::Unsigned(value) => value.to_string(),
        Actual::Signed(value) => value.to_string(),
        Actual::Float(value) => value.to_string(),
        Actual::Str(value) if value.contains("://") => "a URL".to_owned(),
        Actual::Str(value) => format!("{value:?}"),
        Actual::Seq => "a list".to_owned(),
        Actual::Map => "a section".to_owned(),
        other => other.to_string(),
    }
}

/// Where a setting is set: the file, or the environment variable.
fn describe_source(settings: &Value, path: &[String], figment: &Figment) -> String {
    let mut value = settings;
    for name in path {
        let inner = match value {
            Value::Dict(_, members) => members.get(name),
            Value::Array(_, items) => name.parse::<usize>().ok().and_then(|at| items.get(at)),
            _ => None,
        };
        let Some(inner) = inner else { break };
        value = inner;
    }
    let Some(Metadata { name, source, .. }) = figment.get_metadata(value.tag()) else {
        return String::new();
    };
    match source {
        Some(Source::File(file)) => format!(" in {}", file.display()),
        _ if name.contains("environment") => {
            format!(" in the environment variable EVENKEELD_{}", path.join("__").to_uppercase())
        }
        _ => String::new(),
    }
}

/// The known name that is most like a wrong one, or all known names if there are few.
fn suggest(wrong: &str, known: &[&str]) -> String {
    let nearest = known.iter().map(|name| (edit_distance(wrong, name), name)).min();
    match nearest {
        Some((distance, name)) if distance <= 1 + wrong.len() / 4 => {
            format!("; did you mean {name}?")
        }
        Some(_) if known.len() <= MAX_NAMES => {
            format!("; the settings there are {}", known.join(", "))
        }
        _ => String::new(),
    }
}

/// Number of letters to insert, remove, replace or swap with the next one (optimal string alignment).
fn edit_distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, expected) in other.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(letter != expected);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == other[j - 1] && one[i - 1] == *expected {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapped_and_wrong_letters_are_counted() {
        for (one, other, distance) in [
            ("listen", "listen", 0),
            ("lisen", "listen", 1),
            ("litsen", "listen", 1),
            ("lissen", "listen", 1),
            ("", "url", 3),
            ("port", "listen", 5),
        ] {
            assert_eq!(edit_distance(one, other), distance, "{one} {other}");
        }
    }

    #[test]
    fn a_near_name_is_suggested_and_few_names_are_listed() {
        assert_eq!(suggest("lisen", &["listen"]), "; did you mean listen?");
        assert_eq!(suggest("port", &["listen", "key"]), "; the settings there are listen, key");
        assert_eq!(suggest("port", &["a"; 13]), "");
    }
}
