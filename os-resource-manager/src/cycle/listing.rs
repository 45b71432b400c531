//! Lists the tags of all selected profiles.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use evenkeel_domain::os::catalogue::{CycleStep, ResolvedSelection, SignatureStatus};
use evenkeel_domain::os::revision::RevisionSelector;
use evenkeel_registry::copy::to_finding;
use evenkeel_registry::{Finding, RegistryError, Repository, Tag};
use evenkeel_store::os_catalogue::{self, Artifact};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::time::timeout;

use super::{Cycle, CycleStop};
use crate::fetch::{Revision, count_outcome, finding_json, is_registry_wide};
use crate::plan::LISTING_TAG;

/// Limit for listing the tags of one profile.
const LISTING_TIMEOUT: Duration = Duration::from_mins(5);

/// A profile that a project selected.
#[derive(Clone, Debug)]
struct SelectedProfile {
    repository: Repository,
    selectors: Vec<RevisionSelector>,
}

/// A profile and all its tags.
#[derive(Debug)]
pub(super) struct ListedProfile {
    profile: SelectedProfile,
    tags: Vec<Tag>,
}

#[derive(Debug)]
enum ListingResult {
    Listed(ListedProfile),
    /// Access was denied, or the registry did not answer. Other profiles may still work.
    Failed(Repository, RegistryError),
}

impl Cycle<'_> {
    /// Lists the tags of all selected profiles.
    pub(super) async fn list_profiles(
        &self,
        selections: &[ResolvedSelection],
    ) -> Result<Vec<ListedProfile>, CycleStop> {
        let profiles = self.selected_profiles(selections);
        self.begin_step(CycleStep::Listing, profiles.len());
        let all: Vec<ListingResult> = stream::iter(profiles)
            .map(|profile| self.list_tags(profile))
            .buffer_unordered(self.engine.settings.parallel)
            .try_collect()
            .await?;
        let (mut listed, mut failed) = (Vec::new(), Vec::new());
        for one in all {
            match one {
                ListingResult::Listed(one) => listed.push(one),
                ListingResult::Failed(repository, error) => failed.push((repository, error)),
            }
        }
        for (repository, error) in failed {
            if listed.is_empty() {
                // No profile could be listed, so the registry as a whole has failed.
                return Err(error.into());
            }
            self.defer_profile(&repository, &to_finding(&error)).await?;
        }
        Ok(listed)
    }

    /// Stores that a profile could not be listed. Its known revisions stay.
    async fn defer_profile(
        &self,
        repository: &Repository,
        finding: &Finding,
    ) -> Result<(), CycleStop> {
        self.count_unlisted(finding);
        self.store_artifact(&listing_artifact(repository, finding)).await
    }

    fn count_unlisted(&self, finding: &Finding) {
        let mut tally = self.tally();
        tally.profiles += 1;
        tally.first_error.get_or_insert_with(|| finding.message.clone());
    }

    /// The selected profiles of this registry, each with the selectors of its tags.
    fn selected_profiles(&self, selections: &[ResolvedSelection]) -> Vec<SelectedProfile> {
        let mut selectors: BTreeMap<&str, HashSet<&RevisionSelector>> = BTreeMap::new();
        for selection in selections {
            for profile in &selection.enabled {
                selectors.entry(profile).or_default().insert(&selection.revision);
            }
        }
        let profiles = selectors.into_iter().filter_map(|(profile, selectors)| {
            let repository = format!("{}{profile}", self.source.prefix);
            // A name that is not a valid repository cannot exist in a registry.
            let repository = repository.parse().ok()?;
            let selectors = selectors.into_iter().cloned().collect();
            Some(SelectedProfile { repository, selectors })
        });
        profiles.collect()
    }

    async fn list_tags(&self, profile: SelectedProfile) -> Result<ListingResult, CycleStop> {
        let result = timeout(LISTING_TIMEOUT, self.source.registry.tags(&profile.repository)).await;
        let result = count_outcome(result.unwrap_or(Err(RegistryError::Stalled)));
        self.count_finished();
        let tags = match result {
            Ok(tags) => tags,
            // The repository does not exist. Its known revisions count as gone.
            Err(RegistryError::NotFound) => Vec::new(),
            Err(error) if is_registry_wide(&error) => return Err(error.into()),
            Err(error) => return Ok(ListingResult::Failed(profile.repository, error)),
        };
        Ok(ListingResult::Listed(ListedProfile { profile, tags }))
    }

    /// The selected revisions, each with its stored state.
    pub(super) async fn load_revisions(
        &self,
        listed: &[ListedProfile],
    ) -> Result<Vec<Revision>, CycleStop> {
        let mut revisions = Vec::new();
        for ListedProfile { profile, tags } in listed {
            let stored = self.stored_artifacts(&profile.repository).await?;
            let stored = stored.into_iter();
            let mut stored: HashMap<String, Artifact> =
                stored.map(|artifact| (artifact.tag.clone(), artifact)).collect();
            let tags = tags.iter().filter(|tag| profile.is_selected(tag.as_str()));
            revisions.extend(tags.map(|tag| Revision {
                repository: profile.repository.clone(),
                tag: tag.clone(),
                before: stored.remove(tag.as_str()),
            }));
        }
        Ok(revisions)
    }

    async fn stored_artifacts(&self, repository: &Repository) -> Result<Vec<Artifact>, CycleStop> {
        let tx = self.engine.store.fleet().await?;
        let (registry, one) = (self.claim.registry.as_str(), [repository.to_string()]);
        Ok(os_catalogue::list_artifacts(&tx, registry, &one).await?)
    }

    /// Marks the tags that are gone.
    pub(super) async fn mark_gone(&self, listed: &[ListedProfile]) -> Result<(), CycleStop> {
        for ListedProfile { profile, tags } in listed {
            // The listing is enough for tags that no project selected: they exist.
            let others = tags.iter().filter(|tag| !profile.is_selected(tag.as_str()));
            let others: Vec<String> = others.map(Tag::to_string).collect();
            if !others.is_empty() {
                self.mark_seen(profile.repository.as_str(), others).await?;
            }
        }
        let repositories = listed.iter().map(|one| one.profile.repository.to_string());
        let repositories: Vec<String> = repositories.collect();
        let tx = self.engine.store.fleet().await?;
        let now = tx.database_time();
        os_catalogue::mark_gone(&tx, &self.claim, &repositories, now).await?;
        tx.commit().await?;
        Ok(())
    }
}

/// The stored entry for a repository whose tags cannot be listed.
fn listing_artifact(repository: &Repository, finding: &Finding) -> Artifact {
    Artifact {
        repository: repository.to_string(),
        tag: LISTING_TAG.to_owned(),
        digest: [0; 32],
        moved_from: None,
        title: None,
        manifest: None,
        document: None,
        findings: vec![finding_json(finding)],
        trust: SignatureStatus::Unchecked,
        signature: None,
        files: Vec::new(),
        gone_at: None,
    }
}

impl SelectedProfile {
    fn is_selected(&self, tag: &str) -> bool {
        self.selectors.iter().any(|selector| selector.admits(tag))
    }
}
