//! HTTP responses to requests for files.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use evenkeel_auth::AuthError;
use evenkeel_kit::chain;
use evenkeel_registry::Digest;
use futures_util::stream;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use super::access::AccessError;
use super::cache::OpenFile;
use super::partial_download::DownloadError;
use super::range::{RequestedRange, matches_etag, parse_range};
use super::transfers::{Transfer, TransferLimit};

/// How much is read from a file at once.
const CHUNK_BYTES: u64 = 128 * 1024;

/// `Retry-After` if a limit or the database refused the request.
const BUSY_RETRY_SECONDS: u64 = 5;

/// `Retry-After` if the file is being downloaded, or its download failed.
const FETCH_RETRY_SECONDS: u64 = 30;

/// The `ETag` of a file.
fn digest_etag(digest: &Digest) -> String {
    format!("\"{digest}\"")
}

/// Why a file is not served.
#[derive(Debug)]
pub(super) enum FileError {
    /// The method is neither `GET` nor `HEAD`.
    MethodNotAllowed,
    /// The caller gets no files.
    Refused(AccessError),
    /// The list of files could not be loaded in time.
    LookupTimeout,
    /// No file with this name is visible to the caller.
    NotFound,
    /// Profiles name different files with this path.
    Ambiguous,
    /// Too many responses are being sent.
    TooManyTransfers(TransferLimit),
    /// The download is still running.
    Pending,
    /// The download failed.
    Download(DownloadError),
    /// The requested range is behind the end of the file; its size.
    RangeNotSatisfiable(u64),
}

impl FileError {
    /// The response, with one line of text.
    pub fn to_response(&self) -> Response {
        let (status, outcome, retry_after) = self.classify();
        count_request(outcome);
        let mut response = (status, format!("{}\n", self.message())).into_response();
        if let Some(seconds) = retry_after {
            set_header(&mut response, RETRY_AFTER, HeaderValue::from(seconds));
        }
        match self {
            Self::MethodNotAllowed => {
                set_header(&mut response, ALLOW, HeaderValue::from_static("GET, HEAD"));
            }
            Self::RangeNotSatisfiable(size) => {
                set_content_range(&mut response, &format!("bytes */{size}"));
            }
            _ if status == StatusCode::UNAUTHORIZED => {
                let scheme = HeaderValue::from_static("Bearer");
                set_header(&mut response, WWW_AUTHENTICATE, scheme);
            }
            _ => {}
        }
        response
    }

    /// The status, the metric label, and the seconds for `Retry-After`.
    fn classify(&self) -> (StatusCode, &'static str, Option<u64>) {
        use StatusCode as S;

        match self {
            Self::MethodNotAllowed => (S::METHOD_NOT_ALLOWED, "refused", None),
            Self::Refused(
                AccessError::Unauthenticated(AuthError::KeysUnavailable) | AccessError::Store(_),
            )
            | Self::LookupTimeout => {
                (S::SERVICE_UNAVAILABLE, "unavailable", Some(BUSY_RETRY_SECONDS))
            }
            Self::Refused(
                AccessError::Unauthenticated(_)
                | AccessError::CertificateNotValid(_)
                | AccessError::CredentialNotAccepted
                | AccessError::HostNotTrusted
                | AccessError::OtherKey,
            ) => (S::UNAUTHORIZED, "refused", None),
            Self::Refused(AccessError::NoFileAccess) => (S::FORBIDDEN, "refused", None),
            Self::NotFound => (S::NOT_FOUND, "not_found", None),
            Self::Ambiguous => (S::CONFLICT, "ambiguous", None),
            Self::TooManyTransfers(TransferLimit::Total | TransferLimit::PerProject) => {
                (S::SERVICE_UNAVAILABLE, "too_many", Some(BUSY_RETRY_SECONDS))
            }
            Self::TooManyTransfers(TransferLimit::PerCaller) => {
                (S::TOO_MANY_REQUESTS, "too_many", Some(BUSY_RETRY_SECONDS))
            }
            Self::Pending => (S::SERVICE_UNAVAILABLE, "pending", Some(FETCH_RETRY_SECONDS)),
            Self::Download(DownloadError::TooLarge) => (S::SERVICE_UNAVAILABLE, "too_large", None),
            Self::Download(DownloadError::NoSpace) => {
                (S::SERVICE_UNAVAILABLE, "no_space", Some(FETCH_RETRY_SECONDS))
            }
            Self::Download(DownloadError::Disk(_)) => {
                (S::SERVICE_UNAVAILABLE, "disk", Some(FETCH_RETRY_SECONDS))
            }
            Self::Download(DownloadError::Unavailable(_)) => {
                (S::SERVICE_UNAVAILABLE, "unavailable", Some(FETCH_RETRY_SECONDS))
            }
            Self::Download(DownloadError::WrongContent(_)) => {
                (S::BAD_GATEWAY, "wrong_content", None)
            }
            Self::RangeNotSatisfiable(_) => (S::RANGE_NOT_SATISFIABLE, "bad_range", None),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::MethodNotAllowed => "files are read-only: use GET or HEAD".to_owned(),
            Self::Refused(AccessError::Unauthenticated(why)) => why.to_string(),
            Self::Refused(AccessError::CertificateNotValid(why)) => why.to_string(),
            Self::Refused(AccessError::CredentialNotAccepted) => {
                "credentials of nodes are not accepted: use the client certificate, or set \
                 maintenance_manager.bearer_credentials if a proxy terminates TLS"
                    .to_owned()
            }
            Self::Refused(AccessError::HostNotTrusted) => {
                "the host was invalidated or deleted".to_owned()
            }
            Self::Refused(AccessError::OtherKey) => {
                "the host was enrolled again with another key".to_owned()
            }
            Self::Refused(AccessError::NoFileAccess) => {
                "the token is neither of a node nor of a user who may read a project".to_owned()
            }
            Self::Refused(AccessError::Store(error)) => {
                tracing::debug!(error = %chain(error), "cannot load the list of files");
                "the database does not answer".to_owned()
            }
            Self::LookupTimeout => "the database does not answer in time".to_owned(),
            Self::NotFound => "no profile of your project names such a file".to_owned(),
            Self::Ambiguous => {
                "profiles name several files with this path: request /files/sha256/<digest>"
                    .to_owned()
            }
            Self::TooManyTransfers(TransferLimit::Total) => {
                "too many files are being read".to_owned()
            }
            Self::TooManyTransfers(TransferLimit::PerProject) => {
                "too many files are being read in this project".to_owned()
            }
            Self::TooManyTransfers(TransferLimit::PerCaller) => {
                "you are reading too many files at once".to_owned()
            }
            Self::Pending => "the file is being fetched".to_owned(),
            // The caller may be anybody, so addresses and errors of registries are only logged.
            Self::Download(DownloadError::Unavailable(_)) => {
                "the file cannot be fetched".to_owned()
            }
            Self::Download(DownloadError::WrongContent(_)) => {
                "the file is not what the profile says".to_owned()
            }
            Self::Download(download_error) => download_error.to_string(),
            Self::RangeNotSatisfiable(_) => "the range is behind the end of the file".to_owned(),
        }
    }
}

