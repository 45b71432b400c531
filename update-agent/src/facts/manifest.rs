//! The list of installed packages as it is told: nodes with the same packages have the same text.

use serde::Serialize;

use crate::modules::packages::KnownPackage;

/// A server takes no more.
const MOST_PACKAGES: usize = 100_000;

/// The shape of an image's manifest.
#[derive(Serialize)]
struct Manifest<'a> {
    repo: Vec<Package<'a>>,
}

#[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    architecture: &'a str,
}

/// The text, by name then architecture.
pub fn text(known: &[KnownPackage]) -> String {
    let present = known.iter().filter(|known| known.is_present());
    let mut repo: Vec<_> = present
        .map(|known| Package {
            name: &known.name,
            version: &known.version,
            architecture: &known.architecture,
        })
        .collect();
    repo.sort_unstable_by_key(|package| (package.name, package.architecture, package.version));
    repo.truncate(MOST_PACKAGES);
    serde_json::to_string(&Manifest { repo }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_the_same_for_the_same_packages() {
        let package = |name: &str, architecture: &str, state: &str| KnownPackage {
            name: name.into(),
            architecture: architecture.into(),
            version: "1:2.0-1".into(),
            want: "install".into(),
            state: state.into(),
            flag: "ok".into(),
            size: 0,
        };
        let mut known = vec![
            package("libc6", "i386", "installed"),
            package("apt", "amd64", "half-configured"),
            package("libc6", "amd64", "installed"),
            package("gone", "all", "config-files"),
        ];
        let said = text(&known);
        assert_eq!(
            said,
            "{\"repo\":[\
             {\"name\":\"apt\",\"version\":\"1:2.0-1\",\"architecture\":\"amd64\"},\
             {\"name\":\"libc6\",\"version\":\"1:2.0-1\",\"architecture\":\"amd64\"},\
             {\"name\":\"libc6\",\"version\":\"1:2.0-1\",\"architecture\":\"i386\"}]}"
        );
        known.reverse();
        assert_eq!(text(&known), said);
        assert_eq!(text(&[]), "{\"repo\":[]}");
    }
}
