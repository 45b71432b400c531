//! Rules for installing packages.

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::text;

named! {
    /// Whether a node reboots after an update.
    #[derive(Default)]
    RebootRule {
        /// If the update requires it, and while the window is open.
        #[default]
        IfRequired = "if_required",
        /// Never automatically.
        Never = "never",
    }
}

named! {
    /// What happens to services that still run replaced files.
    #[derive(Default)]
    ServiceRule {
        /// They keep running.
        #[default]
        KeepRunning = "keep_running",
        /// They are restarted.
        Restart = "restart",
    }
}

named! {
    /// What happens to packages that were installed automatically and that no package needs any more.
    #[derive(Default)]
    UnusedPackagesRule {
        /// Kernels are removed, except the running one, the newest one and the one that ran before.
        #[default]
        RemoveKernels = "remove_kernels",
        /// All are removed, with the same exceptions.
        RemoveAll = "remove_all",
        /// They stay installed.
        Keep = "keep",
    }
}

/// How packages may be installed. The defaults exclude nothing and remove only unused kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PackageRules {
    /// Install only from these suites or codenames, such as `bookworm-security`; empty for all.
    pub suites: Vec<String>,
    /// Names of packages that stay unchanged. `*` matches any characters, `?` one.
    pub exclude: Vec<String>,
    /// Whether the update may remove packages.
    pub allow_removals: bool,
    /// Whether the node reboots afterwards.
    pub reboot: RebootRule,
    /// What happens to services that still run replaced files.
    pub services: ServiceRule,
    /// Maximum download rate of a node, in bytes per second; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// Minimum age of a version in days since it was first seen.
    pub min_age_days: u32,
    /// What happens to unused packages.
    pub unused_packages: UnusedPackagesRule,
    /// Whether groups of packages that do not depend on each other are installed one after another.
    pub minimal_steps: bool,
}

impl PackageRules {
    /// Maximum number of suites and of patterns, and maximum length of each in bytes.
    const MAX_ENTRIES: usize = 100;
    const MAX_ENTRY_BYTES: usize = 100;
    /// Bounds of the rate limit: apt takes KiB in 31 bits (apt.conf(5), `Dl-Limit`).
    const MIN_BYTES_PER_SECOND: u64 = 1_024;
    const MAX_BYTES_PER_SECOND: u64 = 1 << 40;

    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the rules.
    ///
    /// # Errors
    /// Names the first invalid rule: too many, too long, with characters that are not allowed, or out of bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        const SUITES: &str = "packageRules.suites";
        const EXCLUDE: &str = "packageRules.exclude";
        check_count(SUITES, &self.suites)?;
        for suite in &self.suites {
            text::check(SUITES, suite, Self::MAX_ENTRY_BYTES, "-_./+~:")?;
            check_first_character(SUITES, suite)?;
        }
        check_count(EXCLUDE, &self.exclude)?;
        for pattern in &self.exclude {
            text::check(EXCLUDE, pattern, Self::MAX_ENTRY_BYTES, "-.+*?")?;
            check_first_character(EXCLUDE, pattern)?;
            if pattern.bytes().any(|letter| letter.is_ascii_uppercase()) {
                let why = format!("{pattern:?} matches no package: package names are lower-case");
                return Err(Invalid::new(EXCLUDE, why));
            }
        }
        let (rate, least, most) = (
            self.download_bytes_per_second,
            Self::MIN_BYTES_PER_SECOND,
            Self::MAX_BYTES_PER_SECOND,
        );
        if rate != 0 && !(least..=most).contains(&rate) {
            return Err(Invalid::new(
                "packageRules.downloadBytesPerSecond",
                format!("must be 0, or between {least} and {most}"),
            ));
        }
        if self.min_age_days > 365 {
            return Err(Invalid::new("packageRules.minAgeDays", "more than 365 days"));
        }
        Ok(())
    }

    /// Whether a package from these suites may be changed, as far as name and suites tell. A package without known
    /// suites is allowed. The minimum age of versions is checked elsewhere.
    #[must_use]
    pub fn allows(&self, name: &str, suites: &[String]) -> bool {
        let in_suites = self.suites.is_empty()
            || suites.is_empty()
            || suites.iter().any(|suite| self.suites.contains(suite));
        in_suites && !self.exclude.iter().any(|pattern| matches_pattern(pattern, name))
    }
}

fn check_count(field: &'static str, texts: &[String]) -> Result<(), Invalid> {
    if texts.len() > PackageRules::MAX_ENTRIES {
        return Err(Invalid::new(field, format!("more than {}", PackageRules::MAX_ENTRIES)));
    }
    Ok(())
}

/// Rejects a leading dash: a program that gets the text as an argument would read it as an option.
fn check_first_character(field: &'static str, text: &str) -> Result<(), Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(field, "must not be empty"));
    }
    if text.starts_with('-') {
        return Err(Invalid::new(field, format!("{text:?} begins with a dash")));
    }
    Ok(())
}

