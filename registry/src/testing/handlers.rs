//! Responses of the test registry.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LINK, LOCATION, RANGE,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use evenkeel_fetch::Digest;
use serde_json::json;
use url::form_urlencoded;

use super::{TestRegistryState, faults, tokens};
use crate::source::Manifest;

/// Answers a request and applies a matching fault.
pub(super) async fn handle(
    State(state): State<Arc<TestRegistryState>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query();
    let target = target.map_or_else(|| parts.uri.path().to_owned(), ToString::to_string);
    let line = format!("{} {target}", parts.method);
    let kind = {
        let mut data = state.lock();
        data.requests.push(line.clone());
        if parts.headers.contains_key(AUTHORIZATION) {
            data.with_credentials += 1;
        }
        let mut all = data.faults.iter_mut();
        let due = all.find(|fault| fault.times > 0 && line.contains(&fault.request_part));
        due.map(|fault| {
            fault.times = fault.times.saturating_sub(1);
            fault.kind.clone()
        })
    };
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let answer = IncomingRequest {
        state: &state,
        method: &parts.method,
        uri: &parts.uri,
        headers: &parts.headers,
        body,
    }
    .respond();
    match kind {
        Some(kind) => faults::apply_fault(kind, answer).await,
        None => answer,
    }
}

/// A request to the test registry.
struct IncomingRequest<'a> {
    state: &'a TestRegistryState,
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    body: Bytes,
}

