//! What a project takes of what a registry has: which revisions become which operating systems, and what people are
//! told of the others. Pure: no database and no clock, and the same in whatever order things are found.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};

use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::{Catalogue, FileRole, SideKind, Trusted};
use evenkeel_domain::os::{OsSpec, revision};
use evenkeel_registry::{Finding, FindingKind, Profile, Trust, profile};
use evenkeel_store::contents::Digest;
use evenkeel_store::os_catalogue::{Artifact, Side, SideKey};
use evenkeel_store::os_inside::{Inside, Made};
use serde::Deserialize as _;
use serde_json::Value;

use crate::fetch::field_of;

/// Stands for the list of a repository's tags where a tag is named: what is wrong with it is kept as of one. No tag can
/// be called so.
pub(crate) const LISTING: &str = "(tags)";

/// What a registry has, as it was found last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stock<'a> {
    /// What stands before the name of a profile to make its repository.
    pub prefix: &'a str,
    /// What is done with an artefact without a good signature.
    pub trust: Trust,
    /// What its tags lead to.
    pub artifacts: &'a [Artifact],
    /// What lies beside profiles.
    pub sides: &'a [Side],
}

/// What a project takes.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The operating systems, by profile and version of the image; each once.
    pub made: Vec<Made>,
    /// The texts that these refer to, and where in the catalogue they are.
    pub bodies: BTreeMap<Digest, SideKey>,
    /// Revisions that were there and are not any more.
    pub gone: Vec<Gone>,
    /// What people are told, by repository and tag.
    pub told: Vec<Told>,
    /// How many revisions that are there are not taken, although they are wanted.
    pub refused: u32,
}

/// A revision that is not there any more, and the image that it was.
#[derive(Debug)]
pub(crate) struct Gone {
    pub repository: String,
    pub tag: String,
    pub profile_name: String,
    pub image_id: String,
}

/// Something that people are told of a revision, or of a repository if there is no tag.
#[derive(Debug)]
pub(crate) struct Told {
    pub repository: String,
    pub tag: String,
    pub finding: Finding,
}

/// What a project takes of what a registry has. `now` is noted with each operating system.
pub(crate) fn plan(catalogue: &Catalogue, stock: &Stock<'_>, now: Time) -> Plan {
    let mut found: HashMap<&str, Vec<&Artifact>> = HashMap::new();
    for artifact in stock.artifacts {
        let of_it = found.entry(&artifact.repository).or_default();
        of_it.push(artifact);
    }
    let side = |side| (place_of(side), side);
    let mut planning = Planning {
        catalogue,
        stock,
        now,
        sides: stock.sides.iter().map(side).collect(),
        plan: Plan::default(),
        said: HashSet::new(),
    };
    for name in &catalogue.enabled {
        let repository = format!("{}{name}", stock.prefix);
        let of_it = found.remove(repository.as_str()).unwrap_or_default();
        planning.take(&repository, name, of_it);
    }
    planning.finish()
}

/// Where a document beside a profile is found again.
type Place<'a> = (&'a str, SideKind, Option<Digest>);

fn place_of(side: &Side) -> Place<'_> {
    (&side.key.place, side.key.kind, side.key.filtered_by)
}

/// A plan that is being made.
#[derive(Debug)]
struct Planning<'a> {
    catalogue: &'a Catalogue,
    stock: &'a Stock<'a>,
    now: Time,
    sides: HashMap<Place<'a>, &'a Side>,
    plan: Plan,
    /// What was told already. The same is found where it is fetched and here.
    said: HashSet<(String, String, FindingKind, Option<String>)>,
}

impl<'a> Planning<'a> {
    /// Takes what is wanted of one profile.
    fn take(&mut self, repository: &str, name: &str, found: Vec<&'a Artifact>) {
        let is_listed = self.tell_listing(repository, &found);
        let wanted = &self.catalogue.wanted;
        let found = found.into_iter().filter(|one| wanted.admits(&one.tag));
        let (gone, mut there): (Vec<_>, Vec<_>) = found.partition(|one| one.gone_at.is_some());
        if there.is_empty() && is_listed {
            let why = format!("there is no revision that fits {wanted}");
            let finding = Finding::new(FindingKind::NotThere, why);
            self.tell(repository, "", finding);
        }
        there.sort_by(|one, other| newer_first(&one.tag, &other.tag));
        let mut taken: BTreeMap<String, (&Artifact, Profile)> = BTreeMap::new();
        let is_same = |one: &&Artifact, other: &&Artifact| {
            revision::order(&one.tag, &other.tag) == Some(Ordering::Equal)
        };
        for same in there.chunk_by(is_same) {
            let Some((artifact, profile)) = self.one_of(name, same) else {
                continue;
            };
            match taken.get(&profile.spec.image_id) {
                None => {
                    let image = profile.spec.image_id.clone();
                    taken.insert(image, (artifact, profile));
                }
                Some((newer, its)) if is_other_image(&its.spec, &profile.spec) => {
                    let why = format!(
                        "it has the version {} of the image, as {} has, but another digest, kind or address of it",
                        profile.spec.image_id, newer.tag
                    );
                    let kind = FindingKind::SameImageOtherDigest;
                    self.refuse(artifact, Finding::new(kind, why));
                }
                // The newest of the revisions with one image says what is inside.
                Some(_) => {}
            }
        }
        let gone = gone.into_iter().filter_map(gone_of);
        let is_elsewhere = |gone: &Gone| taken.contains_key(&gone.image_id);
        let gone = gone.filter(|gone| !is_elsewhere(gone));
        self.plan.gone.extend(gone);
        for (artifact, profile) in taken.into_values() {
            let inside = self.inside(artifact, &profile);
            let spec = profile.spec;
            self.plan.made.push(Made { spec, inside });
        }
    }

