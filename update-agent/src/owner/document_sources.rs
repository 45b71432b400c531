//! Package sources of configuration documents: the limits of sources of update policies apply.

use evenkeel_configuration::document::PackageSourceState;
use evenkeel_domain::package_source;

use super::{Owner, sources};
use crate::model::{PackageMode, PackageSpec};

/// Stands for the keys that apt trusts for sources without `Signed-By`.
const TRUSTED_KEYS: &str = "/etc/apt/trusted.gpg.d";

impl Owner {
    /// Checks a source of a document: it must disable no check of apt, and the owner must allow it.
    /// apt verifies a source without a key with the keys that the machine trusts already. The error
    /// says why the source is refused.
    pub fn check_document_source(&self, source: &PackageSourceState) -> Result<(), String> {
        let stanza = match &source.key {
            Some(key) => with_inline_key(&source.source, key),
            None => format!("{}\nSigned-By: {TRUSTED_KEYS}", source.source.trim_end()),
        };
        package_source::check(&stanza)?;
        if source.key.is_none() {
            let limits = self.limits().map_err(|error| error.to_string())?;
            if !limits.new_sources {
                return Err("the machine's owner does not allow new package sources".to_owned());
            }
            return sources::check_suites(&limits, &source.source)
                .map_err(|why| format!("the machine's owner does not allow this: {why}"));
        }
        let spec = PackageSpec { sources: vec![stanza], ..PackageSpec::new(PackageMode::Latest) };
        self.check_spec(&spec).map_err(|failure| failure.reason)
    }
}

/// A paragraph of deb822 with the key that signs it.
fn with_inline_key(source: &str, key: &str) -> String {
    let lines = key.trim().lines().map(|line| match line.trim_end() {
        "" => " .\n".to_owned(),
        line => format!(" {line}\n"),
    });
    let lines: String = lines.collect();
    format!("{}\nSigned-By:\n{lines}", source.trim_end())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use evenkeel_kit::SystemClock;

    use super::*;
    use crate::owner::key_block::testing::armored_key;
    use crate::paths::AgentPaths;

    const SOURCE: &str = "Types: deb\nURIs: https://deb.example/own\nSuites: own\nComponents: main";

    #[test]
    fn a_source_needs_a_key_of_the_machine_and_an_allowed_suite() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("etc/evenkeel");
        fs::create_dir_all(folder.join("keys.d")).unwrap();
        for folder in [&folder, &folder.join("keys.d")] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let owner = Owner::new(AgentPaths::new(root.path(), None), Arc::new(SystemClock));
        let (key, _) = armored_key(1);
        let signed = PackageSourceState { source: SOURCE.to_owned(), key: Some(key.clone()) };
        let unsigned = PackageSourceState { key: None, ..signed.clone() };
        let check = |limits: &str| {
            fs::write(folder.join("limits.toml"), limits).unwrap();
            [&signed, &unsigned].map(|source| owner.check_document_source(source).is_ok())
        };
        assert_eq!(check(""), [false, true]);
        assert_eq!(check("server_keys = true"), [true, true]);
        fs::write(folder.join("keys.d/own.asc"), key).unwrap();
        assert_eq!(check(""), [true, true]);
        assert_eq!(check("suites = [\"https://deb.example/own own\"]"), [true, true]);
        assert_eq!(check("suites = [\"bookworm\"]"), [false, false]);
        assert_eq!(check("new_sources = false"), [false, false]);
        check("");
        for field in ["Trusted: yes", "Allow-Insecure: yes"] {
            let source = PackageSourceState { source: format!("{SOURCE}\n{field}"), key: None };
            let refused = owner.check_document_source(&source).unwrap_err();
            assert!(refused.contains("is not allowed"), "{refused}");
        }
        assert_eq!(check("new_source = false"), [false, false]);
    }
}
