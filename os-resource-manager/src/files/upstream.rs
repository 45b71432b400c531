//! Opens the sources of files: registries, and web servers.

use std::sync::Arc;

use async_trait::async_trait;
use evenkeel_registry::error::RegistryResult;
use evenkeel_registry::{Blob, BlobStream, Digest, Origin, RegistryError, Repository};
use url::Url;

use super::offers::FileSource;
use crate::{Source, Sources};

/// Prefix of a source in a registry.
const BLOB_PREFIX: &str = "blob:";

/// Prefix of a source on a web server.
const WEB_PREFIX: &str = "web:";

/// Opens a source. `None` if its registry is no longer configured.
pub(super) fn resolve_origin(
    sources: &Sources,
    file_source: &FileSource,
) -> RegistryResult<Option<Upstream>> {
    let Some(source) = sources.find(&file_source.registry) else {
        return Ok(None);
    };
    let location = match (
        file_source.location.strip_prefix(BLOB_PREFIX),
        file_source.location.strip_prefix(WEB_PREFIX),
    ) {
        (Some(blob), _) => parse_blob_location(blob, file_source.size)?,
        (None, Some(url)) => {
            let url = Url::parse(url).map_err(|error| bad_location(&error.to_string()))?;
            UpstreamLocation::Web(url, file_source.size)
        }
        (None, None) => return Err(bad_location("it is neither a blob nor a web address")),
    };
    Ok(Some(Upstream { source, location }))
}

fn parse_blob_location(text: &str, size: Option<u64>) -> RegistryResult<UpstreamLocation> {
    let (repository, digest) =
        text.rsplit_once('@').ok_or_else(|| bad_location("it has no digest"))?;
    let repository: Repository = repository.parse()?;
    let digest: Digest = digest.parse()?;
    let size = size.ok_or_else(|| bad_location("its size is not known"))?;
    Ok(UpstreamLocation::Blob(repository, Blob { digest, size }))
}

fn bad_location(why: &str) -> RegistryError {
    RegistryError::Malformed { what: "source of a file", why: why.to_owned() }
}

/// A file at its source.
#[derive(Debug)]
pub(super) struct Upstream {
    source: Arc<Source>,
    location: UpstreamLocation,
}

#[derive(Debug)]
enum UpstreamLocation {
    Blob(Repository, Blob),
    /// Address and size, if it is known.
    Web(Url, Option<u64>),
}

#[async_trait]
impl Origin for Upstream {
    async fn open(&self, from: u64) -> RegistryResult<BlobStream> {
        match &self.location {
            UpstreamLocation::Blob(repository, blob) => {
                self.source.registry.open_blob(repository, blob, from).await
            }
            UpstreamLocation::Web(url, size) => self.source.web.open(url, from, *size).await,
        }
    }
}
