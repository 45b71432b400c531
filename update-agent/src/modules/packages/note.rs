//! How the node is before a change, so that afterwards it can be told what the change did.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use super::plan::{Item, Step};
use super::{Packages, aptlog};
use crate::facts::reboot;
use crate::model::Failure;
use crate::os;
use crate::place::Place;

/// What dpkg puts behind the name of a package's own configuration file when that of a person stays.
const BESIDE: [&str; 2] = [".dpkg-dist", ".dpkg-new"];

/// The marks that packages leave when they ask for a reboot.
const REQUIRED: &str = "/run/reboot-required";
const REQUIRED_BY: &str = "/run/reboot-required.pkgs";

/// How the node is before a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Baseline {
    /// What dpkg's audit finds.
    pub audit: String,
    /// The services that are active.
    pub services: BTreeSet<String>,
    /// What lies beside configuration files that a person changed.
    pub beside: BTreeMap<String, Trait>,
    /// Who asks for a reboot already.
    pub asked: Asked,
    /// How long apt's own log is.
    pub log: u64,
}

/// Tells a file from one that took its place: inode and time of the last change.
pub type Trait = (u64, i64, i64);

/// Who asks for a reboot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    /// In words.
    pub reasons: Vec<String>,
    /// The mark.
    pub mark: Option<Trait>,
    /// How long the list of packages is.
    pub length: u64,
}

impl Packages {
    /// Looks at what a later look is compared with. What cannot be told is not compared.
    pub(super) async fn baseline(&self, steps: &[Step]) -> Result<Baseline, Failure> {
        let services = if self.services {
            self.tools
                .active_services()
                .await
                .unwrap_or_else(|failure| {
                    tracing::warn!(error = %failure, "cannot tell which services are active");
                    BTreeSet::new()
                })
        } else {
            BTreeSet::new()
        };
        Ok(Baseline {
            audit: self.tools.audit().await?,
            services,
            beside: self.beside(steps).await?,
            asked: asked(&self.place),
            log: aptlog::length(&self.place),
        })
    }

    /// What lies beside the configuration files of the packages that the steps change.
    async fn beside(&self, steps: &[Step]) -> Result<BTreeMap<String, Trait>, Failure> {
        let items = steps.iter().flat_map(Step::items);
        let packages: Vec<&str> = items.map(package).collect();
        let files = self.tools.conffiles(&packages).await?;
        let beside = files
            .iter()
            .flat_map(|file| BESIDE.map(|end| format!("{file}{end}")));
        let beside = beside.filter_map(|file| {
            let found = of_file(&self.place, &file)?;
            Some((file, found))
        });
        Ok(beside.collect())
    }

    /// The configuration files that a person changed and that stayed since they were noted.
    pub(super) async fn kept_conffiles(
        &self,
        steps: &[Step],
        noted: &Baseline,
    ) -> Result<Vec<String>, Failure> {
        let now = self.beside(steps).await?;
        let fresh = now
            .iter()
            .filter(|(file, found)| noted.beside.get(*file) != Some(*found));
        let kept: BTreeSet<_> = fresh.map(|(file, _)| without_end(file)).collect();
        Ok(kept.into_iter().map(str::to_owned).collect())
    }
}

fn package(item: &Item) -> &str {
    &item.package
}

fn without_end(file: &str) -> &str {
    let ends = BESIDE.iter().find_map(|end| file.strip_suffix(end));
    ends.unwrap_or(file)
}

fn of_file(place: &Place, path: &str) -> Option<Trait> {
    let about = fs::symlink_metadata(place.inside(path)).ok()?;
    Some((about.ino(), about.mtime(), about.mtime_nsec()))
}

/// Who asks for a reboot now.
fn asked(place: &Place) -> Asked {
    Asked {
        reasons: reboot::look(place, &os::kernel_release()).reasons,
        mark: of_file(place, REQUIRED),
        length: fs::metadata(place.inside(REQUIRED_BY)).map_or(0, |about| about.len()),
    }
}

