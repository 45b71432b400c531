//! Update rules for packages and images: command line options, and their descriptions.

use clap::{Args, ValueEnum};
use evenkeel_api::policy::{
    ImageRules, ImageRulesInput, PackageRules, PackageRulesInput, RebootRule, ServiceRule,
    UnusedPackagesRule,
};

/// Rules for package updates.
#[derive(Debug, Args)]
#[command(next_help_heading = "Package rules")]
pub struct PackageRuleOptions {
    /// Update only packages from this suite or codename, such as `bookworm-security`. Can be repeated.
    #[arg(long = "suite", value_name = "SUITE", conflicts_with = "target_os")]
    suites: Vec<String>,
    /// Do not update packages that match this pattern (`*` and `?` are wildcards). Can be repeated.
    #[arg(long, value_name = "PATTERN", conflicts_with = "target_os")]
    exclude: Vec<String>,
    /// Install only versions that the server has known for at least this number of days.
    #[arg(long, value_name = "N", conflicts_with = "target_os")]
    min_age_days: Option<u32>,
    /// Allow packages to be removed.
    #[arg(long, conflicts_with = "target_os")]
    allow_removals: bool,
    /// When to reboot after an update [default: if-required].
    #[arg(long, value_enum, conflicts_with = "target_os")]
    reboot: Option<RebootOption>,
    /// Restart services that still use replaced files.
    #[arg(long, conflicts_with = "target_os")]
    restart_services: bool,
    /// Maximum download rate of a node in bytes per second, such as `500K` or `2M` (units of 1024)
    /// [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, conflicts_with = "target_os")]
    download_rate: Option<u64>,
    /// Packages that were installed automatically and that no package needs any more
    /// [default: remove-kernels].
    #[arg(long, value_enum, conflicts_with = "target_os")]
    unused_packages: Option<UnusedPackagesOption>,
    /// Install groups of packages that do not depend on each other one after another: each service is
    /// down only while its own group is installed.
    #[arg(long, conflicts_with = "target_os")]
    minimal_steps: bool,
}

/// Rules for image updates.
#[derive(Debug, Args)]
#[command(next_help_heading = "Image rules")]
#[expect(clippy::struct_field_names, reason = "the fields are named like their options")]
pub struct ImageRuleOptions {
    /// Maximum download rate for images in bytes per second, such as `500K` or `2M` (units of 1024)
    /// [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, conflicts_with_all = ["packages", "sources"])]
    image_download_rate: Option<u64>,
    /// Maximum size of a downloaded image in bytes, such as `4G` [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, conflicts_with_all = ["packages", "sources"])]
    image_max_size: Option<u64>,
    /// Maximum number of consecutive failed downloads of an image [default: 5].
    #[arg(long, value_name = "N", conflicts_with_all = ["packages", "sources"])]
    image_attempts: Option<u32>,
}

impl ImageRuleOptions {
    /// The rules, or none if all have their defaults.
    pub fn input(self) -> Option<ImageRulesInput> {
        let input = ImageRulesInput {
            download_bytes_per_second: self.image_download_rate.unwrap_or_default(),
            max_bytes: self.image_max_size.unwrap_or_default(),
            attempts: self.image_attempts.unwrap_or_default(),
        };
        (input != ImageRulesInput::default()).then_some(input)
    }
}

/// When a node reboots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RebootOption {
    /// If the update requires it and the window is open.
    IfRequired,
    /// Never; reboots are left to the owner of the node.
    Never,
}

/// What happens to unused packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum UnusedPackagesOption {
    /// Kernels are removed, except the running one, the newest one and the one that ran before.
    RemoveKernels,
    /// All are removed, except these kernels.
    RemoveAll,
    /// They stay installed.
    Keep,
}