    /// Tells why the tags of a repository could not be listed. True if they could.
    fn tell_listing(&mut self, repository: &str, found: &[&Artifact]) -> bool {
        let is_it = |one: &&&Artifact| one.tag == LISTING && one.gone_at.is_none();
        let Some(listing) = found.iter().find(is_it) else {
            return true;
        };
        for finding in findings(&listing.findings) {
            self.tell(repository, "", finding);
        }
        false
    }

    /// The one that counts of tags which mean the same revision. None if they lead to different things, or if it cannot
    /// be taken.
    fn one_of(&mut self, name: &str, same: &[&'a Artifact]) -> Option<(&'a Artifact, Profile)> {
        let first = *same.first()?;
        if same.iter().all(|one| one.digest == first.digest) {
            return Some((first, self.read(name, first)?));
        }
        let tags: Vec<&str> = same.iter().map(|one| one.tag.as_str()).collect();
        let why = format!(
            "{} mean the same revision and lead to different things, so none of them is taken",
            tags.join(" and ")
        );
        for one in same {
            self.refuse(one, Finding::new(FindingKind::Ambiguous, &why));
        }
        None
    }

    /// What an artefact says, if it may be taken. People are told what is odd about it.
    fn read(&mut self, name: &str, artifact: &Artifact) -> Option<Profile> {
        for finding in findings(&artifact.findings) {
            self.tell(&artifact.repository, &artifact.tag, finding);
        }
        self.tell_moved(artifact);
        let is_trusted = self.is_trusted(artifact);
        match said_by(name, artifact) {
            Ok(profile) if is_trusted => Some(profile),
            // Why it is not trusted was told.
            Ok(_) => {
                self.plan.refused += 1;
                None
            }
            Err(finding) => {
                self.refuse(artifact, finding);
                None
            }
        }
    }

    /// A branch goes from one revision to the next; the name of a revision does not.
    fn tell_moved(&mut self, artifact: &Artifact) {
        // One of zeros stands for what could not be read.
        let Some(before) = artifact.moved_from.filter(|before| *before != [0; 32]) else {
            return;
        };
        if revision::order(&artifact.tag, &artifact.tag).is_some() {
            let [before, now] = [before, artifact.digest].map(evenkeel_registry::Digest::from);
            let why = format!("it led to {before} and leads to {now} now");
            let finding = Finding::new(FindingKind::TagMoved, why);
            self.tell(&artifact.repository, &artifact.tag, finding);
        }
    }

    fn is_trusted(&mut self, artifact: &Artifact) -> bool {
        let (kind, why) = match (self.stock.trust, artifact.trust) {
            (Trust::Off, _) | (_, Trusted::Good) | (Trust::Warn, Trusted::Off) => return true,
            (_, Trusted::Bad) => (
                FindingKind::BadSignature,
                "its signatures are not by a key that is trusted, or for something else",
            ),
            (_, Trusted::Unsigned | Trusted::Off) => (FindingKind::Unsigned, "nobody signed it"),
        };
        self.tell(&artifact.repository, &artifact.tag, Finding::new(kind, why));
        self.stock.trust == Trust::Warn
    }

    /// What is inside an operating system, and where it came from.
    fn inside(&mut self, artifact: &Artifact, profile: &Profile) -> Inside {
        let packages = self.beside(artifact, FileRole::Packages, None);
        Inside {
            registry: self.catalogue.registry.clone(),
            repository: artifact.repository.clone(),
            revision: artifact.tag.clone(),
            artifact: artifact.digest,
            platform_bundle: profile.platform_bundle.clone(),
            signature: artifact.signature.clone(),
            files: artifact.files.clone(),
            packages,
            existing_cves: self.beside(artifact, FileRole::ExistingCves, packages),
            fixed_cves: self.beside(artifact, FileRole::FixedCves, packages),
            refreshed_at: self.now,
        }
    }

    /// The text of a document beside a profile; none if there is none. One about vulnerabilities is cut down to what
    /// concerns the packages, if they are known.
    fn beside(
        &mut self,
        artifact: &Artifact,
        role: FileRole,
        packages: Option<Digest>,
    ) -> Option<Digest> {
        let kind = match role {
            FileRole::Packages => SideKind::Packages,
            _ => SideKind::Cves,
        };
        let file = artifact.files.iter().find(|file| file.role == role)?;
        let cut_down = (file.place.as_str(), kind, packages);
        let whole = (file.place.as_str(), kind, None);
        let side = *self.sides.get(&cut_down).or(self.sides.get(&whole))?;
        for finding in findings(&side.findings) {
            let named = || Some(field_of(role).to_owned());
            let field = finding.field.clone().or_else(named);
            let finding = Finding { field, ..finding };
            self.tell(&artifact.repository, &artifact.tag, finding);
        }
        let digest = side.digest?;
        let key = SideKey {
            place: side.key.place.clone(),
            kind,
            filtered_by: side.key.filtered_by,
        };
        self.plan.bodies.insert(digest, key);
        Some(digest)
    }

    fn refuse(&mut self, artifact: &Artifact, finding: Finding) {
        self.plan.refused += 1;
        self.tell(&artifact.repository, &artifact.tag, finding);
    }

    fn tell(&mut self, repository: &str, tag: &str, finding: Finding) {
        let what = (
            repository.to_owned(),
            tag.to_owned(),
            finding.kind,
            finding.field.clone(),
        );
        if self.said.insert(what) {
            self.plan.told.push(Told {
                repository: repository.to_owned(),
                tag: tag.to_owned(),
                finding,
            });
        }
    }

    fn finish(self) -> Plan {
        let mut plan = self.plan;
        plan.made
            .sort_by(|one, other| key_of(one).cmp(&key_of(other)));
        plan.told
            .sort_by(|one, other| place(one).cmp(&place(other)));
        let at = |gone: &Gone| (gone.repository.clone(), gone.tag.clone());
        plan.gone.sort_by_key(at);
        plan
    }
}

/// What an operating system is known by.
fn key_of(made: &Made) -> (&str, &str) {
    (&made.spec.profile_name, &made.spec.image_id)
}

/// Where something that is told stands.
fn place(told: &Told) -> (&str, &str, FindingKind, Option<&str>) {
    let field = told.finding.field.as_deref();
    (&told.repository, &told.tag, told.finding.kind, field)
}

/// The profile of an artefact, if it is the one that its place promises.
fn said_by(name: &str, artifact: &Artifact) -> Result<Profile, Finding> {
    let Some(document) = &artifact.document else {
        let why = "it could not be fetched, or holds no profile";
        // Only told if nobody said why.
        let mut known = findings(&artifact.findings).filter(|one| !is_remark(one.kind));
        let unknown = || Finding::new(FindingKind::NotAProfile, why);
        return Err(known.next().unwrap_or_else(unknown));
    };
    let profile = profile(title_of(artifact), document.as_bytes())?;
    let said = &profile.spec.profile_name;
    if said != name {
        let why = format!("it is the profile {said:?} in the place of {name:?}");
        let kind = FindingKind::OtherProfile;
        return Err(Finding::about(kind, "spec.profileName", why));
    }
    match revision::order(&profile.release, &artifact.tag) {
        None | Some(Ordering::Equal) => Ok(profile),
        Some(_) => {
            let why = format!(
                "it was published as {} and lies here as {}",
                profile.release, artifact.tag
            );
            let kind = FindingKind::RevisionMismatch;
            Err(Finding::about(kind, "metadata.release", why))
        }
    }
}

/// What the file of a profile is called.
fn title_of(artifact: &Artifact) -> &str {
    artifact.title.as_deref().unwrap_or_default()
}

/// The image that a revision was, if that can be known.
fn gone_of(artifact: &Artifact) -> Option<Gone> {
    let document = artifact.document.as_ref()?;
    let spec = profile(title_of(artifact), document.as_bytes()).ok()?.spec;
    Some(Gone {
        repository: artifact.repository.clone(),
        tag: artifact.tag.clone(),
        profile_name: spec.profile_name,
        image_id: spec.image_id,
    })
}

/// What was found when something was fetched.
fn findings(kept: &[Value]) -> impl Iterator<Item = Finding> {
    // Nobody else writes there.
    kept.iter().filter_map(|one| Finding::deserialize(one).ok())
}

fn is_other_image(one: &OsSpec, other: &OsSpec) -> bool {
    (&one.sha256, one.kind, &one.image_url) != (&other.sha256, other.kind, &other.image_url)
}

/// The newest revision comes first; of tags that mean the same one, the order is that of their texts.
fn newer_first(one: &str, other: &str) -> Ordering {
    let order = revision::order(other, one).unwrap_or(Ordering::Equal);
    order.then_with(|| one.cmp(other))
}

/// Whether something that is told leaves nothing missing.
pub(crate) const fn is_remark(kind: FindingKind) -> bool {
    matches!(
        kind,
        FindingKind::UnknownKey
            | FindingKind::SeveralLayers
            | FindingKind::Unsigned
            | FindingKind::BadSignature
            | FindingKind::NameTaken
            | FindingKind::TagMoved
            | FindingKind::Gone
            | FindingKind::CvesCut
    )
}

#[cfg(test)]
mod tests;
