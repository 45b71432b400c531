//! The packages of an image, by which vulnerabilities are judged.

use std::collections::HashMap;

use serde::Deserialize;

/// Releases of Ubuntu, by the start of the version of the package `base-files`.
const UBUNTU_RELEASES: &[(&str, &str)] =
    &[("11ubuntu5", "20.04"), ("12ubuntu4", "22.04"), ("13ubuntu10", "24.04")];

/// The installed packages of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstalledPackages {
    /// Versions by name.
    versions: HashMap<String, String>,
    /// Versions of the source packages by name; none if the list does not name them.
    sources: Option<HashMap<String, String>>,
    /// The distribution, if it is known.
    distribution: Option<Distribution>,
}

/// A distribution with packages of Debian's format.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Distribution {
    /// Name as in OSV.
    name: &'static str,
    /// Release as in OSV, if it is known.
    release: Option<String>,
}

/// The version of a source package in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceVersion<'a> {
    /// No installed package is built from it.
    Absent,
    /// The list does not say.
    Unknown,
    Known(&'a str),
}

#[derive(Deserialize)]
struct InstalledList {
    repo: Vec<ListedPackage>,
}

#[derive(Deserialize)]
struct ListedPackage {
    name: String,
    version: String,
    #[serde(default)]
    source: String,
    #[serde(default, rename = "sourceVersion")]
    source_version: String,
}

impl InstalledPackages {
    /// Reads a stored list of packages in EIM's format. `None` if it is not such a list.
    #[must_use]
    pub fn from_list(list: &str) -> Option<Self> {
        let list: InstalledList = serde_json::from_str(list).ok()?;
        let names_sources = list.repo.iter().any(|package| !package.source.is_empty());
        let (mut versions, mut sources) = (HashMap::new(), HashMap::new());
        for package in list.repo {
            if names_sources {
                let or = |text: String, other: &str| {
                    if text.is_empty() { other.to_owned() } else { text }
                };
                let source = or(package.source, &package.name);
                sources.insert(source, or(package.source_version, &package.version));
            }
            versions.insert(package.name, package.version);
        }
        let distribution = Distribution::detect(&versions);
        Some(Self { versions, sources: names_sources.then_some(sources), distribution })
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.versions.contains_key(name)
    }

    /// The version of a package, if it can be compared with those of vulnerabilities.
    pub(super) fn version(&self, name: &str) -> Option<&str> {
        self.distribution.as_ref()?;
        self.versions.get(name).map(String::as_str)
    }

    /// The version of a source package. Without sources in the list, that of the package with the
    /// same name.
    pub(super) fn source_version(&self, name: &str) -> SourceVersion<'_> {
        match &self.sources {
            Some(sources) if !sources.contains_key(name) => SourceVersion::Absent,
            Some(sources) => self.known_version(sources.get(name)),
            None => self.known_version(self.versions.get(name)),
        }
    }

    fn known_version<'a>(&self, version: Option<&'a String>) -> SourceVersion<'a> {
        match version.filter(|_| self.distribution.is_some()) {
            Some(version) => SourceVersion::Known(version),
            None => SourceVersion::Unknown,
        }
    }

    /// Whether a vulnerability in an ecosystem of OSV, such as `Debian:12`, may concern the image.
    pub(super) fn may_be_in(&self, ecosystem: &str) -> bool {
        let Some(own) = &self.distribution else {
            return true;
        };
        let mut parts = ecosystem.split(':');
        let name = parts.next().unwrap_or_default();
        if name.is_empty() {
            return true;
        }
        let (release, own_release) = (parts.next(), own.release.as_deref());
        // `Ubuntu:Pro:22.04:LTS` has fixes that only subscribers get.
        own.name == name
            && release != Some("Pro")
            && (release.is_none() || own_release.is_none() || release == own_release)
    }
}

