//! Rules for all profiles and facts.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{Facts, Secrets, assigned, group};
use crate::binding::precedence::ProfileSelection;
use crate::binding::{
    AssignedProfile, BindingInput, BoundDocument, ChainTarget, EntryKey, NodeConfiguration,
    Profile, ProfileVersion, SecretVersions, used_facts,
};
use crate::document::{Desired, Document};
use crate::validation::validate;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Entries that replace each other, exclude each other, and refer to facts and secrets.
const ENTRIES: [&str; 16] = [
    "{component: Sysctl, name: vm.a, desired: {value: '${fact.x}'}}",
    "{component: Sysctl, name: vm/a, desired: {value: '1'}}",
    "{component: File, name: /a, desired: {type: symlink, target: /t}}",
    "{component: File, name: /a/b, desired: {content: {inline: 'v ${fact.x} ${fact.y}'}}}",
    "{component: File, name: /a/b}",
    "{component: File, name: /a/b/c}",
    "{component: File, name: /c, desired: {content: {secretRef: {name: s, key: k}}}}",
    "{component: File, name: /c, desired: {content: {secretRef: {name: s, key: k, version: 1}}}}",
    "{component: File, name: /etc/systemd/system/a.service}",
    "{component: Unit, name: a.service, desired: {content: 'v ${fact.y}'}}",
    "{component: Unit, name: a.service, desired: {dropIns: {10-a.conf: x}}}",
    "{component: File, name: /etc/systemd/system/a.service.d, desired: {type: absent}}",
    "{component: Action, name: a, desired: {command: a}}",
    "{component: Action, name: b, desired: {command: b}}",
    "{component: Action, name: c, desired: {command: c}}",
    "{component: Package, name: nginx}",
];

fn target() -> impl Strategy<Value = ChainTarget> {
    prop::sample::select(vec![
        ChainTarget::Instance,
        group("g", 2),
        group("h", 1),
        ChainTarget::Site,
        ChainTarget::Region { distance: 1 },
        ChainTarget::Project,
    ])
}

fn settings() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "applyMode: audit, ",
        "onFailure: revert, ",
        "removeExtras: [users], ",
    ])
}

/// A valid document with some of the entries in two bundles.
fn profile() -> impl Strategy<Value = AssignedProfile> {
    let entries = prop::collection::vec((prop::sample::select(&ENTRIES[..]), 0_usize..2), 0..6);
    let name = prop::sample::select(&NAMES[..]);
    (name, 1_u64..3, target(), 0_i32..2, settings(), entries).prop_filter_map(
        "the document is invalid",
        |(name, version, target, priority, settings, entries)| {
            let bundle = |index| -> String {
                let entries = entries.iter().filter(|(_, bundle)| *bundle == index);
                let entries: Vec<&str> = entries.map(|(entry, _)| *entry).collect();
                format!("{{name: b{index}, entries: [{}]}}", entries.join(", "))
            };
            let text = format!("{{{settings}bundles: [{}, {}]}}", bundle(0), bundle(1));
            let profile = Profile::new(name, version, crate::native::read(&text).ok()?).ok()?;
            Some(AssignedProfile { profile: profile.into(), target, priority })
        },
    )
}

