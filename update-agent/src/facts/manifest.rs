//! The list of installed packages as it is sent. Nodes with the same packages send the same text.

use serde::Serialize;

use crate::modules::packages::DpkgPackage;

/// Maximum number of packages that the server accepts.
const MAX_PACKAGES: usize = 100_000;

/// Format of an image's manifest.
#[derive(Serialize)]
struct PackageManifest<'a> {
    repo: Vec<ManifestPackage<'a>>,
}

#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct ManifestPackage<'a> {
    name: &'a str,
    version: &'a str,
    architecture: &'a str,
}

/// The manifest as JSON, sorted by name, then architecture.
pub fn to_json(packages: &[DpkgPackage]) -> String {
    let present = packages.iter().filter(|dpkg_package| dpkg_package.is_present());
    let mut repo: Vec<_> = present
        .map(|dpkg_package| ManifestPackage {
            name: &dpkg_package.name,
            version: &dpkg_package.version,
            architecture: &dpkg_package.architecture,
        })
        .collect();
    repo.sort_unstable_by_key(|package| (package.name, package.architecture, package.version));
    repo.truncate(MAX_PACKAGES);
    serde_json::to_string(&PackageManifest { repo }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_the_same_for_the_same_packages() {
        let package = |name: &str, architecture: &str, state: &str| DpkgPackage {
            name: name.into(),
            architecture: architecture.into(),
            version: "1:2.0-1".into(),
            want: "install".into(),
            state: state.into(),
            flag: "ok".into(),
            size: 0,
        };
        let mut packages = vec![
            package("libc6", "i386", "installed"),
            package("apt", "amd64", "half-configured"),
            package("libc6", "amd64", "installed"),
            package("gone", "all", "config-files"),
        ];
        let json = to_json(&packages);
        assert_eq!(
            json,
            "{\"repo\":[\
             {\"name\":\"apt\",\"version\":\"1:2.0-1\",\"architecture\":\"amd64\"},\
             {\"name\":\"libc6\",\"version\":\"1:2.0-1\",\"architecture\":\"amd64\"},\
             {\"name\":\"libc6\",\"version\":\"1:2.0-1\",\"architecture\":\"i386\"}]}"
        );
        packages.reverse();
        assert_eq!(to_json(&packages), json);
        assert_eq!(to_json(&[]), "{\"repo\":[]}");
    }
}
