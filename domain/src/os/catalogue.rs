//! What a project takes of a registry of operating systems, and how that goes.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::Sha256;
use super::revision::Wanted;
use crate::invalid::Invalid;
use crate::text;

/// The most profiles that a project may take.
const MAX_ENABLED: usize = 200;

/// The longest name of a registry, in bytes.
const LONGEST_REGISTRY: usize = 63;

/// The longest name of a profile, in bytes.
const LONGEST_PROFILE: usize = 128;

named! {
    /// How far a cycle has come, in which a registry is asked once for all projects.
    CycleStep {
        /// There is none.
        Idle = "idle",
        /// Asking which tags there are.
        Listing = "listing",
        /// Fetching profiles.
        Fetching = "fetching",
        /// Fetching what lies beside them: lists of packages and of vulnerabilities.
        Sides = "sides",
        /// Bringing it into the projects.
        Applying = "applying",
    }
}

named! {
    /// How a cycle ended, or the sync of a project.
    CycleOutcome {
        /// All that was wanted is there.
        Good = "good",
        /// Something was refused or is missing; the rest is there.
        Partly = "partly",
        /// The registry could not be asked; what was there before stays.
        Failed = "failed",
    }
}

named! {
    /// What is known of the signature of an artefact.
    Trusted {
        /// One of the registry's keys signed it.
        Good = "good",
        /// Nobody signed it.
        Unsigned = "unsigned",
        /// What is there as its signature is none.
        Bad = "bad",
        /// Nobody looked.
        Off = "off",
    }
}

named! {
    /// What a document beside a profile lists.
    SideKind {
        /// Packages.
        Packages = "packages",
        /// Vulnerabilities.
        Cves = "cves",
    }
}

named! {
    /// What a file is to its profile.
    FileRole {
        /// What a node is brought to.
        Image = "image",
        /// The list of its packages.
        Packages = "packages",
        /// The list of its open vulnerabilities.
        ExistingCves = "existing_cves",
        /// The list of its mended vulnerabilities.
        FixedCves = "fixed_cves",
    }
}

/// What a project, or the server for all that do not say otherwise, wants of the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The name that the server knows the registry by.
    pub registry: Option<String>,
    /// Which tags: see [`Wanted`].
    pub revision: Option<String>,
    /// Which profiles.
    pub enabled: Option<Vec<String>>,
    /// The one for nodes that nothing is said of; empty if there shall be none.
    pub default_profile: Option<String>,
}

impl Wish {
    /// The same, if every part of it can be wanted.
    ///
    /// # Errors
    /// Names the first part that cannot: a text that names no registry, revision or profile, too many profiles, one
    /// that is named twice, or a default that is none of those that are named beside it.
    pub fn checked(self) -> Result<Self, Invalid> {
        if let Some(registry) = &self.registry {
            check_name("registry", registry, LONGEST_REGISTRY)?;
        }
        if let Some(revision) = &self.revision {
            Wanted::parse(revision)?;
        }
        if let Some(enabled) = &self.enabled {
            check_enabled(enabled)?;
        }
        if let Some(profile) = self.default_profile.as_deref()
            && !profile.is_empty()
        {
            check_profile("defaultProfile", profile)?;
            if let Some(enabled) = &self.enabled {
                check_default(profile, enabled)?;
            }
        }
        Ok(self)
    }

    /// What holds for a project that wishes this: where it says nothing, as the server has it. The server's default
    /// profile holds only if it is one that the project takes.
    #[must_use]
    pub fn or(&self, server: &Self) -> Self {
        let enabled = self.enabled.as_ref().or(server.enabled.as_ref());
        let is_taken = |profile: &&String| enabled.is_none_or(|enabled| enabled.contains(profile));
        let default_profile = self
            .default_profile
            .as_ref()
            .or_else(|| server.default_profile.as_ref().filter(is_taken));
        Self {
            registry: self.registry.as_ref().or(server.registry.as_ref()).cloned(),
            revision: self.revision.as_ref().or(server.revision.as_ref()).cloned(),
            enabled: enabled.cloned(),
            default_profile: default_profile.cloned(),
        }
    }

