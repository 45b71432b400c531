//! The configuration of RAUC, as far as the agent depends on it.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use super::super::SystemInterfaces;

/// Paths at which RAUC searches its configuration, in this order.
const CONFIG_FILES: [&str; 3] =
    ["etc/rauc/system.conf", "run/rauc/system.conf", "usr/lib/rauc/system.conf"];

/// Settings of RAUC in `[system]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaucSettings {
    /// Whether `rauc install` also lets the next boot start the slot.
    activates_installed: bool,
    /// Whether the status of the slots is stored outside of them.
    has_central_status: bool,
}

fn find_config(system: &SystemInterfaces) -> Option<PathBuf> {
    let mut files = CONFIG_FILES.iter().map(|file| system.paths.root().join(file));
    files.find(|file| file.exists())
}

/// Reasons in the configuration of RAUC against a trial.
pub fn find_faults(system: &SystemInterfaces) -> Vec<String> {
    let Some(path) = find_config(system) else {
        return vec![format!("RAUC is not configured: create /{}", CONFIG_FILES[0])];
    };
    match fs::read(&path) {
        Ok(content) => {
            let path = system.relative_to_root(&path);
            RaucSettings::parse(&String::from_utf8_lossy(&content)).faults(&path.display())
        }
        Err(error) => vec![format!("cannot read {}: {error}", path.display())],
    }
}

impl RaucSettings {
    /// Parses a key file of `GLib`. Lines that are not settings of `[system]` are skipped. Of two
    /// settings with the same name the last one applies.
    pub fn parse(text: &str) -> Self {
        let (mut activates_installed, mut status_file, mut has_folder) = (true, None, false);
        let mut is_in_system = false;
        for line in text.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[') {
                is_in_system = section.trim_end_matches(']') == "system";
                continue;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| is_in_system) else {
                continue;
            };
            match (key.trim(), value.trim()) {
                ("activate-installed", value) => {
                    activates_installed = !matches!(value, "false" | "0");
                }
                ("statusfile", path) => status_file = Some(path),
                ("data-directory", path) => has_folder = path.starts_with('/'),
                _ => {}
            }
        }
        // RAUC also accepts `per-slot` as the name of the file.
        let has_central_status = status_file.map_or(has_folder, |path| path.starts_with('/'));
        Self { activates_installed, has_central_status }
    }

    fn faults(&self, path: &impl fmt::Display) -> Vec<String> {
        let mut faults = Vec::new();
        if self.activates_installed {
            faults.push(format!(
                "RAUC would start an image as soon as it is installed, before its window: set activate-installed=false in \
                 [system] of {path}, and restart rauc.service"
            ));
        }
        if !self.has_central_status {
            faults.push(format!(
                "RAUC stores the status of a slot in the slot, which changes an image after it was checked: set statusfile or \
                 data-directory in [system] of {path} to a path on the data partition, and restart rauc.service"
            ));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_of_the_system_section_are_used() {
        let good = "[system]\nstatusfile=/data/rauc.status\nactivate-installed=false\n";
        for (text, activates_installed, has_central_status) in [
            (good.to_owned(), false, true),
            (good.replace('=', " = "), false, true),
            (good.replace("statusfile", "data-directory"), false, true),
            (good.replace("=false", "=0"), false, true),
            (good.replace("=false", "=true"), true, true),
            (good.replace("=false", "=no"), true, true),
            (good.replace("[system]", "[system]\n#activate-installed=true"), false, true),
            (good.replace("/data/rauc.status", "per-slot"), false, false),
            (format!("{good}statusfile=per-slot\ndata-directory=/data\n"), false, false),
            (good.replace("[system]", "[slot.rootfs.0]"), true, false),
            (format!("{good}[slot.rootfs.0]\nactivate-installed=true\n"), false, true),
            (String::new(), true, false),
            ("\0[system".to_owned(), true, false),
        ] {
            let settings = RaucSettings::parse(&text);
            let expected = RaucSettings { activates_installed, has_central_status };
            assert_eq!(settings, expected, "{text}");
            let faults = settings.faults(&"/etc/rauc/system.conf");
            let number = usize::from(activates_installed) + usize::from(!has_central_status);
            assert_eq!(faults.len(), number, "{faults:?}");
        }
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn only_a_setting_of_the_system_section_disables_the_activation() {
        let samples = [
            "[system]\nstatusfile=/data/rauc.status\nactivate-installed=false\n",
            "[slot.rootfs.0]\nactivate-installed = 0\n[system]\ndata-directory=/data\n",
        ];
        fuzz("system.conf of RAUC", |rng| {
            let config = text(rng, &samples, "[]=#\n\r /0systemfalse");
            let settings = RaucSettings::parse(&config);
            assert!(settings.activates_installed || config.contains("activate-installed"));
            assert!(!settings.has_central_status || config.contains('=') && config.contains('/'));
        });
    }
}
