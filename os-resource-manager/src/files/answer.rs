//! What a request for a file is answered.

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

use super::cache::Open;
use super::callers::Refused;
use super::part::Trouble;
use super::range::{Asked, asked, is_known};
use super::transfers::{NoRoom, Transfer};

/// How much is read from a file at once.
const PIECE: u64 = 128 * 1024;

/// When somebody may come again who finds no room, in seconds.
const SOON: u64 = 5;

/// When somebody may come again for what is on its way, in seconds.
const LATER: u64 = 30;

/// How a content is called.
fn etag_of(digest: &Digest) -> String {
    format!("\"{digest}\"")
}

/// Why there is no file.
#[derive(Debug)]
pub(super) enum No {
    /// Only these ways of asking are known.
    OnlyReading,
    /// Somebody is not let in.
    Refused(Refused),
    /// The database did not say in time which files there are.
    Unknown,
    /// There is nothing with that name that whoever asks may have.
    NotThere,
    /// Profiles do not agree on what has that name.
    Ambiguous,
    /// There are too many answers under way.
    Room(NoRoom),
    /// The file is on its way.
    NotYet,
    /// The file did not come.
    Trouble(Trouble),
    /// The file has no such bytes, but so many.
    Beyond(u64),
}

impl No {
    /// Says it, with a line for people.
    pub fn answer(&self) -> Response {
        let (status, outcome, again) = self.meaning();
        count(outcome);
        let mut answer = (status, format!("{}\n", self.why())).into_response();
        if let Some(seconds) = again {
            set(&mut answer, RETRY_AFTER, HeaderValue::from(seconds));
        }
        match self {
            Self::OnlyReading => set(&mut answer, ALLOW, HeaderValue::from_static("GET, HEAD")),
            Self::Beyond(size) => range_of(&mut answer, &format!("bytes */{size}")),
            _ if status == StatusCode::UNAUTHORIZED => {
                let way = HeaderValue::from_static("Bearer");
                set(&mut answer, WWW_AUTHENTICATE, way);
            }
            _ => {}
        }
        answer
    }

    /// The status, what is counted, and in how many seconds to come again.
    fn meaning(&self) -> (StatusCode, &'static str, Option<u64>) {
        use Refused as R;
        use StatusCode as S;
        use Trouble as T;

        match self {
            Self::OnlyReading => (S::METHOD_NOT_ALLOWED, "refused", None),
            Self::Refused(R::Unproven(AuthError::KeysAway) | R::Store(_)) | Self::Unknown => {
                (S::SERVICE_UNAVAILABLE, "away", Some(SOON))
            }
            Self::Refused(R::Unproven(_) | R::Distrusted) => (S::UNAUTHORIZED, "refused", None),
            Self::Refused(R::NothingHere) => (S::FORBIDDEN, "refused", None),
            Self::NotThere => (S::NOT_FOUND, "not_there", None),
            Self::Ambiguous => (S::CONFLICT, "ambiguous", None),
            Self::Room(NoRoom::InAll) => (S::SERVICE_UNAVAILABLE, "too_many", Some(SOON)),
            Self::Room(NoRoom::ForYou) => (S::TOO_MANY_REQUESTS, "too_many", Some(SOON)),
            Self::NotYet => (S::SERVICE_UNAVAILABLE, "not_yet", Some(LATER)),
            Self::Trouble(T::TooLarge) => (S::SERVICE_UNAVAILABLE, "too_large", None),
            Self::Trouble(T::NoRoom) => (S::SERVICE_UNAVAILABLE, "no_room", Some(LATER)),
            Self::Trouble(T::Disk(_)) => (S::SERVICE_UNAVAILABLE, "disk", Some(LATER)),
            Self::Trouble(T::Away(_)) => (S::SERVICE_UNAVAILABLE, "away", Some(LATER)),
            Self::Trouble(T::Wrong(_)) => (S::BAD_GATEWAY, "wrong", None),
            Self::Beyond(_) => (S::RANGE_NOT_SATISFIABLE, "beyond", None),
        }
    }

