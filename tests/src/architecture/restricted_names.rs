//! Names that only some paths may use.

use super::code::{before_tests, only_code};
use super::tree::SourceFile;

/// A name and the paths that may use it.
#[derive(Clone, Copy, Debug)]
pub struct RestrictedName {
    /// The name, as it is written in code.
    pub name: &'static str,
    /// Beginnings of the paths that may use it.
    pub paths: &'static [&'static str],
    /// Whether tests in other files may use it as well.
    pub allow_in_tests: bool,
}

const fn restricted(name: &'static str, paths: &'static [&'static str]) -> RestrictedName {
    RestrictedName { name, paths, allow_in_tests: true }
}

pub const RESTRICTED_NAMES: &[RestrictedName] = &[
    restricted("sea_orm", &["store/", "migrations/"]),
    restricted("sea_orm_migration", &["store/", "migrations/"]),
    restricted(
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
    restricted(
        "axum",
        &[
            "inventory/",
            "os-resource-manager/src/files",
            "server/",
            "registry/src/testing",
            "cli/tests/",
            "bench/",
            "test-support/",
            "tests/",
        ],
    ),
    restricted(
        "reqwest",
        &[
            "auth/src/provider.rs",
            "maintenance-manager/src/notifications/sender.rs",
            "registry/src/oci",
            "cli/",
            "server/tests/",
            "bench/",
            "test-support/",
            "tests/",
        ],
    ),
    restricted("lettre", &["maintenance-manager/src/notifications/mail.rs"]),
    restricted("opentelemetry_proto", &["server/src/traces.rs"]),
    restricted(
        "process::Command",
        &[
            "pg/src/",
            "server/src/support_bundle/machine.rs",
            "update-agent/src/runner",
            "cli/src/main.rs",
            "bench/",
            "test-support/",
            "tests/",
        ],
    ),
    restricted("tokio_cron_scheduler", &["kit/src/job_schedule"]),
    // The cache announces changes; who waits for them subscribes.
    restricted(
        "poll::long_poll",
        &[
            "maintenance-manager/src/grpc/",
            "maintenance-manager/src/lib.rs",
            "maintenance-manager/src/manager.rs",
            "maintenance-manager/src/settings.rs",
        ],
    ),
    restricted("Utc::now", &["kit/src/clock.rs"]),
    restricted("SystemTime::now", &["kit/src/clock.rs"]),
    restricted("tokio::spawn", &["kit/src/lifecycle.rs"]),
    restricted(
        "env::var",
        &["kit/", "store/src/testing.rs", "update-agent/src/probes/script.rs", "bench/", "tests/"],
    ),
    restricted(
        "env::var_os",
        &["kit/", "pg/src/options.rs", "cli/src/main.rs", "bench/", "tests/"],
    ),
];

/// Names that the domain must not use, because it is pure.
pub const FORBIDDEN_IN_DOMAIN: &[&str] = &[
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

/// Each use of a restricted name outside its paths.
pub fn names_outside_their_paths(files: &[SourceFile], rules: &[RestrictedName]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files {
        let code = only_code(&file.text);
        for rule in rules {
            let is_inside = rule.paths.iter().any(|path| file.path.starts_with(path));
            let code = match rule.allow_in_tests {
                true if file.is_test() => continue,
                true => before_tests(&code),
                false => &code,
            };
            if !is_inside && has_name(code, rule.name) {
                findings.push(format!("{} uses {}", file.path, rule.name));
            }
        }
    }
    findings
}

/// Each use of a name in the domain that stands for an effect.
pub fn effects_in_the_domain(files: &[SourceFile]) -> Vec<String> {
    let domain =
        files.iter().filter(|file| file.path.starts_with("domain/src/") && !file.is_test());
    let mut findings = Vec::new();
    for file in domain {
        let code = only_code(&file.text);
        let effects = FORBIDDEN_IN_DOMAIN.iter().filter(|name| has_name(before_tests(&code), name));
        findings.extend(effects.map(|name| format!("{} uses {name}", file.path)));
    }
    findings
}

/// Whether the code contains the name as a whole word.
pub fn has_name(code: &str, name: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c == '_' || c.is_ascii_alphanumeric());
    code.match_indices(name).any(|(at, _)| {
        !is_part(code[..at].chars().next_back()) && !is_part(code[at + name.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_outside_its_paths_is_found() {
        let bad = [
            SourceFile::sample("inventory/src/hosts.rs", "use sea_orm::EntityTrait;"),
            SourceFile::sample("auth/src/keys.rs", "let now = chrono::Utc::now();"),
            SourceFile::sample("cli/src/login.rs", "std::process::Command::new(\"ls\");"),
            SourceFile::sample(
                "maintenance-manager/src/poll/cache/log_follower.rs",
                "use crate::poll::long_poll::LongPolls;",
            ),
        ];
        assert_eq!(
            names_outside_their_paths(&bad, RESTRICTED_NAMES),
            [
                "inventory/src/hosts.rs uses sea_orm",
                "auth/src/keys.rs uses Utc::now",
                "cli/src/login.rs uses process::Command",
                "maintenance-manager/src/poll/cache/log_follower.rs uses poll::long_poll",
            ]
        );
    }

    #[test]
    fn a_name_inside_its_paths_or_in_a_comment_or_in_tests_is_allowed() {
        let good = [
            SourceFile::sample("store/src/tx.rs", "use sea_orm::EntityTrait;"),
            SourceFile::sample("auth/src/keys.rs", "// not Utc::now\nlet at = clock.now();"),
            SourceFile::sample(
                "kit/src/x.rs",
                "#[cfg(test)]\nmod tests { fn f() { tokio::spawn(a); } }",
            ),
            SourceFile::sample("api/src/lib.rs", "struct Intonic; fn tonics() {}"),
        ];
        assert!(names_outside_their_paths(&good, RESTRICTED_NAMES).is_empty());
    }

    #[test]
    fn an_effect_in_the_domain_is_found() {
        let bad = [SourceFile::sample(
            "domain/src/run.rs",
            "fn f() { std::fs::read(\"x\"); let _ = std::time::Instant::now(); }",
        )];
        assert_eq!(
            effects_in_the_domain(&bad),
            ["domain/src/run.rs uses std::fs", "domain/src/run.rs uses Instant"]
        );
    }
}
