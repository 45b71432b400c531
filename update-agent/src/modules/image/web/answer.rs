//! What a server's answer to a request for (the rest of) a file means. Pure. By RFC 9110: `If-Range` 13.1.5, strong
//! entity tags 8.8.3, `Content-Range` 14.4, status 206 15.3.7, `Retry-After` 10.2.3.

use std::time::Duration;

use chrono::{DateTime, Utc};
use http::header::{self, HeaderName};
use http::{HeaderMap, StatusCode};

/// A longer entity tag is not kept.
const MOST_ETAG: usize = 256;

/// Which part of a file is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// From this byte to the end; 0 for all.
    pub from: u64,
    /// The size of the whole file, if that is known.
    pub total: Option<u64>,
    /// The strong entity tag of the file of which a part is there already.
    pub etag: Option<String>,
}

/// The beginning of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// How many bytes follow (or would, if the body had been asked for); `None` if that is not said.
    pub length: Option<u64>,
}

/// What an answer means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The whole file follows, from its first byte.
    Whole {
        /// Its size, if the server says it.
        total: Option<u64>,
        /// Its entity tag, if it is a strong one.
        etag: Option<String>,
    },
    /// What was asked for follows.
    Rest {
        /// The size of the whole file.
        total: u64,
        /// Its entity tag, if it is a strong one.
        etag: Option<String>,
    },
    /// A part follows that was not asked for, or one of another file: what is there cannot be gone on with.
    Astray(String),
    /// The file ends before what was asked for.
    Past,
    /// It is elsewhere.
    Elsewhere(String),
    /// Not now.
    Busy {
        /// After this time, if the server says it.
        after: Option<Duration>,
    },
    /// Not at all.
    Refused,
}

/// What an answer means to who asked.
pub fn judge(head: &Head<'_>, asked: &Asked, now: DateTime<Utc>) -> Told {
    match head.status {
        StatusCode::OK => Told::Whole {
            total: head.length,
            etag: strong_etag(head.headers),
        },
        StatusCode::PARTIAL_CONTENT => part(head.headers, asked),
        // To who asked for no range it makes no sense.
        StatusCode::RANGE_NOT_SATISFIABLE if asked.from > 0 => Told::Past,
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => match text(head.headers, header::LOCATION) {
            Some(to) => Told::Elsewhere(to.to_owned()),
            None => Told::Refused,
        },
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            busy(head.headers, now)
        }
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => Told::Refused,
        status if status.is_server_error() => busy(head.headers, now),
        _ => Told::Refused,
    }
}

fn busy(headers: &HeaderMap, now: DateTime<Utc>) -> Told {
    Told::Busy {
        after: retry_after(headers, now),
    }
}

/// A part must begin where it was asked to, of a file of the same size, with the same tag if both say one.
fn part(headers: &HeaderMap, asked: &Asked) -> Told {
    let range = text(headers, header::CONTENT_RANGE).unwrap_or_default();
    let Some((from, total)) = content_range(range) else {
        return Told::Astray(format!(
            "the server sends a part of the file and does not say which: {range:?}"
        ));
    };
    if from != asked.from {
        return Told::Astray(format!(
            "the server sends the file from byte {from} and was asked for byte {}",
            asked.from
        ));
    }
    if asked.total.is_some_and(|known| known != total) {
        return Told::Astray("the file at the server has another size than before".to_owned());
    }
    let etag = strong_etag(headers);
    if let (Some(before), Some(now)) = (&asked.etag, &etag)
        && before != now
    {
        return Told::Astray("the file at the server is another than before".to_owned());
    }
    Told::Rest {
        total,
        etag: etag.or_else(|| asked.etag.clone()),
    }
}

/// First byte and size of the whole of `bytes FIRST-LAST/SIZE`.
fn content_range(value: &str) -> Option<(u64, u64)> {
    let (range, total) = value.strip_prefix("bytes ")?.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, total) = (number(first)?, number(last)?, number(total)?);
    (first <= last && last < total).then_some((first, total))
}

/// Digits only: [`str::parse`] takes a sign.
fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// A weak tag may stay the same though bytes change, so that it does not do for `If-Range`.
fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = text(headers, header::ETAG)?;
    let strong = etag.len() >= 2 && etag.starts_with('"') && etag.ends_with('"');
    (strong && etag.len() <= MOST_ETAG).then(|| etag.to_owned())
}