    /// What is to be taken. None if no registry or no revision is wished for: then nothing is.
    ///
    /// # Errors
    /// As [`Wish::checked`]; and the default profile is none of those that are taken.
    pub fn whole(&self) -> Result<Option<Catalogue>, Invalid> {
        let wish = self.clone().checked()?;
        let (Some(registry), Some(revision)) = (wish.registry, wish.revision) else {
            return Ok(None);
        };
        let enabled = wish.enabled.unwrap_or_default();
        let default_profile = wish.default_profile.filter(|profile| !profile.is_empty());
        if let Some(profile) = &default_profile {
            check_default(profile, &enabled)?;
        }
        Ok(Some(Catalogue {
            registry,
            wanted: Wanted::parse(&revision)?,
            enabled,
            default_profile,
        }))
    }
}

/// What a project takes of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    /// The name that the server knows the registry by.
    pub registry: String,
    /// Which tags.
    pub wanted: Wanted,
    /// Which profiles; each once.
    pub enabled: Vec<String>,
    /// The one for nodes that nothing is said of: one of those that are taken.
    pub default_profile: Option<String>,
}

/// A file that belongs to a profile, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct File {
    /// What it is to the profile.
    pub role: FileRole,
    /// The path by which nodes ask for it.
    pub path: String,
    /// Where it is fetched from: `blob:<repository>@sha256:<hex>` or `web:<url>`.
    pub place: String,
    /// Of the file, if it is known.
    pub sha256: Option<Sha256>,
    /// In bytes, if it is known.
    pub size: Option<u64>,
}

fn check_enabled(enabled: &[String]) -> Result<(), Invalid> {
    let bad = |why: String| Err(Invalid::new("enabledProfiles", why));
    if enabled.len() > MAX_ENABLED {
        return bad(format!("more than {MAX_ENABLED} profiles"));
    }
    let mut seen = HashSet::new();
    for profile in enabled {
        check_profile("enabledProfiles", profile)?;
        if !seen.insert(profile) {
            return bad(format!("{profile} is named twice"));
        }
    }
    Ok(())
}

fn check_default(profile: &str, enabled: &[String]) -> Result<(), Invalid> {
    if enabled.iter().any(|enabled| enabled == profile) {
        return Ok(());
    }
    let why = format!("{profile} is not one of the enabled profiles");
    Err(Invalid::new("defaultProfile", why))
}

/// A profile is called as the end of its repository is, and registries know no capitals there.
fn check_profile(field: &'static str, name: &str) -> Result<(), Invalid> {
    check_name(field, name, LONGEST_PROFILE)?;
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(Invalid::new(field, "must not have capital letters"));
    }
    Ok(())
}

