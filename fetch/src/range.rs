//! Requests for (the rest of) a file, and what a response to one contains. Pure. By RFC 9110:
//! `If-Range` 13.1.5, strong entity tags 8.8.3, `Content-Range` 14.4, status 206 15.3.7.

use http::header::{CONTENT_RANGE, ETAG, HeaderName, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, StatusCode};

/// Longer entity tags are not stored.
const MAX_ETAG_BYTES: usize = 256;

/// The requested part of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeRequest {
    /// Offset of the first byte; 0 for the whole file.
    pub from: u64,
    /// Size of the whole file, if a response must agree with it.
    pub total: Option<u64>,
    /// Strong entity tag of the file of which a part is stored.
    pub etag: Option<String>,
}

/// Content of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeResponse {
    /// The whole file follows from its first byte.
    WholeFile {
        /// Size of the file, if announced.
        total: Option<u64>,
        /// Entity tag, if it is strong.
        etag: Option<String>,
    },
    /// The requested rest follows.
    RestOfFile {
        /// Size of the whole file, if announced.
        total: Option<u64>,
        /// Entity tag, if it is strong.
        etag: Option<String>,
    },
    /// The part was not requested or belongs to another file, so that the download cannot continue
    /// with it.
    WrongPart(String),
    /// The file ends before the requested byte.
    NotSatisfiable,
}

impl RangeRequest {
    /// Adds the headers that request this part.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        if self.from == 0 {
            return;
        }
        let mut add = |name: HeaderName, value: &str| {
            // Digits are a valid value; a tag that is none cannot match anyway.
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        add(RANGE, &format!("bytes={}-", self.from));
        if let Some(etag) = &self.etag {
            add(IF_RANGE, etag);
        }
    }

    /// Content of a response to this request; `None` if its status announces none. `length` is the
    /// length of the body, if it is announced.
    pub fn classify(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        length: Option<u64>,
    ) -> Option<RangeResponse> {
        match status {
            StatusCode::OK => {
                Some(RangeResponse::WholeFile { total: length, etag: strong_etag(headers) })
            }
            StatusCode::PARTIAL_CONTENT => {
                Some(self.classify_part(headers).unwrap_or_else(RangeResponse::WrongPart))
            }
            // Without a range in the request this status makes no sense.
            StatusCode::RANGE_NOT_SATISFIABLE if self.from > 0 => {
                Some(RangeResponse::NotSatisfiable)
            }
            _ => None,
        }
    }

    /// A part must begin at the requested byte, of a file of the same size, with the same tag if
    /// both have one. Fails with the reason if it does not.
    fn classify_part(&self, headers: &HeaderMap) -> Result<RangeResponse, String> {
        let range = header_text(headers, CONTENT_RANGE).unwrap_or_default();
        let (from, total) = parse_content_range(range)
            // The size cannot be compared.
            .filter(|(_, total)| total.is_some() || self.total.is_none())
            .ok_or_else(|| {
                format!("the server sends a part of the file and does not say which: {range:?}")
            })?;
        if from != self.from {
            return Err(format!(
                "the server sends the file from byte {from} but was asked for byte {}",
                self.from
            ));
        }
        let etag = strong_etag(headers);
        self.check_same_file(total, etag.as_deref())?;
        Ok(RangeResponse::RestOfFile { total, etag: etag.or_else(|| self.etag.clone()) })
    }

    /// Compares the size and the strong entity tag of a response with the stored ones, if both are
    /// known. Fails with the reason if the response is of another file.
    pub fn check_same_file(&self, total: Option<u64>, etag: Option<&str>) -> Result<(), String> {
        let what = if is_different(self.total, total) {
            "size"
        } else if is_different(self.etag.as_deref(), etag) {
            "entity tag"
        } else {
            return Ok(());
        };
        Err(format!("the file at the server has another {what} than before"))
    }
}

fn is_different<T: PartialEq>(before: Option<T>, now: Option<T>) -> bool {
    matches!((before, now), (Some(before), Some(now)) if before != now)
}

/// Parses `bytes FIRST-LAST/SIZE` into the first byte and the size, which may be `*`.
fn parse_content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (parse_number(first)?, parse_number(last)?);
    let total = if total == "*" { None } else { Some(parse_number(total)?) };
    (first <= last && total.is_none_or(|total| last < total)).then_some((first, total))
}

/// Accepts digits only: [`str::parse`] accepts a sign.
fn parse_number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// A weak tag may stay the same while bytes change, so it cannot be used for `If-Range`.
fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = header_text(headers, ETAG)?;
    let strong = etag.len() >= 2 && etag.starts_with('"') && etag.ends_with('"');
    (strong && etag.len() <= MAX_ETAG_BYTES).then(|| etag.to_owned())
}

fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classify(
        status: u16,
        pairs: &[(HeaderName, &'static str)],
        requested: &RangeRequest,
    ) -> Option<RangeResponse> {
        let pairs = pairs.iter();
        let headers = pairs
            .map(|(name, text)| (name.clone(), HeaderValue::from_str(text).expect("a value")))
            .collect();
        requested.classify(StatusCode::from_u16(status).expect("a status"), &headers, Some(10))
    }

    fn request_from(byte: u64) -> RangeRequest {
        RangeRequest { from: byte, total: Some(10), etag: Some("\"a\"".to_owned()) }
    }

    #[test]
    fn a_range_is_requested_only_for_a_rest() {
        let headers = |requested: &RangeRequest| {
            let mut headers = HeaderMap::new();
            requested.add_headers(&mut headers);
            let text = |name| header_text(&headers, name).map(str::to_owned);
            (text(RANGE), text(IF_RANGE))
        };
        assert_eq!(headers(&request_from(0)), (None, None));
        let (range, tag) = (Some("bytes=5-".to_owned()), Some("\"a\"".to_owned()));
        assert_eq!(headers(&request_from(5)), (range.clone(), tag));
        assert_eq!(headers(&RangeRequest { etag: None, ..request_from(5) }), (range, None));
    }

    #[test]
    fn a_whole_file_has_its_size_and_only_a_strong_etag() {
        for (tag, stored) in
            [("\"a\"", Some("\"a\"")), ("W/\"a\"", None), ("a", None), ("\"", None)]
        {
            let response = classify(200, &[(ETAG, tag)], &request_from(5));
            let expected =
                RangeResponse::WholeFile { total: Some(10), etag: stored.map(str::to_owned) };
            assert_eq!(response, Some(expected), "{tag}");
        }
    }

    #[test]
    fn a_part_is_accepted_only_if_it_is_the_rest_of_this_file() {
        let rest = |range: &'static str, etag: &'static str| {
            classify(206, &[(CONTENT_RANGE, range), (ETAG, etag)], &request_from(5))
        };
        let good = RangeResponse::RestOfFile { total: Some(10), etag: Some("\"a\"".to_owned()) };
        assert_eq!(rest("bytes 5-9/10", "\"a\""), Some(good.clone()));
        assert_eq!(rest("bytes 5-7/10", "W/\"b\""), Some(good), "a shorter part");
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
            let Some(RangeResponse::WrongPart(why)) = rest(range, "\"a\"") else {
                panic!("{range} is accepted");
            };
            assert!(why.contains(expected), "{range}: {why}");
        }
        let Some(RangeResponse::WrongPart(why)) = rest("bytes 5-9/10", "\"b\"") else {
            panic!("another file is accepted");
        };
        assert!(why.contains("another entity tag"), "{why}");
    }

    #[test]
    fn a_file_with_another_size_or_entity_tag_is_another_file() {
        let (size, etag) = (Some(10), Some("\"a\""));
        for (total, tag, expected) in [
            (size, etag, None),
            (size, None, None),
            (None, etag, None),
            (None, None, None),
            (Some(11), etag, Some("another size")),
            (Some(11), None, Some("another size")),
            (size, Some("\"b\""), Some("another entity tag")),
            (None, Some("\"b\""), Some("another entity tag")),
        ] {
            let why = request_from(5).check_same_file(total, tag).err();
            let is_expected = match (&why, expected) {
                (Some(why), Some(expected)) => why.contains(expected),
                (why, expected) => why.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{total:?} {tag:?}: {why:?}");
            assert_eq!(RangeRequest::default().check_same_file(total, tag), Ok(()));
        }
    }

    #[test]
    fn a_size_is_optional_if_none_is_known() {
        let requested = RangeRequest { from: 5, ..RangeRequest::default() };
        for (range, total) in [("bytes 5-9/*", None), ("bytes 5-9/11", Some(11))] {
            let response = classify(206, &[(CONTENT_RANGE, range)], &requested);
            assert_eq!(response, Some(RangeResponse::RestOfFile { total, etag: None }));
        }
    }

    #[test]
    fn status_416_is_meaningful_only_for_a_range_request() {
        assert_eq!(classify(416, &[], &request_from(5)), Some(RangeResponse::NotSatisfiable));
        assert_eq!(classify(416, &[], &RangeRequest::default()), None);
    }

    #[test]
    fn other_statuses_have_no_content_of_the_file() {
        for status in [201, 204, 304, 404, 500] {
            assert_eq!(classify(status, &[], &request_from(0)), None, "{status}");
        }
    }
}
