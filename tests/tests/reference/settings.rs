//! Renders the keys of a TOML file with their types, defaults and meanings.

use std::time::Duration;

use serde_json::Value;
use syn::{GenericArgument, PathArguments, Type};

use super::page::{escape, header, row, wrap};
use super::rust_types::{FieldDefinition, RustTypes, StructDefinition, TypeDefinition};

/// Beginning of the page of the server.
pub const SERVER_INTRODUCTION: &str = "\
# Settings of evenkeeld

evenkeeld reads `/etc/evenkeel/evenkeeld.toml`, or the file that `--config` names. Without the
default file, all keys have their defaults. An unknown key or an invalid value is an error, and the
process does not start. Changes take effect with the next start.

An environment variable overrides the file. Its name is the prefix of the section, listed below,
and the key in capitals: `EVENKEELD_REST__LISTEN` is `listen` in `[rest]`. The option `--data-dir`
overrides both.

- A *duration* is a number with a unit, or several: `30s`, `5m`, `1h 30m`, `7days`.
- A *list* is written in brackets: `[\"a\", \"b\"]`; in an environment variable as well.
- A *path* names a file or a directory.

[operate.md](../operate.md) shows which settings a task needs.
";

/// Beginning of the page of the agent.
pub const AGENT_INTRODUCTION: &str = "\
# Settings of evenkeel-agent

The agent has two files: its own settings in `agent.toml`, and the limits of the owner in
[`limits.toml`](#limitstoml).

## agent.toml

The agent reads `/etc/evenkeel/agent.toml`, or the file that `--config` names. The package installs
this file with all keys as comments: [agent.toml](../../deploy/agent/agent.toml). An unknown key or
an invalid value is an error, and the agent does not start. Changes take effect with the next start.

An environment variable overrides the file. Its name is the prefix of the section, listed below,
and the key in capitals: `EVENKEEL_AGENT_PACKAGES__LOCK_TIMEOUT` is `lock_timeout` in `[packages]`.

- A *duration* is a number with a unit, or several: `30s`, `5m`, `1h 30m`, `7days`.
- A *size* is a number of bytes, or a text with `KiB`, `MiB` or `GiB`: `\"200MiB\"`.
- A *list* is written in brackets: `[\"a\", \"b\"]`; in an environment variable as well.
- A *path* names a file or a directory.
";

/// Beginning of the part about the limits of the owner.
pub const LIMITS_INTRODUCTION: &str = "
## limits.toml

The agent reads `/etc/evenkeel/limits.toml` again for each decision. Without the file there are no
limits, except that images must be signed, the keys of package sources must be on the node, some
packages are protected, and no action of a configuration document runs. If the file is invalid, the
agent changes nothing.
[agent-limits.md](../agent-limits.md) explains the limits.
";

/// A file of settings.
#[derive(Debug)]
pub struct SettingsFile {
    /// Folder of the crate that reads the file.
    pub crate_folder: &'static str,
    /// Name of the type of the whole file.
    pub root_type: &'static str,
    /// Prefix of the environment variables, if there are any.
    pub variable_prefix: Option<&'static str>,
    /// All keys with their defaults. Lists and tables of sections have one entry.
    pub defaults: Value,
}

/// All sections of a file.
pub fn render_file(types: &RustTypes, file: &SettingsFile) -> String {
    let root = types.find_struct(file.crate_folder, file.root_type);
    let renderer = SectionRenderer { types, file };
    renderer.render("", root, &file.defaults)
}

/// Reads the sections of a file.
pub struct SectionRenderer<'a> {
    pub types: &'a RustTypes,
    pub file: &'a SettingsFile,
}

