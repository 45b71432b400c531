//! The links and files in the folders of systemd, for checks without systemd and for extras.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_configuration::document::UNIT_FOLDER;
use rustix::fs::FileType;

use super::read;
use crate::files::RootFolder;
use crate::names::{AGENT_UNIT, DEPENDENCY_SUFFIXES, template_name};

/// Where unit files are, by precedence.
const UNIT_FILE_FOLDERS: [&str; 4] = [
    UNIT_FOLDER,
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Where systemd's own list of units is that are enabled on a new machine.
const PRESET_FOLDERS: [&str; 2] = ["/usr/lib/systemd/system-preset", "/lib/systemd/system-preset"];

/// Where Debian's packages record the links that they have created.
const PACKAGE_RECORD_FOLDER: &str = "/var/lib/systemd/deb-systemd-helper-enabled";

const INSTALL_KEYS: [&str; 4] = ["WantedBy", "RequiredBy", "UpheldBy", "Alias"];

/// Suffixes of the units that are extras if they are enabled.
const EXTRA_SUFFIXES: [&str; 4] = [".service", ".socket", ".timer", ".path"];

/// The links in `/etc/systemd/system`.
#[derive(Debug, Default)]
pub(super) struct UnitLinks {
    /// Units with a link in a folder of dependencies, each with these folders.
    dependencies: BTreeMap<String, Vec<String>>,
    /// Units that a link with another name, an alias, points to.
    aliased: BTreeSet<String>,
    masked: BTreeSet<String>,
}

/// What the files of a unit permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstallSection {
    /// The unit can be enabled.
    Present,
    /// The unit has a file and cannot be enabled.
    Absent,
    /// The unit has no file.
    NoFile,
}

impl UnitLinks {
    /// Reads the links.
    ///
    /// # Errors
    /// A sentence: the folder cannot be read.
    pub fn read(root: &RootFolder) -> Result<Self, String> {
        let list = |folder: &str| {
            let files = read::list_folder(root, folder);
            files.map_err(|error| read::reading_failure(folder, &error))
        };
        let mut links = Self::default();
        for (name, kind) in list(UNIT_FOLDER)? {
            let has_suffix = DEPENDENCY_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
            if has_suffix && kind != FileType::RegularFile {
                for (unit, _) in list(&format!("{UNIT_FOLDER}/{name}"))? {
                    links.dependencies.entry(unit).or_default().push(name.clone());
                }
            } else if !matches!(kind, FileType::RegularFile | FileType::Directory)
                && let Some(target) = read::read_link(root, UNIT_FOLDER, &name)
            {
                links.add_alias(name, &target);
            }
        }
        Ok(links)
    }

    fn add_alias(&mut self, name: String, target: &str) {
        if target == "/dev/null" {
            self.masked.insert(name);
            return;
        }
        let unit = target.rsplit('/').next().unwrap_or_default();
        if unit != name {
            self.aliased.insert(unit.to_owned());
        }
    }

    /// Whether a link starts the unit.
    pub fn is_enabled(&self, unit: &str) -> bool {
        self.dependencies.contains_key(unit) || self.aliased.contains(unit)
    }

    /// Whether a link starts an instance of the template.
    pub fn has_enabled_instance(&self, template: &str) -> bool {
        self.dependencies.keys().any(|unit| template_name(unit).as_deref() == Some(template))
    }

    pub fn is_masked(&self, unit: &str) -> bool {
        self.masked.contains(unit)
    }

    /// The enabled units that neither a package nor systemd's preset has enabled.
    pub fn list_extras(&self, root: &RootFolder) -> Vec<String> {
        let preset = read_preset(root);
        let is_recorded = |unit: &str, folder: &str| {
            let folder = format!("{PACKAGE_RECORD_FOLDER}/{folder}");
            // The records are empty files.
            read::open_file(root, &format!("{folder}/{unit}")).is_ok()
        };
        let is_extra = |(unit, folders): &(&String, &Vec<String>)| {
            let template = template_name(unit);
            let is_preset = preset.contains(*unit)
                || template.is_some_and(|template| preset.contains(&template));
            EXTRA_SUFFIXES.iter().any(|suffix| unit.ends_with(suffix))
                && *unit != AGENT_UNIT
                && !is_preset
                && !folders.iter().any(|folder| is_recorded(unit, folder))
        };
        let extras = self.dependencies.iter().filter(is_extra);
        extras.map(|(unit, _)| unit.clone()).collect()
    }
}

