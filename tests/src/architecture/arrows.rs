//! Arrows: which crate of the workspace may depend on which.

use serde_json::Value;

/// A crate and the crates of the workspace that it may use. Same table as in ARCHITECTURE.md.
pub const ARROWS: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("auth", &["kit"]),
    ("cli", &["api", "configuration", "kit", "registry"]),
    ("configuration", &[]),
    ("domain", &[]),
    ("fetch", &[]),
    ("inventory", &["api", "auth", "configuration", "domain", "kit", "store"]),
    ("kit", &[]),
    ("maintenance-manager", &["auth", "configuration", "domain", "kit", "proto", "store"]),
    ("migrations", &[]),
    ("os-resource-manager", &["auth", "domain", "fetch", "kit", "registry", "store"]),
    ("pg", &[]),
    ("proto", &["kit"]),
    ("reconcile", &["configuration"]),
    ("registry", &["domain", "fetch"]),
    (
        "server",
        &["auth", "inventory", "kit", "maintenance-manager", "os-resource-manager", "pg", "store"],
    ),
    ("simulator", &["kit", "proto"]),
    ("store", &["configuration", "domain", "kit", "migrations"]),
    ("test-support", &["auth", "domain", "kit", "store"]),
    ("update-agent", &["configuration", "domain", "fetch", "kit", "proto", "reconcile"]),
];

/// Arrows that only a test feature of a crate may add.
const TEST_ONLY_ARROWS: &[(&str, &str)] = &[("store", "pg")];

/// Crates that may use any crate, and that no crate may use.
const TOP_LEVEL_CRATES: &[&str] = &["bench", "tests"];

const PREFIX: &str = "evenkeel-";

/// Each dependency in `cargo metadata` that [`ARROWS`] does not allow, and each crate without a row.
pub fn forbidden_arrows(metadata: &Value) -> Vec<String> {
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let Some(from) = crate_folder(&package["name"]) else {
            findings.push(format!("{} is not named {PREFIX}<folder>", package["name"]));
            continue;
        };
        let row = ARROWS.iter().find(|(name, _)| *name == from);
        if row.is_none() && !TOP_LEVEL_CRATES.contains(&from) {
            findings.push(format!("{from} has no row in the table of arrows"));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(to) = crate_folder(&dependency["name"]) else {
                continue;
            };
            let is_for_tests = dependency["kind"] == "dev"
                || (dependency["optional"] == true && TEST_ONLY_ARROWS.contains(&(from, to)));
            let is_drawn = TOP_LEVEL_CRATES.contains(&from)
                || is_for_tests
                || row.is_some_and(|(_, to_all)| to_all.contains(&to));
            if !is_drawn || (TOP_LEVEL_CRATES.contains(&to) && dependency["kind"] != "dev") {
                findings.push(format!("{from} -> {to}"));
            }
        }
    }
    findings
}

fn crate_folder(name: &Value) -> Option<&str> {
    name.as_str()?.strip_prefix(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: &Value) -> Value {
        json!({ "packages": [{ "name": name, "dependencies": dependencies }] })
    }

    #[test]
    fn an_arrow_that_is_not_drawn_is_found() {
        let bad = package(
            "evenkeel-update-agent",
            &json!([
                { "name": "evenkeel-kit", "kind": null, "optional": false },
                { "name": "evenkeel-store", "kind": null, "optional": false },
                { "name": "serde", "kind": null, "optional": false },
            ]),
        );
        assert_eq!(forbidden_arrows(&bad), ["update-agent -> store"]);
    }

    #[test]
    fn tests_may_use_any_crate_but_no_crate_may_use_the_top_level_crates() {
        let dev = json!([{ "name": "evenkeel-pg", "kind": "dev", "optional": false }]);
        assert!(forbidden_arrows(&package("evenkeel-inventory", &dev)).is_empty());
        let feature = json!([{ "name": "evenkeel-pg", "kind": null, "optional": true }]);
        assert!(forbidden_arrows(&package("evenkeel-store", &feature)).is_empty());
        let plain = json!([{ "name": "evenkeel-pg", "kind": null, "optional": false }]);
        assert_eq!(forbidden_arrows(&package("evenkeel-store", &plain)), ["store -> pg"]);
        let top = json!([{ "name": "evenkeel-tests", "kind": null, "optional": false }]);
        assert_eq!(forbidden_arrows(&package("evenkeel-bench", &top)), ["bench -> tests"]);
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        assert_eq!(
            forbidden_arrows(&package("evenkeel-extra", &json!([]))),
            ["extra has no row in the table of arrows"]
        );
        assert_eq!(
            forbidden_arrows(&package("extra", &json!([]))),
            ["\"extra\" is not named evenkeel-<folder>"]
        );
    }
}