impl Distribution {
    /// Recognises the distribution by `base-files`, which every system has, or by the versions of
    /// Debian's security updates.
    fn detect(versions: &HashMap<String, String>) -> Option<Self> {
        if let Some(version) = versions.get("base-files") {
            if version.contains("ubuntu") {
                let mut known = UBUNTU_RELEASES.iter();
                let release = known.find(|(start, _)| version.starts_with(start));
                let release = release.map(|(_, release)| (*release).to_owned());
                return Some(Self { name: "Ubuntu", release });
            }
            return debian(version);
        }
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for version in versions.values() {
            if let Some((_, rest)) = version.split_once("+deb")
                && let Some((release, _)) = rest.split_once('u')
                && is_number(release)
            {
                *counts.entry(release).or_default() += 1;
            }
        }
        let (release, _) = counts.into_iter().max_by_key(|(release, count)| (*count, *release))?;
        Some(Self { name: "Debian", release: Some(release.to_owned()) })
    }
}

/// Debian with the release in the version of its `base-files`.
fn debian(base_files: &str) -> Option<Distribution> {
    let release = base_files.split(['.', '+']).next().filter(|release| is_number(release))?;
    Some(Distribution { name: "Debian", release: Some(release.to_owned()) })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(packages: &[(&str, &str)]) -> InstalledPackages {
        let entry = |(name, version): &(&str, &str)| {
            format!(r#"{{"name":"{name}","version":"{version}"}}"#)
        };
        let entries: Vec<_> = packages.iter().map(entry).collect();
        let list = format!(r#"{{"repo":[{}]}}"#, entries.join(","));
        InstalledPackages::from_list(&list).expect("a list")
    }

    #[test]
    fn the_distribution_is_recognised() {
        let cases: [(&str, &str, &str, &[&str]); 5] = [
            ("base-files", "12.4+deb12u8", "Debian:12", &["Debian:11", "Ubuntu:22.04:LTS", "npm"]),
            ("base-files", "13.8", "Debian:13", &["Debian:12"]),
            ("curl", "7.88.1-10+deb12u8", "Debian:12", &["Debian:11"]),
            (
                "base-files",
                "12ubuntu4.6",
                "Ubuntu:22.04:LTS",
                &["Ubuntu:24.04:LTS", "Debian:12", "Ubuntu:Pro:22.04:LTS"],
            ),
            ("base-files", "15ubuntu1", "Ubuntu:26.04:LTS", &["Debian:12", "Ubuntu:Pro:26.04:LTS"]),
        ];
        for (name, version, same, others) in cases {
            let installed = list(&[(name, version), ("a", "1")]);
            assert!(installed.may_be_in(same) && installed.may_be_in(""), "{same}");
            for other in others {
                assert!(!installed.may_be_in(other), "{other} on {same}");
            }
        }
        let unknown = list(&[("curl", "7.88.1-1.emt3")]);
        assert!(unknown.may_be_in("Debian:11") && unknown.version("curl").is_none());
    }

    #[test]
    fn a_source_package_has_the_version_that_the_list_gives() {
        use SourceVersion as S;
        let without = list(&[("curl", "7.88.1-10+deb12u8"), ("libc6", "2.36-9+deb12u9")]);
        assert_eq!(without.source_version("curl"), S::Known("7.88.1-10+deb12u8"));
        assert_eq!(without.source_version("glibc"), S::Unknown);
        let with = InstalledPackages::from_list(
            r#"{"repo":[{"name":"base-files","version":"12.4"},
            {"name":"libc6","version":"2.36-9+b1","source":"glibc","sourceVersion":"2.36-9"}]}"#,
        );
        let with = with.expect("a list");
        assert_eq!(with.source_version("glibc"), S::Known("2.36-9"));
        assert_eq!(with.source_version("base-files"), S::Known("12.4"));
        assert_eq!(with.source_version("nginx"), S::Absent);
        assert_eq!(InstalledPackages::from_list("[]"), None);
    }
}