/// Whether a pattern matches a name. Takes at most `pattern.len() * name.len()` steps, whatever the pattern is.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    // `ends[i]`: whether the pattern so far matches the first `i` bytes of the name.
    let mut ends: Vec<bool> = std::iter::once(true).chain(name.bytes().map(|_| false)).collect();
    for sign in pattern.bytes() {
        ends = if sign == b'*' {
            let mut any = false;
            let from_here_on = |end: &bool| {
                any |= *end;
                any
            };
            ends.iter().map(from_here_on).collect()
        } else {
            let one_further = |(end, letter): (&bool, u8)| *end && (sign == b'?' || sign == letter);
            let behind = ends.iter().zip(name.bytes()).map(one_further);
            std::iter::once(false).chain(behind).collect()
        };
    }
    ends.last() == Some(&true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }

    fn field(rules: &PackageRules) -> &'static str {
        rules.check().expect_err("invalid rules").field
    }

    #[test]
    fn text_that_could_be_an_option_or_a_script_is_rejected() {
        for bad in ["", "-o", "a b", "a;id", "$(id)", "a\nb", "a'", "ä"] {
            let suites = PackageRules { suites: texts(&[bad]), ..PackageRules::default() };
            assert_eq!(field(&suites), "packageRules.suites", "{bad:?}");
            let exclude = PackageRules { exclude: texts(&["jq", bad]), ..PackageRules::default() };
            assert_eq!(field(&exclude), "packageRules.exclude", "{bad:?}");
        }
        let pattern =
            |pattern: &str| PackageRules { exclude: texts(&[pattern]), ..PackageRules::default() };
        for bad in ["Linux-*", "/linux/", "[ab]"] {
            assert_eq!(field(&pattern(bad)), "packageRules.exclude", "{bad:?}");
        }
        for good in ["linux-*", "*", "lib?-2.0+dfsg"] {
            assert_eq!(pattern(good).check(), Ok(()), "{good:?}");
        }
    }

    #[test]
    fn rules_have_bounds() {
        let usual = PackageRules::default;
        let many = vec!["a".to_owned(); 101];
        let suites = many.clone();
        assert_eq!(field(&PackageRules { suites, ..usual() }), "packageRules.suites");
        let exclude = many;
        assert_eq!(field(&PackageRules { exclude, ..usual() }), "packageRules.exclude");
        let exclude = vec!["a".repeat(101)];
        assert_eq!(field(&PackageRules { exclude, ..usual() }), "packageRules.exclude");
        let aged = |min_age_days| PackageRules { min_age_days, ..usual() };
        assert_eq!(field(&aged(366)), "packageRules.minAgeDays");
        assert_eq!(aged(365).check(), Ok(()));
        let slow =
            |download_bytes_per_second| PackageRules { download_bytes_per_second, ..usual() };
        for bad in [1, 1_023, (1 << 40) + 1, u64::MAX] {
            assert_eq!(field(&slow(bad)), "packageRules.downloadBytesPerSecond");
        }
        for good in [0, 1_024, 1 << 40] {
            assert_eq!(slow(good).check(), Ok(()));
        }
    }

    #[test]
    fn a_pattern_stands_for_names() {
        for (pattern, name, is_meant) in [
            ("jq", "jq", true),
            ("jq", "jqp", false),
            ("jq", "j", false),
            ("*", "jq", true),
            ("linux-*", "linux-image-amd64", true),
            ("linux-*", "linux", false),
            ("*-dev", "libssl-dev", true),
            ("*-dev", "libssl-dev-doc", false),
            ("lib*ssl?", "libssl3", true),
            ("lib*ssl?", "libssl", false),
            ("**a**", "bab", true),
            ("?", "", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), is_meant, "{pattern} {name}");
        }
        let hard = "*a".repeat(50);
        assert!(!matches_pattern(&hard, &"a".repeat(49)));
    }

    #[test]
    fn a_package_is_allowed_unless_its_name_or_its_suites_exclude_it() {
        let rules = PackageRules {
            suites: texts(&["bookworm-security"]),
            exclude: texts(&["linux-*"]),
            ..PackageRules::default()
        };
        let security = texts(&["bookworm-security", "stable-security"]);
        assert!(rules.allows("openssl", &security));
        assert!(!rules.allows("linux-image-amd64", &security));
        assert!(!rules.allows("openssl", &texts(&["bookworm"])));
        assert!(rules.allows("openssl", &[]), "the suites are unknown");
        assert!(PackageRules::default().allows("linux-image-amd64", &[]));
    }

    #[test]
    fn rules_of_an_older_release_are_the_default_ones() {
        let read: PackageRules = serde_json::from_value(json!({})).expect("rules");
        assert!(read.is_default());
        let rules = PackageRules {
            reboot: RebootRule::Never,
            services: ServiceRule::Restart,
            unused_packages: UnusedPackagesRule::Keep,
            ..PackageRules::default()
        };
        let stored = serde_json::to_value(&rules).expect("JSON");
        assert_eq!(stored["reboot"], "never");
        assert_eq!(stored["unused_packages"], "keep");
        assert_eq!(serde_json::from_value::<PackageRules>(stored).expect("rules"), rules);
    }
}
