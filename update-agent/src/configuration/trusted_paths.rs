//! Paths that a document must not change, because the limits of the machine's owner depend on them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::bail;
use evenkeel_configuration::Document;
use evenkeel_configuration::document::{Desired, FileKind, FileState, UNIT_FOLDER};
use evenkeel_reconcile::scope::EntryScope;

use crate::hooks::resolve_path;
use crate::owner::{ActionPermission, ConfigurationLimits};

/// The limits and keys of the owner, the agent's state, and the sources and keys of apt. Sources of
/// a document are entries `PackageSource`, for which the limits hold.
const TRUSTED_PATHS: [&str; 8] = [
    "/etc/apt/keyrings",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d",
    "/etc/apt/trusted.gpg",
    "/etc/apt/trusted.gpg.d",
    "/etc/evenkeel",
    "/usr/share/keyrings",
    "/var/lib/evenkeel-agent",
];

/// Permission bits that let users other than the owner write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Checks that no file and no unit of a document changes what the owner's limits trust: the paths
/// above, `state`, and the directories whose programs are allowed as actions.
///
/// # Errors
/// The first entry that is refused.
pub fn check_trusted_paths(
    root: &Path,
    state: &Path,
    limits: &ConfigurationLimits,
    (document, scope): (&Document, &EntryScope),
) -> anyhow::Result<()> {
    let folders = limits.actions.iter().filter_map(|permission| match permission {
        ActionPermission::Folder(folder) => Some(folder.as_str()),
        _ => None,
    });
    let mut paths = PathResolver { root, parents: HashMap::new() };
    let mut trusted: Vec<(PathBuf, String)> = Vec::new();
    for path in TRUSTED_PATHS.into_iter().chain(folders) {
        let resolved = resolve_path(root, Path::new(path));
        let written = root.join(path.trim_start_matches('/'));
        trusted.extend([written, resolved].map(|real| (real, path.to_owned())));
    }
    trusted.push((state.to_owned(), state.display().to_string()));
    for (bundle, entry) in document.entries() {
        if scope.only_bundle.as_ref().is_some_and(|only| *only != bundle.name) {
            continue;
        }
        let (path, keeps_content) = match &entry.desired {
            Desired::File(file) => (entry.name.clone(), keeps_content(file)),
            Desired::Unit(_) => (format!("{UNIT_FOLDER}/{}", entry.name), false),
            _ => continue,
        };
        let resolved = paths.resolve(&path);
        let is_changed = |(trusted, _): &&(PathBuf, String)| {
            resolved.iter().any(|path| {
                path.starts_with(trusted) || (!keeps_content && trusted.starts_with(path))
            })
        };
        if let Some((_, trusted)) = trusted.iter().find(is_changed) {
            bail!(
                "nothing was changed: {} {} would change {trusted}, which the limits of the \
                 machine's owner depend on; only the owner may change it",
                entry.component().name(),
                entry.name
            );
        }
    }
    Ok(())
}

/// Whether an entry for a directory changes nothing of what is below it.
fn keeps_content(file: &FileState) -> bool {
    let is_directory = match file.kind {
        FileKind::Directory => !file.prune,
        FileKind::Permissions => true,
        FileKind::File | FileKind::Symlink | FileKind::Absent => false,
    };
    let is_writable = file.mode.is_some_and(|mode| mode.0 & WRITABLE_BY_OTHERS != 0);
    let is_of_root = file.owner.as_deref().is_none_or(|owner| matches!(owner, "root" | "0"));
    is_directory && is_of_root && !is_writable
}

/// Follows the links of paths. Many files have the same parent.
struct PathResolver<'a> {
    root: &'a Path,
    parents: HashMap<PathBuf, PathBuf>,
}

impl PathResolver<'_> {
    /// The path as it is written, and with the links of its parent followed. A change of a link
    /// replaces the link.
    fn resolve(&mut self, path: &str) -> [PathBuf; 2] {
        let path = Path::new(path);
        let written = self.root.join(path.strip_prefix("/").unwrap_or(path));
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return [written.clone(), written];
        };
        let resolve = || resolve_path(self.root, parent);
        let parent = self.parents.entry(parent.to_owned()).or_insert_with(resolve);
        let resolved = parent.join(name);
        [written, resolved]
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use evenkeel_configuration::native;

    use super::*;

    fn check(root: &Path, entry: &str) -> Result<(), String> {
        let text = format!("bundles: [{{name: a, entries: [{entry}]}}]");
        let document = native::read(&text).unwrap();
        let actions = vec!["/opt/actions".to_owned().try_into().unwrap()];
        let (limits, scope) = (ConfigurationLimits { actions }, EntryScope::default());
        let state = root.join("data/agent");
        check_trusted_paths(root, &state, &limits, (&document, &scope))
            .map_err(|error| error.to_string())
    }

    fn file(path: &str, desired: &str) -> String {
        format!("{{component: File, name: {path}, desired: {desired}}}")
    }

    #[test]
    fn files_and_units_must_not_change_what_the_limits_trust() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("opt/actions")).unwrap();
        fs::create_dir_all(root.join("etc/evenkeel")).unwrap();
        symlink("/opt", root.join("programs")).unwrap();
        symlink("../../etc", root.join("opt/etc")).unwrap();
        for path in [
            "/opt/actions",
            "/opt/actions/evil",
            "/programs/actions/evil",
            "/opt/etc/evenkeel/limits.toml",
            "/etc/evenkeel/keys.d/own.asc",
            "/etc/apt/sources.list",
            "/etc/apt/sources.list.d/own.sources",
            "/etc/apt/trusted.gpg.d/own.gpg",
            "/data/agent/state.json",
        ] {
            let refused = check(root, &file(path, "{}")).unwrap_err();
            let start = format!("nothing was changed: File {path} would change /");
            assert!(refused.starts_with(&start), "{refused}");
        }
        for desired in [
            "{type: directory, prune: true}",
            "{type: absent, prune: true}",
            "{type: symlink, target: /srv}",
            "{type: directory, mode: '0777'}",
            "{type: permissions, owner: '1000'}",
        ] {
            assert!(check(root, &file("/opt", desired)).is_err(), "{desired}");
        }
        for entry in [
            file("/opt", "{type: directory}"),
            file("/opt/actions-of-others/a", "{}"),
            file("/etc/evenkeel-other", "{}"),
            file("/etc/apt/apt.conf.d/proxy", "{}"),
            "{component: Unit, name: a.service, desired: {content: '[Service]'}}".to_owned(),
        ] {
            assert_eq!(check(root, &entry), Ok(()), "{entry}");
        }
    }
}
