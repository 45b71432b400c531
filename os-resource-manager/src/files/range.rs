//! Which part of a file a request asks for (RFC 9110, sections 13 and 14).

use axum::http::header::{IF_NONE_MATCH, IF_RANGE, RANGE};
use axum::http::{HeaderMap, HeaderName};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The whole file. So is everything that is no single range: several ranges, another unit, nonsense.
    Whole,
    /// The bytes from one up to, and without, another.
    Part {
        /// The first byte.
        from: u64,
        /// The one behind the last.
        to: u64,
    },
    /// Nothing that the file has.
    Beyond,
}

/// What a request for a file with a name of its content and a size asks for.
pub(super) fn asked(headers: &HeaderMap, etag: &str, size: u64) -> Asked {
    // A part is of use only to who has the rest of the same content.
    if headers.contains_key(IF_RANGE) && only(headers, &IF_RANGE) != Some(etag) {
        return Asked::Whole;
    }
    let range = only(headers, &RANGE).and_then(|range| {
        let (unit, range) = range.split_once('=')?;
        unit.trim().eq_ignore_ascii_case("bytes").then_some(range)
    });
    let (from, to) = match range.and_then(ends) {
        None | Some((None, None)) => return Asked::Whole,
        Some((None, Some(last))) => (size.saturating_sub(last), size),
        Some((Some(from), None)) => (from, size),
        Some((Some(from), Some(last))) if from > last => return Asked::Whole,
        Some((Some(from), Some(last))) => (from, last.saturating_add(1).min(size)),
    };
    if from < to {
        Asked::Part { from, to }
    } else {
        Asked::Beyond
    }
}

/// Whether a request comes from somebody who has that very content.
pub(super) fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let said = headers.get_all(IF_NONE_MATCH).iter();
    let said = said.filter_map(|value| value.to_str().ok());
    said.flat_map(|value| value.split(',')).any(|one| {
        let one = one.trim();
        one == "*" || one.strip_prefix("W/").unwrap_or(one) == etag
    })
}

/// The value of a header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?.trim();
    values.next().is_none().then_some(value)
}

/// The two ends of a range, of which one may be missing; none if they are no numbers.
fn ends(range: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (first, last) = range.trim().split_once('-')?;
    let (first, last) = (first.trim(), last.trim());
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    // A number beyond all files is the greatest.
    let number = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap_or(u64::MAX));
    (is_number(first) && is_number(last)).then(|| (number(first), number(last)))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const ETAG: &str = "\"sha256:00\"";

    fn with(values: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            let value = HeaderValue::from_str(value).expect("a value");
            headers.append(name.clone(), value);
        }
        headers
    }

    fn of_ten(range: &str) -> Asked {
        asked(&with(&[(RANGE, range)]), ETAG, 10)
    }

    #[test]
    fn one_range_is_a_part() {
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
            assert_eq!(of_ten(range), Asked::Part { from, to }, "{range}");
        }
    }

    #[test]
    fn what_is_no_single_range_is_the_whole() {
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
            assert_eq!(of_ten(range), Asked::Whole, "{range}");
        }
        assert_eq!(asked(&HeaderMap::new(), ETAG, 10), Asked::Whole);
        let twice = with(&[(RANGE, "bytes=0-1"), (RANGE, "bytes=2-3")]);
        assert_eq!(asked(&twice, ETAG, 10), Asked::Whole);
    }

    #[test]
    fn a_range_behind_the_end_is_told() {
        for range in [
            "bytes=10-",
            "bytes=10-20",
            "bytes=-0",
            "bytes=99999999999999999999999-",
        ] {
            assert_eq!(of_ten(range), Asked::Beyond, "{range}");
        }
        let any = with(&[(RANGE, "bytes=0-")]);
        assert_eq!(asked(&any, ETAG, 0), Asked::Beyond);
    }

    #[test]
    fn a_part_is_only_for_who_has_the_rest_of_the_same_content() {
        let part = Asked::Part { from: 2, to: 10 };
        for (said, expected) in [
            (ETAG, part),
            ("W/\"sha256:00\"", Asked::Whole),
            ("\"sha256:01\"", Asked::Whole),
            ("Mon, 23 Nov 2026 00:00:00 GMT", Asked::Whole),
        ] {
            let headers = with(&[(RANGE, "bytes=2-"), (IF_RANGE, said)]);
            assert_eq!(asked(&headers, ETAG, 10), expected, "{said}");
        }
    }

    #[test]
    fn who_has_the_content_says_so_by_its_name() {
        for (said, is) in [
            (ETAG, true),
            ("*", true),
            ("\"a\", W/\"sha256:00\"", true),
            ("\"a\"", false),
            ("sha256:00", false),
        ] {
            assert_eq!(
                is_known(&with(&[(IF_NONE_MATCH, said)]), ETAG),
                is,
                "{said}"
            );
        }
        assert!(!is_known(&HeaderMap::new(), ETAG));
    }
}
