//! A registry in the network, asked by the OCI distribution protocol.

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
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use url::Url;

use crate::address::{Access, Address, check_base};
use crate::digest::Digest;
use crate::error::{Got, RegistryError, malformed};
use crate::source::{At, Blob, Body, Manifest, Origin, Registry, Repository, Tag};

use auth::Auth;
pub(crate) use pull::PROGRESS;
use send::{Ask, Sender, checked};

/// A registry in the network.
#[derive(Clone, Debug)]
pub struct OciRegistry(Arc<Door>);

impl OciRegistry {
    /// Prepares to ask a registry. Nothing is asked yet.
    pub fn new(access: &Access) -> Got<Self> {
        let Address::Http(base) = &access.address else {
            return Err(malformed("address", "it is a folder"));
        };
        check_base(base)?;
        if base.scheme() == "http" && !access.plain_http {
            return Err(malformed(
                "address",
                "it is not asked without TLS unless plain HTTP is allowed",
            ));
        }
        Ok(Self(Arc::new(Door {
            base: base.clone(),
            sender: Sender::new(access)?,
            auth: Auth::new(access, base),
        })))
    }
}

/// The way into a registry.
#[derive(Debug)]
struct Door {
    base: Url,
    sender: Sender,
    auth: Auth,
}

impl Door {
    /// The address of something in a repository.
    fn url(&self, repository: &Repository, parts: &[&str]) -> Got<Url> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| malformed("address", "nothing can lie below it"))?
            .pop_if_empty()
            .push("v2")
            .extend(repository.as_str().split('/'))
            .extend(parts);
        Ok(url)
    }

    /// Asks once, with what is known of tokens, and once more with a new one if that is wanted.
    async fn ask(&self, ask: &Ask, scope: &str) -> Got<Response> {
        self.ask_openly(ask, scope).await.map(|(answer, _)| answer)
    }

    /// Asks like [`Door::ask`], and says with what credentials there was an answer.
    async fn ask_openly(&self, ask: &Ask, scope: &str) -> Got<(Response, Option<HeaderValue>)> {
        let known = self.auth.known(scope);
        let answer = self.once(ask, known.as_ref()).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok((checked(answer)?, known));
        }
        let challenges = auth::challenges_in(answer.headers());
        drop(answer);
        let fresh = self.auth.answer(&self.sender, &challenges, scope).await?;
        let answer = self.once(ask, Some(&fresh)).await?;
        Ok((checked(answer)?, Some(fresh)))
    }

    /// Asks once. Only the registry itself says how it lets us in, and that it does not: not somebody to whom it leads.
    async fn once(&self, ask: &Ask, credentials: Option<&HeaderValue>) -> Got<Response> {
        let answer = self.sender.once(ask, credentials).await?;
        let is_refusal = matches!(
            answer.status(),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        );
        if is_refusal && answer.url().origin() != ask.url.origin() {
            return Err(RegistryError::Status(answer.status().as_u16()));
        }
        Ok(answer)
    }

    /// Asks until there is an answer, and reads it whole.
    async fn fetch(&self, ask: &Ask, scope: &str, limit: u64) -> Got<(HeaderMap, Bytes)> {
        let mut tries = self.sender.tries();
        loop {
            match self.fetch_once(ask, scope, limit).await {
                Ok(answer) => return Ok(answer),
                Err(error) => tries.pause(error).await?,
            }
        }
    }

    async fn fetch_once(&self, ask: &Ask, scope: &str, limit: u64) -> Got<(HeaderMap, Bytes)> {
        let answer = self.ask(ask, scope).await?;
        let headers = answer.headers().clone();
        Ok((headers, self.sender.read(answer, limit).await?))
    }
}

/// The right to read a repository.
fn pulling(repository: &Repository) -> String {
    format!("repository:{repository}:pull")
}

/// The right to read and write a repository.
fn pushing(repository: &Repository) -> String {
    format!("repository:{repository}:pull,push")
}

#[async_trait]
impl Registry for OciRegistry {
    async fn tags(&self, repository: &Repository) -> Got<Vec<Tag>> {
        self.0.tags(repository).await
    }

    async fn manifest(&self, repository: &Repository, at: &At) -> Got<Option<Manifest>> {
        self.0.manifest(repository, at).await
    }

    async fn small(&self, repository: &Repository, blob: &Blob, limit: u64) -> Got<Bytes> {
        pull::small(&self.0, repository, blob, limit).await
    }

    async fn open(&self, repository: &Repository, blob: &Blob, from: u64) -> Got<Body> {
        pull::open(&self.0, repository, blob, from).await
    }

    async fn has(&self, repository: &Repository, digest: &Digest) -> Got<bool> {
        self.0.has(repository, digest).await
    }

    async fn push_blob(&self, repository: &Repository, blob: &Blob, from: &dyn Origin) -> Got<()> {
        self.0.push_blob(repository, blob, from).await
    }

    async fn push_manifest(
        &self,
        repository: &Repository,
        tag: Option<&Tag>,
        manifest: &Manifest,
    ) -> Got<()> {
        self.0.push_manifest(repository, tag, manifest).await
    }
}
