//! Selection of operating systems that a project takes from a registry, and the states of their sync.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::Sha256;
use super::revision::RevisionSelector;
use crate::invalid::Invalid;
use crate::text;

/// Maximum number of profiles that a project may enable.
const MAX_ENABLED_PROFILES: usize = 200;

/// Maximum length of a registry name, in bytes.
const MAX_REGISTRY_BYTES: usize = 63;

/// Maximum length of a profile name, in bytes.
const MAX_PROFILE_BYTES: usize = 128;

named! {
    /// Step of a sync cycle. A cycle fetches a registry once for all projects.
    CycleStep {
        /// No cycle is running.
        Idle = "idle",
        /// Listing the tags of the registry.
        Listing = "listing",
        /// Fetching profiles.
        Fetching = "fetching",
        /// Fetching attachments of profiles: lists of packages and vulnerabilities.
        Attachments = "attachments",
        /// Writing the result into the projects.
        Applying = "applying",
    }
}

named! {
    /// Result of a cycle, or of the sync of a project.
    CycleOutcome {
        /// Everything that was selected is present.
        Good = "succeeded",
        /// Something was rejected or is missing; the rest is present.
        Partial = "partial",
        /// The registry was unreachable; the previous content stays.
        Failed = "failed",
    }
}

named! {
    /// Result of checking the signature of an artifact.
    SignatureStatus {
        /// One of the registry's keys signed it.
        Good = "valid",
        /// It has no signature.
        Unsigned = "unsigned",
        /// Its signature is invalid.
        Bad = "invalid",
        /// Signatures are not checked.
        Unchecked = "unchecked",
    }
}

named! {
    /// What an attachment of a profile lists.
    AttachmentKind {
        Packages = "packages",
        /// Vulnerabilities.
        Cves = "cves",
    }
}

named! {
    /// Role of a file in its profile.
    FileRole {
        /// The image that nodes install.
        Image = "image",
        /// List of its packages.
        Packages = "packages",
        /// List of its open vulnerabilities.
        ExistingCves = "existing_cves",
        /// List of its fixed vulnerabilities.
        FixedCves = "fixed_cves",
    }
}

/// Selection of a project, or the server's defaults for all projects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatalogSelection {
    /// Name of the registry in the server's configuration.
    pub registry: Option<String>,
    /// Tags to take: see [`RevisionSelector`].
    pub revision: Option<String>,
    /// Profiles to take.
    pub enabled: Option<Vec<String>>,
    /// Profile for nodes without a selected one; empty for none.
    pub default_profile: Option<String>,
}

