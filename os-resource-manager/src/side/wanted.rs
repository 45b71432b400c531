//! Which documents are to be fetched, and in which forms they are shown.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::{File, FileRole, SideKind};
use evenkeel_registry::{Finding, FindingKind};
use evenkeel_store::contents;
use evenkeel_store::os_catalogue::{Side, SideKey};
use serde::Deserialize as _;

use crate::fetch::kept;

/// What a list of packages is, and where it lies; none if there is none.
type List<'a> = Option<(contents::Digest, &'a str)>;

/// A document that is to be fetched.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Where it lies.
    pub place: String,
    pub kind: SideKind,
    /// In bytes, if that is known.
    pub size: Option<u64>,
    /// In which forms it is shown.
    pub forms: Vec<Form>,
}

/// A form in which a document is shown.
#[derive(Debug)]
pub(super) struct Form {
    pub key: SideKey,
    /// The list of packages to which it is cut down; none if to none.
    pub packages: Option<SideKey>,
    /// What was known of it; none if it is new.
    pub before: Option<Side>,
}

impl Wanted {
    /// By what the server of a document knows the version that is known here; none if not all forms are of the same.
    pub fn etag(&self) -> Option<&str> {
        let etag = self.forms.first()?.etag()?;
        let is_it = |form: &Form| form.etag() == Some(etag);
        self.forms.iter().all(is_it).then_some(etag)
    }

    /// When it was asked for last; none if one of its forms is new. Who waited longest comes first, so that what stalls
    /// each time does not keep the others from their turn.
    fn turn(&self) -> Option<Time> {
        let turns = self.forms.iter().map(|form| {
            let before = form.before.as_ref()?;
            Some(before.fetched_at)
        });
        turns.min().flatten()
    }
}

impl Form {
    /// Of what is shown.
    pub fn digest(&self) -> Option<contents::Digest> {
        self.before.as_ref()?.digest
    }

    fn etag(&self) -> Option<&str> {
        let before = self.before.as_ref()?;
        before.digest?;
        before.etag.as_deref()
    }

    /// Whether it was made of this version of the document.
    pub fn is_of(&self, etag: Option<&str>) -> bool {
        etag.is_some() && self.etag() == etag
    }

    /// What is kept when the document is what it was: what is odd about its content stays so.
    pub fn again(&self, now: Time) -> Side {
        let before = self.before.as_ref();
        let is_of_content = |finding: &&serde_json::Value| {
            Finding::deserialize(*finding).is_ok_and(|finding| finding.kind == FindingKind::CvesCut)
        };
        let findings = before.into_iter().flat_map(|before| &before.findings);
        Side {
            key: self.key.clone(),
            digest: self.digest(),
            etag: self.etag().map(str::to_owned),
            findings: findings.filter(is_of_content).cloned().collect(),
            fetched_at: now,
        }
    }

    /// What is kept when the document cannot be had or used: the last good one.
    pub fn without(&self, finding: &Finding, now: Time) -> Side {
        let mut side = self.again(now);
        side.findings.push(kept(finding));
        side
    }
}

/// What a document is, and where it lies; none if a file is none.
pub(super) fn document(file: &File) -> Option<(&str, SideKind)> {
    let kind = match file.role {
        FileRole::Image => return None,
        FileRole::Packages => SideKind::Packages,
        FileRole::ExistingCves | FileRole::FixedCves => SideKind::Cves,
    };
    Some((&file.place, kind))
}

/// The lists of packages among the files of profiles, each once.
pub(super) fn packages_of(files: &[Vec<File>], known: &HashMap<SideKey, Side>) -> Vec<Wanted> {
    let mut all: BTreeMap<&str, Wanted> = BTreeMap::new();
    for file in files.iter().flatten() {
        if let Some((place, SideKind::Packages)) = document(file) {
            all.entry(place)
                .or_insert_with(|| wanted(file, SideKind::Packages, [None], known));
        }
    }
    in_turn(all)
}

/// The documents about vulnerabilities among the files of profiles, each once, in a form for each list of packages that
/// profiles have that name it. `shown` says what those lists are now.
pub(super) fn cves_of(
    files: &[Vec<File>],
    shown: &HashMap<String, contents::Digest>,
    known: &HashMap<SideKey, Side>,
) -> Vec<Wanted> {
    let mut forms: BTreeMap<&str, (&File, BTreeSet<List<'_>>)> = BTreeMap::new();
    for of_one in files {
        let is_list = |file: &&File| file.role == FileRole::Packages;
        let list = of_one.iter().find(is_list);
        let list = list.and_then(|list| Some((*shown.get(&list.place)?, list.place.as_str())));
        for file in of_one {
            if let Some((place, SideKind::Cves)) = document(file) {
                let (_, forms) = forms.entry(place).or_insert((file, BTreeSet::new()));
                // Equal lists may lie in several places.
                let digest = list.map(|(digest, _)| digest);
                let mut there = forms.iter().map(|form| form.map(|(digest, _)| digest));
                if !there.any(|there| there == digest) {
                    forms.insert(list);
                }
            }
        }
    }
    let all = forms
        .into_iter()
        .map(|(place, (file, lists))| (place, wanted(file, SideKind::Cves, lists, known)));
    in_turn(all.collect())
}

fn wanted<'a>(
    file: &File,
    kind: SideKind,
    lists: impl IntoIterator<Item = List<'a>>,
    known: &HashMap<SideKey, Side>,
) -> Wanted {
    let form = |list: List<'_>| {
        let key = SideKey {
            place: file.place.clone(),
            kind,
            filtered_by: list.map(|(digest, _)| digest),
        };
        let packages = list.map(|(_, place)| SideKey {
            place: place.to_owned(),
            kind: SideKind::Packages,
            filtered_by: None,
        });
        Form {
            before: known.get(&key).cloned(),
            key,
            packages,
        }
    };
    Wanted {
        place: file.place.clone(),
        kind,
        size: file.size,
        forms: lists.into_iter().map(form).collect(),
    }
}

fn in_turn(all: BTreeMap<&str, Wanted>) -> Vec<Wanted> {
    let mut all: Vec<Wanted> = all.into_values().collect();
    all.sort_by_key(Wanted::turn);
    all
}
