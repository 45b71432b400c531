//! Names that a policy requests, marks of packages, and packages that are not needed any more.

use super::*;

#[test]
fn a_virtual_package_is_the_package_that_provides_it() {
    let spec = exactly("mail-agent", None);
    let mut observed = small_model().observe(&spec);
    observed.providers = [("mail-agent".to_owned(), BTreeSet::from(["pa".to_owned()]))].into();
    assert_eq!(plan(&spec, &observed), Ok(Draft::default()), "the provider is installed");

    observed.packages.clear();
    observed.simulation.installs = vec![PlannedInstall {
        package: "pa".into(),
        before: None,
        after: "2".into(),
        architecture: "all".into(),
        origins: Vec::new(),
    }];
    let draft = plan(&spec, &observed).unwrap();
    let names: Vec<_> = draft.steps.iter().map(PackageStep::name).collect();
    assert_eq!(names, ["install"], "apt marks the provider as manual");
    assert_eq!(refusal(&exactly("mail-agent", Some("2")), &observed), NO_SOURCE);
}

const NO_SOURCE: &str = "no source has the package mail-agent";

#[test]
fn the_qualifiers_native_and_any_mean_the_package_itself() {
    for name in ["pa:native", "pa:any", "pa:amd64", "pa:all"] {
        let spec = exactly(name, Some("2"));
        let mut observed = small_model().observe(&exactly("pa", Some("2")));
        observed.automatic = ["pa".to_owned()].into();
        let draft = plan(&spec, &observed).unwrap();
        let names: Vec<_> = draft.steps.iter().map(PackageStep::name).collect();
        assert_eq!(names, ["install"], "{name} is requested, so it is not marked as automatic");
    }
}

#[test]
fn a_named_package_that_is_not_changed_is_marked_as_manual() {
    let spec = exactly("pa", Some("1"));
    let mut observed = small_model().observe(&spec);
    assert_eq!(plan(&spec, &observed), Ok(Draft::default()));
    observed.automatic = ["pa".to_owned()].into();
    let draft = plan(&spec, &observed).unwrap();
    let manual = vec!["pa".to_owned()];
    assert_eq!(draft.steps, [PackageStep::Mark { automatic: Vec::new(), manual }]);
}

#[test]
fn unused_packages_are_removed_last_and_need_no_space() {
    let spec = PackageSpec::new(PackageMode::Latest);
    let mut model = small_model();
    model.offered.clear();
    model.installed.insert("pb".into(), ("1".into(), "installed"));
    let mut observed = model.observe(&spec);
    observed.unused = vec!["pb".into()];
    let draft = plan(&spec, &observed).unwrap();
    assert!(draft.plan.space.is_empty(), "a full disk must not prevent it");
    assert_eq!(draft.report.changes.len(), 1);
    assert_eq!(draft.report.changes[0].after, None);

    let mut model = small_model();
    model.installed.insert("pb".into(), ("1".into(), "installed"));
    let observed = PackageObservation { unused: vec!["pb".into()], ..model.observe(&spec) };
    let draft = plan(&spec, &observed).unwrap();
    let names: Vec<_> = draft.steps.iter().map(PackageStep::name).collect();
    assert_eq!(names, ["install", "remove"]);
}

/// dpkg can only continue its removal, which must not prevent other updates.
#[test]
fn a_package_whose_removal_failed_does_not_prevent_updates() {
    let spec = PackageSpec::new(PackageMode::Latest);
    let mut model = small_model();
    model.installed.insert("pb".into(), ("1".into(), "half-installed"));
    let mut observed = model.observe(&spec);
    for package in &mut observed.packages {
        if package.name == "pb" {
            package.want = "deinstall".into();
        }
    }
    let draft = plan(&spec, &observed).unwrap();
    let names: Vec<_> = draft.steps.iter().map(PackageStep::name).collect();
    assert_eq!(names, ["install"]);
}
