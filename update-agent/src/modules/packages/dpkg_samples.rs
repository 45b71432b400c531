//! Data of dpkg for tests.

use std::fs;

use tempfile::TempDir;

use super::dpkg::DPKG_INFO_FOLDER;
use super::parse::DpkgPackage;
use crate::paths::AgentPaths;

/// A root with these files in the folder of dpkg that has the scripts and lists of packages. It is
/// removed when the folder is dropped.
pub fn root_with_info_files(files: &[(&str, &str)]) -> (TempDir, AgentPaths) {
    let root = tempfile::tempdir().expect("a folder");
    let paths = AgentPaths::new(root.path(), None);
    let folder = paths.inside(DPKG_INFO_FOLDER);
    fs::create_dir_all(&folder).expect("the folder of dpkg");
    for (file, text) in files {
        fs::write(folder.join(file), text).expect("a file");
    }
    (root, paths)
}

/// Packages that are installed and configured.
pub fn installed_packages(names: &[&str]) -> Vec<DpkgPackage> {
    let package = |name: &&str| DpkgPackage {
        name: (*name).to_owned(),
        architecture: "amd64".into(),
        version: "1".into(),
        want: "install".into(),
        state: "installed".into(),
        flag: "ok".into(),
        size: 0,
    };
    names.iter().map(package).collect()
}