impl PackageRuleOptions {
    /// The rules, or none if all have their defaults.
    pub fn input(self) -> Option<PackageRulesInput> {
        let input = PackageRulesInput {
            suites: self.suites,
            exclude: self.exclude,
            min_age_days: self.min_age_days.unwrap_or_default(),
            allow_removals: self.allow_removals,
            reboot: match self.reboot {
                None | Some(RebootOption::IfRequired) => RebootRule::IfRequired,
                Some(RebootOption::Never) => RebootRule::Never,
            },
            services: if self.restart_services {
                ServiceRule::Restart
            } else {
                ServiceRule::KeepRunning
            },
            download_bytes_per_second: self.download_rate.unwrap_or_default(),
            unused_packages: match self.unused_packages {
                None | Some(UnusedPackagesOption::RemoveKernels) => {
                    UnusedPackagesRule::RemoveKernels
                }
                Some(UnusedPackagesOption::RemoveAll) => UnusedPackagesRule::RemoveAll,
                Some(UnusedPackagesOption::Keep) => UnusedPackagesRule::Keep,
            },
            minimal_steps: self.minimal_steps,
        };
        (input != PackageRulesInput::default()).then_some(input)
    }
}

/// Parses a number of bytes such as `500K`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((end, 'K')) => (text.get(..end), 1 << 10),
        Some((end, 'M')) => (text.get(..end), 1 << 20),
        Some((end, 'G')) => (text.get(..end), 1 << 30),
        _ => (Some(text), 1),
    };
    digits
        .and_then(|digits| digits.parse().ok())
        .and_then(|count: u64| count.checked_mul(unit))
        .ok_or_else(|| {
            format!("`{text}` is not a number of bytes such as `100000`, `500K` or `2M`")
        })
}

/// Describes the image rules that differ from the defaults.
pub fn describe_image_rules(rules: &ImageRules) -> Vec<String> {
    let rate = rules.download_bytes_per_second;
    let (size, attempts) = (rules.max_bytes, rules.attempts);
    [
        (rate > 0).then(|| format!("download images at {rate} bytes per second at most")),
        (size > 0).then(|| format!("no images larger than {size} bytes")),
        match attempts {
            0 => None,
            1 => Some("no retry of a failed image download".to_owned()),
            more => Some(format!("at most {more} consecutive failed image downloads")),
        },
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Describes the package rules that differ from the defaults.
pub fn describe_package_rules(rules: &PackageRules) -> Vec<String> {
    let mut descriptions = Vec::new();
    if !rules.suites.is_empty() {
        descriptions.push(format!("only from {}", rules.suites.join(", ")));
    }
    if !rules.exclude.is_empty() {
        descriptions.push(format!("without {}", rules.exclude.join(", ")));
    }
    match rules.min_age_days {
        0 => (),
        1 => descriptions.push("only versions known for at least 1 day".to_owned()),
        days => descriptions.push(format!("only versions known for at least {days} days")),
    }
    if rules.allow_removals {
        descriptions.push("packages may be removed".to_owned());
    }
    if rules.reboot == RebootRule::Never {
        descriptions.push("no reboot".to_owned());
    }
    if rules.services == ServiceRule::Restart {
        descriptions.push("restart services that use replaced files".to_owned());
    }
    if rules.download_bytes_per_second > 0 {
        let bytes = rules.download_bytes_per_second;
        descriptions.push(format!("download at {bytes} bytes per second at most"));
    }
    match rules.unused_packages {
        UnusedPackagesRule::RemoveKernels => {}
        UnusedPackagesRule::RemoveAll => descriptions.push("remove unused packages".to_owned()),
        UnusedPackagesRule::Keep => {
            descriptions.push("unused packages and kernels stay".to_owned());
        }
    }
    if rules.minimal_steps {
        descriptions.push("independent packages one after another".to_owned());
    }
    descriptions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_of_bytes() {
        assert_eq!(parse_bytes("1024"), Ok(1_024));
        assert_eq!(parse_bytes("500K"), Ok(512_000));
        assert_eq!(parse_bytes("2M"), Ok(2_097_152));
        assert_eq!(parse_bytes("1G"), Ok(1 << 30));
        for bad in ["", "K", "2m", "-1", "2MB", "18446744073709551615K", "ä"] {
            assert!(parse_bytes(bad).is_err(), "{bad:?}");
        }
    }
}