/// The units that the vendor's presets enable by their names. Files that cannot be read are left
/// out: then some units that systemd has enabled are extras.
fn read_preset(root: &RootFolder) -> BTreeSet<String> {
    let mut units = BTreeSet::new();
    for folder in PRESET_FOLDERS {
        for (name, _) in read::list_folder(root, folder).unwrap_or_default() {
            let content = read::read_text(root, &format!("{folder}/{name}")).unwrap_or_default();
            let content = String::from_utf8_lossy(&content);
            let enabled = content.lines().filter_map(|line| line.trim().strip_prefix("enable "));
            units.extend(enabled.map(|unit| unit.trim().to_owned()));
        }
    }
    units
}

/// Reads the file of a unit. A file that cannot be read is none.
pub(super) fn find_install_section(root: &RootFolder, unit: &str) -> InstallSection {
    for name in [Some(unit.to_owned()), template_name(unit)].into_iter().flatten() {
        for folder in UNIT_FILE_FOLDERS {
            if let Ok(content) = read::read_text(root, &format!("{folder}/{name}")) {
                return parse_install_section(&String::from_utf8_lossy(&content));
            }
        }
    }
    InstallSection::NoFile
}

/// Whether a unit has a file outside of `/etc`.
pub(crate) fn has_package_file(root: &RootFolder, unit: &str) -> bool {
    let mut folders = UNIT_FILE_FOLDERS.iter().filter(|folder| **folder != UNIT_FOLDER);
    folders.any(|folder| read::open_file(root, &format!("{folder}/{unit}")).is_ok())
}

fn parse_install_section(content: &str) -> InstallSection {
    let mut is_inside = false;
    for line in content.lines().map(str::trim) {
        if line.starts_with('[') {
            is_inside = line == "[Install]";
        } else if is_inside
            && let Some((key, value)) = line.split_once('=')
            && INSTALL_KEYS.contains(&key.trim_end())
            && !value.trim().is_empty()
        {
            return InstallSection::Present;
        }
    }
    InstallSection::Absent
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::names::is_template;

    #[test]
    fn a_unit_can_be_enabled_if_its_install_section_names_a_unit() {
        let cases = [
            ("[Service]\nWantedBy=x\n[Install]\nWantedBy=multi-user.target\n", true),
            (" [Install] \n RequiredBy = a.target\n", true),
            ("[Install]\nAlias=b.service\n[Unit]\n", true),
            ("[Install]\nWantedBy=\n", false),
            ("[Install]\nAlso=b.socket\n", false),
            ("[Install]\n# WantedBy=a.target\n", false),
            ("[Unit]\nWantedBy=a.target\n", false),
            ("", false),
        ];
        for (content, is_present) in cases {
            let expected =
                if is_present { InstallSection::Present } else { InstallSection::Absent };
            assert_eq!(parse_install_section(content), expected, "{content}");
        }
    }

    #[test]
    fn an_instance_belongs_to_its_template() {
        let cases = [
            ("getty@tty1.service", Some("getty@.service"), false),
            ("getty@.service", Some("getty@.service"), true),
            ("a@b@c.d.socket", Some("a@.socket"), false),
            ("cron.service", None, false),
            ("cron", None, false),
        ];
        for (unit, template, is_itself) in cases {
            assert_eq!(template_name(unit).as_deref(), template, "{unit}");
            assert_eq!(is_template(unit), is_itself, "{unit}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in any::<String>()) {
            parse_install_section(&text);
            template_name(&text);
        }
    }
}
