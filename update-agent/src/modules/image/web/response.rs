//! Classifies a server's response to a request for (the rest of) a file. Pure. By RFC 9110:
//! `If-Range` 13.1.5, strong entity tags 8.8.3, `Content-Range` 14.4, status 206 15.3.7,
//! `Retry-After` 10.2.3.

use std::time::Duration;

use chrono::{DateTime, Utc};
use http::header::{self, HeaderName};
use http::{HeaderMap, StatusCode};

/// Longer entity tags are not stored.
const MAX_ETAG_BYTES: usize = 256;

/// The requested part of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeRequest {
    /// Offset of the first byte; 0 for the whole file.
    pub from: u64,
    /// Size of the whole file, if known.
    pub total: Option<u64>,
    /// Strong entity tag of the file of which a part is stored.
    pub etag: Option<String>,
}

/// Head of a response.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    pub status: StatusCode,
    pub headers: &'a HeaderMap,
    /// Length of the body (also for HEAD); `None` if it is not announced.
    pub length: Option<u64>,
}

/// Meaning of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// The whole file follows from its first byte.
    WholeFile {
        /// Size of the file, if announced.
        total: Option<u64>,
        /// Entity tag, if it is strong.
        etag: Option<String>,
    },
    /// The requested rest follows.
    RestOfFile {
        /// Size of the whole file.
        total: u64,
        /// Entity tag, if it is strong.
        etag: Option<String>,
    },
    /// The part was not requested or belongs to another file, so that the download cannot continue
    /// with it.
    WrongPart(String),
    /// The file ends before the requested byte.
    RangeNotSatisfiable,
    /// The file is at this address.
    Redirect(String),
    /// Temporary failure.
    Busy {
        /// Delay that the server named.
        retry_after: Option<Duration>,
    },
    /// Permanent failure.
    Refused,
}

/// Classifies a response to this request.
pub fn classify_response(
    head: &ResponseHead<'_>,
    requested: &RangeRequest,
    now: DateTime<Utc>,
) -> ResponseKind {
    match head.status {
        StatusCode::OK => {
            ResponseKind::WholeFile { total: head.length, etag: strong_etag(head.headers) }
        }
        StatusCode::PARTIAL_CONTENT => classify_part(head.headers, requested),
        // Without a range in the request this status makes no sense.
        StatusCode::RANGE_NOT_SATISFIABLE if requested.from > 0 => {
            ResponseKind::RangeNotSatisfiable
        }
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => match header_text(head.headers, header::LOCATION) {
            Some(to) => ResponseKind::Redirect(to.to_owned()),
            None => ResponseKind::Refused,
        },
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            busy(head.headers, now)
        }
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => {
            ResponseKind::Refused
        }
        status if status.is_server_error() => busy(head.headers, now),
        _ => ResponseKind::Refused,
    }
}

fn busy(headers: &HeaderMap, now: DateTime<Utc>) -> ResponseKind {
    ResponseKind::Busy { retry_after: parse_retry_after(headers, now) }
}

/// A part must begin at the requested byte, of a file of the same size, with the same tag if both
/// have one.
fn classify_part(headers: &HeaderMap, requested: &RangeRequest) -> ResponseKind {
    let range = header_text(headers, header::CONTENT_RANGE).unwrap_or_default();
    let Some((from, total)) = parse_content_range(range) else {
        return ResponseKind::WrongPart(format!(
            "the server sends a part of the file and does not say which: {range:?}"
        ));
    };
    if from != requested.from {
        return ResponseKind::WrongPart(format!(
            "the server sends the file from byte {from} but was asked for byte {}",
            requested.from
        ));
    }
    if requested.total.is_some_and(|expected| expected != total) {
        return ResponseKind::WrongPart(
            "the file at the server has another size than before".to_owned(),
        );
    }
    let etag = strong_etag(headers);
    if let (Some(before), Some(now)) = (&requested.etag, &etag)
        && before != now
    {
        return ResponseKind::WrongPart(
            "the file at the server has another entity tag than before".to_owned(),
        );
    }
    ResponseKind::RestOfFile { total, etag: etag.or_else(|| requested.etag.clone()) }
}

/// Parses `bytes FIRST-LAST/SIZE` into the first byte and the size.
fn parse_content_range(value: &str) -> Option<(u64, u64)> {
    let (range, total) = value.strip_prefix("bytes ")?.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, total) = (parse_number(first)?, parse_number(last)?, parse_number(total)?);
    (first <= last && last < total).then_some((first, total))
}

/// Accepts digits only: [`str::parse`] accepts a sign.
fn parse_number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// A weak tag may stay the same while bytes change, so it cannot be used for `If-Range`.
fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = header_text(headers, header::ETAG)?;
    let strong = etag.len() >= 2 && etag.starts_with('"') && etag.ends_with('"');
    (strong && etag.len() <= MAX_ETAG_BYTES).then(|| etag.to_owned())
}

