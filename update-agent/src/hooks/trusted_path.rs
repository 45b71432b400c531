//! Resolves a path inside the managed root, and checks that only root can change where it leads.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::owner::check_only_root_writes;

/// Maximum number of symbolic links on a path, as in the kernel.
const MAX_LINKS: usize = 40;

/// A path that is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UntrustedPath {
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}: {reason}", path.display())]
    Writable { path: PathBuf, reason: String },
}

/// Follows all symbolic links of `path`, which is as seen from inside `root`. Every folder on the
/// way must be writable only by root: another user could replace whatever is below it. Returns a
/// path without links.
pub(crate) fn resolve_trusted_path(root: &Path, path: &Path) -> Result<PathBuf, UntrustedPath> {
    follow_links(root, path, |part, metadata| {
        let shown = || Path::new("/").join(part.strip_prefix(root).unwrap_or(part));
        let metadata =
            metadata.map_err(|source| UntrustedPath::Unreadable { path: shown(), source })?;
        if metadata.is_dir() {
            check_only_root_writes(&metadata)
                .map_err(|reason| UntrustedPath::Writable { path: shown(), reason })?;
        }
        Ok(())
    })
}

/// Like [`resolve_trusted_path`], but other users may write to the folders. Missing parts stay as
/// they are.
pub(crate) fn resolve_path(root: &Path, path: &Path) -> PathBuf {
    let followed = follow_links(root, path, |_, _| Ok::<_, Infallible>(()));
    match followed {
        Ok(path) => path,
        Err(never) => match never {},
    }
}

/// Follows the links of a path inside a root. `check` gets each part of the path that is no link:
/// its metadata, or why it cannot be read.
fn follow_links<E>(
    root: &Path,
    path: &Path,
    check: impl Fn(&Path, io::Result<Metadata>) -> Result<(), E>,
) -> Result<PathBuf, E> {
    let mut remaining = Vec::new();
    push_parts(&mut remaining, path);
    let mut current = root.to_owned();
    let mut links = 0;
    while let Some(part) = remaining.pop() {
        if part == ".." {
            if current != root {
                current.pop();
            }
            continue;
        }
        let next = current.join(&part);
        let mut metadata = fs::symlink_metadata(&next);
        if metadata.as_ref().is_ok_and(Metadata::is_symlink) {
            links += 1;
            match fs::read_link(&next) {
                Ok(target) if links <= MAX_LINKS => {
                    if target.is_absolute() {
                        root.clone_into(&mut current);
                    }
                    push_parts(&mut remaining, &target);
                    continue;
                }
                Ok(_) => metadata = Err(Errno::LOOP.into()),
                Err(error) => metadata = Err(error),
            }
        }
        check(&next, metadata)?;
        current = next;
    }
    Ok(current)
}

/// Adds the parts of a path to a stack, the first part on top.
fn push_parts(stack: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    stack.extend(parts);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn test_root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in ["etc", "etc/hooks", "usr", "usr/lib", "home"] {
            let path = root.path().join(folder);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(root.path().join("usr/lib/drain"), "").unwrap();
        root
    }

    #[test]
    fn links_are_followed_inside_the_root() {
        let root = test_root();
        symlink("/usr/lib", root.path().join("lib")).unwrap();
        let cases = [
            ("/usr/lib/drain", "usr/lib/drain"),
            ("../../usr/lib/drain", "usr/lib/drain"),
            ("/lib/drain", "usr/lib/drain"),
            ("/lib/../../../lib/./drain", "usr/lib/drain"),
        ];
        for (target, expected) in cases {
            let link = root.path().join("etc/hooks/10-a");
            fs::remove_file(&link).ok();
            symlink(target, &link).unwrap();
            let resolved = resolve_trusted_path(root.path(), Path::new("/etc/hooks/10-a"));
            let found = resolved.unwrap_or_else(|error| panic!("{target}: {error}"));
            assert_eq!(found.strip_prefix(root.path()).unwrap(), Path::new(expected), "{target}");
        }
    }

    #[test]
    fn missing_parts_stay_as_they_are() {
        let root = test_root();
        symlink("/usr/lib", root.path().join("lib")).unwrap();
        symlink("loop", root.path().join("loop")).unwrap();
        for (path, expected) in [
            ("/lib/none/file", "usr/lib/none/file"),
            ("/none/../lib/drain", "usr/lib/drain"),
            ("/../etc", "etc"),
            ("/loop/file", "loop/file"),
            ("/", ""),
        ] {
            let found = resolve_path(root.path(), Path::new(path));
            assert_eq!(found.strip_prefix(root.path()).unwrap(), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn a_folder_that_others_can_write_or_a_loop_is_an_error() {
        let root = test_root();
        let resolve = |path: &str| resolve_trusted_path(root.path(), Path::new(path));
        symlink("/home/drain", root.path().join("etc/hooks/10-a")).unwrap();
        let missing = resolve("/etc/hooks/10-a").unwrap_err().to_string();
        assert!(missing.starts_with("cannot read /home/drain: "), "{missing}");
        fs::write(root.path().join("home/drain"), "").unwrap();
        resolve("/etc/hooks/10-a").unwrap();
        fs::set_permissions(root.path().join("home"), fs::Permissions::from_mode(0o777)).unwrap();
        let writable = resolve("/etc/hooks/10-a").unwrap_err().to_string();
        assert_eq!(writable, "/home: users other than root may write to it");

        symlink("20-b", root.path().join("etc/hooks/20-b")).unwrap();
        let endless = resolve("/etc/hooks/20-b").unwrap_err();
        assert!(matches!(endless, UntrustedPath::Unreadable { .. }), "{endless}");
    }
}