/// `304 Not Modified`, if the caller has the same content.
pub(super) fn not_modified(headers: &HeaderMap, digest: &Digest) -> Option<Response> {
    let etag = digest_etag(digest);
    if !matches_etag(headers, &etag) {
        return None;
    }
    count_request("not_modified");
    let mut response = StatusCode::NOT_MODIFIED.into_response();
    set_content_headers(&mut response, &etag);
    Some(response)
}

/// The file, or the requested range of it.
pub(super) async fn file_response(
    request: &Parts,
    digest: &Digest,
    open: OpenFile,
    transfer: Transfer,
) -> Result<Response, FileError> {
    let (etag, size) = (digest_etag(digest), open.size);
    let is_head = request.method == Method::HEAD;
    let range =
        if is_head { RequestedRange::Full } else { parse_range(&request.headers, &etag, size) };
    let (status, from, to) = match range {
        RequestedRange::Full => (StatusCode::OK, 0, size),
        RequestedRange::Partial { from, to } => (StatusCode::PARTIAL_CONTENT, from, to),
        RequestedRange::Unsatisfiable => return Err(FileError::RangeNotSatisfiable(size)),
    };
    let body = if is_head {
        Body::empty()
    } else {
        let body = file_body(open, transfer, from, to).await;
        body.map_err(|error| FileError::Download(error.into()))?
    };
    let is_part = status == StatusCode::PARTIAL_CONTENT;
    count_request(if is_part { "partial" } else { "full" });
    let mut response = (status, body).into_response();
    set_content_headers(&mut response, &etag);
    set_header(&mut response, CONTENT_LENGTH, HeaderValue::from(to - from));
    let content_type = HeaderValue::from_static("application/octet-stream");
    set_header(&mut response, CONTENT_TYPE, content_type);
    if is_part {
        let last = to.saturating_sub(1);
        set_content_range(&mut response, &format!("bytes {from}-{last}/{size}"));
    }
    Ok(response)
}

/// The bytes `from..to` of a file. The body keeps the file open and the transfer counted until it is dropped.
async fn file_body(open: OpenFile, transfer: Transfer, from: u64, to: u64) -> io::Result<Body> {
    let mut file = tokio::fs::File::from_std(open.file.try_clone()?);
    file.seek(io::SeekFrom::Start(from)).await?;
    let guards = Arc::new((open, transfer));
    let chunks = stream::try_unfold((file, to - from), move |(mut file, left)| {
        let guards = Arc::clone(&guards);
        async move {
            let _guards = guards;
            if left == 0 {
                return Ok::<_, io::Error>(None);
            }
            let mut chunk = Vec::new();
            let mut rest = (&mut file).take(left.min(CHUNK_BYTES));
            let count = rest.read_to_end(&mut chunk).await? as u64;
            if count == 0 {
                // The client was promised more bytes: an error tells it that this is not the end.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(Some((Bytes::from(chunk), (file, left.saturating_sub(count)))))
        }
    });
    Ok(Body::from_stream(chunks))
}

/// Sets the `ETag`, and that only the client itself may cache the response.
fn set_content_headers(response: &mut Response, etag: &str) {
    if let Ok(etag) = HeaderValue::from_str(etag) {
        set_header(response, ETAG, etag);
    }
    set_header(response, ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let cache_control = HeaderValue::from_static("private, no-cache");
    set_header(response, CACHE_CONTROL, cache_control);
    let nosniff = HeaderValue::from_static("nosniff");
    set_header(response, X_CONTENT_TYPE_OPTIONS, nosniff);
}

fn set_content_range(response: &mut Response, range: &str) {
    if let Ok(range) = HeaderValue::from_str(range) {
        set_header(response, CONTENT_RANGE, range);
    }
}

fn set_header(response: &mut Response, name: HeaderName, value: HeaderValue) {
    response.headers_mut().insert(name, value);
}

fn count_request(outcome: &'static str) {
    metrics::counter!("evenkeel_files_requests_total", "outcome" => outcome).increment(1);
}