/// Seconds, or a date. A date that is over means now.
fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let value = text(headers, header::RETRY_AFTER)?.trim();
    if let Some(seconds) = number(value) {
        return Some(Duration::from_secs(seconds));
    }
    let at = DateTime::parse_from_rfc2822(value).ok()?.to_utc();
    Some((at - now).to_std().unwrap_or_default())
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).expect("a value of a header");
        let pairs = pairs.iter();
        pairs
            .map(|(name, text)| (name.clone(), value(text)))
            .collect()
    }

    fn told(status: u16, pairs: &[(HeaderName, &'static str)], asked: &Asked) -> Told {
        let headers = headers(pairs);
        let head = Head {
            status: StatusCode::from_u16(status).expect("a status"),
            headers: &headers,
            length: Some(10),
        };
        judge(&head, asked, DateTime::UNIX_EPOCH)
    }

    fn from(byte: u64) -> Asked {
        Asked {
            from: byte,
            total: Some(10),
            etag: Some("\"a\"".to_owned()),
        }
    }

    #[test]
    fn a_whole_file_comes_with_its_size_and_only_with_a_strong_tag() {
        for (tag, kept) in [
            ("\"a\"", Some("\"a\"")),
            ("W/\"a\"", None),
            ("a", None),
            ("\"", None),
        ] {
            let told = told(200, &[(header::ETAG, tag)], &from(5));
            let expected = Told::Whole {
                total: Some(10),
                etag: kept.map(str::to_owned),
            };
            assert_eq!(told, expected, "{tag}");
        }
    }

    #[test]
    fn the_rest_is_taken_only_if_it_is_the_rest_of_this_file() {
        let rest = |range: &'static str, etag: &'static str| {
            told(
                206,
                &[(header::CONTENT_RANGE, range), (header::ETAG, etag)],
                &from(5),
            )
        };
        let good = Told::Rest {
            total: 10,
            etag: Some("\"a\"".to_owned()),
        };
        assert_eq!(rest("bytes 5-9/10", "\"a\""), good);
        assert_eq!(rest("bytes 5-7/10", "W/\"b\""), good, "a shorter part");
        for (range, word) in [
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
            let Told::Astray(why) = rest(range, "\"a\"") else {
                panic!("{range} is taken");
            };
            assert!(why.contains(word), "{range}: {why}");
        }
        let Told::Astray(why) = rest("bytes 5-9/10", "\"b\"") else {
            panic!("another file is taken");
        };
        assert!(why.contains("another than before"), "{why}");
    }

    #[test]
    fn a_range_that_cannot_be_had_means_something_only_to_who_asked_for_one() {
        assert_eq!(told(416, &[], &from(5)), Told::Past);
        assert_eq!(told(416, &[], &Asked::default()), Told::Refused);
    }

    #[test]
    fn another_place_is_named_or_there_is_none() {
        for status in [301, 302, 303, 307, 308] {
            let elsewhere = told(status, &[(header::LOCATION, "/b")], &from(0));
            assert_eq!(elsewhere, Told::Elsewhere("/b".to_owned()), "{status}");
            assert_eq!(told(status, &[], &from(0)), Told::Refused, "{status}");
        }
        assert_eq!(told(304, &[], &from(0)), Told::Refused);
    }

    #[test]
    fn a_server_that_has_too_much_to_do_may_say_until_when() {
        let busy = |status: u16, value: &'static str| {
            let Told::Busy { after } = told(status, &[(header::RETRY_AFTER, value)], &from(0))
            else {
                panic!("{status} is not busy");
            };
            after
        };
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert_eq!(
                busy(status, "90"),
                Some(Duration::from_secs(90)),
                "{status}"
            );
        }
        let date = "Thu, 01 Jan 1970 00:00:07 GMT";
        assert_eq!(busy(503, date), Some(Duration::from_secs(7)));
        let over = "Wed, 31 Dec 1969 23:00:00 GMT";
        assert_eq!(busy(503, over), Some(Duration::ZERO));
        for nonsense in ["", "-1", "+1", "soon", "99999999999999999999999"] {
            assert_eq!(busy(429, nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn what_does_not_pass_by_itself_is_refused() {
        for status in [201, 204, 400, 401, 403, 404, 410, 501, 505] {
            assert_eq!(told(status, &[], &from(0)), Told::Refused, "{status}");
        }
    }
}
