//! Removal of packages that no package needs any more, and the marks of packages.

use std::fs;
use std::path::PathBuf;

use evenkeel_update_agent::model::{PackageRules, UnusedPackagesRule};
use evenkeel_update_agent::paths::AgentPaths;
use evenkeel_update_agent::status;

use crate::support::node::{TestNode, latest_target_with, package_report, package_target};

const OLD_KERNEL: &str = "linux-image-6.0.1-demo";

/// A node in an open window, with a kernel and a library that no package needs.
fn node_with_unused(rule: UnusedPackagesRule) -> TestNode {
    let node = TestNode::in_window();
    for name in [OLD_KERNEL, "libunused"] {
        let mut packages = node.packages();
        packages.installed.insert(name.into(), ("1".into(), "installed".into()));
        packages.automatic.insert(name.into());
        packages.unused.insert(name.into());
    }
    let rules = PackageRules { unused_packages: rule, ..PackageRules::default() };
    node.server().target = Some(latest_target_with(rules));
    node
}

#[tokio::test]
async fn unused_packages_are_removed_after_the_update_as_the_policy_requires() {
    use UnusedPackagesRule as R;
    let all = format!("libunused 1 installed\n{OLD_KERNEL} 1 installed");
    let cases =
        [(R::Keep, all.as_str()), (R::RemoveKernels, "libunused 1 installed"), (R::RemoveAll, "")];
    for (rule, left) in cases {
        let node = node_with_unused(rule);
        node.run_once().await.unwrap();
        let expected = format!("app 2 installed\nlib 2 installed\n{left}");
        assert_eq!(node.system.listing(), expected.trim_end(), "{rule:?}");
        assert!(node.server().story().ends_with("finished"), "{rule:?}");
        let log = node.system.take_log();
        let install = log.iter().position(|line| line == "install").unwrap();
        let removal = log.iter().position(|line| line.starts_with("remove "));
        assert!(removal.is_none_or(|removal| removal > install), "{log:?}");
    }
}

#[tokio::test]
async fn a_failed_removal_of_an_unused_package_is_a_remark() {
    let node = node_with_unused(UnusedPackagesRule::RemoveKernels);
    node.packages().removal_error = "E: the removal fails on purpose".into();
    node.run_once().await.unwrap();
    assert!(node.server().story().ends_with("verify begun, finished"));
    assert!(node.system.listing().contains(OLD_KERNEL));
    assert!(node.system.listing().contains("lib 2 installed"), "its trigger has run");
    let end = status::read_status(&node.paths().status()).unwrap().last_end.unwrap();
    assert_eq!(end.outcome, "finished");
    let [remark] = &end.remarks[..] else { panic!("{:?}", end.remarks) };
    assert!(remark.starts_with("remove: the removal of unused packages ended"), "{remark}");
    assert!(remark.contains("fails on purpose"), "{remark}");
}

/// A node on which a kernel is not configured, because unused kernels fill `/boot`.
fn node_with_full_boot() -> TestNode {
    let node = node_with_unused(UnusedPackagesRule::RemoveKernels);
    node.packages().boot_is_full = true;
    let half = ("1".to_owned(), "half-configured".to_owned());
    node.packages().installed.insert("linux-image-6.0.2-demo".into(), half);
    node
}

#[tokio::test]
async fn unused_kernels_are_removed_before_the_update_while_a_package_is_not_configured() {
    let node = node_with_full_boot();
    node.run_once().await.unwrap();
    assert!(node.server().story().ends_with("finished"));
    let expected = "app 2 installed\nlib 2 installed\nlibunused 1 installed\n\
                    linux-image-6.0.2-demo 1 installed";
    assert_eq!(node.system.listing(), expected);
    let log = node.system.take_log();
    let position = |action: &str| log.iter().position(|line| line == action).unwrap();
    assert!(position(&format!("remove {OLD_KERNEL}")) < position("install"), "{log:?}");
    let report = package_report(node.server().only_attempt().last().unwrap());
    let mut names: Vec<_> = report.results.iter().map(|result| result.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["app", "lib", OLD_KERNEL, "linux-image-6.0.2-demo"], "each one once");
}

