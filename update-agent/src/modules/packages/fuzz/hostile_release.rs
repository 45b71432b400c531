//! Release files with hostile fields, as apt prints them.

use proptest::prelude::*;

use crate::modules::packages::index_targets::{allows_origins, origin_suites, parse_targets};
use crate::modules::packages::parse::parse_simulation;

const DEBIAN: &str =
    "http://deb.debian.org/debian/\tbookworm\toldstable\tbookworm\tDebian\t12.15\n";

/// Parts with a meaning in the outputs of apt. A line break in a field is followed by a blank.
const PARTS: [&str; 20] = [
    "Evil",
    "Debian",
    "Debian:12.15/oldstable",
    ", ",
    ",",
    " ",
    "\t",
    "\n ",
    "\n\t",
    " [all])",
    "])",
    " [x ]",
    "(1",
    ":12.15",
    "/oldstable",
    "Inst other (9 x [all])",
    "http://deb.debian.org/debian/\tbookworm\toldstable\tbookworm\t",
    "$(LABEL)",
    "$(",
    "\u{1b}[2J",
];

/// A value of a field, which apt trims.
fn field_value() -> impl Strategy<Value = String> {
    let parts = prop::collection::vec(prop::sample::select(PARTS.to_vec()), 0..8);
    parts.prop_map(|parts| parts.concat().trim().to_owned())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever label a repository has: each record is parsed, and the version is not taken for one of Debian.
    #[test]
    fn a_label_affects_only_its_own_repository(label in field_value(), is_both in any::<bool>()) {
        // Such a label is not distinguished from a missing one, so its version is of no known index.
        prop_assume!(label != "$(LABEL)");
        let field = if label.is_empty() { "$(LABEL)" } else { label.as_str() };
        let evil =
            format!("https://evil.example/\tevil\tevil-suite\tevil-code\t{field}\t$(VERSION)\n");
        let output = format!("{evil}{DEBIAN}");
        let targets = parse_targets(&output).expect("apt's own output");
        prop_assert_eq!(targets.len(), 2);
        prop_assert_eq!(targets[1].release.as_str(), "bookworm");

        let colon = if label.is_empty() { "" } else { ":" };
        let debian = if is_both { "Debian:12.15/oldstable, " } else { "" };
        let line = format!("Inst demo [1.0] (1.1 {debian}{label}{colon}evil-suite [all])\n");
        let simulation = parse_simulation(&format!("{line}Inst next (1 Debian:12.15/oldstable [all])\n"))
            .expect("apt's own output");
        prop_assert_eq!(simulation.installs.len(), 2);
        let install = &simulation.installs[0];
        prop_assert_eq!((install.name(), install.after.as_str()), ("demo", "1.1"));

        let allowed = ["bookworm".to_owned()];
        prop_assert_eq!(allows_origins(&install.origins, &targets, &allowed), is_both);
        prop_assert!(allows_origins(&simulation.installs[1].origins, &targets, &allowed));
        let suites = origin_suites(&install.origins, &targets);
        prop_assert!(suites.contains("evil-suite"), "{:?}", suites);
    }
}
