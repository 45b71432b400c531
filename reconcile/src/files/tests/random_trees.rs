use evenkeel_configuration::Document;
use proptest::prelude::*;

use super::{FileMachine, KillBefore, NoFaults, document};

/// Paths that may be below each other.
const PATHS: [&str; 6] = ["/d/a", "/d/a/b", "/d/a/b/c", "/d/e", "/d/f/g", "/h"];

/// What is at a path before the run.
#[derive(Clone, Debug)]
enum Before {
    Missing,
    File(&'static str, u32),
    Folder(u32),
    Link(&'static str),
}

fn before() -> impl Strategy<Value = Before> {
    prop_oneof![
        Just(Before::Missing),
        (prop_oneof![Just("one"), Just("two")], prop_oneof![Just(0o600), Just(0o644)])
            .prop_map(|(content, mode)| Before::File(content, mode)),
        prop_oneof![Just(0o755), Just(0o1777)].prop_map(Before::Folder),
        prop_oneof![Just("one"), Just("e")].prop_map(Before::Link),
    ]
}

/// The desired state of a path in YAML; empty if it has no entry.
fn desired() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just(""),
        Just("{content: {inline: one}, owner: app}"),
        Just("{content: {inline: two}, mode: '4755'}"),
        Just("{type: directory}"),
        Just("{type: directory, prune: true}"),
        Just("{type: symlink, target: one, group: app}"),
        Just("{type: absent, prune: true}"),
        Just("{type: permissions, mode: '0711', owner: '5'}"),
    ]
}

/// A machine; what is not possible below a file is left out.
fn machine(states: &[Before]) -> FileMachine {
    let machine = FileMachine::new();
    for folder in ["/d", "/d/f"] {
        machine.make_folder(folder);
    }
    for (path, state) in PATHS.iter().zip(states) {
        let target = machine.path(path);
        if !target.parent().unwrap().is_dir() || target.parent().unwrap().is_symlink() {
            continue;
        }
        match state {
            Before::Missing => {}
            Before::File(content, mode) => {
                machine.write(path, content);
                machine.set_mode(path, *mode);
            }
            Before::Folder(mode) => {
                machine.make_folder(path);
                machine.set_mode(path, *mode);
            }
            Before::Link(target) => machine.link(path, target),
        }
    }
    machine
}

/// A document; entries that are not possible below others are left out.
fn entries(states: &[&'static str]) -> Document {
    let mut entries: Vec<(&str, &str)> = Vec::new();
    for (path, desired) in PATHS.iter().zip(states) {
        let is_blocked = entries.iter().any(|(parent, state)| {
            let is_folder = state.contains("directory") || state.contains("permissions");
            path.starts_with(&format!("{parent}/")) && !is_folder
        });
        if !desired.is_empty() && !is_blocked {
            entries.push((path, desired));
        }
    }
    document(&entries)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_tree_gets_its_new_or_its_old_state_after_a_kill(
        states in proptest::collection::vec(before(), PATHS.len()),
        desired in proptest::collection::vec(desired(), PATHS.len()),
        kills in proptest::collection::vec(1_usize..60, 4),
    ) {
        let document = entries(&desired);
        let finished = machine(&states);
        let old = finished.tree();
        let plan = finished.plan(&document);
        finished.execute(&document, &plan, &NoFaults).unwrap();
        let new = finished.tree();
        // Permissions of a new parent directory need a second run, and those of a file behind a link
        // to it a third one.
        for _ in 0..2 {
            let next = finished.plan(&document);
            finished.execute(&document, &next, &NoFaults).unwrap();
        }
        let last = finished.plan(&document);
        prop_assert!(last.is_empty(), "{:?} is left after {:?}", last, plan);
        finished.revert();
        prop_assert_eq!(&finished.tree(), &old);

        for number in kills {
            let machine = machine(&states);
            let _ = machine.execute(&document, &plan, &KillBefore::call(number));
            if number % 2 == 0 {
                machine.execute(&document, &plan, &NoFaults).unwrap();
                prop_assert_eq!(&machine.tree(), &new, "repeated after call {}", number);
            }
            let _ = machine.changer(&KillBefore::call(number / 3 + 1)).revert();
            machine.revert();
            prop_assert_eq!(&machine.tree(), &old, "reverted after call {}", number);
        }
    }
}
