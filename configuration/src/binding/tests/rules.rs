//! Which entries and settings win.

use super::{assigned, bind, document, group, lines, lost_lines, version};
use crate::binding::{
    AssignedProfile, ChainTarget, MAX_FACTS_PER_PROFILE, Profile, find_conflicts,
};
use crate::document::{ApplyMode, ExtraKind, FailureMode};
use crate::revision::revision;
use crate::validation::validate;

/// A profile with one kernel setting, whose value is the name of the profile.
fn setting(target: ChainTarget, name: &str) -> AssignedProfile {
    let entry = format!("{{component: Sysctl, name: vm.a, desired: {{value: {name}}}}}");
    assigned(target, name, &format!("bundles: [{{name: b, entries: [{entry}]}}]"))
}

fn with_priority(assigned: AssignedProfile, priority: i32) -> AssignedProfile {
    AssignedProfile { priority, ..assigned }
}

/// A chain, nearest first.
fn chain() -> Vec<ChainTarget> {
    vec![
        ChainTarget::Instance,
        ChainTarget::Host,
        group("b", 9),
        group("a", 1),
        group("c", 1),
        ChainTarget::Site,
        ChainTarget::Region { distance: 0 },
        ChainTarget::Region { distance: 1 },
        ChainTarget::Project,
    ]
}

#[test]
fn a_node_without_profiles_has_an_empty_document() {
    let bound = bind(&[]);
    assert_eq!(bound.document, document("bundles: []"));
    assert_eq!(bound.revision, revision(&bound.document));
}

#[test]
fn the_nearest_profile_wins_whatever_its_priority_and_name() {
    let chain = chain();
    for far in 1..chain.len() {
        for near in &chain[..far] {
            let near = setting(near.clone(), "z");
            let far = with_priority(setting(chain[far].clone(), "a"), 9);
            for profiles in [[near.clone(), far.clone()], [far, near]] {
                let bound = bind(&profiles);
                assert_eq!(lines(&bound.document), ["b: Sysctl vm.a = z"], "{profiles:?}");
                assert_eq!(lost_lines(&bound), ["Sysctl vm.a of a lost to Sysctl vm.a of z"]);
            }
        }
    }
}

#[test]
fn at_one_target_the_higher_priority_wins_and_then_the_first_name() {
    let site = || ChainTarget::Site;
    for (profiles, winner) in [
        ([setting(site(), "b"), setting(site(), "a")], "a"),
        ([setting(site(), "a"), with_priority(setting(site(), "b"), 1)], "b"),
        ([with_priority(setting(site(), "a"), -1), setting(site(), "b")], "b"),
    ] {
        let bound = bind(&profiles);
        assert_eq!(lines(&bound.document), [format!("b: Sysctl vm.a = {winner}")]);
        assert!(bound.lost[0].is_conflict);
        let conflicts = find_conflicts(&profiles);
        assert_eq!(conflicts.len(), 1);
        assert_eq!(conflicts[0].profile.name, winner);
    }
}

#[test]
fn entries_of_all_profiles_add_up() {
    let project = assigned(
        ChainTarget::Project,
        "base",
        "bundles:
        - name: base
          entries:
          - {component: Package, name: curl}
          - {component: Sysctl, name: net.ipv4.ip_forward, desired: {value: 0}}
        - {name: web, entries: [{component: Package, name: nginx}]}",
    );
    let site = assigned(
        ChainTarget::Site,
        "berlin",
        "bundles:
        - {name: web, entries: [{component: Package, name: php}]}
        - name: forward
          entries: [{component: Sysctl, name: net/ipv4/ip_forward, desired: {value: 1}}]",
    );
    let bound = bind(&[site, project]);
    assert_eq!(
        lines(&bound.document),
        [
            "base: Package curl",
            "forward: Sysctl net/ipv4/ip_forward = 1",
            "web: Package nginx",
            "web: Package php",
        ]
    );
    assert_eq!(
        lost_lines(&bound),
        ["Sysctl net.ipv4.ip_forward of base lost to Sysctl net/ipv4/ip_forward of berlin"]
    );
    assert!(bound.warnings.is_empty(), "{:?}", bound.warnings);
}

