//! Single values of a profile.

use std::collections::BTreeMap;

use url::Url;

use crate::finding::{Finding, FindingKind};

/// The longest address, in bytes: it is looked up by.
const MAX_ADDRESS: usize = 500;

/// The values below `spec`.
pub(super) struct Fields<'a>(pub &'a BTreeMap<&'static str, String>);

impl Fields<'_> {
    /// The text of a value; empty if it is not there.
    pub fn text(&self, key: &'static str) -> String {
        self.0.get(key).cloned().unwrap_or_default()
    }

    /// The text of a value that must be there.
    pub fn given(&self, key: &'static str) -> Result<String, Finding> {
        match self.text(key) {
            text if text.is_empty() => Err(bad(key, "must be given")),
            text => Ok(text),
        }
    }

    /// The value that a word stands for.
    pub fn one_of<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Result<T, Finding> {
        let given = self.given(key)?;
        let found = words.iter().find(|(word, _)| *word == given);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            bad(key, format!("{given:?} is none of {}", known.join(", ")))
        })
    }

    /// Where a file lies: an address, or a path below the place where the registry has its files; empty if it is not
    /// said.
    pub fn url(&self, key: &'static str) -> Result<String, Finding> {
        let url = self.text(key);
        if url.len() > MAX_ADDRESS {
            return Err(bad(key, format!("longer than {MAX_ADDRESS} bytes")));
        }
        if url.is_empty() || is_address(&url) || is_path(&url) {
            return Ok(url);
        }
        let why = "must be an https address, or a path that stays where it begins";
        Err(bad(key, why))
    }
}

fn bad(key: &str, why: impl AsRef<str>) -> Finding {
    Finding::about(FindingKind::BadField, format!("spec.{key}"), why)
}

/// Whether it is an https address with a host and without a user. What stands behind its path leads nowhere, so slashes
/// may be hidden there.
fn is_address(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://") else {
        return false;
    };
    let (host, rest) = before(rest, &['/', '?', '#']);
    let (path, more) = before(rest, &['?', '#']);
    let in_host = |b: u8| b.is_ascii_alphanumeric() || b".-:[]".contains(&b);
    let is_plain = |byte: Option<u8>| byte.is_some_and(|byte| !byte.is_ascii_control());
    !host.is_empty()
        && host.bytes().all(in_host)
        && rest.bytes().all(|b| b.is_ascii_graphic() && b != b'\\')
        && path.split('/').all(|part| part != "..")
        && !hides_something(path)
        && escaped(more).all(is_plain)
        // It knows what a host and a port are.
        && Url::parse(url).is_ok_and(|url| url.has_host())
}

/// What stands before the first of some marks, and the rest with the mark.
fn before<'a>(text: &'a str, marks: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(marks).unwrap_or(text.len()))
}

/// Whether it is a relative path that does not lead out: each part is a name.
fn is_path(url: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b"-_.~+@=,%!()&;".contains(&b);
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(inside);
    url.split('/').all(is_name) && !hides_something(url)
}

/// Whether a percent sign stands for something that has a meaning in a path: a slash, a backslash, a dot, another
/// percent sign or a character of control.
fn hides_something(path: &str) -> bool {
    let means_something = |byte: u8| byte.is_ascii_control() || b"/\\.%".contains(&byte);
    escaped(path).any(|byte| byte.is_none_or(means_something))
}

/// What each percent sign stands for; None where no two digits follow it.
fn escaped(text: &str) -> impl Iterator<Item = Option<u8>> {
    text.split('%').skip(1).map(|rest| {
        let digits = rest.get(..2)?;
        u8::from_str_radix(digits, 16).ok()
    })
}

/// Where in the profile a value stands that has another name in an OS resource.
pub(super) fn path(field: &str) -> String {
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
    fn a_file_lies_at_an_https_address_or_below_the_files() {
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
            assert!(is_address(good) || is_path(good), "{good}");
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
            assert!(!is_address(bad) && !is_path(bad), "{bad}");
        }
    }
}
