//! Rules that concern several entries or the whole document.

use super::errors;
use crate::document::{Bundle, Desired, Document, Entry, ExtraKind, FileState, PackageState};
use crate::validation::{MAX_ERRORS, validate};

#[test]
fn bundles_have_names_of_their_own() {
    let errors = errors(
        "bundles: [{name: a}, {name: ''}, {name: ' b'}, {name: a}, {name: \"c\\n\"}, {name: ü b}]",
    );
    assert_eq!(
        errors,
        [
            "bundles[1].name: is empty; write a name",
            "bundles[2].name: has a control character, or a space at its start or end; remove it",
            "bundles[4].name: has a control character, or a space at its start or end; remove it",
            "bundles[3].name: the bundle \"a\" is also bundles[0]; merge them or rename one",
        ]
    );
}

#[test]
fn a_thing_has_one_entry() {
    let errors = errors(
        "bundles:
- name: a
  entries:
  - {component: User, name: adm}
  - {component: UserGroup, name: adm}
  - {component: Sysctl, name: net.ipv4.ip_forward, desired: {value: 1}}
- name: b
  entries:
  - {component: Sysctl, name: net/ipv4/ip_forward, desired: {value: 0}}
  - {component: User, name: adm}
",
    );
    assert_eq!(
        errors,
        [
            "bundles[1].entries[0]: Sysctl \"net/ipv4/ip_forward\" is also bundles[0].entries[2]; \
             a document has one entry for it",
            "bundles[1].entries[1]: User \"adm\" is also bundles[0].entries[0]; a document has \
             one entry for it",
        ]
    );
}

#[test]
fn nothing_is_below_a_path_that_is_no_directory() {
    let errors = errors(
        "bundles:
- name: a
  entries:
  - {component: File, name: /a/link/x/y}
  - {component: File, name: /a/link, desired: {type: symlink, target: /b}}
  - {component: File, name: /a/file}
  - {component: File, name: /a/file/x}
  - {component: File, name: /a/file.d/x}
  - {component: File, name: /a/file-b}
  - {component: File, name: /gone, desired: {type: absent}}
  - {component: File, name: /gone/x, desired: {type: absent}}
  - {component: File, name: /dir, desired: {type: directory, prune: true}}
  - {component: File, name: /dir/x}
  - {component: File, name: /kept, desired: {type: permissions, mode: '0750'}}
  - {component: File, name: /kept/x}
",
    );
    assert_eq!(
        errors,
        [
            "bundles[0].entries[0].name: is below \"/a/link\" (bundles[0].entries[1]), an entry \
             of the type symlink; nothing can be below it",
            "bundles[0].entries[3].name: is below \"/a/file\" (bundles[0].entries[2]), an entry \
             of the type file; nothing can be below it",
            "bundles[0].entries[7].name: is below \"/gone\" (bundles[0].entries[6]), an entry of \
             the type absent; nothing can be below it",
        ]
    );
}

#[test]
fn a_unit_file_is_not_below_a_path_that_is_no_directory() {
    let errors = errors(
        "bundles:
- name: a
  entries:
  - {component: File, name: /etc/systemd/system/a.service.d, desired: {type: absent, prune: true}}
  - {component: Unit, name: a.service, desired: {dropIns: {10-a.conf: '[Unit]'}}}
  - {component: Unit, name: b.service, desired: {dropIns: {10-a.conf: '[Unit]'}}}
",
    );
    assert_eq!(
        errors,
        ["bundles[0].entries[0]: bundles[0].entries[1] writes a file below this path; remove \
             one of them"]
    );
}

#[test]
fn many_nested_files_are_checked_in_time() {
    let entry = |name: String| format!("  - {{component: File, name: {name}}}\n");
    let deep = (1..1_000).map(|depth| entry("/a".repeat(depth)));
    let wide = (0..3_000).map(|index| entry(format!("{}/b{index}", "/a".repeat(1_000))));
    let entries: String = deep.chain(wide).collect();
    let errors = errors(&format!("bundles:\n- name: b\n  entries:\n{entries}"));
    assert_eq!(errors.last().map(String::as_str), Some("3898 further errors are not listed"));
}

#[test]
fn file_paths_of_a_unit_name_files_of_the_document() {
    let errors = errors(
        "bundles:
- name: a
  entries:
  - component: Unit
    name: a.service
    desired: {filePaths: [/etc/a, /etc/b, /etc/a, c]}
- name: b
  entries:
  - {component: File, name: /etc/a}
",
    );
    assert_eq!(
        errors,
        [
            "bundles[0].entries[0].desired.filePaths[2]: is in the list twice; remove one",
            "bundles[0].entries[0].desired.filePaths[3]: \"c\" is not an absolute path; begin \
             with \"/\"",
            "bundles[0].entries[0].desired.filePaths[1]: no File entry of the document has the \
             name \"/etc/b\"; add the entry, or remove the path",
            "bundles[0].entries[0].desired.filePaths[3]: no File entry of the document has the \
             name \"c\"; add the entry, or remove the path",
        ]
    );
}

#[test]
fn one_entry_writes_a_file() {
    let errors = errors(
        "bundles:
- name: a
  entries:
  - {component: File, name: /etc/systemd/system/a.service}
  - {component: File, name: /etc/systemd/system/b.service}
  - {component: File, name: /etc/systemd/system/b.service.d/10-a.conf}
  - {component: Unit, name: a.service, desired: {content: x}}
  - {component: Unit, name: b.service, desired: {dropIns: {10-a.conf: x, 20-b.conf: y}}}
",
    );
    let message = "writes the same file; remove one of them";
    assert_eq!(
        errors,
        [
            format!("bundles[0].entries[0]: bundles[0].entries[3] {message}"),
            format!("bundles[0].entries[2]: bundles[0].entries[4] {message}"),
        ]
    );
}

#[test]
fn removed_extras_are_listed_once() {
    use ExtraKind::{Packages, Users};
    let remove_extras = vec![Packages, Users, Packages];
    let document = Document { remove_extras, ..Document::default() };
    let errors: Vec<String> = validate(&document).iter().map(ToString::to_string).collect();
    assert_eq!(errors, ["removeExtras[2]: is in the list twice; remove one"]);
}

#[test]
fn deep_paths_are_checked_in_a_moment() {
    let name = |index: usize| format!("{}/{index}", "/a".repeat(2040));
    let entry =
        |index: usize| Entry { name: name(index), desired: Desired::File(FileState::default()) };
    let bundle = Bundle { name: "b".to_owned(), entries: (0..500).map(entry).collect() };
    let document = Document { bundles: vec![bundle], ..Document::default() };
    assert_eq!(validate(&document), []);
}

#[test]
fn messages_and_errors_are_limited() {
    let entry = Entry {
        name: "x".repeat(1 << 20),
        desired: Desired::Package(PackageState { version: "x".repeat(1 << 20) }),
    };
    let bundle = Bundle { name: "b".to_owned(), entries: vec![entry; 60] };
    let document = Document { bundles: vec![bundle], ..Document::default() };
    let errors = validate(&document);
    assert_eq!(errors.len(), MAX_ERRORS + 1);
    assert_eq!(errors[MAX_ERRORS].to_string(), "79 further errors are not listed");
    assert!(errors.iter().all(|error| error.to_string().len() < 500), "{errors:?}");
}
