//! What a small registry answers.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LINK, LOCATION, RANGE,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use serde_json::json;
use url::form_urlencoded;

use super::{Held, faults, tokens};
use crate::digest::Digest;
use crate::source::Manifest;

/// Answers a request, and does what should go wrong with it.
pub(super) async fn answer(State(held): State<Arc<Held>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let place = parts.uri.path_and_query();
    let place = place.map_or_else(|| parts.uri.path().to_owned(), ToString::to_string);
    let line = format!("{} {place}", parts.method);
    let way = {
        let mut inside = held.lock();
        inside.requests.push(line.clone());
        if parts.headers.contains_key(AUTHORIZATION) {
            inside.with_credentials += 1;
        }
        let mut all = inside.faults.iter_mut();
        let due = all.find(|fault| fault.times > 0 && line.contains(&fault.on));
        due.map(|fault| {
            fault.times = fault.times.saturating_sub(1);
            fault.way.clone()
        })
    };
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let answer = Question {
        held: &held,
        method: &parts.method,
        uri: &parts.uri,
        headers: &parts.headers,
        body,
    }
    .answer();
    match way {
        Some(way) => faults::spoil(way, answer).await,
        None => answer,
    }
}

/// A request.
struct Question<'a> {
    held: &'a Held,
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    body: Bytes,
}