fn actions(target: ChainTarget, name: &str, bundles: &[(&str, &[&str])]) -> AssignedProfile {
    let bundle = |(bundle, names): &(&str, &[&str])| {
        let action =
            |name: &&str| format!("{{component: Action, name: {name}, desired: {{command: c}}}}");
        let entries: Vec<String> = names.iter().map(action).collect();
        format!("{{name: {bundle}, entries: [{}]}}", entries.join(", "))
    };
    let bundles: Vec<String> = bundles.iter().map(bundle).collect();
    assigned(target, name, &format!("bundles: [{}]", bundles.join(", ")))
}

#[test]
fn actions_of_farther_targets_run_first_and_a_nearer_one_runs_in_their_position() {
    let project =
        actions(ChainTarget::Project, "p", &[("z", &["z1", "z2"]), ("web", &["w1", "w2"])]);
    let site = actions(ChainTarget::Site, "s", &[("web", &["w3", "w1"]), ("y", &["y1"])]);
    let other = actions(ChainTarget::Site, "q", &[("x", &["x1"])]);
    let other = with_priority(other, 1);
    let bound = bind(&[site, project, other]);
    let actions = lines(&bound.document);
    let actions: Vec<&str> =
        actions.iter().map(|line| line.split(' ').next_back().unwrap()).collect();
    assert_eq!(actions, ["z1", "z2", "w1", "w2", "w3", "x1", "y1"]);
    assert_eq!(lost_lines(&bound), ["Action w1 of p lost to Action w1 of s"]);
}

#[test]
fn an_operator_learns_that_actions_and_units_do_not_react_to_an_entry_of_another_bundle() {
    let project = assigned(
        ChainTarget::Project,
        "base",
        "bundles:
        - name: web
          entries:
          - {component: File, name: /etc/a}
          - {component: Unit, name: a.service, desired: {filePaths: [/etc/a]}}
        - name: db
          entries:
          - {component: File, name: /etc/b}
          - {component: File, name: /etc/b2}
          - {component: Action, name: reload, desired: {command: c}}
        - name: plain
          entries: [{component: File, name: /etc/c}, {component: Package, name: cc}]",
    );
    let site = assigned(
        ChainTarget::Site,
        "berlin",
        "bundles:
        - name: site
          entries:
          - {component: File, name: /etc/a}
          - {component: File, name: /etc/c}
          - {component: Action, name: reload, desired: {command: d}}
        - {name: db, entries: [{component: File, name: /etc/b}]}",
    );
    let bound = bind(&[project, site]);
    assert_eq!(
        bound.warnings,
        [
            "Action reload of the bundle db (profile base) is replaced by the one of the bundle \
             site (profile berlin), so it does not run for changes of the former bundle",
            "File /etc/a of the bundle web (profile base) is replaced by the one of the bundle \
             site (profile berlin), so the actions and units of the former bundle do not react to \
             its changes",
        ]
    );
}

#[test]
fn a_profile_refers_to_a_limited_number_of_facts() {
    let profile = |count: usize| {
        let references: Vec<String> =
            (0..count).map(|index| format!("${{fact.f{index}}}")).collect();
        let content = format!("{{content: {{inline: '{}'}}}}", references.concat());
        let entry = format!("{{component: File, name: /a, desired: {content}}}");
        let text = format!("bundles: [{{name: b, entries: [{entry}]}}]");
        Profile::new("p", 1, document(&text)).map_err(|errors| errors[0].to_string())
    };
    assert_eq!(profile(MAX_FACTS_PER_PROFILE).unwrap().facts().len(), MAX_FACTS_PER_PROFILE);
    assert_eq!(
        profile(MAX_FACTS_PER_PROFILE + 1).unwrap_err(),
        "bundles: refers to 1001 facts; at most 1000 are accepted"
    );
}

#[test]
fn warnings_are_limited() {
    let profile = |target, name, bundle: &str, action: &str| {
        let file = |index: i32| format!("{{component: File, name: /f{index}}}");
        let files: Vec<String> = (0..103).map(file).collect();
        let entries = format!("[{action} {}]", files.join(", "));
        assigned(target, name, &format!("bundles: [{{name: {bundle}, entries: {entries}}}]"))
    };
    let action = "{component: Action, name: a, desired: {command: c}},";
    let far = profile(ChainTarget::Project, "far", "f", action);
    let warnings = bind(&[far, profile(ChainTarget::Site, "near", "n", "")]).warnings;
    assert_eq!(warnings.len(), 101);
    assert_eq!(warnings[100], "3 further warnings are not listed");
}

