//! The secrets of this server. No part of the archive is meant to contain one; as a second
//! protection, each occurrence in any part is replaced.

use std::fs;
use std::path::Path;

use crate::check::secret_files;
use crate::config::Config;

/// Shorter lines of a file are not replaced: they would occur in other texts by chance.
const MIN_SECRET_LENGTH: usize = 4;

/// Files of secrets are short; the end of a longer one is not replaced.
const MAX_FILE_BYTES: usize = 64 << 10;

/// The texts to replace, longest first.
pub(super) struct KnownSecrets(Vec<String>);

impl KnownSecrets {
    /// Reads the secrets in the settings and in the files that they name.
    pub(super) fn read(config: &Config, data_dir: &Path) -> Self {
        let mut secrets = Vec::new();
        let proxies = config.os_resource_manager.registries.values();
        let proxies = proxies.filter_map(|registry| registry.proxy.as_ref());
        let database = &config.database;
        let urls = database.url.iter().chain(&database.migration_url);
        for url in urls.chain(proxies) {
            secrets.extend(url_secrets(url.reveal()));
        }
        for (setting, path) in secret_files(config, data_dir) {
            let content = fs::read(path).unwrap_or_default();
            let content = &content[..content.len().min(MAX_FILE_BYTES)];
            let text = String::from_utf8_lossy(content).into_owned();
            if setting == "tracing.headers_file" {
                secrets.extend(text.lines().flat_map(header_secrets));
            }
            let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("-----"));
            secrets.extend(lines.map(str::to_owned));
        }
        secrets.retain(|secret| secret.len() >= MIN_SECRET_LENGTH);
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self(secrets)
    }

    /// Replaces each secret.
    pub(super) fn remove_from(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| {
            if text.contains(secret.as_str()) { text.replace(secret, "[secret]") } else { text }
        })
    }
}

/// The value of a header, and the value without its scheme, such as `Bearer`.
fn header_secrets(line: &str) -> Vec<String> {
    let value = line.split_once(':').map(|(_, value)| value.trim());
    let token = value.and_then(|value| value.split_once(' ')).map(|(_, token)| token.trim());
    value.into_iter().chain(token).map(str::to_owned).collect()
}

/// A URL with a password, and the password alone, as the URL contains it and decoded. Postgres also
/// takes it as the parameter `password`.
fn url_secrets(url: &str) -> Vec<String> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let user = base.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    let of_user = user.and_then(|(user, _)| user.split_once(':')).map(|(_, password)| password);
    let parameters = query.split('&').filter_map(|pair| pair.strip_prefix("password="));
    let mut secrets = Vec::new();
    for password in of_user.into_iter().chain(parameters) {
        secrets.push(password.to_owned());
        if password.contains('%') {
            secrets.push(decode_percent(password));
        }
    }
    if !secrets.is_empty() {
        secrets.push(url.to_owned());
    }
    secrets
}

/// Replaces each `%` with two hexadecimal digits by its byte.
fn decode_percent(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = if *first == b'%' { tail.get(..2) } else { None };
        let digits = digits.and_then(|digits| str::from_utf8(digits).ok());
        let decoded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_a_header_is_a_secret() {
        assert_eq!(header_secrets("Authorization: Bearer hush"), ["Bearer hush", "hush"]);
        assert_eq!(header_secrets("x-key:hush"), ["hush"]);
    }

    #[test]
    fn the_password_of_a_url_is_a_secret() {
        let url = "postgres://u:hush@db/x";
        assert_eq!(url_secrets(url), ["hush", url]);
        let url = "postgres://u@db/x?sslmode=require&password=hush";
        assert_eq!(url_secrets(url), ["hush", url]);
        let url = "postgres://u:h%40sh%@db/x?a=b@c";
        assert_eq!(url_secrets(url), ["h%40sh%", "h@sh%", url]);
        for url in ["postgres://u@db/x", "postgres://db/x?a=u:b@c", "none", ""] {
            assert!(url_secrets(url).is_empty(), "{url}");
        }
    }

    #[test]
    fn each_occurrence_is_replaced() {
        let secrets = KnownSecrets(vec!["long hush".to_owned(), "hush".to_owned()]);
        let text = secrets.remove_from("a long hush and hush".to_owned());
        assert_eq!(text, "a [secret] and [secret]");
    }
}
