//! Messages about invalid settings: the file or the variable, the setting, and the reason.

use evenkeel_kit::describe_setting_type;
use figment::error::Kind;
use figment::{Error, Metadata, Source};

/// Describes why the settings of a file or of environment variables are invalid, in one line.
/// Without lines of the file: they may contain the password of a proxy.
pub fn describe_settings_error(error: &Error) -> String {
    let mut path = error.path.clone();
    if let Kind::UnknownField(name, _) = &error.kind
        && path.last() != Some(name)
    {
        path.push(name.clone());
    }
    let setting = path.join(".");
    let reason = match &error.kind {
        Kind::UnknownField(_, names) => {
            format!("unknown setting {setting}; the settings there are {}", names.join(", "))
        }
        kind if setting.is_empty() => describe_kind(kind),
        Kind::UnknownVariant(value, values) => {
            format!("{setting}: {value:?} is unknown; the values are {}", values.join(", "))
        }
        Kind::InvalidType(value, expected) | Kind::InvalidValue(value, expected) => {
            format!("{setting}: found {value}, expected {}", describe_setting_type(expected))
        }
        kind => format!("{setting}: {}", describe_kind(kind)),
    };
    match &error.metadata {
        Some(Metadata { source: Some(Source::File(file)), .. }) => {
            format!("{}: {reason}", file.display())
        }
        Some(Metadata { name, .. }) if name.contains("environment") => {
            let variable = path.join("__").to_uppercase();
            format!("the environment variable EVENKEEL_AGENT_{variable}: {reason}")
        }
        _ => reason,
    }
}

/// Omits the lines of the file in a message of the TOML parser: `2 | proxy = …`.
fn describe_kind(kind: &Kind) -> String {
    let is_excerpt = |line: &&str| {
        line.trim_start_matches(|char: char| char.is_ascii_digit() || char == ' ').starts_with('|')
    };
    kind.to_string().lines().filter(|line| !is_excerpt(line)).collect::<Vec<_>>().join(", ")
}
