//! Where files come from: registries, and what lies beside them.

use std::sync::Arc;

use async_trait::async_trait;
use evenkeel_registry::error::Got;
use evenkeel_registry::{Blob, Body, Digest, Origin, RegistryError, Repository};
use url::Url;

use super::offers::Place;
use crate::{Source, Sources};

/// What stands before a file that lies in a registry.
const BLOB: &str = "blob:";

/// What stands before a file that lies beside one.
const WEB: &str = "web:";

/// Opens a place. None if the registry is not configured any more.
pub(super) fn origin(sources: &Sources, place: &Place) -> Got<Option<Upstream>> {
    let Some(source) = sources.find(&place.registry) else {
        return Ok(None);
    };
    let at = match (place.at.strip_prefix(BLOB), place.at.strip_prefix(WEB)) {
        (Some(blob), _) => in_registry(blob, place.size)?,
        (None, Some(url)) => At::Web(Url::parse(url).map_err(|error| nowhere(&error.to_string()))?),
        (None, None) => return Err(nowhere("it is neither in the registry nor beside it")),
    };
    Ok(Some(Upstream { source, at }))
}

fn in_registry(text: &str, size: Option<u64>) -> Got<At> {
    let (repository, digest) = text
        .rsplit_once('@')
        .ok_or_else(|| nowhere("it names no digest"))?;
    let repository: Repository = repository.parse()?;
    let digest: Digest = digest.parse()?;
    let size = size.ok_or_else(|| nowhere("its size is not known"))?;
    Ok(At::Blob(repository, Blob { digest, size }))
}

fn nowhere(why: &str) -> RegistryError {
    RegistryError::Malformed {
        what: "place of a file",
        why: why.to_owned(),
    }
}

/// A file where it lies.
#[derive(Debug)]
pub(super) struct Upstream {
    source: Arc<Source>,
    at: At,
}

#[derive(Debug)]
enum At {
    Blob(Repository, Blob),
    Web(Url),
}

#[async_trait]
impl Origin for Upstream {
    async fn open(&self, from: u64) -> Got<Body> {
        match &self.at {
            At::Blob(repository, blob) => self.source.registry.open(repository, blob, from).await,
            At::Web(url) => self.source.web.open(url, from).await,
        }
    }
}