fn node_facts() -> impl Strategy<Value = Facts> {
    let value = prop_oneof![Just("1".to_owned()), Just("2".to_owned()), any::<String>()];
    prop::collection::btree_map(prop::sample::select(vec!["x", "y", "unused"]), value, 0..3)
        .prop_map(|facts| facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn secrets() -> impl Strategy<Value = Secrets> {
    let keys = prop::collection::btree_set(prop::sample::select(vec!["k", "l"]), 0..2);
    let keys = keys.prop_map(|keys| keys.into_iter().map(str::to_owned).collect::<BTreeSet<_>>());
    let versions = prop::collection::btree_map(1_u64..4, keys, 0..3);
    (1_u64..4, versions).prop_map(|(current, keys)| {
        BTreeMap::from([("s".to_owned(), SecretVersions { current, keys })])
    })
}

fn bind(profiles: &[AssignedProfile], facts: &Facts, secrets: &Secrets) -> BoundDocument {
    BindingInput { profiles, facts, secrets }.bind().unwrap()
}

fn keys(document: &Document) -> BTreeSet<EntryKey> {
    document.entries().map(|(_, entry)| EntryKey::from(entry)).collect()
}

/// Values that are accepted, values with characters of shells, units and URLs, and any text.
fn fact_value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[A-Za-z0-9][A-Za-z0-9._:+-]{0,9}",
        "[a-z]{1,2}[ \n;$%/][a-z]{1,2}",
        "[a-z]{0,2}[ \t\n$`;|&<>(){}'\"\\\\%/~#=*?!^,@-][a-z]{0,2}",
        any::<String>(),
    ]
}

