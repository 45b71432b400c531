//! Facts, secrets, and entries that cannot be bound.

use std::collections::{BTreeMap, BTreeSet};

use super::{Facts, Secrets, assigned, bind, bind_with, facts, lines};
use crate::binding::{
    AssignedProfile, BindingError, BindingInput, BoundDocument, ChainTarget, NodeConfiguration,
    SecretVersions, used_facts,
};
use crate::document::Desired;
use crate::native;
use crate::revision::revision;
use crate::validation::validate;

fn one_bundle(entries: &str) -> String {
    format!("bundles:\n- name: b\n  entries:\n{entries}")
}

fn web() -> AssignedProfile {
    let entries = r#"
  - component: File
    name: /etc/web.conf
    desired: {content: {inline: "name ${fact.host.name}\nrack ${fact.label.rack}\nhome ${HOME}\n"}}
  - component: File
    name: /etc/plain.conf
  - component: Unit
    name: web.service
    desired: {filePaths: [/etc/plain.conf, /etc/web.conf], dropIns: {10-a.conf: "[Unit]"}}
"#;
    assigned(ChainTarget::Project, "web", &one_bundle(entries))
}

fn failed_lines(bound: &BoundDocument) -> Vec<String> {
    let line = |failed: &crate::binding::FailedEntry| {
        let errors: Vec<String> = failed.errors.iter().map(ToString::to_string).collect();
        format!("{} of {}: {}", failed.key, failed.profile.name, errors.join(" | "))
    };
    bound.failed.iter().map(line).collect()
}

/// The content of the first file.
fn content(bound: &BoundDocument, name: &str) -> String {
    let mut entries = bound.document.entries().map(|(_, entry)| entry);
    let entry = entries.find(|entry| entry.name == name).unwrap();
    let Desired::File(state) = &entry.desired else { panic!("{entry:?} is no file") };
    state.content.clone().unwrap().inline.unwrap()
}

#[test]
fn facts_are_replaced_and_other_variables_stay() {
    let profiles = [web()];
    let known = facts(&[("host.name", "n1"), ("label.rack", "r7"), ("unused", "\n")]);
    let bound = bind_with(&profiles, &known, &Secrets::new());
    assert_eq!(content(&bound, "/etc/web.conf"), "name n1\nrack r7\nhome ${HOME}\n");
    assert_eq!(bound.revision, revision(&bound.document));
    assert!(bound.failed.is_empty() && bound.warnings.is_empty());
    assert_eq!(used_facts(&profiles).into_iter().collect::<Vec<_>>(), ["host.name", "label.rack"]);
}

#[test]
fn an_entry_with_an_unknown_fact_fails_and_the_rest_is_served() {
    let bound = bind_with(&[web()], &facts(&[("host.name", "$(reboot)")]), &Secrets::new());
    let failed = failed_lines(&bound);
    assert_eq!(failed.len(), 1);
    let (first, second) = failed[0].split_once(" | ").unwrap();
    assert!(
        first.starts_with(
            "File /etc/web.conf of web: desired.content.inline: the fact host.name of the node \
             has a value that is not accepted in documents; accepted are letters"
        ),
        "{first}"
    );
    assert_eq!(second, "desired.content.inline: the fact label.rack of the node is unknown");
    assert_eq!(lines(&bound.document), ["b: File /etc/plain.conf", "b: Unit web.service"]);
    assert_eq!(validate(&bound.document), [], "the unit does not name the file");
    assert_eq!(bound.warnings.len(), 1);
}

