mod hostile_texts;

use std::fmt::Write as _;

use super::{parse, read, write};
use crate::document::{Desired, Document, Entry, FileMode};
use crate::limits::MAX_DOCUMENT_BYTES;
use crate::revision::revision;
use crate::validation::{MAX_ENTRIES, MAX_ERRORS, ReadError};

/// A document with all components.
const YAML: &str = include_str!("tests/samples/document.yaml");
const JSON: &str = include_str!("tests/samples/document.json");

fn document(text: &str) -> Document {
    parse(text).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"))
}

/// The errors of a document, one a line.
fn errors(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

/// A document with one entry.
fn one_entry(component: &str, desired: &str) -> String {
    let entry = format!("{{component: {component}, name: n, desired: {desired}}}");
    format!("bundles:\n- name: b\n  entries:\n  - {entry}\n")
}

fn desired(component: &str, text: &str) -> Desired {
    let mut document = document(&one_entry(component, text));
    document.bundles.remove(0).entries.remove(0).desired
}

#[test]
fn a_document_in_yaml_and_json_is_the_same_document() {
    let yaml = document(YAML);
    assert_eq!(yaml, document(JSON));
    assert_eq!(yaml, serde_json::from_str(JSON).unwrap());
    assert_eq!(yaml, document(&write(&yaml)));
    assert_eq!(yaml, document(&format!("\u{feff}---\n{YAML}...\n")));
    assert_eq!(revision(&yaml), revision(&document(JSON)));
}

#[test]
fn a_document_is_written_as_people_write_it() {
    assert_eq!(write(&document(YAML)), include_str!("tests/samples/written.yaml"));
}

#[test]
fn the_order_of_fields_does_not_change_the_revision() {
    let one = "applyMode: audit
bundles: [{name: b, entries: [{component: User, name: u, desired: {uid: 7, home: /h}}]}]";
    let other =
        "bundles: [{entries: [{desired: {home: /h, uid: 7}, name: u, component: User}], name: b}]
applyMode: audit";
    assert_eq!(revision(&document(one)), revision(&document(other)));
    assert_ne!(revision(&document(one)), revision(&Document::default()));
}

#[test]
fn a_mode_is_octal_unless_it_is_a_decimal_number() {
    for (written, mode) in [
        ("0644", 0o644),
        ("\"0644\"", 0o644),
        ("'0644'", 0o644),
        ("420", 0o644),
        ("0o644", 0o644),
        ("\"0o644\"", 0o644),
        ("\"1777\"", 0o1777),
        ("01777", 0o1777),
        ("0", 0),
        ("00", 0),
        ("\"0\"", 0),
        ("4095", 0o7777),
        ("493", 0o755),
        ("384", 0o600),
    ] {
        let Desired::File(state) = desired("File", &format!("{{mode: {written}}}")) else {
            panic!("no file");
        };
        assert_eq!(state.mode, Some(FileMode(mode)), "{written}");
    }
}

#[test]
fn an_ambiguous_mode_is_refused() {
    for (written, message) in [
        ("644", "644 is a decimal number, which is the mode 1204; write \"0644\""),
        ("\"644\"", "\"644\" is ambiguous; write four octal digits: \"0644\""),
        ("\"7\"", "\"7\" is ambiguous; write four octal digits: \"0007\""),
        ("4096", "4096 is above 4095 (octal 7777); write octal digits as text: \"0644\""),
        ("99999999999999999999999", "18446744073709551615 is above 4095"),
        ("\"10000\"", "\"10000\" is not a mode; write four octal digits, such as \"0644\""),
        ("0888", "\"0888\" is not a mode"),
        ("-1", "\"-1\" is not a mode"),
        ("0x1a4", "\"0x1a4\" is not a mode"),
        ("1e3", "\"1e3\" is not a mode"),
        ("u=rw", "\"u=rw\" is not a mode"),
        ("\"\"", "\"\" is not a mode"),
        ("\"0o\"", "\"0o\" is not a mode"),
        ("yes", "\"yes\" is not a mode"),
        ("[0644]", "expected four octal digits, not a list"),
    ] {
        let errors = errors(&one_entry("File", &format!("{{mode: {written}}}")));
        let path = "bundles[0].entries[0].desired.mode: ";
        assert!(errors.starts_with(&format!("{path}{message}")), "{written}: {errors}");
    }
}

#[test]
fn a_scalar_is_the_text_that_the_user_wrote() {
    for text in [
        "y",
        "yes",
        "on",
        "off",
        "NO",
        "true",
        "1.0",
        "1e3",
        "0644",
        "0o17",
        "0x1F",
        "1_000",
        "null",
        "~",
        ".inf",
        "1e999",
        "-0",
        "+5",
        "12:30",
        "2001-01-01",
        "",
        "99999999999999999999999999",
    ] {
        let state = desired("File", &format!("{{content: {{inline: {text}}}}}"));
        let Desired::File(state) = state else { panic!("no file") };
        let content = state.content.unwrap_or_default();
        assert_eq!(content.inline.as_deref(), Some(text));
    }
    let Desired::Package(state) = desired("Package", "{version: !!float \"1.50\"}") else {
        panic!("no package")
    };
    assert_eq!(state.version, "1.50");
    let Desired::Package(state) = desired("Package", "{version: 1.10}") else {
        panic!("no package")
    };
    assert_eq!(state.version, "1.10");
    let Desired::Sysctl(state) = desired("Sysctl", "{value: 1_0}") else { panic!("no setting") };
    assert_eq!(state.value, "1_0");
}

#[test]
fn a_boolean_is_read_as_yaml_1_1_has_it() {
    for (written, enable) in
        [("y", true), ("Yes", true), ("on", true), ("TRUE", true), ("n", false), ("off", false)]
    {
        let Desired::Unit(state) = desired("Unit", &format!("{{enable: {written}}}")) else {
            panic!("no unit");
        };
        assert_eq!(state.enable, Some(enable), "{written}");
    }
}

#[test]
fn null_is_an_absent_field() {
    let explicit = desired("User", "{uid: null, group: ~, groups: , absent: null, home: null}");
    assert_eq!(explicit, desired("User", "{}"));
    assert_eq!(explicit, desired("User", "null"));
    let raw = r#"{"component": "File", "name": "/a", "desired": {"content": {"inline": null}}}"#;
    let entry: Entry = serde_json::from_str(raw).unwrap();
    let json = format!(r#" {{"bundles": [{{"name": "b", "entries": [{raw}]}}]}}"#);
    assert_eq!(document(&json).bundles[0].entries[0], entry);
    let Desired::File(state) = entry.desired else { panic!("no file") };
    assert_eq!(state.content.unwrap_or_default().inline, None);
}

#[test]
fn line_breaks_in_base64_are_ignored() {
    let Desired::File(state) = desired("File", "{content: {base64: \"YQ\\n==\\n\"}}") else {
        panic!("no file");
    };
    assert_eq!(state.content.unwrap_or_default().base64.as_deref(), Some("YQ=="));
}

#[test]
fn all_wrong_fields_are_reported_with_their_paths() {
    let expected = include_str!("tests/samples/wrong.txt");
    assert_eq!(errors(include_str!("tests/samples/wrong.yaml")), expected.trim_end());
}

#[test]
fn what_is_no_document_is_refused() {
    for (text, message) in [
        ("", "the document is empty"),
        ("# nothing\n", "the document is empty"),
        ("[]", "expected an object, not a list"),
        ("text", "expected an object, not text"),
        ("bundles: [", "this is not YAML or JSON: unclosed bracket '[' at line 1, column 10"),
        ("bundles: []\n---\nbundles: []\n", "line 2, column 1: a second document begins here"),
        ("bundles: []\nbundles: []\n", "line 2, column 1: the key \"bundles\" occurs twice"),
        (
            "{\"bundles\": [], \"bundles\": []}",
            "line 1, column 17: the key \"bundles\" occurs twice",
        ),
        ("bundles: !x []", "line 1, column 13: the tag \"!x\" is not accepted"),
        ("<<: {bundles: []}", "line 1, column 1: merge keys (<<) are not accepted"),
        ("~: a", "line 1, column 1: a key is null"),
        ("? [a]\n: b", "line 1, column 3: a key is an object or a list; keys are texts"),
        ("a: &a 1\nb: *a\n", "line 1, column 7: anchors (&) and aliases (*) are not accepted here"),
        ("a: *b", "this is not YAML or JSON"),
        ("\u{0}", "this is not YAML or JSON"),
    ] {
        let errors = errors(text);
        assert!(errors.starts_with(message), "{text:?}: {errors}");
    }
}

#[test]
fn a_billion_laughs_are_refused_at_once() {
    let mut text = "a0: &a0 [lol]\n".to_owned();
    for level in 1..10 {
        let before = format!("*a{},", level - 1).repeat(10);
        writeln!(text, "a{level}: &a{level} [{before}]").unwrap();
    }
    assert!(errors(&text).contains("anchors (&) and aliases (*) are not accepted here"));
}

#[test]
fn a_document_has_limited_depth_and_length() {
    let deep = format!("bundles: {}{}", "[".repeat(100), "]".repeat(100));
    assert!(errors(&deep).contains("values are nested more than 32 levels deep"));
    let deep = format!("bundles: {}", "[".repeat(100_000));
    assert!(errors(&deep).contains("recursion limit exceeded"), "{}", errors(&deep));
    let long = " ".repeat(MAX_DOCUMENT_BYTES + 1);
    assert!(
        errors(&long).contains("the document has 16777217 bytes; at most 16777216 are accepted")
    );
}

#[test]
fn a_document_has_a_limited_number_of_values() {
    let wide = format!("bundles: [{}]", "1,".repeat(600_000));
    assert!(errors(&wide).contains("the document has more than 600000 values"));
}

#[test]
fn a_document_has_a_limited_number_of_entries() {
    let entry = "{component: User, name: u},";
    let entries = format!("bundles: [{{name: b, entries: [{}]}}]", entry.repeat(MAX_ENTRIES + 1));
    assert!(errors(&entries).contains("bundles[0].entries: a document has at most 20000 entries"));
    let entries = format!("bundles: [{{name: b, entries: [{}]}}]", entry.repeat(MAX_ENTRIES));
    assert_eq!(document(&entries).entries().count(), MAX_ENTRIES);
}

#[test]
fn only_the_first_errors_are_listed() {
    let entries = "a,".repeat(1_000);
    let text = format!("bundles: [{{name: b, entries: [{entries}]}}]");
    let errors = parse(&text).unwrap_err().into_fields();
    assert_eq!(errors.len(), MAX_ERRORS + 1);
    assert_eq!(errors[MAX_ERRORS].to_string(), "900 further errors are not listed");
}

#[test]
fn an_entry_of_json_has_the_same_rules() {
    let entry = |desired: &str| {
        let json = format!(r#"{{"component": "File", "name": "/a", "desired": {desired}}}"#);
        serde_json::from_str::<Entry>(&json)
    };
    let entry_from_value = entry(r#"{"mode": 420, "content": {"inline": 1}}"#).unwrap();
    assert_eq!(entry_from_value, entry(r#"{"mode": "0644", "content": {"inline": "1"}}"#).unwrap());
    let error = entry(r#"{"content": {"inlin": "a"}}"#).unwrap_err().to_string();
    assert!(error.starts_with("desired.content.inlin: content has no field \"inlin\""), "{error}");
}

#[test]
fn an_unknown_component_is_not_offered_next_to_other_errors() {
    let read_error = |text: &str| parse(text).unwrap_err();
    let error = read_error(&one_entry("Extension", "{x: y}"));
    assert!(matches!(&error, ReadError::NotOffered(_)), "{error}");
    assert!(error.to_string().contains("\"Extension\" is not a component (entry \""), "{error}");
    for (entry, others) in [
        ("{component: Extension, name: x, foo: 1}", 0),
        ("{component: Extension}", 0),
        ("{component: Extension, name: [x]}", 0),
        ("{component: Extension, name: x}, {component: File}", 1),
        ("{component: Package, name: a, desired: {x: 1}}, {component: Extension, name: x}", 1),
    ] {
        let error = read_error(&format!("bundles: [{{name: b, entries: [{entry}]}}]"));
        assert!(matches!(&error, ReadError::NotOffered(_)), "{error}");
        assert_eq!(error.fields().len(), 1 + others, "{error}");
    }
}

#[test]
fn each_unknown_component_is_named_next_to_many_errors() {
    let invalid = "{component: File},".repeat(2 * MAX_ERRORS);
    let error = parse(&format!(
        "bundles: [{{name: b, entries: [{invalid} {{component: Extension, name: disk}}]}}]"
    ));
    let error = error.unwrap_err();
    assert!(matches!(&error, ReadError::NotOffered(_)), "{error}");
    assert!(error.to_string().contains("(entry \"disk\")"), "{error}");
}

#[test]
fn many_unknown_fields_are_refused_in_time() {
    let keys: String = (0..250_000).fold(String::new(), |mut keys, number| {
        writeln!(keys, "k{number}: 1").unwrap();
        keys
    });
    let error = parse(&keys).unwrap_err();
    assert_eq!(error.fields().len(), MAX_ERRORS + 1);
}

#[test]
fn a_document_that_breaks_a_rule_is_parsed_and_not_read() {
    let text = one_entry("Package", "{version: new}");
    assert!(parse(&text).is_ok());
    let error = read(&text).unwrap_err();
    assert!(matches!(&error, ReadError::Invalid(fields) if fields.len() == 2), "{error}");
    assert!(error.to_string().contains("bundles[0].entries[0].desired.version: "), "{error}");
}