/// What a key holds.
pub enum KeyKind<'a> {
    /// A value: the name of its type, and the sentence with its possible values.
    Value(String, String),
    /// A section.
    Section(&'a StructDefinition),
    /// Any number of sections without names: `[[section]]`.
    SectionList(&'a StructDefinition),
    /// Any number of sections with names: `[section.NAME]`.
    SectionMap(&'a StructDefinition),
}

impl SectionRenderer<'_> {
    fn render(&self, path: &str, section: &StructDefinition, defaults: &Value) -> String {
        check_keys(path, section, defaults);
        let mut rows = String::new();
        let mut inner = String::new();
        for field in &section.fields {
            let default = &defaults[&field.name];
            let below = format!("{path}.{}", field.name);
            let below = below.trim_start_matches('.');
            match self.key_kind(section, field) {
                KeyKind::Value(type_name, values) => {
                    assert!(!field.doc.is_empty(), "{below} has no doc comment");
                    let key = format!("`{}`", field.name);
                    let meaning = format!("{}{values}", escape(&field.doc));
                    let default = format_default(field, &type_name, default);
                    rows.push_str(&row(&[&key, &type_name, &default, &meaning]));
                }
                KeyKind::Section(found) => {
                    inner.push_str(&self.heading(&format!("[{below}]"), below, field, found));
                    inner.push_str(&self.render(below, found, default));
                }
                KeyKind::SectionList(found) => {
                    inner.push_str(&self.heading(&format!("[[{below}]]"), "", field, found));
                    inner.push_str(&self.render(below, found, &default[0]));
                }
                KeyKind::SectionMap(found) => {
                    let below = format!("{below}.NAME");
                    inner.push_str(&self.heading(&format!("[{below}]"), &below, field, found));
                    inner.push_str(&self.render(&below, found, &default["NAME"]));
                }
            }
        }
        if !rows.is_empty() {
            rows.insert_str(0, &header(&["Key", "Type", "Default", "Meaning"]));
            if path.is_empty() {
                rows.insert_str(0, &self.top_heading());
            }
            rows.insert(0, '\n');
        }
        rows + &inner
    }

    fn top_heading(&self) -> String {
        let level = self.heading_level();
        let variables = self.variables("").map(|line| format!("{line}\n"));
        let variables = variables.unwrap_or_default();
        format!("{level} Keys without a section\n\n{variables}")
    }

    fn heading(
        &self,
        title: &str,
        path: &str,
        field: &FieldDefinition,
        section: &StructDefinition,
    ) -> String {
        let doc = if field.doc.is_empty() { &section.doc } else { &field.doc };
        assert!(!doc.is_empty(), "{title} has no doc comment");
        let has_values = section
            .fields
            .iter()
            .any(|field| matches!(self.key_kind(section, field), KeyKind::Value(..)));
        let mut text = wrap(&escape(doc));
        if has_values
            && !path.is_empty()
            && let Some(variables) = self.variables(path)
        {
            text.push_str(&format!("\n{variables}"));
        }
        format!("\n{} `{title}`\n\n{text}", self.heading_level())
    }

    /// Sections of a page with two files are one level lower.
    fn heading_level(&self) -> &'static str {
        if self.file.crate_folder == "server" { "##" } else { "###" }
    }

    /// The sentence that names the environment variables of a section.
    fn variables(&self, path: &str) -> Option<String> {
        let prefix = self.file.variable_prefix?;
        let mut name = path.replace('.', "__").to_ascii_uppercase();
        if !name.is_empty() {
            name.push_str("__");
        }
        Some(format!("Environment variables: `{prefix}{name}…`\n"))
    }

    pub fn key_kind(&self, section: &StructDefinition, field: &FieldDefinition) -> KeyKind<'_> {
        if field.is_size {
            return KeyKind::Value("size".to_owned(), String::new());
        }
        self.kind_of_type(&section.crate_folder, &field.field_type)
    }

    fn kind_of_type(&self, crate_folder: &str, field_type: &Type) -> KeyKind<'_> {
        let Type::Path(path) = field_type else {
            panic!("a type without a name in {crate_folder}");
        };
        let last = path.path.segments.last().expect("a name");
        let name = last.ident.to_string();
        let simple = |text: &str| KeyKind::Value(text.to_owned(), String::new());
        match (name.as_str(), arguments(&last.arguments).as_slice()) {
            ("Option", [inner]) => self.kind_of_type(crate_folder, inner),
            ("Vec", [inner]) => match self.kind_of_type(crate_folder, inner) {
                KeyKind::Value(type_name, values) => {
                    KeyKind::Value(format!("list of {}", plural(&type_name)), values)
                }
                KeyKind::Section(found) => KeyKind::SectionList(found),
                _ => panic!("a list of lists in {crate_folder}"),
            },
            ("BTreeMap", [_, inner]) => match self.kind_of_type(crate_folder, inner) {
                KeyKind::Section(found) => KeyKind::SectionMap(found),
                _ => panic!("a table of values in {crate_folder}"),
            },
            ("bool", _) => simple("true or false"),
            ("u8" | "u16" | "u32" | "u64" | "usize", _) => simple("number"),
            ("String" | "Secret", _) => simple("text"),
            ("Duration", _) => simple("duration"),
            ("PathBuf", _) => simple("path"),
            ("SocketAddr", _) => simple("`IP:PORT`"),
            ("IpAddr", _) => simple("IP address"),
            ("Uuid", _) => simple("UUID"),
            // Read from a text.
            ("Hours" | "ActionPermission", _) => simple("text"),
            _ => match self.types.find(crate_folder, &path.path) {
                Some(TypeDefinition::Struct(found)) => KeyKind::Section(found),
                Some(TypeDefinition::Enum(values)) => {
                    KeyKind::Value("choice".to_owned(), format_values(values))
                }
                None => panic!("{crate_folder} has no type {name}"),
            },
        }
    }
}