impl CatalogSelection {
    /// Checks every part of the selection.
    ///
    /// # Errors
    /// Names the first invalid part: a registry, revision or profile that is not a valid name, too many profiles, a
    /// duplicate profile, or a default profile that is not enabled.
    pub fn validated(self) -> Result<Self, Invalid> {
        if let Some(registry) = &self.registry {
            check_name("registry", registry, MAX_REGISTRY_BYTES)?;
        }
        if let Some(revision) = &self.revision {
            RevisionSelector::parse(revision)?;
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

    /// Fills missing parts from the server's defaults. The server's default profile applies only if the project enables
    /// that profile.
    #[must_use]
    pub fn or_defaults(&self, server: &Self) -> Self {
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

    /// Resolves the complete selection. `None` if the registry or the revision is missing: then nothing is taken.
    ///
    /// # Errors
    /// As [`CatalogSelection::validated`]; also if the default profile is not enabled.
    pub fn resolve(&self) -> Result<Option<ResolvedSelection>, Invalid> {
        let selection = self.clone().validated()?;
        let (Some(registry), Some(revision)) = (selection.registry, selection.revision) else {
            return Ok(None);
        };
        let enabled = selection.enabled.unwrap_or_default();
        let default_profile = selection.default_profile.filter(|profile| !profile.is_empty());
        if let Some(profile) = &default_profile {
            check_default(profile, &enabled)?;
        }
        Ok(Some(ResolvedSelection {
            registry,
            revision: RevisionSelector::parse(&revision)?,
            enabled,
            default_profile,
        }))
    }
}

/// A complete selection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResolvedSelection {
    /// Name of the registry in the server's configuration.
    pub registry: String,
    /// Tags to take.
    pub revision: RevisionSelector,
    /// Profiles to take; each once.
    pub enabled: Vec<String>,
    /// Profile for nodes without a selected one: one of the enabled profiles.
    pub default_profile: Option<String>,
}

/// A file of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CatalogFile {
    pub role: FileRole,
    /// Path under which nodes request it.
    pub path: String,
    /// Where to fetch it: `blob:<repository>@sha256:<hex>` or `web:<url>`.
    pub source: String,
    /// Digest of the file, if known.
    pub sha256: Option<Sha256>,
    /// Size in bytes, if known.
    pub size: Option<u64>,
}

fn check_enabled(enabled: &[String]) -> Result<(), Invalid> {
    let bad = |why: String| Err(Invalid::new("enabledProfiles", why));
    if enabled.len() > MAX_ENABLED_PROFILES {
        return bad(format!("more than {MAX_ENABLED_PROFILES} profiles"));
    }
    let mut names = HashSet::new();
    for profile in enabled {
        check_profile("enabledProfiles", profile)?;
        if !names.insert(profile) {
            return bad(format!("{profile} is listed twice"));
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

/// A profile is named after the last part of its repository, and registries allow no capital letters there.
fn check_profile(field: &'static str, name: &str) -> Result<(), Invalid> {
    check_name(field, name, MAX_PROFILE_BYTES)?;
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

    fn selection(
        registry: &str,
        revision: &str,
        enabled: &[&str],
        default: &str,
    ) -> CatalogSelection {
        CatalogSelection {
            registry: Some(registry.to_owned()),
            revision: Some(revision.to_owned()),
            enabled: Some(enabled.iter().copied().map(str::to_owned).collect()),
            default_profile: Some(default.to_owned()),
        }
    }

    fn refused_field(selection: &CatalogSelection) -> &'static str {
        let refused = selection.clone().validated();
        refused.expect_err("an invalid selection").field
    }

    #[test]
    fn a_selection_is_resolved_as_written() {
        let profiles = ["edge", "edge-rt"];
        for revision in ["0.8.11", "~0.8.11", "main"] {
            let selection = selection("release", revision, &profiles, "edge-rt");
            let resolved = selection.resolve().expect("a valid selection").expect("a complete one");
            assert_eq!(resolved.registry, "release");
            assert_eq!(resolved.revision.to_string(), revision);
            assert_eq!(resolved.enabled, profiles);
            assert_eq!(resolved.default_profile.as_deref(), Some("edge-rt"));
            assert_eq!(selection.clone().validated(), Ok(selection));
        }
        let no_default = selection("release", "main", &profiles, "");
        let resolved = no_default.resolve().expect("a valid selection").expect("a complete one");
        assert_eq!(resolved.default_profile, None);
    }

    #[test]
    fn an_invalid_selection_names_its_field() {
        let good = selection("release", "~0.8.11", &["edge"], "edge");
        let long = "x".repeat(129);
        for registry in ["", "a b", "release/1", "ä", &long[..64]] {
            let registry = Some(registry.to_owned());
            let bad = CatalogSelection { registry, ..good.clone() };
            assert_eq!(refused_field(&bad), "registry");
        }
        for revision in ["", "^0.3", "~main"] {
            let revision = Some(revision.to_owned());
            let bad = CatalogSelection { revision, ..good.clone() };
            assert_eq!(refused_field(&bad), "revision");
        }
        let many: Vec<_> = (0..=MAX_ENABLED_PROFILES).map(|n| format!("p{n}")).collect();
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
            let bad = CatalogSelection { enabled, ..good.clone() };
            assert_eq!(refused_field(&bad), "enabledProfiles");
        }
        for default in ["other", "Edge", "a b"] {
            let bad = selection("release", "~0.8.11", &["edge"], default);
            assert_eq!(refused_field(&bad), "defaultProfile");
        }
    }

    #[test]
    fn a_project_falls_back_to_the_selection_of_the_server() {
        let server = selection("release", "~0.8.11", &["edge", "edge-rt"], "edge");
        assert_eq!(CatalogSelection::default().or_defaults(&server), server);
        assert_eq!(server.or_defaults(&CatalogSelection::default()), server);
        let other = selection("other", "main", &["ubuntu"], "ubuntu");
        assert_eq!(other.or_defaults(&server), other);
        let frozen =
            CatalogSelection { revision: Some("0.8.12".to_owned()), ..CatalogSelection::default() };
        let expected = selection("release", "0.8.12", &["edge", "edge-rt"], "edge");
        assert_eq!(frozen.or_defaults(&server), expected);
    }

    #[test]
    fn the_default_profile_of_the_server_applies_only_if_it_is_enabled() {
        let server = selection("release", "~0.8.11", &["edge", "edge-rt"], "edge");
        let fewer = CatalogSelection {
            enabled: Some(vec!["edge-rt".to_owned()]),
            ..CatalogSelection::default()
        };
        assert_eq!(fewer.or_defaults(&server).default_profile, None);
        let elsewhere = CatalogSelection {
            default_profile: Some("ubuntu".to_owned()),
            ..CatalogSelection::default()
        };
        let error = elsewhere.or_defaults(&server).resolve().expect_err("it is not enabled");
        assert_eq!(error.field, "defaultProfile");
        let none = CatalogSelection {
            default_profile: Some(String::new()),
            ..CatalogSelection::default()
        };
        let resolved = none.or_defaults(&server).resolve().expect("a valid selection");
        assert_eq!(resolved.expect("a complete one").default_profile, None);
    }

    #[test]
    fn a_selection_without_a_registry_or_a_revision_resolves_to_none() {
        let complete = selection("release", "~0.8.11", &["edge"], "");
        assert!(complete.resolve().expect("a valid selection").is_some());
        for half in [
            CatalogSelection::default(),
            CatalogSelection { registry: None, ..complete.clone() },
            CatalogSelection { revision: None, ..complete.clone() },
        ] {
            assert_eq!(half.resolve(), Ok(None));
        }
        let empty = CatalogSelection { enabled: None, ..complete };
        let resolved = empty.resolve().expect("a valid selection").expect("a complete one");
        assert!(resolved.enabled.is_empty());
    }

    #[test]
    fn a_file_survives_serialization() {
        let file = CatalogFile {
            role: FileRole::ExistingCves,
            path: "files-edge-orch/cves/1.0.json".to_owned(),
            source: "web:https://files.example/cves/1.0.json".to_owned(),
            sha256: None,
            size: Some(12),
        };
        let stored = serde_json::to_value(&file).expect("JSON");
        assert_eq!(stored["role"], FileRole::ExistingCves.name());
        assert_eq!(serde_json::from_value::<CatalogFile>(stored).expect("a file"), file);
    }
}
