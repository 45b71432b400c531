//! Doors: what may be named only in few places.

use super::code::{before_tests, only_code};
use super::tree::SourceFile;

/// A name and the places that may use it. A place is the beginning of a path.
#[derive(Clone, Copy, Debug)]
pub struct Door {
    /// The name, as it stands in code.
    pub name: &'static str,
    /// Where it may stand.
    pub places: &'static [&'static str],
    /// Whether tests inside other files may use it as well.
    pub open_to_tests: bool,
}

const fn door(name: &'static str, places: &'static [&'static str]) -> Door {
    Door {
        name,
        places,
        open_to_tests: true,
    }
}

/// The doors of this house.
pub const DOORS: &[Door] = &[
    door("sea_orm", &["store/", "migrations/"]),
    door("sea_orm_migration", &["store/", "migrations/"]),
    door(
        "tonic",
        &[
            "proto/",
            "maintenance-manager/",
            "update-agent/",
            "server/",
            "simulator/",
            "bench/",
            "tests/",
        ],
    ),
    door(
        "axum",
        &[
            "inventory/",
            "os-resource-manager/src/files/",
            "server/",
            "registry/src/testing/",
            "cli/tests/",
            "bench/",
            "tests/",
        ],
    ),
    door(
        "reqwest",
        &[
            "auth/src/provider.rs",
            "registry/src/oci/",
            "cli/",
            "server/tests/",
            "bench/",
            "tests/",
        ],
    ),
    door(
        "process::Command",
        &["pg/src/", "update-agent/src/runner", "bench/", "tests/"],
    ),
    door("Utc::now", &["kit/src/clock.rs"]),
    door("SystemTime::now", &["kit/src/clock.rs"]),
    door("tokio::spawn", &["kit/src/lifecycle.rs"]),
    door("env::var", &["kit/", "bench/", "tests/"]),
];

/// What the domain never names: it is pure.
pub const NOT_IN_THE_DOMAIN: &[&str] = &[
    "tokio",
    "sea_orm",
    "axum",
    "tonic",
    "prost",
    "reqwest",
    "rand",
    "std::process",
    "std::fs",
    "std::net",
    "std::env",
    "std::io",
    "std::thread",
    "Utc::now",
    "SystemTime",
    "Instant",
];

/// Each place where a name stands outside its door.
pub fn outside_doors(files: &[SourceFile], doors: &[Door]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let code = only_code(&file.text);
        for door in doors {
            let is_inside = door.places.iter().any(|place| file.path.starts_with(place));
            let code = match door.open_to_tests {
                true if file.is_test() => continue,
                true => before_tests(&code),
                false => &code,
            };
            if !is_inside && names(code, door.name) {
                found.push(format!("{} names {}", file.path, door.name));
            }
        }
    }
    found
}

/// Each thing with an effect that the domain names.
pub fn effects_in_the_domain(files: &[SourceFile]) -> Vec<String> {
    let domain = files
        .iter()
        .filter(|file| file.path.starts_with("domain/src/") && !file.is_test());
    let mut found = Vec::new();
    for file in domain {
        let code = only_code(&file.text);
        let effects = NOT_IN_THE_DOMAIN
            .iter()
            .filter(|name| names(before_tests(&code), name));
        found.extend(effects.map(|name| format!("{} names {name}", file.path)));
    }
    found
}

/// Whether the code has the name as a whole word.
pub fn names(code: &str, name: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c == '_' || c.is_ascii_alphanumeric());
    code.match_indices(name).any(|(at, _)| {
        !is_part(code[..at].chars().next_back()) && !is_part(code[at + name.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_outside_its_door_is_found() {
        let bad = [
            SourceFile::sample("inventory/src/hosts.rs", "use sea_orm::EntityTrait;"),
            SourceFile::sample("auth/src/keys.rs", "let now = chrono::Utc::now();"),
            SourceFile::sample("cli/src/main.rs", "std::process::Command::new(\"ls\");"),
        ];
        assert_eq!(
            outside_doors(&bad, DOORS),
            [
                "inventory/src/hosts.rs names sea_orm",
                "auth/src/keys.rs names Utc::now",
                "cli/src/main.rs names process::Command",
            ]
        );
    }

    #[test]
    fn a_name_inside_its_door_in_a_comment_or_in_tests_is_fine() {
        let good = [
            SourceFile::sample("store/src/tx.rs", "use sea_orm::EntityTrait;"),
            SourceFile::sample("auth/src/keys.rs", "// not Utc::now\nlet at = clock.now();"),
            SourceFile::sample(
                "kit/src/x.rs",
                "#[cfg(test)]\nmod tests { fn f() { tokio::spawn(a); } }",
            ),
            SourceFile::sample("api/src/lib.rs", "struct Intonic; fn tonics() {}"),
        ];
        assert!(outside_doors(&good, DOORS).is_empty());
    }

    #[test]
    fn an_effect_in_the_domain_is_found() {
        let bad = [SourceFile::sample(
            "domain/src/run.rs",
            "fn f() { std::fs::read(\"x\"); let _ = std::time::Instant::now(); }",
        )];
        assert_eq!(
            effects_in_the_domain(&bad),
            [
                "domain/src/run.rs names std::fs",
                "domain/src/run.rs names Instant"
            ]
        );
    }
}