#[tokio::test]
async fn a_protected_kernel_stays_also_if_another_one_cannot_be_configured() {
    let node = node_with_full_boot();
    let folder = node.paths().inside("/etc/evenkeel");
    fs::create_dir_all(&folder).unwrap();
    let limits = "protected_packages = [\"linux-image-*\"]\n";
    fs::write(folder.join("limits.toml"), limits).unwrap();
    node.run_once().await.unwrap_err();
    assert!(node.system.listing().contains(OLD_KERNEL));
}

#[tokio::test]
async fn a_failed_removal_before_the_update_does_not_fail_the_update() {
    let node = node_with_full_boot();
    node.packages().boot_is_full = false;
    node.packages().removal_error = "E: the removal fails on purpose".into();
    node.run_once().await.unwrap();
    assert!(node.server().story().ends_with("finished"));
    assert!(node.system.listing().contains("app 2 installed"));
    assert!(node.system.listing().contains(OLD_KERNEL));
    let end = status::read_status(&node.paths().status()).unwrap().last_end.unwrap();
    assert_eq!(end.remarks.len(), 1, "{:?}", end.remarks);
}

#[tokio::test]
async fn the_owner_can_forbid_the_removal_of_unused_packages() {
    for limits in ["removals = false\n", "protected_packages = [\"linux-image-*\"]\n"] {
        let node = node_with_unused(UnusedPackagesRule::RemoveKernels);
        let folder = node.paths().inside("/etc/evenkeel");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("limits.toml"), limits).unwrap();
        node.run_once().await.unwrap();
        assert!(node.server().story().ends_with("finished"), "{limits}");
        assert!(node.system.listing().contains("app 2 installed"), "{limits}");
        assert!(node.system.listing().contains(OLD_KERNEL), "{limits}");
    }
}

/// Downloads happen ahead of the window, sometimes by days.
#[tokio::test]
async fn a_package_that_must_stay_since_the_plan_was_made_is_not_removed() {
    type FilePath = fn(&AgentPaths) -> PathBuf;
    let history = r#"{"running":"6.0.2-demo","previous":"6.0.1-demo"}"#;
    let cases: [(FilePath, &str, &str); 3] = [
        (AgentPaths::limits, "removals = false\n", "does not allow removals"),
        (AgentPaths::limits, "protected_packages = [\"linux-image-*\"]\n", "`protected_packages`"),
        (AgentPaths::kernels, history, "a kernel was started"),
    ];
    for (file, text, expected) in cases {
        let node = node_with_unused(UnusedPackagesRule::RemoveKernels);
        node.server().window_open = false;
        node.run_once().await.unwrap();
        assert_eq!(node.server().story(), "downloading, downloaded");
        let file = file(&node.paths());
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
        node.server().window_open = true;
        node.run_once().await.unwrap();
        assert!(node.server().story().ends_with("finished"), "{expected}");
        assert!(node.system.listing().contains("app 2 installed"), "{expected}");
        assert!(node.system.listing().contains(OLD_KERNEL), "{expected}");
        let end = status::read_status(&node.paths().status()).unwrap().last_end.unwrap();
        let [remark] = &end.remarks[..] else { panic!("{:?}", end.remarks) };
        assert!(remark.contains(expected), "{remark}");
    }
}

/// apt marks packages from files as manually installed before it starts dpkg.
#[tokio::test]
async fn after_a_failed_update_automatic_packages_are_still_automatic() {
    let node = TestNode::in_window();
    node.packages().broken.insert("app".into());
    node.run_once().await.unwrap_err();
    let automatic: Vec<_> = node.packages().automatic.iter().cloned().collect();
    assert_eq!(automatic, ["lib"]);
}

#[tokio::test]
async fn a_package_that_the_policy_names_becomes_manual() {
    for version in ["1", "2"] {
        let node = TestNode::in_window();
        node.server().target = Some(package_target("lib", Some(version)));
        node.run_once().await.unwrap();
        assert!(node.packages().automatic.is_empty(), "lib in version {version}");
    }
}
