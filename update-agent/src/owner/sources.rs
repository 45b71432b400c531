//! Checks the sources of an update policy against the owner's limits, and lets apt verify them with
//! the keys of this machine only.

use super::OwnerLimits;
use super::key_block;
use super::source_keys::{SOURCE_KEYS_FOLDER, SourceKey, SourceKeys};

/// A suite of a package source, as the source names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceSuite<'a> {
    /// URI of the repository.
    pub uri: &'a str,
    /// Name of the suite in the source. A Release file may use other names, which do not count.
    pub suite: &'a str,
    /// Whether a file of this machine has the source, and not the update policy.
    pub is_own: bool,
}

impl SourceSuite<'_> {
    /// Whether the suite is in a list of allowed suites; an empty list allows all. An entry `SUITE`
    /// allows sources of this machine only, because an update policy may use any name. An entry
    /// `URI SUITE` allows all sources.
    pub fn is_allowed(&self, suites: &[String]) -> bool {
        let uri = |text: &str| text.trim_end_matches('/').to_owned();
        suites.is_empty()
            || suites.iter().any(|allowed| match allowed.split_once(char::is_whitespace) {
                Some((allowed, suite)) => {
                    uri(allowed) == uri(self.uri) && suite.trim() == self.suite
                }
                None => self.is_own && allowed == self.suite,
            })
    }
}

/// Whether a text is an entry of the allowed suites: `SUITE` or `URI SUITE`.
pub fn is_suite_entry(text: &str) -> bool {
    let mut parts = text.split_whitespace();
    match (parts.next(), parts.next(), parts.next()) {
        (Some(suite), None, _) => suite == text,
        (Some(uri), Some(_), None) => uri.contains(":/") && text.starts_with(uri),
        _ => false,
    }
}

/// Whether a text is the fingerprint of a key or the path of a key file.
pub fn is_key(text: &str) -> bool {
    text.starts_with('/') || fingerprint(text).is_some()
}

/// Checks a DEB822 stanza of an update policy against the limits. Returns the stanza that apt may
/// use. If this machine has its keys, they replace those of the stanza: the server could have
/// added subkeys to a key, which apt would trust.
pub fn resolve_source(
    limits: &OwnerLimits,
    keys: &SourceKeys,
    stanza: &str,
) -> Result<String, String> {
    let source = PolicySource::parse(stanza)?;
    source.check_suites(&limits.suites)?;
    let mut files: Vec<&str> = Vec::new();
    let mut is_complete = true;
    for name in source.key_names()? {
        let known = name.find(keys);
        name.check_limits(limits, &known)?;
        is_complete &= !known.is_empty();
        files.extend(known.iter().map(|key| key.file.as_str()));
    }
    if !is_complete {
        return Ok(stanza.to_owned());
    }
    files.sort_unstable();
    files.dedup();
    Ok(format!("{}Signed-By: {}\n", source.other_lines, files.join(", ")))
}

/// Checks the suites of a DEB822 stanza against the limits.
pub fn check_suites(limits: &OwnerLimits, stanza: &str) -> Result<(), String> {
    PolicySource::parse(stanza)?.check_suites(&limits.suites)
}

/// The fields of a stanza that limits apply to.
#[derive(Debug, Default)]
struct PolicySource<'a> {
    uris: Vec<&'a str>,
    suites: Vec<&'a str>,
    /// The lines of the field `Signed-By`.
    signed_by: Vec<&'a str>,
    /// All lines of the other fields, each with a line end.
    other_lines: String,
}

impl<'a> PolicySource<'a> {
    fn parse(stanza: &'a str) -> Result<Self, String> {
        let mut source = Self::default();
        let mut fields: Vec<String> = Vec::new();
        for line in stanza.lines().filter(|line| !line.starts_with('#')) {
            if line.trim().is_empty() {
                continue;
            }
            let value = if line.starts_with([' ', '\t']) {
                line
            } else {
                let (name, value) = line.split_once(':').unwrap_or((line, ""));
                let name = name.trim().to_ascii_lowercase();
                if fields.contains(&name) {
                    return Err(format!("a source has the field {name} twice"));
                }
                fields.push(name);
                value
            };
            match fields.last().map_or("", String::as_str) {
                "signed-by" => {
                    source.signed_by.push(value);
                    continue;
                }
                "uris" => source.uris.extend(value.split_whitespace()),
                "suites" => source.suites.extend(value.split_whitespace()),
                _ => {}
            }
            source.other_lines.push_str(line);
            source.other_lines.push('\n');
        }
        Ok(source)
    }

