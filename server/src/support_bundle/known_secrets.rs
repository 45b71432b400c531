//! The secrets of this server. No part of the archive is meant to contain one; as a second
//! protection, each occurrence in any part is replaced.

use std::fs;
use std::path::Path;

use crate::check::secret_files;
use crate::config::Config;

/// Shorter lines of a file are not replaced: they would occur in other texts by chance.
const MIN_SECRET_LENGTH: usize = 4;

/// Files of secrets are short; a longer one is not read to its end.
const MAX_FILE_BYTES: usize = 64 << 10;

/// The texts to replace, longest first.
pub(super) struct KnownSecrets(Vec<String>);

impl KnownSecrets {
    /// Reads the secrets in the settings and in the files that they name.
    pub(super) fn read(config: &Config, data_dir: &Path) -> Self {
        let mut secrets = Vec::new();
        let proxies = config.os_resource_manager.registries.values();
        let proxies = proxies.filter_map(|registry| registry.proxy.as_ref());
        for url in config.database.url.iter().chain(proxies) {
            secrets.extend(url_secrets(url.reveal()));
        }
        for (_, path) in secret_files(config, data_dir) {
            let content = fs::read(path).unwrap_or_default();
            let content = &content[..content.len().min(MAX_FILE_BYTES)];
            let text = String::from_utf8_lossy(content).into_owned();
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

/// A URL with a password, and the password alone.
fn url_secrets(url: &str) -> Vec<String> {
    let user = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    let password = user.and_then(|(user, _)| user.split_once(':'));
    match password {
        Some((_, password)) => vec![url.to_owned(), password.to_owned()],
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_a_url_is_a_secret() {
        let url = "postgres://u:hush@db/x";
        assert_eq!(url_secrets(url), [url, "hush"]);
        assert!(url_secrets("postgres://u@db/x").is_empty());
        assert!(url_secrets("none").is_empty());
    }

    #[test]
    fn each_occurrence_is_replaced() {
        let secrets = KnownSecrets(vec!["long hush".to_owned(), "hush".to_owned()]);
        let text = secrets.remove_from("a long hush and hush".to_owned());
        assert_eq!(text, "a [secret] and [secret]");
    }
}
