//! Client for registries that speak the OCI distribution protocol.

pub mod auth;
mod body;
mod pull;
mod push;
mod send;
pub mod tags;
pub mod web;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use evenkeel_fetch::Digest;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use url::Url;

use crate::address::{Access, Address, check_base};
use crate::error::{RegistryError, RegistryResult, malformed};
use crate::source::{Blob, BlobStream, Manifest, ManifestRef, Origin, Registry, Repository, Tag};

use auth::RegistryAuth;
use send::{HttpRequest, HttpSender, check_status};

/// A registry in the network.
#[derive(Clone, Debug)]
pub struct OciRegistry(Arc<RegistryClient>);

impl OciRegistry {
    /// Prepares access to a registry. This sends no request yet.
    pub fn new(access: &Access) -> RegistryResult<Self> {
        let Address::Http(base) = &access.address else {
            return Err(malformed("address", "it is a folder"));
        };
        check_base(base)?;
        if base.scheme() == "http" && !access.plain_http {
            return Err(malformed(
                "address",
                "plain HTTP must be allowed explicitly; use https://",
            ));
        }
        Ok(Self(Arc::new(RegistryClient {
            base: base.clone(),
            sender: HttpSender::new(access)?,
            auth: RegistryAuth::new(access, base),
        })))
    }
}

/// Client for one registry.
#[derive(Debug)]
struct RegistryClient {
    base: Url,
    sender: HttpSender,
    auth: RegistryAuth,
}

impl RegistryClient {
    /// URL of a resource in a repository.
    fn url(&self, repository: &Repository, parts: &[&str]) -> RegistryResult<Url> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| malformed("address", "it cannot be the base of other addresses"))?
            .pop_if_empty()
            .push("v2")
            .extend(repository.as_str().split('/'))
            .extend(parts);
        Ok(url)
    }

    /// Sends a request with a cached token, and a second time with a new one if that is denied.
    async fn send(&self, request: &HttpRequest, scope: &str) -> RegistryResult<Response> {
        self.send_returning_credentials(request, scope).await.map(|(answer, _)| answer)
    }

    /// Like [`RegistryClient::send`], but also returns the credentials that were accepted.
    async fn send_returning_credentials(
        &self,
        request: &HttpRequest,
        scope: &str,
    ) -> RegistryResult<(Response, Option<HeaderValue>)> {
        let cached = self.auth.cached_header(scope);
        let answer = self.send_once(request, cached.as_ref()).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok((check_status(answer)?, cached));
        }
        let challenges = auth::challenges_in_headers(answer.headers());
        drop(answer);
        let fresh = self.auth.answer_challenges(&self.sender, &challenges, scope).await?;
        let answer = self.send_once(request, Some(&fresh)).await?;
        Ok((check_status(answer)?, Some(fresh)))
    }

    /// Sends a request once. Refusals by the target of a redirect are not authentication
    /// challenges: only the registry itself decides about its credentials.
    async fn send_once(
        &self,
        request: &HttpRequest,
        credentials: Option<&HeaderValue>,
    ) -> RegistryResult<Response> {
        let answer = self.sender.send_once(request, credentials).await?;
        let is_refusal =
            matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if is_refusal && answer.url().origin() != request.url.origin() {
            return Err(RegistryError::Status(answer.status().as_u16()));
        }
        Ok(answer)
    }

    /// Sends a request with retries and reads the whole response.
    async fn fetch(
        &self,
        request: &HttpRequest,
        scope: &str,
        limit: u64,
    ) -> RegistryResult<(HeaderMap, Bytes)> {
        let mut tries = self.sender.retries();
        loop {
            match self.fetch_once(request, scope, limit).await {
                Ok(answer) => return Ok(answer),
                Err(error) => tries.wait_or_fail(error).await?,
            }
        }
    }

    async fn fetch_once(
        &self,
        request: &HttpRequest,
        scope: &str,
        limit: u64,
    ) -> RegistryResult<(HeaderMap, Bytes)> {
        let answer = self.send(request, scope).await?;
        let headers = answer.headers().clone();
        Ok((headers, self.sender.read_body(answer, limit).await?))
    }
}

/// Token scope for reading a repository.
fn pull_scope(repository: &Repository) -> String {
    format!("repository:{repository}:pull")
}

/// Token scope for reading and writing a repository.
fn push_scope(repository: &Repository) -> String {
    format!("repository:{repository}:pull,push")
}

#[async_trait]
impl Registry for OciRegistry {
    async fn tags(&self, repository: &Repository) -> RegistryResult<Vec<Tag>> {
        self.0.tags(repository).await
    }

    async fn manifest(
        &self,
        repository: &Repository,
        at: &ManifestRef,
    ) -> RegistryResult<Option<Manifest>> {
        self.0.manifest(repository, at).await
    }

    async fn blob(
        &self,
        repository: &Repository,
        blob: &Blob,
        limit: u64,
    ) -> RegistryResult<Bytes> {
        pull::read_blob(&self.0, repository, blob, limit).await
    }

    async fn open_blob(
        &self,
        repository: &Repository,
        blob: &Blob,
        from: u64,
    ) -> RegistryResult<BlobStream> {
        pull::open_blob(&self.0, repository, blob, from).await
    }

    async fn has_blob(&self, repository: &Repository, digest: &Digest) -> RegistryResult<bool> {
        self.0.has_blob(repository, digest).await
    }

    async fn push_blob(
        &self,
        repository: &Repository,
        blob: &Blob,
        from: &dyn Origin,
    ) -> RegistryResult<()> {
        self.0.push_blob(repository, blob, from).await
    }

    async fn push_manifest(
        &self,
        repository: &Repository,
        tag: Option<&Tag>,
        manifest: &Manifest,
    ) -> RegistryResult<()> {
        self.0.push_manifest(repository, tag, manifest).await
    }
}