#[test]
fn nothing_replaces_an_entry_whose_winner_is_lost() {
    let profile = |target, name, entries: &str| {
        assigned(target, name, &format!("bundles: [{{name: {name}, entries: [{entries}]}}]"))
    };
    let link = "{component: File, name: /a, desired: {type: symlink, target: /t}}";
    let file = "{component: File, name: /a/b}";
    let action = "{component: Action, name: x, desired: {command: c}}";
    let bound = bind(&[
        profile(ChainTarget::Host, "near", link),
        profile(ChainTarget::Site, "middle", file),
        profile(ChainTarget::Project, "far", &format!("{action}, {file}")),
    ]);
    assert_eq!(lines(&bound.document), ["far: Action x", "near: File /a"]);
    assert_eq!(
        lost_lines(&bound),
        [
            "File /a/b of middle lost to File /a of near",
            "File /a/b of far lost to File /a/b of middle",
        ]
    );
    assert!(bound.warnings.is_empty(), "{:?}", bound.warnings);
}

#[test]
fn a_farther_entry_that_cannot_exist_with_a_nearer_one_is_lost() {
    let file =
        |name: &str, state: &str| format!("{{component: File, name: {name}, desired: {state}}}");
    let unit = |state: &str| format!("{{component: Unit, name: a.service, desired: {state}}}");
    let unit_file = "/etc/systemd/system/a.service";
    let link = "{type: symlink, target: /b}";
    for (far, near, is_lost) in [
        (file("/a/b/c", "{}"), file("/a", link), true),
        (file("/a", "{type: absent}"), file("/a/b/c", "{}"), true),
        (file("/a", "{type: directory}"), file("/a/b/c", "{}"), false),
        (file("/a", "{}"), file("/a-b", "{}"), false),
        (file("/a.b/c", "{}"), file("/a", "{}"), false),
        (file(unit_file, "{}"), unit("{content: x}"), true),
        (file(unit_file, "{}"), unit("{}"), false),
        (unit("{content: x}"), file(unit_file, "{type: absent}"), true),
        (unit("{dropIns: {10-a.conf: x}}"), file(&format!("{unit_file}.d"), link), true),
        (file("/etc/systemd", link), unit("{dropIns: {10-a.conf: x}}"), true),
        (file("/etc/systemd", "{type: permissions, mode: '0755'}"), unit("{content: x}"), false),
    ] {
        let one = |target, name, entry: &str| {
            assigned(target, name, &format!("bundles: [{{name: b, entries: [{entry}]}}]"))
        };
        let profiles = [one(ChainTarget::Project, "f", &far), one(ChainTarget::Site, "n", &near)];
        let bound = bind(&profiles);
        assert_eq!(bound.lost.len(), usize::from(is_lost), "{far} {near}");
        assert!(bound.lost.iter().all(|lost| lost.profile.name == "f"), "{far} {near}");
        let same_target = [one(ChainTarget::Site, "f", &far), one(ChainTarget::Site, "n", &near)];
        assert_eq!(find_conflicts(&same_target).len(), usize::from(is_lost), "{far} {near}");
    }
}

#[test]
fn a_unit_stays_valid_without_a_file_that_is_lost() {
    let project = assigned(
        ChainTarget::Project,
        "base",
        "bundles:
        - name: b
          entries:
          - {component: File, name: /etc/a/b}
          - {component: File, name: /etc/c}
          - {component: Unit, name: a.service, desired: {filePaths: [/etc/a/b, /etc/c]}}",
    );
    let site =
        "bundles: [{name: b, entries: [{component: File, name: /etc/a, desired: {type: absent}}]}]";
    let bound = bind(&[project, assigned(ChainTarget::Site, "s", site)]);
    assert_eq!(validate(&bound.document), []);
    assert_eq!(
        bound.warnings,
        ["no change of File /etc/a/b restarts Unit a.service, because the document does not have \
          the file"]
    );
}

#[test]
fn the_settings_are_the_most_careful_ones_and_extras_add_up() {
    use ApplyMode::{Audit, Continuous, Window};
    use ExtraKind::{Packages, Users};
    for (settings, mode, failure, extras) in [
        (["", ""], Window, FailureMode::Keep, vec![]),
        (
            ["applyMode: continuous,", "applyMode: continuous,"],
            Continuous,
            FailureMode::Keep,
            vec![],
        ),
        (["applyMode: continuous,", ""], Window, FailureMode::Keep, vec![]),
        (["applyMode: continuous,", "applyMode: audit,"], Audit, FailureMode::Keep, vec![]),
        (["onFailure: revert,", "applyMode: audit,"], Audit, FailureMode::Revert, vec![]),
        (
            ["removeExtras: [users],", "removeExtras: [users, packages],"],
            Window,
            FailureMode::Keep,
            vec![Packages, Users],
        ),
    ] {
        let [near, far] = settings.map(|settings| format!("{{{settings} bundles: []}}"));
        let one = assigned(ChainTarget::Site, "n", &near);
        let other = assigned(ChainTarget::Project, "f", &far);
        for profiles in [[one.clone(), other.clone()], [other, one]] {
            let document = bind(&profiles).document;
            let settings = (document.apply_mode, document.on_failure, document.remove_extras);
            assert_eq!(settings, (mode, failure, extras.clone()));
        }
    }
}

