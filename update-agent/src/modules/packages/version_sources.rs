//! The sources of versions that apt would not install, for example of a package on hold: a simulation names the origins only of
//! the versions that it installs.

use std::collections::BTreeSet;

use super::apt::{MAX_NAMES_PER_COMMAND, PackageTools};
use super::index_targets::IndexTarget;
use super::sources::AptView;
use crate::model::Failure;
use crate::runner::Command;

/// A version of a package in an index of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionSource {
    /// Debian's name.
    pub name: String,
    pub version: String,
    /// URI of the repository.
    uri: String,
    /// Name of the suite in the source.
    release: String,
}

impl VersionSource {
    fn belongs_to(&self, target: &IndexTarget) -> bool {
        target.belongs_to(&self.uri, &self.release)
    }
}

impl PackageTools {
    /// The sources of all versions of some packages, which are named as for apt.
    pub async fn list_version_sources(
        &self,
        packages: &[String],
    ) -> Result<Vec<VersionSource>, Failure> {
        let mut sources = Vec::new();
        for some in packages.chunks(MAX_NAMES_PER_COMMAND) {
            let command = Command::new("apt-cache", self.timeouts().query)
                .with_arguments(AptView::default().options())
                .with_arguments(["madison", "--"])
                .with_arguments(some.iter().cloned());
            let output = self.run_for_stdout(&command, "apt-cache madison").await?;
            sources.extend(parse_version_sources(&output));
        }
        Ok(sources)
    }
}

/// The suites and the labels of the indexes that contain a version.
pub fn suites_and_labels(
    sources: &[VersionSource],
    (name, version): (&str, &str),
    targets: &[IndexTarget],
) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut suites, mut labels) = (BTreeSet::new(), BTreeSet::new());
    for source in sources.iter().filter(|one| one.name == name && one.version == version) {
        for target in targets.iter().filter(|target| source.belongs_to(target)) {
            suites.extend(target.suite_names().map(str::to_owned));
            labels.extend(target.label().map(str::to_owned));
        }
    }
    (suites, labels)
}

/// Parses the lines `NAME[:ARCHITECTURE] | VERSION | URI SUITE/COMPONENT ARCHITECTURE Packages`. The last part comes from the
/// sources of the machine, and not from repositories. Other lines, such as those of source packages, are ignored.
fn parse_version_sources(text: &str) -> Vec<VersionSource> {
    let parse_line = |line: &str| {
        let fields: Vec<_> = line.splitn(3, '|').map(str::trim).collect();
        let [package, version, index] = fields[..] else {
            return None;
        };
        let mut words = index.strip_suffix(" Packages")?.split_ascii_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        // A flat repository has a folder that ends with a slash, and no component.
        let release = match suite.rsplit_once('/') {
            Some((release, component)) if !component.is_empty() => release,
            _ => suite,
        };
        Some(VersionSource {
            name: package.split(':').next().unwrap_or_default().to_owned(),
            version: version.to_owned(),
            uri: uri.to_owned(),
            release: release.to_owned(),
        })
    };
    text.lines().filter_map(parse_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::packages::index_targets::parse_targets;

    const TARGETS: &str = "\
http://deb.debian.org/debian/\tbookworm\toldstable\tbookworm\tDebian\t12.15
http://deb.debian.org/debian-security/\tbookworm-security\toldstable-security\tbookworm-security\tDebian-Security\t12
http://deb.debian.org/debian-security/\tbuster/updates\toldoldstable\tbuster\tDebian-Security\t10
https://flat.example/\t./\t$(SUITE)\t$(CODENAME)\tFlat\t$(VERSION)
";

    /// From Debian 12, with names added.
    const SOURCES: &str = "\
   openssl | 3.0.17-1~deb12u2 | http://deb.debian.org/debian-security bookworm-security/main amd64 Packages
   openssl | 3.0.16-1~deb12u1 | http://deb.debian.org/debian bookworm/main amd64 Packages
   openssl | 3.0.16-1~deb12u1 | http://deb.debian.org/debian bookworm/main Sources
 libc6:i386 | 2.28-10+deb10u4 | http://deb.debian.org/debian-security buster/updates/main i386 Packages
      tool |          1 | https://flat.example ./ Packages
N: Unable to locate package nothing
 a | b
";

    fn suites(name: &str, version: &str) -> (Vec<String>, Vec<String>) {
        let targets = parse_targets(TARGETS).unwrap();
        let sources = parse_version_sources(SOURCES);
        let (suites, labels) = suites_and_labels(&sources, (name, version), &targets);
        (suites.into_iter().collect(), labels.into_iter().collect())
    }

    #[test]
    fn a_version_has_the_suites_and_labels_of_its_indexes() {
        let (names, labels) = suites("openssl", "3.0.17-1~deb12u2");
        assert_eq!(names, ["bookworm-security", "oldstable-security"]);
        assert_eq!(labels, ["Debian-Security"]);
        let (names, labels) = suites("openssl", "3.0.16-1~deb12u1");
        assert_eq!((names.len(), labels.as_slice()), (2, &["Debian".to_owned()][..]));
        assert_eq!(
            suites("libc6", "2.28-10+deb10u4").0,
            ["buster", "buster/updates", "oldoldstable"]
        );
        assert_eq!(suites("tool", "1").1, ["Flat"]);
        assert_eq!(suites("openssl", "9"), (Vec::new(), Vec::new()));
    }

    #[test]
    fn lines_of_source_packages_and_messages_are_ignored() {
        assert_eq!(parse_version_sources(SOURCES).len(), 4);
        assert_eq!(parse_version_sources("a | 1 |\n||\n | | Packages\n"), []);
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn sources_of_versions_have_no_blanks() {
        let samples = [
            "   openssl | 3.0.17-1~deb12u2 | http://deb.debian.org/debian-security bookworm-security/main amd64 Packages\n\
             libc6:i386 | 2.28 | http://deb.debian.org/debian buster/updates/main i386 Packages\n",
            "      tool |          1 | https://flat.example ./ Packages\nN: Unable to locate package x\n",
        ];
        fuzz("apt-cache madison", |rng| {
            let output = text(rng, &samples, " |\n\t/:.-0123456789aP\u{1b}");
            let sources = parse_version_sources(&output);
            assert!(sources.len() <= output.lines().count());
            for source in sources {
                let is_blank = |letter: char| letter.is_ascii_whitespace();
                assert!(!source.uri.contains(is_blank) && !source.release.contains(is_blank));
                assert!(!source.name.contains([':', '\n', '|']), "{source:?}");
            }
        });
    }
}
