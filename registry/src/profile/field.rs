//! Single values of a profile.

use std::collections::BTreeMap;

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

/// Whether it is an https address with a host and without a user.
fn is_address(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://") else {
        return false;
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let in_host = |b: u8| b.is_ascii_alphanumeric() || b".-:[]".contains(&b);
    host.bytes().all(in_host)
        && host.bytes().any(|b| b.is_ascii_alphanumeric())
        && path.bytes().all(|b| b.is_ascii_graphic() && b != b'\\')
        && path.split(['/', '?', '#']).all(|part| part != "..")
        && !hides_something(path)
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
    path.split('%').skip(1).any(|rest| {
        let digits = rest.get(..2).unwrap_or_default();
        match u8::from_str_radix(digits, 16) {
            Ok(byte) => byte.is_ascii_control() || b"/\\.%".contains(&byte),
            Err(_) => true,
        }
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
            "files-edge-orch/repository/microvisor/non_rt/edge-3.0.raw.gz",
            "a%2bb",
        ] {
            assert!(is_address(good) || is_path(good), "{good}");
        }
        for bad in [
            "http://files.example/x",
            "https://",
            "https:///x",
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
