//! How packages and images may be brought to what a policy wishes for: as options, and in words.

use clap::{Args, ValueEnum};
use evenkeel_api::policy::{
    ImageRules, ImageRulesInput, PackageRules, PackageRulesInput, RebootRule, ServiceRule,
};

/// How packages may be brought to what a policy wishes for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rules for packages")]
pub struct RuleOptions {
    /// Only what comes from this suite or codename, such as `bookworm-security`. May be given again.
    #[arg(long = "suite", value_name = "SUITE", conflicts_with = "target_os")]
    suites: Vec<String>,
    /// Leave packages with this name as they are; `*` stands for any letters, `?` for one. May be given again.
    #[arg(long, value_name = "PATTERN", conflicts_with = "target_os")]
    exclude: Vec<String>,
    /// Only versions that the server first heard of so many days ago.
    #[arg(long, value_name = "N", conflicts_with = "target_os")]
    min_age_days: Option<u32>,
    /// Packages may be removed for it.
    #[arg(long, conflicts_with = "target_os")]
    allow_removals: bool,
    /// Whether a node reboots after an update [default: if-required].
    #[arg(long, value_enum, conflicts_with = "target_os")]
    reboot: Option<Reboot>,
    /// Restart services that still run what was replaced.
    #[arg(long, conflicts_with = "target_os")]
    restart_services: bool,
    /// The most bytes that a node fetches in a second, such as `500K` or `2M` (times 1024) [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = rate, conflicts_with = "target_os")]
    download_rate: Option<u64>,
}

/// How an image may be brought to what a policy wishes for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rules for images")]
#[expect(
    clippy::struct_field_names,
    reason = "they are called as the options are"
)]
pub struct ImageRuleOptions {
    /// The most bytes of an image that a node fetches in a second, such as `500K` or `2M` (times 1024) [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = rate, conflicts_with_all = ["packages", "sources"])]
    image_download_rate: Option<u64>,
    /// The most bytes that an image may have as it is fetched, such as `4G` [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = rate, conflicts_with_all = ["packages", "sources"])]
    image_max_size: Option<u64>,
    /// How often the download of an image may fail in a row [default: 5].
    #[arg(long, value_name = "N", conflicts_with_all = ["packages", "sources"])]
    image_attempts: Option<u32>,
}

impl ImageRuleOptions {
    /// The rules that were given; none if there are none.
    pub fn input(self) -> Option<ImageRulesInput> {
        let given = ImageRulesInput {
            download_bytes_per_second: self.image_download_rate.unwrap_or_default(),
            max_bytes: self.image_max_size.unwrap_or_default(),
            attempts: self.image_attempts.unwrap_or_default(),
        };
        (given != ImageRulesInput::default()).then_some(given)
    }
}

/// Whether a node reboots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reboot {
    /// If the update asks for it, and while the window is open.
    IfRequired,
    /// Not by itself: somebody else sees to it.
    Never,
}

impl RuleOptions {
    /// The rules that were given; none if there are none.
    pub fn input(self) -> Option<PackageRulesInput> {
        let given = PackageRulesInput {
            suites: self.suites,
            exclude: self.exclude,
            min_age_days: self.min_age_days.unwrap_or_default(),
            allow_removals: self.allow_removals,
            reboot: match self.reboot {
                None | Some(Reboot::IfRequired) => RebootRule::IfRequired,
                Some(Reboot::Never) => RebootRule::Never,
            },
            services: if self.restart_services {
                ServiceRule::Restart
            } else {
                ServiceRule::Leave
            },
            download_bytes_per_second: self.download_rate.unwrap_or_default(),
        };
        (given != PackageRulesInput::default()).then_some(given)
    }
}

/// Reads a number of bytes such as `500K`.
fn rate(text: &str) -> Result<u64, String> {
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

/// The rules for images that are not the usual ones, each in a few words.
pub fn words_of_images(rules: &ImageRules) -> Vec<String> {
    let rate = rules.download_bytes_per_second;
    let (size, attempts) = (rules.max_bytes, rules.attempts);
    [
        (rate > 0).then(|| format!("an image at most {rate} bytes a second")),
        (size > 0).then(|| format!("no image of more than {size} bytes")),
        match attempts {
            0 => None,
            1 => Some("no second attempt to fetch an image".to_owned()),
            more => Some(format!(
                "at most {more} attempts in a row to fetch an image"
            )),
        },
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The rules for packages that are not the usual ones, each in a few words.
pub fn words(rules: &PackageRules) -> Vec<String> {
    let mut words = Vec::new();
    if !rules.suites.is_empty() {
        words.push(format!("only from {}", rules.suites.join(", ")));
    }
    if !rules.exclude.is_empty() {
        words.push(format!("without {}", rules.exclude.join(", ")));
    }
    match rules.min_age_days {
        0 => (),
        1 => words.push("only versions that are known for a day".to_owned()),
        days => words.push(format!("only versions that are known for {days} days")),
    }
    if rules.allow_removals {
        words.push("packages may be removed".to_owned());
    }
    if rules.reboot == RebootRule::Never {
        words.push("no reboot".to_owned());
    }
    if rules.services == ServiceRule::Restart {
        words.push("services that run what was replaced are restarted".to_owned());
    }
    if rules.download_bytes_per_second > 0 {
        let bytes = rules.download_bytes_per_second;
        words.push(format!("at most {bytes} bytes a second"));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_of_bytes() {
        assert_eq!(rate("1024"), Ok(1_024));
        assert_eq!(rate("500K"), Ok(512_000));
        assert_eq!(rate("2M"), Ok(2_097_152));
        assert_eq!(rate("1G"), Ok(1 << 30));
        for bad in ["", "K", "2m", "-1", "2MB", "18446744073709551615K", "ä"] {
            assert!(rate(bad).is_err(), "{bad:?}");
        }
    }
}