/// Seconds or a date. A date in the past means now.
fn parse_retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let value = header_text(headers, header::RETRY_AFTER)?.trim();
    if let Some(seconds) = parse_number(value) {
        return Some(Duration::from_secs(seconds));
    }
    let at = DateTime::parse_from_rfc2822(value).ok()?.to_utc();
    Some((at - now).to_std().unwrap_or_default())
}

fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).expect("a value of a header");
        let pairs = pairs.iter();
        pairs.map(|(name, text)| (name.clone(), value(text))).collect()
    }

    fn classify(
        status: u16,
        pairs: &[(HeaderName, &'static str)],
        requested: &RangeRequest,
    ) -> ResponseKind {
        let headers = headers(pairs);
        let head = ResponseHead {
            status: StatusCode::from_u16(status).expect("a status"),
            headers: &headers,
            length: Some(10),
        };
        classify_response(&head, requested, DateTime::UNIX_EPOCH)
    }

    fn request_from(byte: u64) -> RangeRequest {
        RangeRequest { from: byte, total: Some(10), etag: Some("\"a\"".to_owned()) }
    }

    #[test]
    fn a_whole_file_has_its_size_and_only_a_strong_etag() {
        for (tag, stored) in
            [("\"a\"", Some("\"a\"")), ("W/\"a\"", None), ("a", None), ("\"", None)]
        {
            let kind = classify(200, &[(header::ETAG, tag)], &request_from(5));
            let expected =
                ResponseKind::WholeFile { total: Some(10), etag: stored.map(str::to_owned) };
            assert_eq!(kind, expected, "{tag}");
        }
    }

    #[test]
    fn a_part_is_accepted_only_if_it_is_the_rest_of_this_file() {
        let rest = |range: &'static str, etag: &'static str| {
            classify(206, &[(header::CONTENT_RANGE, range), (header::ETAG, etag)], &request_from(5))
        };
        let good = ResponseKind::RestOfFile { total: 10, etag: Some("\"a\"".to_owned()) };
        assert_eq!(rest("bytes 5-9/10", "\"a\""), good);
        assert_eq!(rest("bytes 5-7/10", "W/\"b\""), good, "a shorter part");
        for (range, expected) in [
            ("bytes 4-9/10", "byte 4"),
            ("bytes 6-9/10", "byte 6"),
            ("bytes 5-10/11", "another size"),
            ("bytes 5-9/*", "does not say which"),
            ("bytes 5-10/10", "does not say which"),
            ("bytes 9-5/10", "does not say which"),
            ("bytes +5-9/10", "does not say which"),
            ("items 5-9/10", "does not say which"),
            ("", "does not say which"),
        ] {
            let ResponseKind::WrongPart(why) = rest(range, "\"a\"") else {
                panic!("{range} is accepted");
            };
            assert!(why.contains(expected), "{range}: {why}");
        }
        let ResponseKind::WrongPart(why) = rest("bytes 5-9/10", "\"b\"") else {
            panic!("another file is accepted");
        };
        assert!(why.contains("another entity tag"), "{why}");
    }

    #[test]
    fn status_416_is_meaningful_only_for_a_range_request() {
        assert_eq!(classify(416, &[], &request_from(5)), ResponseKind::RangeNotSatisfiable);
        assert_eq!(classify(416, &[], &RangeRequest::default()), ResponseKind::Refused);
    }

    #[test]
    fn a_redirect_needs_a_location() {
        for status in [301, 302, 303, 307, 308] {
            let elsewhere = classify(status, &[(header::LOCATION, "/b")], &request_from(0));
            assert_eq!(elsewhere, ResponseKind::Redirect("/b".to_owned()), "{status}");
            assert_eq!(classify(status, &[], &request_from(0)), ResponseKind::Refused, "{status}");
        }
        assert_eq!(classify(304, &[], &request_from(0)), ResponseKind::Refused);
    }

    #[test]
    fn a_busy_server_may_name_a_retry_time() {
        let busy = |status: u16, value: &'static str| {
            let ResponseKind::Busy { retry_after } =
                classify(status, &[(header::RETRY_AFTER, value)], &request_from(0))
            else {
                panic!("{status} is not busy");
            };
            retry_after
        };
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert_eq!(busy(status, "90"), Some(Duration::from_secs(90)), "{status}");
        }
        let date = "Thu, 01 Jan 1970 00:00:07 GMT";
        assert_eq!(busy(503, date), Some(Duration::from_secs(7)));
        let past = "Wed, 31 Dec 1969 23:00:00 GMT";
        assert_eq!(busy(503, past), Some(Duration::ZERO));
        for nonsense in ["", "-1", "+1", "soon", "99999999999999999999999"] {
            assert_eq!(busy(429, nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_permanent_status_is_refused() {
        for status in [201, 204, 400, 401, 403, 404, 410, 501, 505] {
            assert_eq!(classify(status, &[], &request_from(0)), ResponseKind::Refused, "{status}");
        }
    }
}
