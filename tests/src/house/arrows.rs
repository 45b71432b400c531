//! Arrows: which crate of ours may use which.

use serde_json::Value;

/// A crate and those of ours that it may use, as the table in ARCHITECTURE.md.
pub const ARROWS: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("auth", &["kit"]),
    ("cli", &["api", "kit", "registry"]),
    ("domain", &[]),
    ("inventory", &["api", "auth", "domain", "kit", "store"]),
    ("kit", &[]),
    (
        "maintenance-manager",
        &["auth", "domain", "kit", "proto", "store"],
    ),
    ("migrations", &[]),
    (
        "os-resource-manager",
        &["auth", "domain", "kit", "registry", "store"],
    ),
    ("pg", &[]),
    ("proto", &[]),
    ("registry", &["domain"]),
    (
        "server",
        &[
            "auth",
            "inventory",
            "kit",
            "maintenance-manager",
            "os-resource-manager",
            "pg",
            "store",
        ],
    ),
    ("simulator", &["kit", "proto"]),
    ("store", &["domain", "kit", "migrations"]),
    ("update-agent", &["kit", "proto"]),
];

/// What only a feature for tests may add to a crate.
const FOR_TESTS: &[(&str, &str)] = &[("store", "pg")];

/// These may use anything, and nothing may use them.
const ON_TOP: &[&str] = &["bench", "tests"];

const PREFIX: &str = "evenkeel-";

/// Each arrow of `cargo metadata` that [`ARROWS`] does not draw, and each crate that it does not know.
pub fn forbidden(metadata: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let Some(from) = ours(&package["name"]) else {
            found.push(format!("{} is not named {PREFIX}<folder>", package["name"]));
            continue;
        };
        let known = ARROWS.iter().find(|(name, _)| *name == from);
        if known.is_none() && !ON_TOP.contains(&from) {
            found.push(format!("{from} has no row in the table of arrows"));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(to) = ours(&dependency["name"]) else {
                continue;
            };
            let is_for_tests = dependency["kind"] == "dev"
                || (dependency["optional"] == true && FOR_TESTS.contains(&(from, to)));
            let is_drawn = ON_TOP.contains(&from)
                || is_for_tests
                || known.is_some_and(|(_, to_all)| to_all.contains(&to));
            if !is_drawn || (ON_TOP.contains(&to) && dependency["kind"] != "dev") {
                found.push(format!("{from} -> {to}"));
            }
        }
    }
    found
}

fn ours(name: &Value) -> Option<&str> {
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
                { "name": "evenkeel-domain", "kind": null, "optional": false },
                { "name": "serde", "kind": null, "optional": false },
            ]),
        );
        assert_eq!(forbidden(&bad), ["update-agent -> domain"]);
    }

    #[test]
    fn tests_may_point_anywhere_but_the_crates_on_top_are_nobodys() {
        let dev = json!([{ "name": "evenkeel-pg", "kind": "dev", "optional": false }]);
        assert!(forbidden(&package("evenkeel-inventory", &dev)).is_empty());
        let feature = json!([{ "name": "evenkeel-pg", "kind": null, "optional": true }]);
        assert!(forbidden(&package("evenkeel-store", &feature)).is_empty());
        let plain = json!([{ "name": "evenkeel-pg", "kind": null, "optional": false }]);
        assert_eq!(
            forbidden(&package("evenkeel-store", &plain)),
            ["store -> pg"]
        );
        let top = json!([{ "name": "evenkeel-tests", "kind": null, "optional": false }]);
        assert_eq!(
            forbidden(&package("evenkeel-bench", &top)),
            ["bench -> tests"]
        );
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        assert_eq!(
            forbidden(&package("evenkeel-extra", &json!([]))),
            ["extra has no row in the table of arrows"]
        );
        assert_eq!(
            forbidden(&package("extra", &json!([]))),
            ["\"extra\" is not named evenkeel-<folder>"]
        );
    }
}