#[test]
fn an_operator_learns_which_profile_makes_others_careful() {
    let audit = assigned(ChainTarget::Project, "new", "{applyMode: audit, bundles: []}");
    let base = assigned(ChainTarget::Project, "base", "{applyMode: continuous, bundles: []}");
    let warnings = bind(&[audit, base]).warnings;
    let warning = "the profile base has applyMode continuous, but audit is used, because the \
        profile new has it";
    assert_eq!(warnings, [warning]);
}

#[test]
fn a_profile_is_used_once_at_its_nearest_target() {
    let old = setting(ChainTarget::Project, "web");
    let bound = bind(&[old.clone(), setting(ChainTarget::Host, "web")]);
    assert_eq!((bound.lost.len(), bound.warnings.len()), (0, 0));
    let canary = assigned(group("canary", 1), "web", "bundles: []");
    let bound = bind(&[old, version(&canary, 2)]);
    assert_eq!(lines(&bound.document), [""; 0], "the canary has nothing of the old version");
    assert_eq!(
        bound.warnings,
        ["version 1 of the profile web is not used, because version 2 takes precedence"]
    );
}

#[test]
fn profiles_of_one_target_with_the_same_entry_or_clashing_paths_are_conflicts() {
    let one = |target, name: &str, path: &str| {
        let file = format!("{{component: File, name: {path}}}");
        assigned(target, name, &format!("bundles: [{{name: b, entries: [{file}]}}]"))
    };
    let base = one(ChainTarget::Site, "base", "/a");
    let profiles = [
        one(ChainTarget::Site, "web", "/a/b"),
        base.clone(),
        version(&base, 2),
        one(ChainTarget::Site, "also", "/c"),
        one(ChainTarget::Site, "unrelated", "/d"),
        one(ChainTarget::Host, "near", "/c"),
        one(ChainTarget::Site, "db", "/c"),
    ];
    let conflicts: Vec<String> =
        find_conflicts(&profiles).iter().map(ToString::to_string).collect();
    assert_eq!(
        conflicts,
        [
            "base (version 2) and base (version 1) are versions of one profile; assign only one \
             of them to a target",
            "also (version 1) and db (version 1) both have File /c; remove one, or assign one of \
             the profiles to another target",
            "File /a of base (version 2) and File /a/b of web (version 1) cannot exist on one \
             machine; remove one, or assign one of the profiles to another target",
        ]
    );
    assert!(find_conflicts(&[]).is_empty());
}

#[test]
fn a_profile_for_new_machines_or_with_misplaced_references_is_refused() {
    let command = "{component: Action, name: a, desired: {command: '$${fact.x}'}}";
    let value = "{component: Sysctl, name: vm.a, desired: {value: '${fact.}'}}";
    let entry = "bundles[0].entries[1].desired";
    let two = |entry| {
        format!("bundles: [{{name: b, entries: [{{component: Package, name: bb}}, {entry}]}}]")
    };
    for (text, error) in [
        (
            "purpose: provision".to_owned(),
            "purpose: a document of purpose provision is user-data of a new machine".to_owned(),
        ),
        (
            "bundles: [{name: '${fact.a}'}]".to_owned(),
            "bundles[0].name: has a reference to a fact".to_owned(),
        ),
        (two(command), format!("{entry}.command: has a reference to a fact, which is not")),
        (two(value), format!("{entry}.value: \"${{fact.}}\" is not a reference to a fact")),
    ] {
        let errors = Profile::new("p", 1, document(&text)).unwrap_err();
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(errors.len() == 1 && errors[0].starts_with(&error), "{errors:?}");
    }
    let invalid =
        crate::Document { remove_extras: vec![ExtraKind::Users; 2], ..Default::default() };
    assert_eq!(Profile::new("p", 1, invalid).unwrap_err()[0].path, "removeExtras[1]");
}