    fn why(&self) -> String {
        match self {
            Self::OnlyReading => "a file can only be read".to_owned(),
            Self::Refused(Refused::Unproven(why)) => why.to_string(),
            Self::Refused(Refused::Distrusted) => "the host was invalidated, or is gone".to_owned(),
            Self::Refused(Refused::NothingHere) => {
                "the token is neither that of a node nor of somebody who may read in a project"
                    .to_owned()
            }
            Self::Refused(Refused::Store(error)) => {
                tracing::debug!(error = %chain(error), "cannot look which files there are");
                "the database does not answer".to_owned()
            }
            Self::Unknown => "the database does not answer in time".to_owned(),
            Self::NotThere => "no profile of your project names such a file".to_owned(),
            Self::Ambiguous => {
                "profiles name several files with this path: ask for /files/sha256/<digest>"
                    .to_owned()
            }
            Self::Room(NoRoom::InAll) => "too many files are read".to_owned(),
            Self::Room(NoRoom::ForYou) => "you are reading too many files at once".to_owned(),
            Self::NotYet => "the file is being fetched".to_owned(),
            // Who asks may be anybody: what registries said, and where they are, is in the log.
            Self::Trouble(Trouble::Away(_)) => "the file cannot be fetched".to_owned(),
            Self::Trouble(Trouble::Wrong(_)) => "the file is not what the profile says".to_owned(),
            Self::Trouble(trouble) => trouble.to_string(),
            Self::Beyond(_) => "the file has no such bytes".to_owned(),
        }
    }
}

/// Whoever asks has that very content already.
pub(super) fn known(headers: &HeaderMap, digest: &Digest) -> Option<Response> {
    let etag = etag_of(digest);
    if !is_known(headers, &etag) {
        return None;
    }
    count("known");
    let mut answer = StatusCode::NOT_MODIFIED.into_response();
    name(&mut answer, &etag);
    Some(answer)
}

/// A file, or the part of it that is asked for.
pub(super) async fn file(
    request: &Parts,
    digest: &Digest,
    open: Open,
    transfer: Transfer,
) -> Result<Response, No> {
    let (etag, size) = (etag_of(digest), open.size);
    let is_head = request.method == Method::HEAD;
    let range = if is_head {
        Asked::Whole
    } else {
        asked(&request.headers, &etag, size)
    };
    let (status, from, to) = match range {
        Asked::Whole => (StatusCode::OK, 0, size),
        Asked::Part { from, to } => (StatusCode::PARTIAL_CONTENT, from, to),
        Asked::Beyond => return Err(No::Beyond(size)),
    };
    let body = if is_head {
        Body::empty()
    } else {
        let body = body(open, transfer, from, to).await;
        body.map_err(|error| No::Trouble(Trouble::disk(&error)))?
    };
    let is_part = status == StatusCode::PARTIAL_CONTENT;
    count(if is_part { "part" } else { "whole" });
    let mut answer = (status, body).into_response();
    name(&mut answer, &etag);
    set(&mut answer, CONTENT_LENGTH, HeaderValue::from(to - from));
    let form = HeaderValue::from_static("application/octet-stream");
    set(&mut answer, CONTENT_TYPE, form);
    if is_part {
        let last = to.saturating_sub(1);
        range_of(&mut answer, &format!("bytes {from}-{last}/{size}"));
    }
    Ok(answer)
}

/// The bytes of a file from one up to, and without, another. Both the file and the transfer last as long as the answer.
async fn body(open: Open, transfer: Transfer, from: u64, to: u64) -> io::Result<Body> {
    let mut file = tokio::fs::File::from_std(open.file.try_clone()?);
    file.seek(io::SeekFrom::Start(from)).await?;
    let held = Arc::new((open, transfer));
    let pieces = stream::try_unfold((file, to - from), move |(mut file, left)| {
        let held = Arc::clone(&held);
        async move {
            let _held = held;
            if left == 0 {
                return Ok::<_, io::Error>(None);
            }
            let mut piece = Vec::new();
            let mut rest = (&mut file).take(left.min(PIECE));
            let count = rest.read_to_end(&mut piece).await? as u64;
            if count == 0 {
                // Whoever was promised more must not take this for the end.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(Some((
                Bytes::from(piece),
                (file, left.saturating_sub(count)),
            )))
        }
    });
    Ok(Body::from_stream(pieces))
}

/// Says what a content is called, and that only whoever asked keeps it.
fn name(answer: &mut Response, etag: &str) {
    if let Ok(etag) = HeaderValue::from_str(etag) {
        set(answer, ETAG, etag);
    }
    set(answer, ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let kept = HeaderValue::from_static("private, no-cache");
    set(answer, CACHE_CONTROL, kept);
    let sure = HeaderValue::from_static("nosniff");
    set(answer, X_CONTENT_TYPE_OPTIONS, sure);
}

fn range_of(answer: &mut Response, range: &str) {
    if let Ok(range) = HeaderValue::from_str(range) {
        set(answer, CONTENT_RANGE, range);
    }
}

fn set(answer: &mut Response, name: HeaderName, value: HeaderValue) {
    answer.headers_mut().insert(name, value);
}

fn count(outcome: &'static str) {
    metrics::counter!("evenkeel_files_requests_total", "outcome" => outcome).increment(1);
}
