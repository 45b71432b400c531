use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::check::test_machine::MachineFixture;

const KEY: &str =
    "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQ==\n-----END PGP PUBLIC KEY BLOCK-----";

fn desired(has_key: bool) -> String {
    let source = r"Types: deb\nURIs: https://repo.example/debian\nSuites: stable\nComponents: main";
    let key =
        if has_key { format!(", key: \"{}\"", KEY.replace('\n', "\\n")) } else { String::new() };
    format!("{{source: \"{source}\"{key}}}")
}

fn state(has_key: bool) -> PackageSourceState {
    let source = "Types: deb\nURIs: https://repo.example/debian\nSuites: stable\nComponents: main";
    PackageSourceState { source: source.to_owned(), key: has_key.then(|| KEY.to_owned()) }
}

fn describe(fixture: &MachineFixture, has_key: bool) -> String {
    fixture.describe_entry(("PackageSource", "own", &desired(has_key)))
}

#[test]
fn the_files_of_a_source_are_compared() {
    let fixture = MachineFixture::offline();
    let missing = "the file /etc/apt/sources.list.d/evenkeel-source-own.sources is missing; the \
                   file /etc/apt/keyrings/evenkeel-source-own.asc is missing \
                   {\"key\":null,\"source\":null}";
    assert_eq!(describe(&fixture, true), missing);
    fixture.write(&source_path("own"), render_source("own", &state(true)));
    fixture.write(&source_key_path("own"), format!("\r\n{}\r\n", KEY.replace('\n', "  \r\n")));
    assert_eq!(describe(&fixture, true), "good");
    let extra = "the source does not name its key in Signed-By";
    assert!(describe(&fixture, false).starts_with(extra));
    fixture.write(&source_path("own"), render_source("own", &state(false)));
    assert!(describe(&fixture, true).starts_with(extra));
    assert_eq!(describe(&fixture, false), "good");
    fixture.write(&source_key_path("own"), "another key");
    assert!(
        describe(&fixture, true).contains("the key of the source differs {\"key\":{\"sha256\"")
    );
}

#[test]
fn form_and_order_of_fields_do_not_matter() {
    let fixture = MachineFixture::offline();
    let cases = [
        (
            "suites:  stable\n# comment\nURIS:\n https://repo.example/debian\n# x\nTypes: deb\n\
          Components:\tmain\n\n\n",
            "good",
        ),
        (
            "Types: deb\nURIs: https://other.example\nSuites: stable\nComponents: main\n",
            "the field uris of the source differs",
        ),
        (
            "Types: deb\nURIs: https://repo.example/debian\nSuites: a b\n",
            "the fields suites, components of the source differ",
        ),
        (
            "Types: deb\nURIs: https://repo.example/debian\nSuites: stable\nComponents: main\n\
          Enabled: no\n",
            "the field enabled of the source differs",
        ),
        ("Types: deb\n\nTypes: deb\n", "the file of the source has 2 paragraphs instead of one"),
        ("# all off\n", "the file of the source has 0 paragraphs instead of one"),
        ("Types: deb\ndeb https//x\n", "line 2 of the source is not a field"),
        (" Types: deb\n", "line 1 of the source is not a field"),
        ("Types: deb\nTYPES: deb\n", "line 2 of the source is not a field"),
    ];
    for (content, expected) in cases {
        fixture.write(&source_path("own"), content);
        let result = describe(&fixture, false);
        let reason = result.split(" {").next().unwrap();
        assert_eq!(reason, expected, "{content}");
        assert!(!result.contains("example"), "an address may contain a password");
    }
    fixture.write(&source_path("own"), b"Types: \xff\n");
    assert!(describe(&fixture, false).starts_with("the file of the source is not UTF-8"));
}

#[test]
fn a_source_that_is_a_link_is_bad() {
    let fixture = MachineFixture::offline();
    fixture.write("/etc/own.sources", render_source("own", &state(false)));
    fixture.link(&source_path("own"), "/etc/own.sources");
    let expected = "the file /etc/apt/sources.list.d/evenkeel-source-own.sources is a symbolic \
                    link {\"source\":null}";
    assert_eq!(describe(&fixture, false), expected);
}

#[test]
fn no_source_has_the_file_of_update_policies() {
    assert_ne!(source_path("update"), "/etc/apt/sources.list.d/evenkeel-update.sources");
}

proptest! {
    #[test]
    fn any_file_is_compared_without_a_panic(content in vec(any::<u8>(), 0..200)) {
        let source = state(false).source;
        compare_sources(&content, &source);
        has_same_lines(&content, &source);
    }

    #[test]
    fn any_damaged_paragraph_is_parsed_without_a_panic(text in "([aB]|:| |\n|#|\u{e9}){0,40}") {
        let _result = parse_paragraphs(&text);
    }

    #[test]
    fn paragraphs_are_parsed_as_they_are_written(
        paragraphs in vec(btree_map("[a-z][a-z-]{0,8}", vec("[!-~]{1,9}", 0..4), 1..5), 0..4),
        separator in "( |\t|\n  |  \n# comment\n\t)",
    ) {
        let write_field = |(name, words): (&String, &Vec<String>)| {
            format!("{}: {}\n", name.to_ascii_uppercase(), words.join(separator.as_str()))
        };
        let texts = paragraphs.iter().map(|paragraph: &BTreeMap<String, Vec<String>>| {
            paragraph.iter().map(write_field).collect::<Vec<_>>().concat()
        });
        let text = texts.collect::<Vec<_>>().join("\n \n");
        let expected: Vec<SourceParagraph> = paragraphs
            .into_iter()
            .map(|fields| fields.into_iter().map(|(name, words)| (name, words.join(" "))).collect())
            .collect();
        prop_assert_eq!(parse_paragraphs(&text), Ok(expected));
    }
}