#[test]
fn the_node_gets_the_keys_of_failed_entries_so_that_it_leaves_them_alone() {
    let bound = bind(&[web()]);
    assert!(bound.json.contains(r#""failed":[{"component":"File","name":"/etc/web.conf"}]"#));
    assert_ne!(bound.revision, revision(&bound.document));
    let configuration = NodeConfiguration::read(&bound.json).unwrap();
    assert_eq!(configuration.document, bound.document);
    assert_eq!(configuration.failed, [bound.failed[0].key.clone()]);
    assert_eq!(configuration.canonical_json(), bound.json);
    let plain = bind(&[]);
    assert_eq!(NodeConfiguration::read(&plain.json).unwrap().canonical_json(), plain.json);
}

#[test]
fn an_invalid_configuration_is_refused() {
    let both = r#"{"failed":[{"component":"User","name":"u"}],
        "bundles":[{"name":"b","entries":[{"component":"User","name":"u"}]}]}"#;
    let alias = r#"{"failed":[{"component":"Sysctl","name":"vm/a"}],"bundles":[{"name":"b",
        "entries":[{"component":"Sysctl","name":"vm.a","desired":{"value":"1"}}]}]}"#;
    for (json, error) in [
        ("", "EOF while parsing"),
        ("[]", "invalid type"),
        (r#"{"failed":[{"component":"File"}]}"#, "failed: missing field `name`"),
        (r#"{"bundels":[]}"#, "unknown field `bundels`"),
        (r#"{"bundles":[{"name":""}]}"#, "bundles[0].name: is empty"),
        (both, "failed: User u is also in the document"),
        (alias, "failed: Sysctl vm/a is also in the document"),
    ] {
        let message = NodeConfiguration::read(json).unwrap_err().to_string();
        assert!(message.starts_with(error), "{json}: {message}");
    }
}

#[test]
fn a_configuration_is_read_in_any_order() {
    let json = r#"{"failed":[{"component":"User","name":"b"},{"component":"User","name":"a"},
        {"component":"User","name":"b"}],"bundles":[{"name":"b","entries":[
        {"component":"User","name":"d"},{"component":"User","name":"c"}]},{"name":"a"}]}"#;
    let configuration = NodeConfiguration::read(json).unwrap();
    assert_eq!(lines(&configuration.document), ["b: User c", "b: User d"]);
    let failed: Vec<String> = configuration.failed.iter().map(ToString::to_string).collect();
    assert_eq!(failed, ["User a", "User b"]);
}

#[test]
fn an_entry_that_is_lost_to_a_failed_one_fails_too_so_that_the_node_leaves_it_alone() {
    let link = "{type: symlink, target: '${fact.x}'}";
    let unit_file = "/etc/systemd/system/a.service";
    for (near, far, expected) in [
        (
            format!("{{component: File, name: /a, desired: {link}}}"),
            "{component: File, name: /a/b}",
            vec!["File /a", "File /a/b"],
        ),
        (
            format!("{{component: File, name: {unit_file}, desired: {link}}}"),
            "{component: Unit, name: a.service, desired: {content: x}}",
            vec!["File /etc/systemd/system/a.service", "Unit a.service"],
        ),
        (
            "{component: Sysctl, name: vm/a, desired: {value: '${fact.x}'}}".to_owned(),
            "{component: Sysctl, name: vm.a, desired: {value: 1}}",
            vec!["Sysctl vm.a", "Sysctl vm/a"],
        ),
    ] {
        let profiles = [
            assigned(ChainTarget::Host, "near", &one_bundle(&format!("  - {near}"))),
            assigned(ChainTarget::Site, "far", &one_bundle(&format!("  - {far}"))),
            assigned(ChainTarget::Project, "farther", &one_bundle(&format!("  - {far}"))),
        ];
        let bound = bind(&profiles);
        let configuration = NodeConfiguration::read(&bound.json).unwrap();
        assert!(configuration.document.bundles.is_empty());
        let failed: Vec<String> = configuration.failed.iter().map(ToString::to_string).collect();
        assert_eq!(failed, expected);
        assert_eq!(bound.lost.len(), 2);
        let lines = failed_lines(&bound);
        let reason = "which fails";
        assert_eq!(lines.iter().filter(|line| line.ends_with(reason)).count(), 1, "{lines:?}");
        let bound = bind_with(&profiles, &facts(&[("x", "1")]), &Secrets::new());
        assert!(bound.failed.is_empty(), "what is lost to a good entry is not failed");
    }
}

#[test]
fn a_farther_entry_does_not_replace_one_that_fails() {
    let near = "  - {component: Sysctl, name: vm.a, desired: {value: '${fact.a}'}}";
    let far = "  - {component: Sysctl, name: vm.a, desired: {value: '1'}}";
    let profiles = [
        assigned(ChainTarget::Host, "near", &one_bundle(near)),
        assigned(ChainTarget::Project, "far", &one_bundle(far)),
    ];
    let bound = bind(&profiles);
    assert!(bound.document.bundles.is_empty());
    assert_eq!(
        failed_lines(&bound),
        ["Sysctl vm.a of near: desired.value: the fact a of the node is unknown"]
    );
    assert_eq!(bound.lost.len(), 1);
}

#[test]
fn an_entry_is_checked_again_with_the_values_of_facts() {
    let target = format!("{}${{fact.a}}", "x".repeat(4080));
    let entries = format!(
        "  - {{component: File, name: /a, desired: {{type: symlink, target: '{target}'}}}}"
    );
    let profiles = [assigned(ChainTarget::Site, "p", &one_bundle(&entries))];
    assert_eq!(
        bind_with(&profiles, &facts(&[("a", "123456789012345")]), &Secrets::new()).failed,
        []
    );
    let bound = bind_with(&profiles, &facts(&[("a", "1234567890123456")]), &Secrets::new());
    assert_eq!(failed_lines(&bound), ["File /a of p: desired.target: is longer than 4095 bytes"]);
}

