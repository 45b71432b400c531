//! Renders a configuration file: each key as a comment, with its meaning and its default.

use serde_json::Value;
use syn::Type;

use super::page::wrap;
use super::rust_types::{FieldDefinition, RustTypes, StructDefinition};
use super::settings::{KeyKind, SectionRenderer, SettingsFile, parse_and_format_duration};

/// Beginning of the file of the server.
const SERVER_INTRODUCTION: &str = "\
# Configuration of evenkeeld. All settings are optional. A line with # directly before a key shows its
# default; `no default` marks a key whose shown value is only an example. An unknown key is an error.
#
# Check the file with: runuser -u evenkeel -- evenkeeld check
# Changes take effect with the next start: systemctl restart evenkeeld
#
# An environment variable overrides a setting in this file: EVENKEELD_REST__LISTEN=127.0.0.1:8081 (two
# underscores between the levels).
#
# All users of the machine can read this file. Put passwords into files of their own, such as
# `database.password_file`, which only the user evenkeel can read.

";

/// The configuration file of the server.
pub fn render_server_file(types: &RustTypes, file: &SettingsFile) -> String {
    let root = types.find_struct(file.crate_folder, file.root_type);
    let renderer = FileRenderer(SectionRenderer { types, file });
    let sections = renderer.render("", root, &file.defaults, false);
    format!("{SERVER_INTRODUCTION}{}\n", sections.trim_end())
}

struct FileRenderer<'a>(SectionRenderer<'a>);

impl FileRenderer<'_> {
    /// The keys of a section, and the sections in it. The headings of sections that are absent by
    /// default are comments as well.
    fn render(
        &self,
        path: &str,
        section: &StructDefinition,
        defaults: &Value,
        is_absent: bool,
    ) -> String {
        let mut keys = String::new();
        let mut inner = String::new();
        for field in &section.fields {
            let default = &defaults[&field.name];
            let below = format!("{path}.{}", field.name);
            let below = below.trim_start_matches('.');
            match self.0.key_kind(section, field) {
                KeyKind::Value(type_name, values) => {
                    keys.push_str(&key_lines(field, &type_name, &values, default));
                }
                KeyKind::Section(found) => {
                    let is_absent = is_absent || is_option(&field.field_type);
                    inner.push_str(&heading(&format!("[{below}]"), field, found, is_absent));
                    inner.push_str(&self.render(below, found, default, is_absent));
                }
                KeyKind::SectionList(found) => {
                    inner.push_str(&heading(&format!("[[{below}]]"), field, found, true));
                    inner.push_str(&self.render(below, found, &default[0], true));
                }
                KeyKind::SectionMap(found) => {
                    let below = format!("{below}.NAME");
                    inner.push_str(&heading(&format!("[{below}]"), field, found, true));
                    inner.push_str(&self.render(&below, found, &default["NAME"], true));
                }
            }
        }
        keys + &inner
    }
}

fn heading(
    title: &str,
    field: &FieldDefinition,
    section: &StructDefinition,
    is_absent: bool,
) -> String {
    let doc = if field.doc.is_empty() { &section.doc } else { &field.doc };
    let mark = if is_absent { "#" } else { "" };
    format!("{}{mark}{title}\n\n", comment(doc))
}

fn key_lines(field: &FieldDefinition, type_name: &str, values: &str, default: &Value) -> String {
    let values = values.split("<br>").filter(|value| !value.is_empty());
    let values = values.map(|value| comment(&value.replace("&lt;", "<")));
    let values: String = values.collect();
    format!("{}{values}{}\n", comment(&field.doc), assignment(field, type_name, default))
}

/// The commented line with the key and its default.
fn assignment(field: &FieldDefinition, type_name: &str, default: &Value) -> String {
    let name = &field.name;
    if field.is_required {
        return format!("#{name} = {} # required\n", example(type_name));
    }
    match default {
        Value::Null => format!("#{name} = {} # no default\n", example(type_name)),
        Value::String(text) if type_name == "duration" => {
            format!("#{name} = \"{}\"\n", parse_and_format_duration(name, text))
        }
        // Texts and numbers of JSON are those of TOML.
        value => format!("#{name} = {}\n", value.to_string().replace("\",\"", "\", \"")),
    }
}

/// A value of the right type for a key without a default.
fn example(type_name: &str) -> &'static str {
    match type_name {
        "number" => "0",
        "true or false" => "false",
        list if list.starts_with("list of ") => "[]",
        _ => "\"\"",
    }
}

fn comment(text: &str) -> String {
    wrap(text).lines().map(|line| format!("# {line}\n")).collect()
}

fn is_option(field_type: &Type) -> bool {
    let Type::Path(path) = field_type else {
        return false;
    };
    path.path.segments.last().is_some_and(|last| last.ident == "Option")
}

#[test]
fn a_key_is_a_comment_with_its_default() {
    let field = |is_required: bool| FieldDefinition {
        name: "listen".to_owned(),
        doc: "Listen address.".to_owned(),
        field_type: syn::parse_str("Option<SocketAddr>").expect("a type"),
        is_required,
        is_secret: false,
        is_size: false,
    };
    let lines = |type_name: &str, default: Value| {
        key_lines(&field(false), type_name, "<br>`a`: One.<br>`b`: Two.", &default)
    };
    let text = "# Listen address.\n# `a`: One.\n# `b`: Two.\n";
    assert_eq!(lines("duration", "1m".into()), format!("{text}#listen = \"1m\"\n\n"));
    assert_eq!(lines("number", Value::Null), format!("{text}#listen = 0 # no default\n\n"));
    let list = serde_json::json!(["a,b", "c"]);
    let written = format!("{text}#listen = [\"a,b\", \"c\"]\n\n");
    assert_eq!(lines("list of texts", list), written);
    assert_eq!(assignment(&field(true), "text", &Value::Null), "#listen = \"\" # required\n");
    assert!(is_option(&field(true).field_type));
}
