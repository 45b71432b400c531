//! Settings of apt that start its periodic work.

use std::collections::BTreeMap;

/// The output of `apt-config dump`. Names of settings are case-insensitive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AptSettings(BTreeMap<String, String>);

impl AptSettings {
    /// Parses lines such as `APT::Periodic::Enable "1";`. Skips other lines.
    pub(super) fn parse(dump: &str) -> Self {
        let settings = dump.lines().filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            let value = value.trim().strip_prefix('"')?.strip_suffix("\";")?;
            Some((name.to_ascii_lowercase(), value.to_owned()))
        });
        Self(settings.collect())
    }

    fn value(&self, name: &str) -> &str {
        self.0.get(&name.to_ascii_lowercase()).map_or("", String::as_str)
    }

    /// Whether apt's timers do this work, one of the settings `APT::Periodic::…`. As in
    /// `/usr/lib/apt/apt.systemd.daily`, work without a setting is off.
    pub(super) fn is_periodic(&self, name: &str) -> bool {
        let is_on = |value: &str| {
            let number = value.trim_end_matches(['s', 'm', 'h', 'd']);
            // `always` is valid, too.
            !value.is_empty() && number.parse::<u64>().ok() != Some(0)
        };
        self.value("APT::Periodic::Enable") != "0"
            && is_on(self.value(&format!("APT::Periodic::{name}")).trim())
    }

    /// Whether unattended-upgrades restarts the machine if a package requires it.
    pub(super) fn reboots_automatically(&self) -> bool {
        self.is_true("Unattended-Upgrade::Automatic-Reboot")
    }

    /// Whether unattended-upgrades installs updates when the machine shuts down.
    pub(super) fn installs_on_shutdown(&self) -> bool {
        self.is_true("Unattended-Upgrade::InstallOnShutdown")
    }

    fn is_true(&self, name: &str) -> bool {
        let value = self.value(name).to_ascii_lowercase();
        matches!(value.as_str(), "1" | "true" | "yes" | "on" | "with" | "enable")
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn settings_are_parsed_as_apt_prints_them() {
        let samples = [
            "APT::Periodic::Enable \"1\";\nAPT::Periodic::Unattended-Upgrade \"1d\";\nDPkg::Pre-Invoke:: \"x \\\"y\\\"\";\n",
            "Unattended-Upgrade::Automatic-Reboot \"true\";\nAPT \"\";\nAPT::Periodic::Download \"always\"\n",
        ];
        fuzz("apt-config dump", |rng| {
            let settings = AptSettings::parse(&text(rng, &samples, " \n\r\t\";:-0aAsd\u{0}\u{e9}"));
            settings.is_periodic("Download");
            settings.reboots_automatically();
            let lines = settings.0.iter().map(|(name, value)| format!("{name} \"{value}\";\n"));
            let lines: Vec<_> = lines.collect();
            assert_eq!(AptSettings::parse(&lines.concat()), settings);
        });
    }
}
