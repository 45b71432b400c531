//! Documents that are equal after they are written and read.

use std::collections::HashSet;

use evenkeel_configuration::document::{
    ActionCondition, ActionSpec, ActionStatusCheck, ActionTiming, Desired, FileContent, FileKind,
    FileMode, FileState, MAX_ACCOUNT_ID, PackageState, UnitCommand, UnitState, UserGroupState,
    UserState,
};
use evenkeel_configuration::{Bundle, Component, Document, Entry};
use proptest::option;
use proptest::prelude::*;

use crate::{read, write};

/// Text that XML carries, with white space and markup.
fn text() -> impl Strategy<Value = String> {
    "[ -~\n\t<>&\"'é€\u{10348}]{1,60}"
}

/// The value of an attribute, which is not empty.
fn value() -> impl Strategy<Value = String> {
    "[!-~é<>&\"'][ -~\n\t\r]{0,20}"
}

/// A value of one line, such as a comment.
fn line() -> impl Strategy<Value = String> {
    "[!-9;-~é<>&\"'][ -9;-~]{0,20}"
}

fn path() -> impl Strategy<Value = String> {
    "/[a-z&<\"é][a-z&<\"é. -]{0,11}"
}

/// The name of a user or a group.
fn account() -> impl Strategy<Value = String> {
    "[a-z_][a-z0-9_-]{0,11}"
}

fn file_content() -> impl Strategy<Value = Option<FileContent>> {
    let inline =
        text().prop_map(|text| FileContent { inline: Some(text), ..FileContent::default() });
    let digits = "([A-Za-z0-9+/]{4}){1,8}";
    let base64 =
        digits.prop_map(|text| FileContent { base64: Some(text), ..FileContent::default() });
    option::of(prop_oneof![inline, base64])
}

fn file_state() -> impl Strategy<Value = FileState> {
    let fields = (0..=0o7777_u32, account(), account(), file_content(), line(), any::<bool>());
    (0..5, fields).prop_map(|(kind, (mode, owner, group, content, target, prune))| {
        let with_permissions = FileState {
            mode: Some(FileMode(mode)),
            owner: Some(owner),
            group: Some(group),
            ..FileState::default()
        };
        match kind {
            0 => FileState { content, ..with_permissions },
            1 => FileState { kind: FileKind::Directory, prune, ..with_permissions },
            2 => FileState { kind: FileKind::Permissions, ..with_permissions },
            3 => {
                FileState { kind: FileKind::Symlink, target: Some(target), ..FileState::default() }
            }
            _ => FileState { kind: FileKind::Absent, prune, ..FileState::default() },
        }
    })
}

/// States that a service without files has. Files of the bundle are added later.
fn unit_state() -> impl Strategy<Value = UnitState> {
    let cases = [
        (true, Some(UnitCommand::Start)),
        (true, Some(UnitCommand::Stop)),
        (false, Some(UnitCommand::Start)),
        (false, None),
    ];
    prop::sample::select(cases.to_vec()).prop_map(|(enable, command)| UnitState {
        enable: Some(enable),
        command,
        ..UnitState::default()
    })
}

fn action() -> impl Strategy<Value = ActionSpec> {
    let timing =
        prop_oneof![Just(ActionTiming::Pre), Just(ActionTiming::Post), Just(ActionTiming::Both)];
    let when = prop_oneof![Just(ActionCondition::Modified), Just(ActionCondition::Always)];
    let status = prop_oneof![Just(ActionStatusCheck::Check), Just(ActionStatusCheck::Ignore)];
    (value(), timing, when, status).prop_map(|(command, timing, when, status)| ActionSpec {
        command,
        timing,
        when,
        status,
        timeout: 300,
    })
}

fn user() -> impl Strategy<Value = UserState> {
    let groups = prop::collection::hash_set(account(), 0..4);
    let fields = (option::of(0..=MAX_ACCOUNT_ID), option::of(account()), groups);
    (fields, line(), path(), path()).prop_map(|((uid, group, groups), comment, home, shell)| {
        UserState {
            absent: false,
            uid,
            group,
            groups: groups.into_iter().collect(),
            comment: Some(comment),
            home: Some(home),
            shell: Some(shell),
        }
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let version = prop_oneof![Just("any".to_owned()), "[0-9][0-9a-z.+~]{0,12}"];
    let group = option::of(0..=MAX_ACCOUNT_ID)
        .prop_map(|gid| Desired::UserGroup(UserGroupState { absent: false, gid }));
    let package = version.prop_map(|version| Desired::Package(PackageState { version }));
    let entry = |(name, desired)| Entry { name, desired };
    prop_oneof![
        4 => (path(), file_state().prop_map(Desired::File)).prop_map(entry),
        1 => ("[a-z:_.-]{1,8}\\.service", unit_state().prop_map(Desired::Unit)).prop_map(entry),
        1 => ("[a-z][a-z0-9.+-]{1,8}", package).prop_map(entry),
        1 => ("[a-z&<\"é]{1,12}", action().prop_map(Desired::Action)).prop_map(entry),
        1 => (account(), user().prop_map(Desired::User)).prop_map(entry),
        1 => (account(), group).prop_map(entry),
    ]
}

/// A unit that restarts lists all files of its bundle.
fn add_file_paths(bundle: &mut Bundle) {
    let files = bundle.entries.iter().filter(|entry| entry.component() == Component::File);
    let paths: Vec<String> = files.map(|entry| entry.name.clone()).collect();
    for entry in &mut bundle.entries {
        if let Desired::Unit(state) = &mut entry.desired
            && (state.enable, state.command) == (Some(false), Some(UnitCommand::Start))
            && !paths.is_empty()
        {
            state.command = Some(UnitCommand::Restart);
            state.file_paths.clone_from(&paths);
        }
    }
}

/// A document in which bundles and entries are listed once.
fn document() -> impl Strategy<Value = Document> {
    let bundle = ("[a-z&<]{1,4}( [a-z&<]{1,4})?", prop::collection::vec(entry(), 0..8));
    prop::collection::vec(bundle, 0..4).prop_map(|bundles| {
        let (mut names, mut keys) = (HashSet::new(), HashSet::new());
        let mut document = Document::default();
        for (name, mut entries) in bundles {
            entries.retain(|entry| keys.insert((entry.component(), entry.name.clone())));
            if names.insert(name.clone()) {
                let mut bundle = Bundle { name, entries };
                add_file_paths(&mut bundle);
                document.bundles.push(bundle);
            }
        }
        document
    })
}

proptest! {
    #[test]
    fn a_document_is_equal_after_it_is_written_and_read(document in document()) {
        let text = write(&document).unwrap();
        prop_assert_eq!(&read(&text).unwrap(), &document, "{}", text);
        prop_assert_eq!(write(&document).unwrap(), text);
    }
}
