//! Files that lie beside a registry or somewhere else in the network.

use bytes::Bytes;
use futures_util::stream;
use reqwest::header::{ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, RANGE};
use reqwest::{Method, StatusCode};
use url::{Origin, Url};

use super::auth;
use super::body::{Coming, body};
use super::pull::skipped;
use super::send::{Ask, Sender, Tries, checked, names_of};
use crate::address::{Access, Address};
use crate::error::{Got, RegistryError, malformed};
use crate::source::Body;

/// The longest name of a version that is kept.
const LONGEST_ETAG: usize = 1024;

/// What a file gives that may be known already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// It is still the one that is known.
    Same,
    /// It is another one.
    New {
        /// The whole of it.
        bytes: Bytes,
        /// How this version of it is called.
        etag: Option<String>,
    },
}

/// Fetches files. Only the registry's own host and those on a list are asked, wherever an address leads.
#[derive(Debug)]
pub struct Web {
    sender: Sender,
    own: Option<Origin>,
    credentials: Option<HeaderValue>,
}

impl Web {
    /// One that asks the host of a registry, and the hosts in `allow`, which are written with or without a port.
    pub fn new(access: &Access, allow: &[String]) -> Got<Self> {
        let mut hosts = allow.to_vec();
        let own = match &access.address {
            Address::Http(url) => {
                hosts.push(names_of(url).1);
                Some(url.origin())
            }
            Address::Layout(_) => None,
        };
        Ok(Self {
            sender: Sender::new(access)?.only(hosts),
            own,
            credentials: auth::beforehand(&access.credentials),
        })
    }

    /// Fetches a file that is not larger than allowed, if it is not the version that is known.
    pub async fn fetch(&self, url: &Url, etag: Option<&str>, limit: u64) -> Got<Fetched> {
        let mut ask = Ask::new(Method::GET, url.clone());
        // A name that cannot be sent is as good as none.
        let known = etag.and_then(|etag| HeaderValue::from_str(etag).ok());
        if let Some(known) = known {
            ask.headers.insert(IF_NONE_MATCH, known);
        }
        let mut tries = self.sender.tries();
        loop {
            match self.fetch_once(&ask, limit).await {
                Ok(fetched) => return Ok(fetched),
                Err(error) => tries.pause(error).await?,
            }
        }
    }

    async fn fetch_once(&self, ask: &Ask, limit: u64) -> Got<Fetched> {
        let answer = self
            .sender
            .once(ask, self.credentials_for(&ask.url))
            .await?;
        let is_known = ask.headers.contains_key(IF_NONE_MATCH);
        if answer.status() == StatusCode::NOT_MODIFIED && is_known {
            return Ok(Fetched::Same);
        }
        let answer = checked(answer)?;
        if answer.status() != StatusCode::OK {
            return Err(RegistryError::Status(answer.status().as_u16()));
        }
        let etag = etag_of(answer.headers());
        let bytes = self.sender.read(answer, limit).await?;
        Ok(Fetched::New { bytes, etag })
    }

    /// A file from a byte on. Whether there is one is told at once; what breaks off later is for the caller to take up
    /// again, for only its digest tells whether it is still the same file.
    pub async fn open(&self, url: &Url, from: u64) -> Got<Body> {
        let mut ask = Ask::new(Method::GET, url.clone());
        if from > 0 {
            let range = HeaderValue::from_str(&format!("bytes={from}-"));
            let range = range.map_err(|_| malformed("range", "it cannot be written"))?;
            ask.headers.insert(RANGE, range);
        }
        let mut tries = self.sender.tries();
        let answer = loop {
            let answer = self.sender.once(&ask, self.credentials_for(url)).await;
            match answer.and_then(checked) {
                Ok(answer) => break answer,
                // There is nothing behind the end.
                Err(RegistryError::Status(416)) => return Ok(Box::pin(stream::empty())),
                Err(error) => tries.pause(error).await?,
            }
        };
        let skip = skipped(&answer, from)?;
        Ok(body(Coming::new(answer, &self.sender.limits, skip)))
    }

    /// How often a file is taken up again that breaks off.
    pub(crate) fn tries(&self) -> Tries {
        self.sender.tries()
    }

    /// The credentials are for the registry's own host.
    fn credentials_for(&self, url: &Url) -> Option<&HeaderValue> {
        let is_own = self.own.as_ref() == Some(&url.origin());
        self.credentials.as_ref().filter(|_| is_own)
    }
}

/// How a version of a file is called.
fn etag_of(headers: &HeaderMap) -> Option<String> {
    let etag = headers.get(ETAG)?.to_str().ok()?;
    (etag.len() <= LONGEST_ETAG).then(|| etag.to_owned())
}
