//! Classifies a server's response to a request for (the rest of) a file. Pure. By RFC 9110:
//! `Retry-After` 10.2.3.

use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_fetch::{RangeRequest, RangeResponse};
use http::header::{self, HeaderName};
use http::{HeaderMap, StatusCode};

/// Meaning of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    /// The file or a part of it, or why there is none.
    Content(RangeResponse),
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

/// Classifies the head of a response to this request. `length` is the length of the body, if it is
/// announced.
pub fn classify_response(
    status: StatusCode,
    headers: &HeaderMap,
    length: Option<u64>,
    requested: &RangeRequest,
    now: DateTime<Utc>,
) -> ResponseKind {
    if let Some(content) = requested.classify(status, headers, length) {
        return ResponseKind::Content(content);
    }
    match status {
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => match header_text(headers, header::LOCATION) {
            Some(to) => ResponseKind::Redirect(to.to_owned()),
            None => ResponseKind::Refused,
        },
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            busy(headers, now)
        }
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => {
            ResponseKind::Refused
        }
        status if status.is_server_error() => busy(headers, now),
        _ => ResponseKind::Refused,
    }
}

fn busy(headers: &HeaderMap, now: DateTime<Utc>) -> ResponseKind {
    ResponseKind::Busy { retry_after: parse_retry_after(headers, now) }
}

/// Seconds or a date. A date in the past means now.
fn parse_retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let value = header_text(headers, header::RETRY_AFTER)?.trim();
    // `parse` accepts a sign.
    if value.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(seconds) = value.parse()
    {
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
        let status = StatusCode::from_u16(status).expect("a status");
        classify_response(status, &headers(pairs), Some(10), requested, DateTime::UNIX_EPOCH)
    }

    fn request_from(byte: u64) -> RangeRequest {
        RangeRequest { from: byte, total: Some(10), etag: Some("\"a\"".to_owned()) }
    }

    #[test]
    fn a_status_with_content_is_left_to_the_range_request() {
        let whole = RangeResponse::WholeFile { total: Some(10), etag: None };
        assert_eq!(classify(200, &[], &request_from(0)), ResponseKind::Content(whole));
        let ends_before = ResponseKind::Content(RangeResponse::NotSatisfiable);
        assert_eq!(classify(416, &[], &request_from(5)), ends_before);
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