impl IncomingRequest<'_> {
    fn respond(&self) -> Response {
        let path = self.uri.path();
        if path == "/token" {
            return tokens::issue_token(self.state, self.headers, self.uri);
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
            let refusal = tokens::refuse_unauthorized(self.state, self.headers, repository, writes);
            return refusal.unwrap_or_else(|| self.dispatch(repository, part, rest));
        }
        StatusCode::NOT_FOUND.into_response()
    }

    fn dispatch(&self, repository: &str, part: &str, rest: &str) -> Response {
        match (part, self.method) {
            ("/tags/list", &Method::GET) => self.tags(repository),
            ("/manifests/", &(Method::GET | Method::HEAD)) => self.manifest(repository, rest),
            ("/manifests/", &Method::PUT) => self.put_manifest(repository, rest),
            ("/blobs/", &(Method::GET | Method::HEAD)) => self.blob(repository, rest),
            ("/blobs/uploads/", &Method::POST) => self.start_upload(repository),
            ("/blobs/uploads/", &Method::PUT) => self.put_blob(repository),
            _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        }
    }

    fn query_parameter(&self, name: &str) -> Option<String> {
        let query = self.uri.query().unwrap_or_default().as_bytes();
        let mut pairs = form_urlencoded::parse(query);
        let pair = pairs.find(|(key, _)| key == name);
        pair.map(|(_, value)| value.into_owned())
    }

    fn tags(&self, repository: &str) -> Response {
        let options = &self.state.options;
        let data = self.state.lock();
        let Some(stored) = data.repositories.get(repository) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let mut limit = usize::MAX;
        let mut last = None;
        if options.supports_paging {
            let requested = self.query_parameter("n").and_then(|n| n.parse().ok());
            limit = requested.unwrap_or(usize::MAX).min(options.page_size);
            last = self.query_parameter("last");
        }
        let behind = |tag: &&String| last.as_ref().is_none_or(|last| *tag > last);
        let mut rest = stored.tags.keys().filter(behind);
        let tags: Vec<&String> = rest.by_ref().take(limit).collect();
        let mut answer = axum::Json(json!({ "name": repository, "tags": tags })).into_response();
        let more = rest.next().is_some() && options.sends_links;
        let last = tags.last().filter(|_| more);
        let next = last.map(|last| {
            let origin = &options.link_origin;
            format!("<{origin}/v2/{repository}/tags/list?last={last}&n={limit}>; rel=\"next\"")
        });
        if let Some(link) = data.link_header.as_ref().or(next.as_ref()) {
            let link = HeaderValue::from_str(link).expect("a value");
            answer.headers_mut().insert(LINK, link);
        }
        answer
    }

    fn manifest(&self, repository: &str, reference: &str) -> Response {
        let data = self.state.lock();
        let entry = data.repositories.get(repository).and_then(|stored| {
            let by_tag = stored.tags.get(reference).copied();
            let digest = by_tag.or_else(|| reference.parse().ok())?;
            Some((digest, stored.manifests.get(&digest)?))
        });
        let Some((digest, (text, media_type))) = entry else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let mut answer = Response::new(Body::from(text.clone()));
        let headers = answer.headers_mut();
        if let Ok(media_type) = HeaderValue::from_str(media_type) {
            headers.insert(CONTENT_TYPE, media_type);
        }
        let digest_header = HeaderValue::from_str(&digest.to_string()).expect("a value");
        headers.insert("docker-content-digest", digest_header);
        answer
    }

    fn put_manifest(&self, repository: &str, reference: &str) -> Response {
        let media_type = self.headers.get(CONTENT_TYPE);
        let media_type =
            media_type.and_then(|media_type| media_type.to_str().ok()).unwrap_or_default();
        let Ok(manifest) = Manifest::read(self.body.clone(), media_type) else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        let mut data = self.state.lock();
        let stored = data.repositories.entry(repository.to_owned()).or_default();
        if !manifest.blobs().all(|blob| stored.blobs.contains_key(&blob.digest)) {
            return StatusCode::BAD_REQUEST.into_response();
        }
        match reference.parse::<Digest>() {
            Ok(digest) if digest != manifest.digest => {
                return StatusCode::BAD_REQUEST.into_response();
            }
            Ok(_) => {}
            Err(_) => {
                stored.tags.insert(reference.to_owned(), manifest.digest);
            }
        }
        let text = (manifest.bytes, media_type.to_owned());
        stored.manifests.insert(manifest.digest, text);
        StatusCode::CREATED.into_response()
    }

    fn blob(&self, repository: &str, digest: &str) -> Response {
        let data = self.state.lock();
        let stored = data.repositories.get(repository);
        let digest = digest.parse::<Digest>().ok();
        match stored.and_then(|stored| stored.blobs.get(&digest?)) {
            Some(content) => self.content_from_range(content),
            None => StatusCode::NOT_FOUND.into_response(),
        }
    }

    fn start_upload(&self, repository: &str) -> Response {
        let mut data = self.state.lock();
        data.uploads += 1;
        let location = format!("/v2/{repository}/blobs/uploads/{}?state=a", data.uploads);
        let location = HeaderValue::from_str(&location).expect("a value");
        let mut answer = StatusCode::ACCEPTED.into_response();
        answer.headers_mut().insert(LOCATION, location);
        answer
    }

    fn put_blob(&self, repository: &str) -> Response {
        let expected = self.query_parameter("digest").and_then(|text| text.parse().ok());
        let digest = Digest::compute(&self.body);
        if expected != Some(digest) {
            return StatusCode::BAD_REQUEST.into_response();
        }
        let mut data = self.state.lock();
        let stored = data.repositories.entry(repository.to_owned()).or_default();
        stored.blobs.insert(digest, self.body.clone());
        StatusCode::CREATED.into_response()
    }

    fn file(&self, path: &str) -> Response {
        let data = self.state.lock();
        let Some(content) = data.files.get(path) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let etag = format!("\"{}\"", Digest::compute(content).hex());
        let etag = HeaderValue::from_str(&etag).expect("a value");
        if self.headers.get(IF_NONE_MATCH) == Some(&etag) {
            return StatusCode::NOT_MODIFIED.into_response();
        }
        let mut answer = self.content_from_range(content);
        answer.headers_mut().insert(ETAG, etag);
        answer
    }

    /// The content from the requested offset on.
    fn content_from_range(&self, content: &Bytes) -> Response {
        let range = self.headers.get(RANGE).and_then(|range| range.to_str().ok());
        let from = range
            .filter(|_| self.state.options.supports_ranges)
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'))
            .and_then(|from| from.parse::<usize>().ok());
        let Some(from) = from else {
            return Response::new(Body::from(content.clone()));
        };
        if from >= content.len() {
            return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
        }
        let content_range = format!("bytes {from}-{}/{}", content.len() - 1, content.len());
        let mut answer = Response::new(Body::from(content.slice(from..)));
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        let content_range = HeaderValue::from_str(&content_range).expect("a value");
        answer.headers_mut().insert(CONTENT_RANGE, content_range);
        answer
    }
}
