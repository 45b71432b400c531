//! The range of a file that a request asks for (RFC 9110, sections 13 and 14).

use axum::http::header::{IF_NONE_MATCH, IF_RANGE, RANGE};
use axum::http::{HeaderMap, HeaderName};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedRange {
    /// The full file. Requests with several ranges, another unit or a malformed range count as well.
    Full,
    /// The bytes `from..to`.
    Partial {
        /// First byte.
        from: u64,
        /// The byte behind the last one.
        to: u64,
    },
    /// A range behind the end of the file.
    Unsatisfiable,
}

/// The range that a request asks for, of a file with this `ETag` and size.
pub(super) fn parse_range(headers: &HeaderMap, etag: &str, size: u64) -> RequestedRange {
    // With If-Range, a range is valid only if the client has the same content.
    if headers.contains_key(IF_RANGE) && single_value(headers, &IF_RANGE) != Some(etag) {
        return RequestedRange::Full;
    }
    let range = single_value(headers, &RANGE).and_then(|range| {
        let (unit, range) = range.split_once('=')?;
        unit.trim().eq_ignore_ascii_case("bytes").then_some(range)
    });
    let (from, to) = match range.and_then(parse_bounds) {
        None | Some((None, None)) => return RequestedRange::Full,
        Some((None, Some(last))) => (size.saturating_sub(last), size),
        Some((Some(from), None)) => (from, size),
        Some((Some(from), Some(last))) if from > last => return RequestedRange::Full,
        Some((Some(from), Some(last))) => (from, last.saturating_add(1).min(size)),
    };
    if from < to { RequestedRange::Partial { from, to } } else { RequestedRange::Unsatisfiable }
}

/// Whether the client already has this content (`If-None-Match`).
pub(super) fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    let values = headers.get_all(IF_NONE_MATCH).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| {
        let one = one.trim();
        one == "*" || one.strip_prefix("W/").unwrap_or(one) == etag
    })
}

/// The value of a header that occurs once.
fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?.trim();
    values.next().is_none().then_some(value)
}

/// The two ends of a range; one of them may be missing. `None` if they are not numbers.
fn parse_bounds(range: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (first, last) = range.trim().split_once('-')?;
    let (first, last) = (first.trim(), last.trim());
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    // A number that is too large for `u64` is behind the end of every file.
    let number = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap_or(u64::MAX));
    (is_number(first) && is_number(last)).then(|| (number(first), number(last)))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const ETAG: &str = "\"sha256:00\"";

    fn header_map(values: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            let value = HeaderValue::from_str(value).expect("a value");
            headers.append(name.clone(), value);
        }
        headers
    }

    fn parse_of_ten_bytes(range: &str) -> RequestedRange {
        parse_range(&header_map(&[(RANGE, range)]), ETAG, 10)
    }

    #[test]
    fn a_single_range_is_partial() {
        for (range, from, to) in [
            ("bytes=0-", 0, 10),
            ("bytes=0-0", 0, 1),
            ("bytes=3-5", 3, 6),
            ("bytes=3-9", 3, 10),
            ("bytes=3-99999999999999999999999", 3, 10),
            ("bytes=-4", 6, 10),
            ("bytes=-40", 0, 10),
            ("Bytes = 9- ", 9, 10),
        ] {
            assert_eq!(parse_of_ten_bytes(range), RequestedRange::Partial { from, to }, "{range}");
        }
    }

    #[test]
    fn anything_but_a_single_range_is_the_full_file() {
        for range in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-3",
            "bytes=1-2,4-5",
            "bytes=0-0,-1",
            "lines=1-2",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=1-2-3",
            "bytes=--1",
        ] {
            assert_eq!(parse_of_ten_bytes(range), RequestedRange::Full, "{range}");
        }
        assert_eq!(parse_range(&HeaderMap::new(), ETAG, 10), RequestedRange::Full);
        let twice = header_map(&[(RANGE, "bytes=0-1"), (RANGE, "bytes=2-3")]);
        assert_eq!(parse_range(&twice, ETAG, 10), RequestedRange::Full);
    }

    #[test]
    fn a_range_behind_the_end_is_unsatisfiable() {
        for range in ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=99999999999999999999999-"] {
            assert_eq!(parse_of_ten_bytes(range), RequestedRange::Unsatisfiable, "{range}");
        }
        let any = header_map(&[(RANGE, "bytes=0-")]);
        assert_eq!(parse_range(&any, ETAG, 0), RequestedRange::Unsatisfiable);
    }

    #[test]
    fn if_range_must_match_the_etag() {
        let part = RequestedRange::Partial { from: 2, to: 10 };
        for (if_range, expected) in [
            (ETAG, part),
            ("W/\"sha256:00\"", RequestedRange::Full),
            ("\"sha256:01\"", RequestedRange::Full),
            ("Mon, 23 Nov 2026 00:00:00 GMT", RequestedRange::Full),
        ] {
            let headers = header_map(&[(RANGE, "bytes=2-"), (IF_RANGE, if_range)]);
            assert_eq!(parse_range(&headers, ETAG, 10), expected, "{if_range}");
        }
    }

    #[test]
    fn if_none_match_compares_etags() {
        for (if_none_match, expected) in [
            (ETAG, true),
            ("*", true),
            ("\"a\", W/\"sha256:00\"", true),
            ("\"a\"", false),
            ("sha256:00", false),
        ] {
            assert_eq!(
                matches_etag(&header_map(&[(IF_NONE_MATCH, if_none_match)]), ETAG),
                expected,
                "{if_none_match}"
            );
        }
        assert!(!matches_etag(&HeaderMap::new(), ETAG));
    }
}
