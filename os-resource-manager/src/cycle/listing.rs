//! Which profiles are wanted by anybody, and which tags they have.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use evenkeel_domain::os::catalogue::{Catalogue, CycleStep, Trusted};
use evenkeel_domain::os::revision::Wanted;
use evenkeel_registry::copy::finding_of;
use evenkeel_registry::{Finding, RegistryError, Repository, Tag};
use evenkeel_store::os_catalogue::{self, Artifact};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::time::timeout;

use super::{Cycle, Stop};
use crate::fetch::{Revision, counted, is_of_the_whole, kept};
use crate::plan::LISTING;

/// How long the tags of one profile may take.
const WITHIN: Duration = Duration::from_mins(5);

/// A profile that somebody wants.
#[derive(Clone, Debug)]
struct Profile {
    repository: Repository,
    wanted: Vec<Wanted>,
}

/// A profile and all of its tags.
#[derive(Debug)]
pub(super) struct Listed {
    profile: Profile,
    tags: Vec<Tag>,
}

/// What became of one profile.
#[derive(Debug)]
enum One {
    Listed(Listed),
    /// Nobody may see it, or it does not answer; the others may.
    Without(Repository, RegistryError),
}

impl Cycle<'_> {
    /// Lists the tags of all profiles that somebody wants.
    pub(super) async fn list(&self, wanted: &[Catalogue]) -> Result<Vec<Listed>, Stop> {
        let profiles = self.profiles(wanted);
        self.begin(CycleStep::Listing, profiles.len());
        let all: Vec<One> = stream::iter(profiles)
            .map(|profile| self.tags(profile))
            .buffer_unordered(self.engine.settings.parallel)
            .try_collect()
            .await?;
        let (mut listed, mut unlisted) = (Vec::new(), Vec::new());
        for one in all {
            match one {
                One::Listed(one) => listed.push(one),
                One::Without(repository, error) => unlisted.push((repository, error)),
            }
        }
        for (repository, error) in unlisted {
            if listed.is_empty() {
                // There is nothing that it does not concern.
                return Err(error.into());
            }
            self.put_off(&repository, &finding_of(&error)).await?;
        }
        Ok(listed)
    }

    /// Notes that a profile could not be listed. What is known of it stays as it is.
    async fn put_off(&self, repository: &Repository, finding: &Finding) -> Result<(), Stop> {
        self.note_unlisted(finding);
        self.try_to_keep(&unlisted(repository, finding)).await
    }

    fn note_unlisted(&self, finding: &Finding) {
        let mut tally = self.tally();
        tally.profiles += 1;
        tally.why.get_or_insert_with(|| finding.message.clone());
    }

    /// The profiles that somebody wants of this registry, and which of their tags.
    fn profiles(&self, catalogues: &[Catalogue]) -> Vec<Profile> {
        let mut wanted: BTreeMap<&str, Vec<Wanted>> = BTreeMap::new();
        for catalogue in catalogues {
            for profile in &catalogue.enabled {
                let of_it = wanted.entry(profile).or_default();
                if !of_it.contains(&catalogue.wanted) {
                    of_it.push(catalogue.wanted.clone());
                }
            }
        }
        let named = wanted.into_iter().filter_map(|(profile, wanted)| {
            let repository = format!("{}{profile}", self.source.prefix);
            // No registry can have one that is called otherwise.
            let repository = repository.parse().ok()?;
            Some(Profile { repository, wanted })
        });
        named.collect()
    }

    async fn tags(&self, profile: Profile) -> Result<One, Stop> {
        let asked = timeout(WITHIN, self.source.registry.tags(&profile.repository)).await;
        let asked = counted(asked.unwrap_or(Err(RegistryError::Stalled)));
        self.one_more();
        let tags = match asked {
            Ok(tags) => tags,
            // It has none. What was there is gone.
            Err(RegistryError::NotThere) => Vec::new(),
            Err(error) if is_of_the_whole(&error) => return Err(error.into()),
            Err(error) => return Ok(One::Without(profile.repository, error)),
        };
        Ok(One::Listed(Listed { profile, tags }))
    }

    /// The revisions that somebody wants, with what is known of them.
    pub(super) async fn revisions(&self, listed: &[Listed]) -> Result<Vec<Revision>, Stop> {
        let mut revisions = Vec::new();
        for Listed { profile, tags } in listed {
            let known = self.known(&profile.repository).await?;
            let known = known.into_iter();
            let mut known: HashMap<String, Artifact> = known
                .map(|artifact| (artifact.tag.clone(), artifact))
                .collect();
            let tags = tags.iter().filter(|tag| profile.is_wanted(tag.as_str()));
            revisions.extend(tags.map(|tag| Revision {
                repository: profile.repository.clone(),
                tag: tag.clone(),
                before: known.remove(tag.as_str()),
            }));
        }
        Ok(revisions)
    }

    async fn known(&self, repository: &Repository) -> Result<Vec<Artifact>, Stop> {
        let tx = self.engine.store.fleet().await?;
        let (registry, one) = (self.claim.registry.as_str(), [repository.to_string()]);
        Ok(os_catalogue::artifacts(&tx, registry, &one).await?)
    }

    /// Notes which tags are not there any more.
    pub(super) async fn mark_gone(&self, listed: &[Listed]) -> Result<(), Stop> {
        for Listed { profile, tags } in listed {
            // Of those that nobody wants now it is known only that they are there.
            let others = tags.iter().filter(|tag| !profile.is_wanted(tag.as_str()));
            let others: Vec<String> = others.map(Tag::to_string).collect();
            if !others.is_empty() {
                self.see(profile.repository.as_str(), others).await?;
            }
        }
        let repositories = listed.iter().map(|one| one.profile.repository.to_string());
        let repositories: Vec<String> = repositories.collect();
        let tx = self.engine.store.fleet().await?;
        let now = self.engine.clock.now();
        os_catalogue::mark_gone(&tx, &self.claim, &repositories, now).await?;
        tx.commit().await?;
        Ok(())
    }
}

/// Why the tags of a repository could not be listed, as it is kept until they can.
fn unlisted(repository: &Repository, finding: &Finding) -> Artifact {
    Artifact {
        repository: repository.to_string(),
        tag: LISTING.to_owned(),
        digest: [0; 32],
        moved_from: None,
        title: None,
        manifest: None,
        document: None,
        findings: vec![kept(finding)],
        trust: Trusted::Off,
        signature: None,
        files: Vec::new(),
        gone_at: None,
    }
}

impl Profile {
    fn is_wanted(&self, tag: &str) -> bool {
        self.wanted.iter().any(|wanted| wanted.admits(tag))
    }
}