impl Question<'_> {
    fn answer(&self) -> Response {
        let path = self.uri.path();
        if path == "/token" {
            return tokens::give(self.held, self.headers, self.uri);
        }
        let Some(path) = path.strip_prefix("/v2/") else {
            return self.file(path);
        };
        for (part, is_last) in [
            ("/tags/list", true),
            ("/blobs/uploads/", false),
            ("/blobs/", false),
            ("/manifests/", false),
        ] {
            let Some((repository, rest)) = path.rsplit_once(part) else {
                continue;
            };
            if is_last && !rest.is_empty() {
                continue;
            }
            let writes = !matches!(*self.method, Method::GET | Method::HEAD);
            let refusal = tokens::refusal(self.held, self.headers, repository, writes);
            return refusal.unwrap_or_else(|| self.about(repository, part, rest));
        }
        StatusCode::NOT_FOUND.into_response()
    }

    fn about(&self, repository: &str, part: &str, rest: &str) -> Response {
        match (part, self.method) {
            ("/tags/list", &Method::GET) => self.tags(repository),
            ("/manifests/", &(Method::GET | Method::HEAD)) => self.manifest(repository, rest),
            ("/manifests/", &Method::PUT) => self.take_manifest(repository, rest),
            ("/blobs/", &(Method::GET | Method::HEAD)) => self.blob(repository, rest),
            ("/blobs/uploads/", &Method::POST) => self.begin(repository),
            ("/blobs/uploads/", &Method::PUT) => self.take_blob(repository),
            _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        }
    }

    fn asked(&self, name: &str) -> Option<String> {
        let query = self.uri.query().unwrap_or_default().as_bytes();
        let mut pairs = form_urlencoded::parse(query);
        let found = pairs.find(|(said, _)| said == name);
        found.map(|(_, value)| value.into_owned())
    }

    fn tags(&self, repository: &str) -> Response {
        let manners = &self.held.manners;
        let inside = self.held.lock();
        let Some(kept) = inside.repositories.get(repository) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let mut wanted = usize::MAX;
        let mut last = None;
        if manners.knows_paging {
            let said = self.asked("n").and_then(|n| n.parse().ok());
            wanted = said.unwrap_or(usize::MAX).min(manners.page);
            last = self.asked("last");
        }
        let behind = |tag: &&String| last.as_ref().is_none_or(|last| *tag > last);
        let mut rest = kept.tags.keys().filter(behind);
        let tags: Vec<&String> = rest.by_ref().take(wanted).collect();
        let mut answer = axum::Json(json!({ "name": repository, "tags": tags })).into_response();
        let more = rest.next().is_some() && manners.links;
        let last = tags.last().filter(|_| more);
        let next = last.map(|last| {
            format!("</v2/{repository}/tags/list?last={last}&n={wanted}>; rel=\"next\"")
        });
        if let Some(link) = inside.link.as_ref().or(next.as_ref()) {
            let link = HeaderValue::from_str(link).expect("a value");
            answer.headers_mut().insert(LINK, link);
        }
        answer
    }

    fn manifest(&self, repository: &str, reference: &str) -> Response {
        let inside = self.held.lock();
        let found = inside.repositories.get(repository).and_then(|kept| {
            let by_tag = kept.tags.get(reference).copied();
            let digest = by_tag.or_else(|| reference.parse().ok())?;
            Some((digest, kept.manifests.get(&digest)?))
        });
        let Some((digest, (text, form))) = found else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let mut answer = Response::new(Body::from(text.clone()));
        let headers = answer.headers_mut();
        if let Ok(form) = HeaderValue::from_str(form) {
            headers.insert(CONTENT_TYPE, form);
        }
        let said = HeaderValue::from_str(&digest.to_string()).expect("a value");
        headers.insert("docker-content-digest", said);
        answer
    }

    fn take_manifest(&self, repository: &str, reference: &str) -> Response {
        let form = self.headers.get(CONTENT_TYPE);
        let form = form.and_then(|form| form.to_str().ok()).unwrap_or_default();
        let Ok(manifest) = Manifest::read(self.body.clone(), form) else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        let mut inside = self.held.lock();
        let kept = inside
            .repositories
            .entry(repository.to_owned())
            .or_default();
        if !manifest
            .blobs()
            .all(|blob| kept.blobs.contains_key(&blob.digest))
        {
            return StatusCode::BAD_REQUEST.into_response();
        }
        match reference.parse::<Digest>() {
            Ok(digest) if digest != manifest.digest => {
                return StatusCode::BAD_REQUEST.into_response();
            }
            Ok(_) => {}
            Err(_) => {
                kept.tags.insert(reference.to_owned(), manifest.digest);
            }
        }
        let text = (manifest.bytes, form.to_owned());
        kept.manifests.insert(manifest.digest, text);
        StatusCode::CREATED.into_response()
    }

    fn blob(&self, repository: &str, digest: &str) -> Response {
        let inside = self.held.lock();
        let kept = inside.repositories.get(repository);
        let digest = digest.parse::<Digest>().ok();
        match kept.and_then(|kept| kept.blobs.get(&digest?)) {
            Some(content) => self.part_of(content),
            None => StatusCode::NOT_FOUND.into_response(),
        }
    }

    fn begin(&self, repository: &str) -> Response {
        let mut inside = self.held.lock();
        inside.uploads += 1;
        let place = format!("/v2/{repository}/blobs/uploads/{}?state=a", inside.uploads);
        let place = HeaderValue::from_str(&place).expect("a value");
        let mut answer = StatusCode::ACCEPTED.into_response();
        answer.headers_mut().insert(LOCATION, place);
        answer
    }

    fn take_blob(&self, repository: &str) -> Response {
        let said = self.asked("digest").and_then(|said| said.parse().ok());
        let digest = Digest::of(&self.body);
        if said != Some(digest) {
            return StatusCode::BAD_REQUEST.into_response();
        }
        let mut inside = self.held.lock();
        let kept = inside
            .repositories
            .entry(repository.to_owned())
            .or_default();
        kept.blobs.insert(digest, self.body.clone());
        StatusCode::CREATED.into_response()
    }

    fn file(&self, path: &str) -> Response {
        let inside = self.held.lock();
        let Some(content) = inside.files.get(path) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let etag = format!("\"{}\"", Digest::of(content).hex());
        let etag = HeaderValue::from_str(&etag).expect("a value");
        if self.headers.get(IF_NONE_MATCH) == Some(&etag) {
            return StatusCode::NOT_MODIFIED.into_response();
        }
        let mut answer = self.part_of(content);
        answer.headers_mut().insert(ETAG, etag);
        answer
    }

    /// A content, from where it is asked for.
    fn part_of(&self, content: &Bytes) -> Response {
        let range = self
            .headers
            .get(RANGE)
            .and_then(|range| range.to_str().ok());
        let from = range
            .filter(|_| self.held.manners.ranges)
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'))
            .and_then(|from| from.parse::<usize>().ok());
        let Some(from) = from else {
            return Response::new(Body::from(content.clone()));
        };
        if from >= content.len() {
            return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
        }
        let said = format!("bytes {from}-{}/{}", content.len() - 1, content.len());
        let mut answer = Response::new(Body::from(content.slice(from..)));
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        let said = HeaderValue::from_str(&said).expect("a value");
        answer.headers_mut().insert(CONTENT_RANGE, said);
        answer
    }
}