fn check_name(field: &'static str, name: &str, max: usize) -> Result<(), Invalid> {
    if name.is_empty() {
        return Err(Invalid::new(field, "must not be empty"));
    }
    text::check(field, name, max, "-_.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(registry: &str, revision: &str, enabled: &[&str], default: &str) -> Wish {
        Wish {
            registry: Some(registry.to_owned()),
            revision: Some(revision.to_owned()),
            enabled: Some(enabled.iter().copied().map(str::to_owned).collect()),
            default_profile: Some(default.to_owned()),
        }
    }

    fn refused(wish: &Wish) -> &'static str {
        let refused = wish.clone().checked();
        refused.expect_err("it cannot be wanted").field
    }

    #[test]
    fn a_wish_is_taken_as_it_is_written() {
        let profiles = ["edge", "edge-rt"];
        for revision in ["0.8.11", "~0.8.11", "main"] {
            let wish = wish("release", revision, &profiles, "edge-rt");
            let taken = wish.whole().expect("a good wish").expect("a whole one");
            assert_eq!(taken.registry, "release");
            assert_eq!(taken.wanted.to_string(), revision);
            assert_eq!(taken.enabled, profiles);
            assert_eq!(taken.default_profile.as_deref(), Some("edge-rt"));
            assert_eq!(wish.clone().checked(), Ok(wish));
        }
        let nobody = wish("release", "main", &profiles, "");
        let taken = nobody.whole().expect("a good wish").expect("a whole one");
        assert_eq!(taken.default_profile, None);
    }

    #[test]
    fn what_cannot_be_wanted_is_refused_by_name() {
        let good = wish("release", "~0.8.11", &["edge"], "edge");
        let long = "x".repeat(129);
        for registry in ["", "a b", "release/1", "ä", &long[..64]] {
            let registry = Some(registry.to_owned());
            let bad = Wish {
                registry,
                ..good.clone()
            };
            assert_eq!(refused(&bad), "registry");
        }
        for revision in ["", "^0.3", "~main"] {
            let revision = Some(revision.to_owned());
            let bad = Wish {
                revision,
                ..good.clone()
            };
            assert_eq!(refused(&bad), "revision");
        }
        let many: Vec<_> = (0..=MAX_ENABLED).map(|n| format!("p{n}")).collect();
        let few = |names: &[&str]| names.iter().copied().map(str::to_owned).collect();
        for enabled in [
            many,
            few(&["edge", "edge"]),
            few(&["edge", ""]),
            few(&["edge", "Edge"]),
            few(&["edge", "edge/files"]),
            few(&["edge", &long]),
        ] {
            let enabled = Some(enabled);
            let bad = Wish {
                enabled,
                ..good.clone()
            };
            assert_eq!(refused(&bad), "enabledProfiles");
        }
        for default in ["other", "Edge", "a b"] {
            let bad = wish("release", "~0.8.11", &["edge"], default);
            assert_eq!(refused(&bad), "defaultProfile");
        }
    }

    #[test]
    fn where_a_project_says_nothing_it_is_as_the_server_has_it() {
        let server = wish("release", "~0.8.11", &["edge", "edge-rt"], "edge");
        assert_eq!(Wish::default().or(&server), server);
        assert_eq!(server.or(&Wish::default()), server);
        let other = wish("other", "main", &["ubuntu"], "ubuntu");
        assert_eq!(other.or(&server), other);
        let frozen = Wish {
            revision: Some("0.8.12".to_owned()),
            ..Wish::default()
        };
        let expected = wish("release", "0.8.12", &["edge", "edge-rt"], "edge");
        assert_eq!(frozen.or(&server), expected);
    }

    #[test]
    fn the_servers_default_holds_only_where_it_is_taken() {
        let server = wish("release", "~0.8.11", &["edge", "edge-rt"], "edge");
        let fewer = Wish {
            enabled: Some(vec!["edge-rt".to_owned()]),
            ..Wish::default()
        };
        assert_eq!(fewer.or(&server).default_profile, None);
        let elsewhere = Wish {
            default_profile: Some("ubuntu".to_owned()),
            ..Wish::default()
        };
        let error = elsewhere.or(&server).whole().expect_err("it is not taken");
        assert_eq!(error.field, "defaultProfile");
        let none = Wish {
            default_profile: Some(String::new()),
            ..Wish::default()
        };
        let taken = none.or(&server).whole().expect("a good wish");
        assert_eq!(taken.expect("a whole one").default_profile, None);
    }

    #[test]
    fn nothing_is_taken_without_a_registry_and_a_revision() {
        let whole = wish("release", "~0.8.11", &["edge"], "");
        assert!(whole.whole().expect("a good wish").is_some());
        for half in [
            Wish::default(),
            Wish {
                registry: None,
                ..whole.clone()
            },
            Wish {
                revision: None,
                ..whole.clone()
            },
        ] {
            assert_eq!(half.whole(), Ok(None));
        }
        let empty = Wish {
            enabled: None,
            ..whole
        };
        let taken = empty.whole().expect("a good wish").expect("a whole one");
        assert!(taken.enabled.is_empty());
    }

    #[test]
    fn a_file_is_kept_as_it_was() {
        let file = File {
            role: FileRole::ExistingCves,
            path: "files-edge-orch/cves/1.0.json".to_owned(),
            place: "web:https://files.example/cves/1.0.json".to_owned(),
            sha256: None,
            size: Some(12),
        };
        let kept = serde_json::to_value(&file).expect("JSON");
        assert_eq!(kept["role"], FileRole::ExistingCves.name());
        assert_eq!(serde_json::from_value::<File>(kept).expect("a file"), file);
    }
}
