//! Paths and names on which checks and changes agree.

use evenkeel_configuration::document::UNIT_FOLDER;

/// The unit of the agent. A node always has it; it is no extra, and restarts last.
pub const AGENT_UNIT: &str = "evenkeel-agent.service";

/// The package of the agent.
pub const AGENT_PACKAGE: &str = "evenkeel-agent";

/// The file with the kernel settings of a document, as `key = value` lines of sysctl.d(5). Its name
/// sorts after those of other files, because the last file with a setting wins at boot.
pub const SYSCTL_FILE: &str = "/etc/sysctl.d/zz-evenkeel.conf";

/// Where the running kernel has its settings.
pub(crate) const SYSCTL_FOLDER: &str = "/proc/sys";

/// Mode of the files that a node writes for units and kernel settings.
pub(crate) const TEXT_MODE: u32 = 0o644;

/// The path of a setting below `/proc/sys`: `vm/swappiness` of `vm.swappiness`. As in sysctl.d(5),
/// the first separator of a key is its separator; the other one then is a dot of a name. None if it
/// would lead elsewhere.
pub fn sysctl_path(key: &str) -> Option<String> {
    let separator = key.chars().find(|c| matches!(c, '.' | '/'))?;
    let swap = |c: char| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    let path: String =
        if separator == '/' { key.to_owned() } else { key.chars().map(swap).collect() };
    let is_name = |name: &str| !matches!(name, "" | "." | "..");
    path.split('/').all(is_name).then_some(path)
}

/// The path of the file of a source on the machine.
pub fn source_path(id: &str) -> String {
    format!("/etc/apt/sources.list.d/evenkeel-source-{id}.sources")
}

/// The path of the key of a source on the machine.
pub fn source_key_path(id: &str) -> String {
    format!("/etc/apt/keyrings/evenkeel-source-{id}.asc")
}

/// The path of a unit file.
pub(crate) fn unit_file_path(unit: &str) -> String {
    format!("{UNIT_FOLDER}/{unit}")
}

pub(crate) fn drop_in_path(unit: &str, drop_in: &str) -> String {
    format!("{UNIT_FOLDER}/{unit}.d/{drop_in}")
}

/// Whether a path may be a unit file or a drop-in: one of all folders that systemd reads.
pub(crate) fn is_in_unit_folder(path: &str) -> bool {
    path.contains("/systemd/system/")
}

/// Endings of the folders with a link for each unit that another unit starts.
pub(crate) const DEPENDENCY_SUFFIXES: [&str; 3] = [".wants", ".requires", ".upholds"];

/// Whether `prune` keeps a name in the folder of unit files: folders with links of enabled units,
/// and files of the agent's unit.
pub(crate) fn is_kept_in_unit_folder(name: &str) -> bool {
    name.starts_with(AGENT_UNIT) || DEPENDENCY_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// The template of an instance: `getty@.service` of `getty@tty1.service`, and of itself.
pub(crate) fn template_name(unit: &str) -> Option<String> {
    let (stem, suffix) = unit.rsplit_once('.')?;
    let (prefix, _) = stem.split_once('@')?;
    Some(format!("{prefix}@.{suffix}"))
}

/// Whether the unit is a template without an instance.
pub(crate) fn is_template(unit: &str) -> bool {
    template_name(unit).is_some_and(|template| template == unit)
}

/// The name of a package without its architecture: `libssl3` of `libssl3:amd64`.
pub(crate) fn package_base_name(name: &str) -> &str {
    name.split_once(':').map_or(name, |(base, _)| base)
}

/// Whether two names mean the same package. A name without an architecture means any of them.
pub(crate) fn is_same_package(one: &str, other: &str) -> bool {
    let has_both = one.contains(':') && other.contains(':');
    if has_both { one == other } else { package_base_name(one) == package_base_name(other) }
}
