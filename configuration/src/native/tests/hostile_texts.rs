//! Documents with texts that a reader of YAML could take for something else.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::document::{
    ActionCondition, ActionSpec, ActionStatusCheck, ActionTiming, ApplyMode, Bundle, Desired,
    Document, Entry, ExtraKind, FailureMode, FileContent, FileKind, FileMode, FileState,
    MAX_ACCOUNT_ID, PackageSourceState, PackageState, Purpose, SecretRef, SysctlState, UnitCommand,
    UnitState, UserGroupState, UserState,
};
use crate::native::{parse, write};
use crate::revision::revision;
use crate::validation::{MAX_ERRORS, validate};

const HOSTILE: [&str; 64] = [
    "",
    " ",
    "y",
    "Y",
    "n",
    "yes",
    "No",
    "on",
    "OFF",
    "true",
    "False",
    "null",
    "Null",
    "~",
    "0",
    "0644",
    "0o644",
    "0x1F",
    "0b1",
    "1_000",
    "1.0",
    "1e3",
    ".5",
    ".inf",
    "-.INF",
    ".nan",
    "1e999",
    "12:30:45",
    "2001-01-01",
    "2001-01-01T12:30:45Z",
    "=",
    "<<",
    "-",
    "- a",
    "?",
    "? a",
    ":",
    "a: b",
    "a:",
    "#",
    "a #b",
    "&a",
    "*a",
    "!a",
    "!!str a",
    "|",
    ">",
    "'",
    "\"",
    "\\",
    "%",
    "@",
    "`",
    "---",
    "...",
    "--- a\n...\n",
    "{",
    "[a]",
    ", ",
    "\t",
    "\ta",
    "a\n",
    "\n\na\n\n",
    "  a\n b\n",
];

fn text() -> impl Strategy<Value = String> {
    let lines = vec(select(&HOSTILE[..]), 1..4).prop_map(|lines| lines.join("\n"));
    let odd = select(&['\0', '\u{7f}', '\u{85}', '\u{2028}', '\u{feff}', '\u{fffe}', '\r'][..]);
    let characters =
        vec(prop_oneof![any::<char>(), odd, select(&[' ', '\n', ':', '#'][..])], 0..30);
    prop_oneof![
        select(&HOSTILE[..]).prop_map(str::to_owned),
        lines,
        characters.prop_map(String::from_iter),
        "[a-z ]{120,130}",
    ]
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..3)
}

fn file_state() -> impl Strategy<Value = FileState> {
    use FileKind::{Absent, Directory, File, Permissions, Symlink};
    let kind = select(&[File, Directory, Symlink, Absent, Permissions][..]);
    let secret_ref = (text(), text(), option::of(0..=SecretRef::MAX_VERSION));
    let secret_ref = secret_ref.prop_map(|(name, key, version)| SecretRef { name, key, version });
    let content = (
        option::of(text()),
        option::of("[a-z=]{0,9}"),
        option::of(secret_ref),
        option::of(text()),
        option::of(text()),
    );
    let content = content.prop_map(|(inline, base64, secret_ref, uri, sha256)| FileContent {
        inline,
        base64,
        secret_ref,
        uri,
        sha256,
    });
    let mode = option::of((0..=FileMode::MAX.0).prop_map(FileMode));
    let owners = (option::of(text()), option::of(text()), option::of(text()));
    (kind, mode, owners, option::of(content), any::<bool>()).prop_map(
        |(kind, mode, (owner, group, target), content, prune)| FileState {
            kind,
            mode,
            owner,
            group,
            content,
            target,
            prune,
        },
    )
}

fn unit_state() -> impl Strategy<Value = UnitState> {
    let command = select(&[UnitCommand::Start, UnitCommand::Restart, UnitCommand::Stop][..]);
    let drop_ins = btree_map(text(), text(), 0..3);
    let enable = option::of(any::<bool>());
    (option::of(text()), drop_ins, enable, option::of(command), texts()).prop_map(
        |(content, drop_ins, enable, command, file_paths)| UnitState {
            content,
            drop_ins,
            enable,
            command,
            file_paths,
        },
    )
}

