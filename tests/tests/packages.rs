//! The Debian packages of the project: lintian, equal bytes, and the bill of materials.

use std::collections::BTreeSet;
use std::fs;

use evenkeel_tests::lab::{
    PackageSet, check_release, configure_server, describe_output, make_bill_of_materials,
    run_lintian,
};
use serde_json::Value;

/// Version of the packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What the script of the server's package prints. Exit statuses of policy-rc.d and of a start, arguments of dpkg, and a part
/// of the output.
const NEXT_COMMANDS: &[(&str, &str, &[&str], &str)] = &[
    (
        "0",
        "0",
        &["configure"],
        "  evenkeel login --server https://h:8443 --ca /ca.pem --token-file /",
    ),
    ("0", "0", &["configure", "1.0-1"], "the server runs in its new version"),
    ("0", "0", &["abort-upgrade", "1.1-1"], "the server runs.\n"),
    ("0", "124", &["configure", "1.0-1"], "  systemctl status evenkeeld.service"),
    ("0", "1", &["configure"], "  journalctl --unit evenkeeld.service"),
    ("101", "1", &["configure"], "Later, run: systemctl start evenkeeld.service"),
    ("101", "1", &["configure", "1.0-1"], "Later, run: systemctl restart evenkeeld.service"),
];

#[test]
fn the_configuration_of_the_servers_package_succeeds_and_prints_the_next_command() {
    let folder = tempfile::tempdir().expect("a folder");
    for (policy, start, arguments, expected) in NEXT_COMMANDS {
        let output = configure_server(folder.path(), policy, start, arguments);
        let text = describe_output(&output);
        assert!(output.status.success() && text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn lintian_has_no_error_and_no_warning() {
    let folder = tempfile::tempdir().expect("a folder");
    let debs = PackageSet::new(folder.path()).pack(VERSION);
    assert_eq!(debs.len(), PackageSet::NAMES.len());
    let Some(output) = run_lintian(&debs) else { return };
    assert!(output.status.success(), "{}", describe_output(&output));
}

#[test]
fn one_build_that_is_packed_in_two_folders_gives_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let packages = PackageSet::new(folder.path());
    let (here, elsewhere) = (packages.pack(VERSION), packages.pack_elsewhere(VERSION));
    for ((one, other), name) in here.iter().zip(&elsewhere).zip(PackageSet::NAMES) {
        let file = one.file_name().expect("a name");
        assert_ne!(one, other);
        assert_eq!(Some(file), other.file_name());
        assert!(file.to_string_lossy().starts_with(&format!("{name}_{VERSION}-1_")), "{file:?}");
        let (one, other) = (fs::read(one), fs::read(other));
        assert!(one.expect("a package") == other.expect("a package"), "{name} differs");
    }
    assert_eq!((here.len(), elsewhere.len()), (3, 3));
    let newer = packages.pack(&format!("{VERSION}+newer"));
    let bytes = |path| fs::read(path).expect("a package");
    assert!(bytes(&newer[0]) != bytes(&here[0]), "the comparison cannot fail");
}

#[test]
fn every_file_of_a_release_is_signed() {
    let folder = tempfile::tempdir().expect("a folder");
    let release = PackageSet::new(folder.path()).make_release();
    assert!(release.ends_with(VERSION), "{release:?}");
    let intact = check_release(&release);
    assert!(intact.status.success(), "{}", describe_output(&intact));
    for file in ["apt/dists/stable/Release", &format!("evenkeel_{VERSION}.cdx.json")] {
        let path = release.join(file);
        let content = fs::read_to_string(&path).expect(file);
        fs::write(&path, format!("{content}\n")).expect(file);
        assert!(!check_release(&release).status.success(), "a change of {file} is not found");
        fs::write(&path, content).expect(file);
    }
    fs::write(release.join("another"), "").expect("a file");
    assert!(!check_release(&release).status.success(), "a file without a checksum is not found");
}

#[test]
fn the_bill_of_materials_lists_the_crates_of_the_programs() {
    let bill = make_bill_of_materials();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    assert_eq!(bill["specVersion"], "1.6");
    let components = bill["components"].as_array().expect("components");
    let text = |component: &Value, field: &str| component[field].as_str().expect(field).to_owned();
    let references: BTreeSet<String> =
        components.iter().map(|component| text(component, "bom-ref")).collect();
    assert_eq!(references.len(), components.len(), "a crate is listed twice");
    let names: BTreeSet<String> =
        components.iter().map(|component| text(component, "name")).collect();
    for name in ["evenkeel-server", "evenkeel-cli", "evenkeel-update-agent", "tokio", "rustls"] {
        assert!(names.contains(name), "{name} is missing");
    }
    for name in ["insta", "proptest", "evenkeel-tests"] {
        assert!(!names.contains(name), "{name} is only for tests");
    }
    for component in components {
        assert!(!component["licenses"][0].is_null(), "{component}");
        let is_own = text(component, "name").starts_with("evenkeel-");
        assert_eq!(component["hashes"][0]["content"].is_null(), is_own, "{component}");
    }
    let dependencies = bill["dependencies"].as_array().expect("dependencies");
    for dependency in dependencies {
        let needed = dependency["dependsOn"].as_array().expect("a list");
        for one in needed {
            let is_listed = one.as_str().is_some_and(|one| references.contains(one));
            assert!(is_listed, "{one} is no component");
        }
    }
    assert_eq!(dependencies.len(), components.len() + 1);
}
