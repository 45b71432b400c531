//! Values of secrets that an operator has in a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use evenkeel_configuration::document::SecretRef;

/// Largest file with secrets.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The values of secrets by the name of the secret and the key.
#[derive(Clone, Default)]
pub struct SecretValues(BTreeMap<String, BTreeMap<String, String>>);

/// Values are never printed.
impl std::fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretValues").field("secrets", &self.0.len()).finish()
    }
}

/// A file with secrets cannot be read. The text has nothing of the content of the file.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the secrets in {}: {reason}", path.display())]
pub struct SecretFileError {
    path: PathBuf,
    reason: String,
}

impl SecretValues {
    /// Reads a file in YAML or JSON: an object for each secret, with a text for each key.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or has another form.
    pub fn load(path: &Path) -> Result<Self, SecretFileError> {
        let error = |reason| SecretFileError { path: path.to_owned(), reason };
        let text = read_bounded(path).map_err(|cause| error(cause.to_string()))?;
        Self::parse(&text).map_err(error)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! { max_anchors: 0, max_aliases: 0, max_documents: 1 },
            with_snippet: false,
        };
        serde_saphyr::from_str_with_options(text, options).map(Self).map_err(|error| {
            let line = error.location().map(|location| format!("line {}: ", location.line()));
            let form = "write an object for each secret, with a text for each key";
            format!("{}{form}", line.unwrap_or_default())
        })
    }

    /// The value of a key. The version of the secret does not matter: a file has one.
    pub fn find(&self, secret: &SecretRef) -> Option<&str> {
        Some(self.0.get(&secret.name)?.get(&secret.key)?)
    }
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let length = File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if u64::try_from(length).is_ok_and(|length| length <= MAX_FILE_BYTES) {
        return Ok(text);
    }
    Err(io::Error::other(format!("it is larger than {} MiB", MAX_FILE_BYTES >> 20)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_secret_and_key() {
        let values = SecretValues::parse("db:\n  password: hunter2\n  port: 5432\n").unwrap();
        let find = |name: &str, key: &str| {
            let (name, key) = (name.to_owned(), key.to_owned());
            values.find(&SecretRef { name, key, version: Some(7) }).map(str::to_owned)
        };
        assert_eq!(find("db", "password").as_deref(), Some("hunter2"));
        assert_eq!(find("db", "port").as_deref(), Some("5432"));
        assert_eq!((find("db", "user"), find("web", "password")), (None, None));
        let json = SecretValues::parse(r#"{"db": {"password": "a\nb"}}"#).unwrap();
        assert_eq!(json.0["db"]["password"], "a\nb");
        assert!(!format!("{values:?}").contains("hunter2"));
    }

    #[test]
    fn an_error_has_no_value() {
        for text in ["db: hunter2", "hunter2", "db: {password: [hunter2]}", "db: {hunter2"] {
            let error = SecretValues::parse(text).unwrap_err();
            assert!(error.contains("an object for each secret"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_too_large_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let load = |path: &Path| SecretValues::load(path).unwrap_err().to_string();
        let missing = load(&folder.path().join("none"));
        assert!(missing.ends_with("none: No such file or directory (os error 2)"), "{missing}");
        let large = folder.path().join("large");
        File::create(&large).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(load(&large).ends_with("it is larger than 4 MiB"), "{}", load(&large));
    }
}