#[test]
fn references_to_secrets_get_the_current_version() {
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
    let versions = BTreeMap::from([(2, keys(&["user", "password"])), (3, keys(&["password"]))]);
    let broken = SecretVersions { current: 9, ..SecretVersions::default() };
    let secrets = Secrets::from([
        ("db".to_owned(), SecretVersions { current: 3, keys: versions }),
        ("broken".to_owned(), broken),
    ]);
    for (reference, expected) in [
        ("{name: db, key: password}", Ok(3)),
        ("{name: db, key: password, version: 2}", Ok(2)),
        ("{name: db, key: user, version: 2}", Ok(2)),
        ("{name: db, key: user}", Err("version 3 of the secret db has no key user")),
        ("{name: db, key: password, version: 4}", Err("the secret db has no version 4")),
        ("{name: other, key: password}", Err("the secret other does not exist")),
        ("{name: broken, key: a}", Err("the secret broken has no version 9")),
    ] {
        let entry = format!(
            "  - {{component: File, name: /a, desired: {{content: {{secretRef: {reference}}}}}}}"
        );
        let profiles = [assigned(ChainTarget::Site, "p", &one_bundle(&entry))];
        let bound = bind_with(&profiles, &Facts::new(), &secrets);
        match expected {
            Ok(version) => assert!(bound.json.contains(&format!(r#""version":{version}"#))),
            Err(message) => assert_eq!(
                failed_lines(&bound),
                [format!("File /a of p: desired.content.secretRef: {message}")]
            ),
        }
    }
}

#[test]
fn the_key_depends_on_the_versions_of_secrets_and_on_profiles_that_are_not_used() {
    let entry =
        "  - {component: File, name: /a, desired: {content: {secretRef: {name: s, key: k}}}}";
    let profiles = [assigned(ChainTarget::Site, "p", &one_bundle(entry))];
    let key = |profiles: &[AssignedProfile], current: u64| {
        let keys = BTreeSet::from(["k".to_owned()]);
        let keys = BTreeMap::from([(1, keys.clone()), (2, keys)]);
        let secrets = Secrets::from([("s".to_owned(), SecretVersions { current, keys })]);
        BindingInput { profiles, facts: &Facts::new(), secrets: &secrets }.key()
    };
    assert_eq!(key(&profiles, 1), key(&profiles, 1));
    assert_ne!(key(&profiles, 1), key(&profiles, 2));
    assert_ne!(key(&profiles, 2), key(&profiles, 3), "version 3 does not exist");
    let other_version = assigned(ChainTarget::Project, "p", "bundles: []");
    let both = [profiles[0].clone(), other_version];
    assert_ne!(key(&profiles, 1), key(&both, 1), "only one result has a warning");
}

#[test]
fn the_document_of_a_node_has_the_limits_of_documents() {
    let many = |name: &str| {
        let package = |index: i32| format!("  - {{component: Package, name: {name}{index}}}\n");
        let packages: Vec<String> = (0..10_001).map(package).collect();
        assigned(ChainTarget::Site, name, &one_bundle(&packages.concat()))
    };
    let profiles = [many("aa"), many("bb")];
    let bind = |profiles: &[AssignedProfile]| {
        let known = facts(&[("a", "a".repeat(255).as_str())]);
        BindingInput { profiles, facts: &known, secrets: &Secrets::new() }.bind()
    };
    let error = bind(&profiles).unwrap_err();
    assert_eq!(error, BindingError::TooManyEntries(20_002));
    let file = |name: &str, text: &str| {
        let document = native::parse(&one_bundle(&format!(
            "  - {{component: File, name: /{name}, desired: {{content: {{inline: x}}}}}}"
        )));
        let mut document = document.unwrap();
        let Desired::File(state) = &mut document.bundles[0].entries[0].desired else {
            panic!("no file")
        };
        state.content.as_mut().unwrap().inline = Some(text.to_owned());
        let profile = crate::binding::Profile::new(name, 1, document).unwrap();
        AssignedProfile { profile: profile.into(), target: ChainTarget::Site, priority: 0 }
    };
    let large = "x".repeat(9 << 20);
    assert_eq!(bind(&[file("a", &large), file("b", &large)]), Err(BindingError::TooLong));
    let references = "${fact.a}".repeat(70_000);
    assert_eq!(bind(&[file("a", &references)]), Err(BindingError::TooLong));
}