fn action_spec() -> impl Strategy<Value = ActionSpec> {
    let timing = select(&[ActionTiming::Pre, ActionTiming::Post, ActionTiming::Both][..]);
    let when = select(&[ActionCondition::Modified, ActionCondition::Always][..]);
    let status = select(&[ActionStatusCheck::Check, ActionStatusCheck::Ignore][..]);
    (text(), timing, when, status, 0..=ActionSpec::MAX_TIMEOUT).prop_map(
        |(command, timing, when, status, timeout)| ActionSpec {
            command,
            timing,
            when,
            status,
            timeout,
        },
    )
}

fn user_state() -> impl Strategy<Value = UserState> {
    let paths = (option::of(text()), option::of(text()), option::of(text()));
    (any::<bool>(), option::of(0..=MAX_ACCOUNT_ID), option::of(text()), texts(), paths).prop_map(
        |(absent, uid, group, groups, (comment, home, shell))| UserState {
            absent,
            uid,
            group,
            groups,
            comment,
            home,
            shell,
        },
    )
}

fn entry() -> impl Strategy<Value = Entry> {
    let source = (text(), option::of(text()));
    let source = source.prop_map(|(source, key)| PackageSourceState { source, key });
    let group = (any::<bool>(), option::of(0..=MAX_ACCOUNT_ID));
    let group = group.prop_map(|(absent, gid)| UserGroupState { absent, gid });
    let desired = prop_oneof![
        file_state().prop_map(Desired::File),
        unit_state().prop_map(Desired::Unit),
        text().prop_map(|version| Desired::Package(PackageState { version })),
        source.prop_map(Desired::PackageSource),
        action_spec().prop_map(Desired::Action),
        user_state().prop_map(Desired::User),
        group.prop_map(Desired::UserGroup),
        text().prop_map(|value| Desired::Sysctl(SysctlState { value })),
    ];
    (text(), desired).prop_map(|(name, desired)| Entry { name, desired })
}

fn document() -> impl Strategy<Value = Document> {
    let apply_mode = select(&[ApplyMode::Audit, ApplyMode::Window, ApplyMode::Continuous][..]);
    let extras = select(&[ExtraKind::Packages, ExtraKind::Services, ExtraKind::Users][..]);
    let on_failure = select(&[FailureMode::Keep, FailureMode::Revert][..]);
    let purpose = select(&[Purpose::Provision, Purpose::Reconcile][..]);
    let bundle = (text(), vec(entry(), 0..4));
    let bundles = vec(bundle.prop_map(|(name, entries)| Bundle { name, entries }), 0..3);
    (apply_mode, vec(extras, 0..3), on_failure, purpose, bundles).prop_map(
        |(apply_mode, remove_extras, on_failure, purpose, bundles)| Document {
            apply_mode,
            remove_extras,
            on_failure,
            purpose,
            bundles,
        },
    )
}

/// JSON in which all other characters are escaped, as many programs write it.
fn ascii_json(document: &Document) -> String {
    let json = serde_json::to_string(document).unwrap();
    let escape = |c: char| {
        let mut units = [0; 2];
        let units = c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}"));
        if (' '..='~').contains(&c) { c.to_string() } else { units.collect() }
    };
    json.chars().map(escape).collect()
}

proptest! {
    #[test]
    fn a_document_that_is_written_and_read_is_the_same(document in document()) {
        let yaml = write(&document);
        let yaml_copy = parse(&yaml);
        prop_assert_eq!(yaml_copy.as_ref(), Ok(&document), "{}", yaml);
        let json = ascii_json(&document);
        let json_copy = parse(&json);
        prop_assert_eq!(json_copy.as_ref(), Ok(&document), "{}", &json);
        let typed: Document = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(revision(&typed), revision(&document));
        prop_assert_eq!(typed, document.clone());
        prop_assert!(validate(&document).len() <= MAX_ERRORS + 1);
    }

    #[test]
    fn no_text_causes_a_panic(text in text(), json in any::<bool>()) {
        let _ = parse(&text);
        let entry = if json { format!("{{\"name\": {text}}}") } else { format!("name: {text}") };
        let _ = parse(&format!("bundles:\n- entries:\n  - {entry}"));
    }
}
