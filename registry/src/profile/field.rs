//! Values in the `spec` of a profile.

use std::collections::BTreeMap;

use url::Url;

use crate::finding::{Finding, FindingKind};

/// Longest URL, in bytes. URLs are used as index keys.
const MAX_URL_BYTES: usize = 500;

/// The text values in `spec`.
pub(super) struct SpecFields<'a>(pub &'a BTreeMap<&'static str, String>);

impl SpecFields<'_> {
    /// Text of a value; empty if it is missing.
    pub fn text(&self, key: &'static str) -> String {
        self.0.get(key).cloned().unwrap_or_default()
    }

    /// Text of a required value.
    pub fn required(&self, key: &'static str) -> Result<String, Finding> {
        match self.text(key) {
            text if text.is_empty() => Err(bad_field(key, "a value is required")),
            text => Ok(text),
        }
    }

    /// The value that belongs to a name.
    pub fn one_of<T: Copy>(&self, key: &'static str, choices: &[(&str, T)]) -> Result<T, Finding> {
        let text = self.required(key)?;
        let choice = choices.iter().find(|(name, _)| *name == text);
        choice.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            bad_field(key, format!("{text:?} is not one of {}", names.join(", ")))
        })
    }

    /// URL of a file, or a path relative to the files of the registry; empty if it is missing.
    pub fn url(&self, key: &'static str) -> Result<String, Finding> {
        let url = self.text(key);
        if url.len() > MAX_URL_BYTES {
            return Err(bad_field(key, format!("longer than {MAX_URL_BYTES} bytes")));
        }
        if url.is_empty() || is_https_url(&url) || is_relative_path(&url) {
            return Ok(url);
        }
        let why = "must be an https URL, or a relative path without `..`";
        Err(bad_field(key, why))
    }
}

fn bad_field(key: &str, why: impl AsRef<str>) -> Finding {
    Finding::about(FindingKind::BadField, format!("spec.{key}"), why)
}

/// Whether a text is an https URL with a host and without a user. Encoded slashes are allowed after
/// the path only, because they have no effect there.
fn is_https_url(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://") else {
        return false;
    };
    let (host, rest) = split_before(rest, &['/', '?', '#']);
    let (path, more) = split_before(rest, &['?', '#']);
    let in_host = |b: u8| b.is_ascii_alphanumeric() || b".-:[]".contains(&b);
    let is_plain = |byte: Option<u8>| byte.is_some_and(|byte| !byte.is_ascii_control());
    !host.is_empty()
        && host.bytes().all(in_host)
        && rest.bytes().all(|b| b.is_ascii_graphic() && b != b'\\')
        && path.split('/').all(|part| part != "..")
        && !has_unsafe_escape(path)
        && percent_escapes(more).all(is_plain)
        // Leave the syntax of host and port to the parser.
        && Url::parse(url).is_ok_and(|url| url.has_host())
}

/// Splits a text before the first of some characters.
fn split_before<'a>(text: &'a str, marks: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(marks).unwrap_or(text.len()))
}

/// Whether a text is a relative path of plain names, which cannot leave its base.
fn is_relative_path(url: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b"-_.~+@=,%!()&;".contains(&b);
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(inside);
    url.split('/').all(is_name) && !has_unsafe_escape(url)
}

/// Whether a text has a percent-encoded character with a meaning in paths: a slash, a backslash, a
/// dot, a percent sign or a control character. Invalid escapes count too.
fn has_unsafe_escape(path: &str) -> bool {
    let means_something = |byte: u8| byte.is_ascii_control() || b"/\\.%".contains(&byte);
    percent_escapes(path).any(|byte| byte.is_none_or(means_something))
}

/// The percent-encoded bytes; `None` for an invalid escape.
fn percent_escapes(text: &str) -> impl Iterator<Item = Option<u8>> {
    text.split('%').skip(1).map(|rest| {
        let digits = rest.get(..2)?;
        u8::from_str_radix(digits, 16).ok()
    })
}

/// Path in the profile of a field of an OS resource.
pub(super) fn yaml_path(field: &str) -> String {
    let key = match field {
        "metadata" => return "metadata".to_owned(),
        "imageId" => "osImageVersion",
        "imageUrl" => "osImageUrl",
        "existingCvesUrl" => "osExistingCvesURL",
        "fixedCvesUrl" => "osFixedCvesURL",
        "tlsCaCert" => "tlsCaCertificate",
        other => other,
    };
    format!("spec.{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_url_is_https_or_a_relative_path() {
        for good in [
            "https://cloud-images.ubuntu.com/releases/22.04/release-20250228/x.img",
            "https://files.example:8443/a%20b?version=1",
            "https://files.example",
            "https://files.example/",
            "https://files.example?version=1",
            "https://files.example#a",
            "https://files.example:8443?version=1",
            "https://[::1]:8443/x",
            "https://files.example/x?next=%2Fa%2F..%2Fb&of=100%25",
            "https://files.example/x#%2Fa",
            "files-edge-orch/repository/microvisor/non_rt/edge-3.0.raw.gz",
            "a%2bb",
        ] {
            assert!(is_https_url(good) || is_relative_path(good), "{good}");
        }
        for bad in [
            "http://files.example/x",
            "https://",
            "https:///x",
            "https://:8443/x",
            "https://:8443",
            "https://?x",
            "https://#x",
            "https://files.example:port/x",
            "https://files.example:99999/x",
            "https://[::1/x",
            "https://files.example?a b",
            "https://files.example/x?a=%00",
            "https://files.example/x?a=%0a",
            "https://files.example/x?a=%",
            "https://files.example/x?a=\\",
            "https://files.example/a%2Fb?x",
            "https://user@files.example?x",
            "https://user:word@files.example/x",
            "https://files.example/../x",
            "https://files.example/a\\b",
            "https://files.example/a b",
            "https://files.example/%2e%2E/x",
            "file:///etc/passwd",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "a/./b",
            "a\\b",
            "a%2fb",
            "a%2Fb",
            "a%5cb",
            "a%00b",
            "a%252fb",
            "a%",
            "a%zz",
            "a/",
            "é",
            "ftp:x",
            "a?b",
            "a#b",
            "%é2",
        ] {
            assert!(!is_https_url(bad) && !is_relative_path(bad), "{bad}");
        }
    }
}