proptest! {
    #[test]
    fn the_order_of_the_input_does_not_matter(
        profiles in prop::collection::vec(profile(), 0..6),
        rotation in 0_usize..6,
        facts in node_facts(),
        secrets in secrets(),
    ) {
        let bound = bind(&profiles, &facts, &secrets);
        let mut other = profiles.clone();
        other.reverse();
        let middle = rotation.min(other.len());
        other.rotate_left(middle);
        prop_assert_eq!(&bind(&other, &facts, &secrets), &bound);
        let key = |profiles| BindingInput { profiles, facts: &facts, secrets: &secrets }.key();
        prop_assert_eq!(key(&profiles[..]), key(&other[..]));
    }

    #[test]
    fn every_result_is_a_valid_document_without_references(
        profiles in prop::collection::vec(profile(), 0..6),
        facts in node_facts(),
        secrets in secrets(),
    ) {
        let bound = bind(&profiles, &facts, &secrets);
        prop_assert_eq!(validate(&bound.document), vec![]);
        let has_reference = bound.json.contains("${fact.");
        prop_assert!(!has_reference);
        let present = keys(&bound.document);
        for failed in &bound.failed {
            prop_assert!(!present.contains(&failed.key));
        }
        prop_assert!(bound.lost.iter().all(|lost| lost.profile != lost.winner_profile));
        prop_assert!(bound.failed.iter().all(|failed| !failed.errors.is_empty()));
        prop_assert_eq!(
            NodeConfiguration::read(&bound.json).unwrap().canonical_json(),
            bound.json
        );
    }

    #[test]
    fn each_entry_is_present_or_failed_or_lost_to_a_present_entry(
        profiles in prop::collection::vec(profile(), 0..6),
        facts in node_facts(),
        secrets in secrets(),
    ) {
        let bound = bind(&profiles, &facts, &secrets);
        let present = keys(&bound.document);
        let failed: BTreeSet<&EntryKey> = bound.failed.iter().map(|failed| &failed.key).collect();
        let winners: BTreeMap<(&EntryKey, &ProfileVersion), (&EntryKey, &ProfileVersion)> = bound
            .lost
            .iter()
            .map(|lost| ((&lost.key, &lost.profile), (&lost.winner, &lost.winner_profile)))
            .collect();
        for (key, profile) in winners.keys() {
            let mut last = (*key, *profile);
            while let Some(winner) = winners.get(&last) {
                last = *winner;
            }
            prop_assert_eq!(failed.contains(key), failed.contains(last.0), "{}", key);
            prop_assert!(present.contains(last.0) || failed.contains(last.0), "{}", key);
        }
        for assigned in ProfileSelection::select(&profiles).by_precedence {
            for (_, entry) in assigned.profile.document().entries() {
                let key = EntryKey::from(entry);
                let is_lost = winners.contains_key(&(&key, assigned.profile.version()));
                prop_assert!(is_lost || present.contains(&key) || failed.contains(&key), "{}", key);
            }
        }
    }

    #[test]
    fn each_entry_of_the_nearest_profile_is_present_or_failed(
        profiles in prop::collection::vec(profile(), 0..5),
        mut nearest in profile(),
        facts in node_facts(),
        secrets in secrets(),
    ) {
        nearest.target = ChainTarget::Instance;
        nearest.priority = 9;
        let mut all = profiles.clone();
        all.push(nearest.clone());
        let bound = bind(&all, &facts, &secrets);
        let mut keys = keys(&bound.document);
        keys.extend(bound.failed.into_iter().map(|failed| failed.key));
        for (_, entry) in nearest.profile.document().entries() {
            prop_assert!(keys.contains(&EntryKey::from(entry)), "{:?}", entry);
        }
    }

    #[test]
    fn nodes_with_equal_keys_bind_alike(
        profiles in prop::collection::vec(profile(), 0..5),
        targets in prop::collection::vec(target(), 5),
        facts in [node_facts(), node_facts()],
        secrets in [secrets(), secrets()],
    ) {
        let mut other = profiles.clone();
        for (assigned, target) in other.iter_mut().zip(targets) {
            assigned.target = target;
        }
        let key = |profiles, index: usize| {
            BindingInput { profiles, facts: &facts[index], secrets: &secrets[index] }.key()
        };
        if key(&profiles[..], 0) == key(&other[..], 1) {
            let bound = bind(&profiles, &facts[0], &secrets[0]);
            prop_assert_eq!(bound, bind(&other, &facts[1], &secrets[1]));
        }
        if key(&profiles[..], 0) == key(&profiles[..], 1) {
            let bound = bind(&profiles, &facts[0], &secrets[0]);
            prop_assert_eq!(bound, bind(&profiles, &facts[1], &secrets[1]));
        }
    }

    #[test]
    fn the_key_depends_on_the_facts_that_the_profiles_use_and_on_no_others(
        profiles in prop::collection::vec(profile(), 0..5),
        facts in [node_facts(), node_facts()],
        secrets in secrets(),
    ) {
        let used = used_facts(&profiles);
        let values = |facts: &Facts| -> Vec<Option<String>> {
            used.iter().map(|name| facts.get(*name).cloned()).collect()
        };
        let key = |facts| BindingInput { profiles: &profiles, facts, secrets: &secrets }.key();
        let are_equal = values(&facts[0]) == values(&facts[1]);
        prop_assert_eq!(key(&facts[0]) == key(&facts[1]), are_equal);
    }

    #[test]
    fn no_fact_adds_a_line_or_a_word(value in fact_value()) {
        let text = r#"bundles: [{name: b, entries: [{component: Unit, name: a.service,
            desired: {content: "[Service]\nExecStart=/bin/a --name ${fact.x}\n"}}]}]"#;
        let profiles = [assigned(ChainTarget::Site, "p", text)];
        let facts = Facts::from([("x".to_owned(), value.clone())]);
        let bound = bind(&profiles, &facts, &Secrets::new());
        let entry = bound.document.entries().map(|(_, entry)| entry).next();
        prop_assert_eq!(bound.failed.len(), usize::from(entry.is_none()));
        if let Some(Desired::Unit(state)) = entry.map(|entry| &entry.desired) {
            let content = format!("[Service]\nExecStart=/bin/a --name {value}\n");
            prop_assert_eq!(state.content.as_ref(), Some(&content));
            prop_assert_eq!(content.split_whitespace().count(), 4);
            prop_assert_eq!(content.lines().count(), 2);
            let is_special = |c: char| "$`;|&<>(){}'\"\\%/~#=*?!^,@".contains(c);
            prop_assert!(!value.contains(is_special) && !value.starts_with('-'));
        } else {
            let message = bound.failed[0].errors[0].to_string();
            prop_assert!(value.len() < 5 || !message.contains(&value));
        }
    }
}
