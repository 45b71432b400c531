//! How packages may be brought to what a policy wishes for.

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::text;

named! {
    /// Whether a node reboots after an update.
    #[derive(Default)]
    RebootRule {
        /// If the update asks for it, and while the window is open.
        #[default]
        IfRequired = "if_required",
        /// Not by itself.
        Never = "never",
    }
}

named! {
    /// What becomes of services that still run what was replaced.
    #[derive(Default)]
    ServiceRule {
        /// They run on.
        #[default]
        Leave = "leave",
        /// They are restarted.
        Restart = "restart",
    }
}

/// How packages may be brought to what a policy wishes for. The usual rules leave nothing out and remove nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PackageRules {
    /// Only what comes from these suites or codenames, such as `bookworm-security`; from any if none is named.
    pub suites: Vec<String>,
    /// Names that are left as they are. `*` stands for any letters, `?` for one.
    pub exclude: Vec<String>,
    /// Whether packages may be removed for it.
    pub allow_removals: bool,
    /// Whether the node reboots afterwards.
    pub reboot: RebootRule,
    /// What becomes of services that still run what was replaced.
    pub services: ServiceRule,
    /// The most bytes that a node fetches in a second; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// How many days ago a version must have been seen first to be installed.
    pub min_age_days: u32,
}

impl PackageRules {
    /// The most suites and the most patterns, and the longest one in bytes.
    const MANY: usize = 100;
    const LONG: usize = 100;
    /// The least and the greatest limit of bytes in a second: apt counts in KiB, in 31 bits (apt.conf(5), `Dl-Limit`).
    const SLOWEST: u64 = 1_024;
    const FASTEST: u64 = 1 << 40;

    /// Whether they say nothing of their own.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }

    /// Looks whether rules that were given can be.
    ///
    /// # Errors
    /// Names the first one that is none: too many, too long, with letters that are not allowed, or out of bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        const SUITES: &str = "packageRules.suites";
        const EXCLUDE: &str = "packageRules.exclude";
        few(SUITES, &self.suites)?;
        for suite in &self.suites {
            text::check(SUITES, suite, Self::LONG, "-_./+~:")?;
            begins_well(SUITES, suite)?;
        }
        few(EXCLUDE, &self.exclude)?;
        for pattern in &self.exclude {
            text::check(EXCLUDE, pattern, Self::LONG, "-.+*?")?;
            begins_well(EXCLUDE, pattern)?;
            if pattern.bytes().any(|letter| letter.is_ascii_uppercase()) {
                let why = format!("{pattern:?} fits no package: their names have small letters");
                return Err(Invalid::new(EXCLUDE, why));
            }
        }
        let (rate, least, most) = (self.download_bytes_per_second, Self::SLOWEST, Self::FASTEST);
        if rate != 0 && !(least..=most).contains(&rate) {
            return Err(Invalid::new(
                "packageRules.downloadBytesPerSecond",
                format!("neither 0 nor between {least} and {most}"),
            ));
        }
        if self.min_age_days > 365 {
            return Err(Invalid::new(
                "packageRules.minAgeDays",
                "more than 365 days",
            ));
        }
        Ok(())
    }

    /// Whether a package that comes from these suites may be touched, as far as name and suites tell. Suites that are not
    /// known leave nothing out, and how old a version is follows from what was seen of it.
    #[must_use]
    pub fn concerns(&self, name: &str, suites: &[String]) -> bool {
        let in_suites = self.suites.is_empty()
            || suites.is_empty()
            || suites.iter().any(|suite| self.suites.contains(suite));
        in_suites && !self.exclude.iter().any(|pattern| fits(pattern, name))
    }
}

fn few(field: &'static str, texts: &[String]) -> Result<(), Invalid> {
    if texts.len() > PackageRules::MANY {
        return Err(Invalid::new(
            field,
            format!("more than {}", PackageRules::MANY),
        ));
    }
    Ok(())
}

/// What begins with a dash would be an option where it is given to a program.
fn begins_well(field: &'static str, text: &str) -> Result<(), Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(field, "must not be empty"));
    }
    if text.starts_with('-') {
        return Err(Invalid::new(field, format!("{text:?} begins with a dash")));
    }
    Ok(())
}

/// Whether a pattern fits a name. Takes as many steps as both have letters multiplied, whatever the pattern is.
fn fits(pattern: &str, name: &str) -> bool {
    // Behind which letters of the name the pattern so far may end; at first, before the first one only.
    let mut ends: Vec<bool> = std::iter::once(true)
        .chain(name.bytes().map(|_| false))
        .collect();
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
        rules.check().expect_err("no rules").field
    }

    #[test]
    fn what_could_be_an_option_or_a_script_is_no_rule() {
        for bad in ["", "-o", "a b", "a;id", "$(id)", "a\nb", "a'", "ä"] {
            let suites = PackageRules {
                suites: texts(&[bad]),
                ..PackageRules::default()
            };
            assert_eq!(field(&suites), "packageRules.suites", "{bad:?}");
            let exclude = PackageRules {
                exclude: texts(&["jq", bad]),
                ..PackageRules::default()
            };
            assert_eq!(field(&exclude), "packageRules.exclude", "{bad:?}");
        }
        let pattern = |pattern: &str| PackageRules {
            exclude: texts(&[pattern]),
            ..PackageRules::default()
        };
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
        assert_eq!(
            field(&PackageRules { suites, ..usual() }),
            "packageRules.suites"
        );
        let exclude = many;
        assert_eq!(
            field(&PackageRules { exclude, ..usual() }),
            "packageRules.exclude"
        );
        let exclude = vec!["a".repeat(101)];
        assert_eq!(
            field(&PackageRules { exclude, ..usual() }),
            "packageRules.exclude"
        );
        let aged = |min_age_days| PackageRules {
            min_age_days,
            ..usual()
        };
        assert_eq!(field(&aged(366)), "packageRules.minAgeDays");
        assert_eq!(aged(365).check(), Ok(()));
        let slow = |download_bytes_per_second| PackageRules {
            download_bytes_per_second,
            ..usual()
        };
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
            assert_eq!(fits(pattern, name), is_meant, "{pattern} {name}");
        }
        let hard = "*a".repeat(50);
        assert!(!fits(&hard, &"a".repeat(49)));
    }

    #[test]
    fn a_package_is_concerned_if_neither_its_name_nor_its_suites_leave_it_out() {
        let rules = PackageRules {
            suites: texts(&["bookworm-security"]),
            exclude: texts(&["linux-*"]),
            ..PackageRules::default()
        };
        let security = texts(&["bookworm-security", "stable-security"]);
        assert!(rules.concerns("openssl", &security));
        assert!(!rules.concerns("linux-image-amd64", &security));
        assert!(!rules.concerns("openssl", &texts(&["bookworm"])));
        assert!(
            rules.concerns("openssl", &[]),
            "nobody said where it is from"
        );
        assert!(PackageRules::default().concerns("linux-image-amd64", &[]));
    }

    #[test]
    fn rules_of_an_older_release_are_the_usual_ones() {
        let read: PackageRules = serde_json::from_value(json!({})).expect("rules");
        assert!(read.is_usual());
        let rules = PackageRules {
            reboot: RebootRule::Never,
            services: ServiceRule::Restart,
            ..PackageRules::default()
        };
        let kept = serde_json::to_value(&rules).expect("JSON");
        assert_eq!(kept["reboot"], "never");
        assert_eq!(
            serde_json::from_value::<PackageRules>(kept).expect("rules"),
            rules
        );
    }
}