    fn check_suites(&self, allowed: &[String]) -> Result<(), String> {
        if allowed.is_empty() {
            return Ok(());
        }
        if self.uris.is_empty() || self.suites.is_empty() {
            return Err("a source has no URI or no suite".to_owned());
        }
        let is_allowed = |suite: &str| {
            let is_allowed_at =
                |uri: &str| SourceSuite { uri, suite, is_own: false }.is_allowed(allowed);
            self.uris.iter().all(|uri| is_allowed_at(uri))
        };
        match self.suites.iter().find(|suite| !is_allowed(suite)) {
            Some(other) => Err(format!(
                "the suite {other} of a source of the update policy is not allowed; an entry \
                 `URI SUITE` of `suites` allows it"
            )),
            None => Ok(()),
        }
    }

    /// The keys that sign the source; at least one.
    fn key_names(&self) -> Result<Vec<KeyName<'a>>, String> {
        if self.signed_by.iter().any(|line| line.contains("-----BEGIN")) {
            let fingerprints = key_block::armored_fingerprints(&self.signed_by.join("\n"))
                .map_err(|why| format!("the key inside a source cannot be read: {why}"))?;
            return Ok(fingerprints.into_iter().map(KeyName::Inline).collect());
        }
        let names = self.signed_by.iter().flat_map(|line| line.split([' ', '\t', '\r', ',']));
        let names: Vec<_> = names
            .filter(|name| !name.is_empty())
            .map(|name| match fingerprint(name) {
                Some(fingerprint) => KeyName::Fingerprint(fingerprint),
                None => KeyName::File(name),
            })
            .collect();
        if names.is_empty() {
            return Err("a source does not name the key that signs it".to_owned());
        }
        Ok(names)
    }
}

/// How a source names a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyName<'a> {
    /// Fingerprint of a key inside the source.
    Inline(String),
    /// Fingerprint of a key of the machine.
    Fingerprint(String),
    /// Path of a file of the machine.
    File(&'a str),
}

impl KeyName<'_> {
    fn text(&self) -> &str {
        match self {
            Self::Inline(text) | Self::Fingerprint(text) => text,
            Self::File(text) => text,
        }
    }

    /// The trusted keys of this machine with this name.
    fn find<'k>(&self, keys: &'k SourceKeys) -> Vec<&'k SourceKey> {
        match self {
            Self::Inline(fingerprint) | Self::Fingerprint(fingerprint) => {
                keys.with_fingerprint(fingerprint).into_iter().collect()
            }
            Self::File(file) => keys.in_file(file),
        }
    }

    /// Checks the key against the limits; `known` are the trusted keys of this machine.
    fn check_limits(&self, limits: &OwnerLimits, known: &[&SourceKey]) -> Result<(), String> {
        if known.is_empty() && !limits.server_keys {
            return Err(self.describe_missing());
        }
        if limits.keys.is_empty() {
            return Ok(());
        }
        let is_listed = |key: &str| limits.keys.iter().any(|allowed| is_same_key(allowed, key));
        // A key from the server may have any subkeys, whatever its fingerprint is.
        let is_allowed = match (self, known) {
            (Self::Inline(_), []) => false,
            (_, []) => is_listed(self.text()),
            (_, known) => {
                known.iter().all(|key| is_listed(&key.file) || is_listed(&key.fingerprint))
            }
        };
        if is_allowed {
            return Ok(());
        }
        Err(format!("the key {} is not one of the `keys` in the limits", self.text()))
    }

    fn describe_missing(&self) -> String {
        let what = match self {
            Self::Inline(fingerprint) | Self::Fingerprint(fingerprint) => {
                format!("the key {fingerprint}")
            }
            Self::File(file) => format!("the key file {file}"),
        };
        format!(
            "a source of the update policy is signed by {what}, which is not in \
             {SOURCE_KEYS_FOLDER} on this machine; to trust it, put the public key there as a file \
             with the ending .asc, or set `server_keys = true` in {}",
            super::LIMITS_FILE
        )
    }
}

fn is_same_key(allowed: &str, key: &str) -> bool {
    match (fingerprint(allowed), fingerprint(key)) {
        (Some(allowed), Some(key)) => allowed == key,
        (None, None) => allowed == key,
        _ => false,
    }
}

/// Normalises a fingerprint: no blanks, upper case. The suffix `!`, which excludes subkeys, only
/// narrows it.
fn fingerprint(text: &str) -> Option<String> {
    let text = text.strip_suffix('!').unwrap_or(text);
    let digits: String = text.split_whitespace().collect();
    let is_one = matches!(digits.len(), 40 | 64) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_one.then(|| digits.to_ascii_uppercase())
}

#[cfg(test)]
mod tests;