/// The keys that serde writes are those of the source.
fn check_keys(path: &str, section: &StructDefinition, defaults: &Value) {
    let written = defaults.as_object().unwrap_or_else(|| panic!("[{path}] is no section"));
    let mut written: Vec<&str> = written.keys().map(String::as_str).collect();
    let fields = section.fields.iter().filter(|field| !field.is_secret);
    let mut read: Vec<&str> = fields.map(|field| field.name.as_str()).collect();
    written.sort_unstable();
    read.sort_unstable();
    assert_eq!(written, read, "[{path}]");
}

fn arguments(arguments: &PathArguments) -> Vec<&Type> {
    let PathArguments::AngleBracketed(angled) = arguments else {
        return Vec::new();
    };
    let types = angled.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(inner) => Some(inner),
        _ => None,
    });
    types.collect()
}

fn plural(type_name: &str) -> String {
    match type_name {
        "IP address" => "IP addresses".to_owned(),
        name => format!("{name}s"),
    }
}

fn format_values(values: &[(String, String)]) -> String {
    let values = values.iter().map(|(value, doc)| {
        assert!(!doc.is_empty(), "{value} has no doc comment");
        format!("<br>`{value}`: {}", escape(doc))
    });
    values.collect()
}

fn format_default(field: &FieldDefinition, type_name: &str, default: &Value) -> String {
    if field.is_required {
        return "required".to_owned();
    }
    match default {
        Value::Null => "none".to_owned(),
        Value::String(text) if text.is_empty() => "`\"\"`".to_owned(),
        Value::String(text) if type_name == "duration" => {
            format!("`\"{}\"`", parse_and_format_duration(&field.name, text))
        }
        Value::String(text) => format!("`\"{text}\"`"),
        Value::Number(number) => {
            let number = number.as_u64().unwrap_or_default();
            let separator = if field.is_size { "" } else { " " };
            match format_bytes(number, separator) {
                Some(size) if field.is_size => format!("`\"{size}\"`"),
                Some(size) => format!("`{number}` ({size})"),
                None => format!("`{number}`"),
            }
        }
        value => format!("`{}`", value.to_string().replace(',', ", ")),
    }
}

/// The number with a binary unit, if it is a multiple of 1 MiB.
fn format_bytes(number: u64, separator: &str) -> Option<String> {
    match number.trailing_zeros() {
        _ if number == 0 => None,
        30.. => Some(format!("{}{separator}GiB", number >> 30)),
        20.. => Some(format!("{}{separator}MiB", number >> 20)),
        _ => None,
    }
}

/// The default of a key, as serde writes it, in common units.
pub fn parse_and_format_duration(key: &str, text: &str) -> String {
    let duration = humantime::parse_duration(text);
    format_duration(duration.unwrap_or_else(|error| panic!("{key}: {error}")))
}

/// The duration in days, hours, minutes and seconds. humantime would write 90 days in months.
fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds == 0 {
        return humantime::format_duration(duration).to_string();
    }
    let days = seconds / 86_400;
    let units = [
        (days, if days == 1 { "day" } else { "days" }),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let parts = units.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, unit)| format!("{count}{unit}")).collect();
    parts.join(" ")
}

#[test]
fn defaults_are_written_in_common_units() {
    assert_eq!(format_duration(Duration::from_hours(90 * 24)), "90days");
    assert_eq!(format_duration(Duration::from_secs(90)), "1m 30s");
    assert_eq!(format_duration(Duration::from_millis(500)), "500ms");
    assert_eq!(format_duration(Duration::from_hours(24)), "1day");
    assert_eq!(format_bytes(200 << 20, " ").as_deref(), Some("200 MiB"));
    assert_eq!(format_bytes(50 << 30, "").as_deref(), Some("50GiB"));
    assert_eq!(format_bytes(1_000, " "), None);
}
