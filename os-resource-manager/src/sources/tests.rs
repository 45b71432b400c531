use std::path::PathBuf;

use evenkeel_registry::SigningKey;

use super::*;

fn of(settings: RegistrySettings) -> BTreeMap<String, RegistrySettings> {
    BTreeMap::from([("release".to_owned(), settings)])
}

fn refused(settings: RegistrySettings) -> BadSettings {
    Sources::open(&of(settings)).expect_err("it cannot be kept")
}

fn usual() -> RegistrySettings {
    RegistrySettings::at("https://registry.example")
}

/// A folder with files in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn with(&self, name: &str, text: &str) -> PathBuf {
        let file = self.0.path().join(name);
        std::fs::write(&file, text).expect("a file");
        file
    }
}

#[test]
fn a_registry_is_found_by_its_name_alone() {
    let sources = Sources::open(&of(usual())).expect("good settings");
    assert_eq!(sources.names().collect::<Vec<_>>(), ["release"]);
    assert_eq!(
        sources.find("release").expect("it is known").name,
        "release"
    );
    assert!(sources.find("other").is_none());
    assert!(sources.refresh("other").is_none());
}

#[test]
fn what_cannot_be_kept_is_named() {
    let folder = Folder::new();
    let file = Some(folder.with("password", "hush"));
    let missing = Some(folder.0.path().join("nothing"));
    let text = |text: &str| Some(text.to_owned());
    let mut bad: Vec<(&str, RegistrySettings)> = Vec::new();
    for address in ["registry.example", "http://registry.example"] {
        bad.push(("address", RegistrySettings::at(address)));
    }
    for url in [
        "ftp://files.example",
        "http://files.example",
        "https://a:b@files.example",
    ] {
        let files_url = text(url);
        bad.push((
            "files_url",
            RegistrySettings {
                files_url,
                ..usual()
            },
        ));
    }
    let prefix = "Release/".to_owned();
    bad.push(("prefix", RegistrySettings { prefix, ..usual() }));
    let username = text("somebody");
    bad.push((
        "password_file",
        RegistrySettings {
            username,
            ..usual()
        },
    ));
    let password_file = file.clone();
    bad.push((
        "username",
        RegistrySettings {
            password_file,
            ..usual()
        },
    ));
    let token_file = missing.clone();
    bad.push((
        "token_file",
        RegistrySettings {
            token_file,
            ..usual()
        },
    ));
    bad.push((
        "ca",
        RegistrySettings {
            ca: missing,
            ..usual()
        },
    ));
    let keys = file.into_iter().collect();
    bad.push(("keys", RegistrySettings { keys, ..usual() }));
    let trust = Trust::Require;
    bad.push(("trust", RegistrySettings { trust, ..usual() }));
    for (key, settings) in bad {
        assert_eq!(refused(settings).key, format!("registries.release.{key}"));
    }
    let named = BTreeMap::from([("a b".to_owned(), usual())]);
    assert!(Sources::open(&named).is_err());
}

#[test]
fn no_secret_is_shown() {
    let folder = Folder::new();
    let settings = RegistrySettings {
        username: Some("somebody".to_owned()),
        password_file: Some(folder.with("password", "open sesame\n")),
        proxy: Some("http://me:sesame@proxy.example".to_owned().into()),
        ..usual()
    };
    let sources = Sources::open(&of(settings.clone())).expect("good settings");
    for shown in [format!("{settings:?}"), format!("{sources:?}")] {
        assert!(!shown.contains("sesame"), "{shown}");
    }
    let bad = RegistrySettings {
        proxy: Some("sesame".to_owned().into()),
        ..usual()
    };
    let error = refused(bad);
    assert_eq!(error.key, "registries.release.proxy");
    assert!(!error.to_string().contains("sesame"), "{error}");
}

#[test]
fn secrets_are_read_anew_and_what_did_not_change_stays() {
    let folder = Folder::new();
    let settings = RegistrySettings {
        token_file: Some(folder.with("token", "one")),
        ..usual()
    };
    let sources = Sources::open(&of(settings)).expect("good settings");
    let first = sources.find("release").expect("it is known");
    let same = sources.refresh("release").expect("it is known");
    assert!(Arc::ptr_eq(&first, &same));

    let file = folder.with("token", "two");
    let second = sources.refresh("release").expect("it is known");
    assert!(!Arc::ptr_eq(&first, &second));

    std::fs::remove_file(file).expect("it was there");
    let kept = sources.refresh("release").expect("it is known");
    assert!(Arc::ptr_eq(&second, &kept));
}

#[test]
fn a_key_that_counts_is_known_by_the_name_that_signatures_give_it() {
    let folder = Folder::new();
    let key = SigningKey::make();
    let settings = RegistrySettings {
        trust: Trust::Require,
        keys: vec![folder.with("key.pem", &key.public_pem())],
        ..usual()
    };
    let sources = Sources::open(&of(settings)).expect("good settings");
    let source = sources.find("release").expect("it is known");
    let name = |key: &SigningKey| serde_json::json!({ "key": key.id() });
    assert!(source.has_key(&name(&key)));
    assert!(!source.has_key(&name(&SigningKey::make())));
    assert!(!source.has_key(&serde_json::json!({})));
}

#[test]
fn a_place_is_read_as_it_is_written() {
    let digest = Digest::of(b"a list");
    for text in [
        format!("blob:os/edge/files@{digest}"),
        "web:https://files.example/os/edge.json?v=1@2".to_owned(),
    ] {
        assert_eq!(Place::read(&text).expect("a place").to_string(), text);
    }
    for text in [
        "",
        "web:",
        "blob:os/edge",
        "blob:os/edge@sha256:00",
        "file:/etc/passwd",
    ] {
        assert_eq!(Place::read(text), None, "{text}");
    }
}