/// Why the system is to be rebooted, as far as that was not so when it was noted; empty if it is not.
pub(super) fn asked_since(place: &Place, noted: &Asked) -> Vec<String> {
    let now = asked(place);
    let fresh = now.reasons.iter();
    let fresh = fresh.filter(|reason| !noted.reasons.contains(reason));
    let mut fresh: Vec<String> = fresh.cloned().collect();
    if now.mark.is_some() && now.mark != noted.mark {
        // A package that had asked before asks again.
        let again = asked_again(place, noted.length);
        let again = again.map(|package| format!("{package} asks for it"));
        let again: Vec<_> = again.filter(|reason| !fresh.contains(reason)).collect();
        fresh.extend(again);
        if fresh.is_empty() {
            fresh.extend(now.reasons);
        }
    }
    fresh
}

/// The packages that were added to the list since it had a length.
fn asked_again(place: &Place, length: u64) -> impl Iterator<Item = String> {
    let list = fs::read(place.inside(REQUIRED_BY)).unwrap_or_default();
    let start = usize::try_from(length).unwrap_or(usize::MAX);
    let added = list.get(start..).unwrap_or(&list);
    let names: BTreeSet<_> = String::from_utf8_lossy(added)
        .lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect();
    names.into_iter()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn machine() -> (tempfile::TempDir, Place) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("run")).unwrap();
        let place = Place::new(root.path(), None);
        (root, place)
    }

    /// A package asks for a reboot as packages do, at a second of its own.
    fn ask(place: &Place, package: &str, second: u64) {
        let mark = fs::File::create(place.inside(REQUIRED)).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        mark.set_modified(at).unwrap();
        let list = place.inside(REQUIRED_BY);
        let packages = fs::read_to_string(&list).unwrap_or_default();
        fs::write(list, format!("{packages}{package}\n")).unwrap();
    }

    #[test]
    fn only_a_reboot_that_was_asked_for_since_is_told() {
        let (_root, place) = machine();
        let nothing = asked(&place);
        assert!(asked_since(&place, &nothing).is_empty());
        ask(&place, "libc6", 1);
        assert_eq!(asked_since(&place, &nothing), ["libc6 asks for it"]);

        let before = asked(&place);
        assert!(
            asked_since(&place, &before).is_empty(),
            "it was asked for by somebody else"
        );
        ask(&place, "dbus", 2);
        assert_eq!(asked_since(&place, &before), ["dbus asks for it"]);
    }

    #[test]
    fn a_package_that_asks_once_more_is_heard() {
        let (_root, place) = machine();
        ask(&place, "dbus", 1);
        ask(&place, "libc6", 2);
        let before = asked(&place);
        ask(&place, "libc6", 3);
        assert_eq!(asked_since(&place, &before), ["libc6 asks for it"]);
        // Also where the mark alone is new.
        let before = asked(&place);
        let mark = fs::File::create(place.inside(REQUIRED)).unwrap();
        mark.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(
            asked_since(&place, &before),
            ["dbus asks for it", "libc6 asks for it"]
        );
    }

    #[test]
    fn what_was_noted_is_read_again_and_what_an_older_agent_noted_as_well() {
        let noted = Baseline {
            audit: "mess".into(),
            services: ["a.service".to_owned()].into(),
            beside: [("/etc/a.dpkg-dist".to_owned(), (1, 2, 3))].into(),
            asked: Asked {
                mark: Some((4, 5, 6)),
                ..Asked::default()
            },
            log: 7,
        };
        let text = serde_json::to_string(&noted).unwrap();
        assert_eq!(serde_json::from_str::<Baseline>(&text).unwrap(), noted);
        assert_eq!(
            serde_json::from_str::<Baseline>("{}").unwrap(),
            Baseline::default()
        );
    }

    #[test]
    fn the_file_of_a_person_is_told_and_not_what_lies_beside_it() {
        assert_eq!(without_end("/etc/a.dpkg-dist"), "/etc/a");
        assert_eq!(without_end("/etc/a.dpkg-new"), "/etc/a");
    }
}
