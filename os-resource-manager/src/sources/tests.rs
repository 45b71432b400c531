use std::path::PathBuf;

use evenkeel_registry::SigningKey;

use super::*;

fn single_registry(settings: RegistrySettings) -> BTreeMap<String, RegistrySettings> {
    BTreeMap::from([("release".to_owned(), settings)])
}

fn open_error(settings: RegistrySettings) -> InvalidSettings {
    let sources = Sources::open(&single_registry(settings));
    assert!(sources.find("release").is_none());
    sources.problem("release").expect("an invalid setting")
}

fn default_settings() -> RegistrySettings {
    RegistrySettings::new("https://registry.example")
}

/// A folder with files.
struct TestFolder(tempfile::TempDir);

impl TestFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn write_file(&self, name: &str, text: &str) -> PathBuf {
        let file = self.0.path().join(name);
        std::fs::write(&file, text).expect("a file");
        file
    }
}

#[test]
fn a_registry_is_found_by_its_name_alone() {
    let sources = Sources::open(&single_registry(default_settings()));
    assert_eq!(sources.names().collect::<Vec<_>>(), ["release"]);
    assert_eq!(sources.find("release").expect("it is configured").name, "release");
    assert!(sources.find("other").is_none());
    assert!(sources.refresh("other").is_none());
}

#[test]
fn an_invalid_setting_is_named() {
    let folder = TestFolder::new();
    let file = Some(folder.write_file("password", "hush"));
    let missing = Some(folder.0.path().join("nothing"));
    let text = |text: &str| Some(text.to_owned());
    let mut bad: Vec<(&str, RegistrySettings)> = Vec::new();
    for address in ["registry.example", "http://registry.example"] {
        bad.push(("address", RegistrySettings::new(address)));
    }
    for url in ["ftp://files.example", "http://files.example", "https://a:b@files.example"] {
        let files_url = text(url);
        bad.push(("files_url", RegistrySettings { files_url, ..default_settings() }));
    }
    let with = |change: fn(&mut RegistrySettings, Option<PathBuf>), file: Option<PathBuf>| {
        let mut settings = default_settings();
        change(&mut settings, file);
        settings
    };
    bad.extend([
        ("prefix", with(|it, _| it.prefix = "Release/".to_owned(), None)),
        ("password_file", with(|it, _| it.username = Some("somebody".to_owned()), None)),
        ("username", with(|it, file| it.password_file = file, file.clone())),
        ("token_file", with(|it, file| it.token_file = file, missing.clone())),
        ("ca", with(|it, file| it.ca = file, missing)),
        ("keys", with(|it, file| it.keys = file.into_iter().collect(), file)),
        ("trust", with(|it, _| it.trust = SignaturePolicy::Require, None)),
    ]);
    for (key, settings) in bad {
        assert_eq!(open_error(settings).key, format!("registries.release.{key}"));
    }
    let bad_name = BTreeMap::from([("a b".to_owned(), default_settings())]);
    assert_eq!(Sources::open(&bad_name).problems().len(), 1);
}

#[test]
fn a_registry_is_disabled_alone_and_until_its_files_are_there() {
    let folder = TestFolder::new();
    let file = folder.0.path().join("key.pem");
    let settings = RegistrySettings { keys: vec![file], ..default_settings() };
    let mut registries = single_registry(settings);
    registries.insert("other".to_owned(), default_settings());
    let sources = Sources::open(&registries);
    assert!(sources.find("other").is_some() && sources.find("release").is_none());
    let problems: Vec<_> = sources.problems().into_iter().map(|problem| problem.key).collect();
    assert_eq!(problems, ["registries.release.keys"]);
    assert!(sources.refresh("release").is_none());

    folder.write_file("key.pem", &SigningKey::generate().public_pem());
    assert!(sources.refresh("release").is_some());
    assert!(sources.find("release").is_some() && sources.problems().is_empty());
}

#[test]
fn secrets_are_not_printed() {
    let folder = TestFolder::new();
    let settings = RegistrySettings {
        username: Some("somebody".to_owned()),
        password_file: Some(folder.write_file("password", "open sesame\n")),
        proxy: Some("http://me:sesame@proxy.example".to_owned().into()),
        ..default_settings()
    };
    let sources = Sources::open(&single_registry(settings.clone()));
    for text in [format!("{settings:?}"), format!("{sources:?}")] {
        assert!(!text.contains("sesame"), "{text}");
    }
    let bad = RegistrySettings { proxy: Some("sesame".to_owned().into()), ..default_settings() };
    let error = open_error(bad);
    assert_eq!(error.key, "registries.release.proxy");
    assert!(!error.to_string().contains("sesame"), "{error}");
}

#[test]
fn secrets_are_reread_and_an_unchanged_source_stays() {
    let folder = TestFolder::new();
    let settings = RegistrySettings {
        token_file: Some(folder.write_file("token", "one")),
        ..default_settings()
    };
    let sources = Sources::open(&single_registry(settings));
    let first = sources.find("release").expect("it is configured");
    let same = sources.refresh("release").expect("it is configured");
    assert!(Arc::ptr_eq(&first, &same));

    let file = folder.write_file("token", "two");
    let second = sources.refresh("release").expect("it is configured");
    assert!(!Arc::ptr_eq(&first, &second));

    std::fs::remove_file(file).expect("it was there");
    let current = sources.refresh("release").expect("it is configured");
    assert!(Arc::ptr_eq(&second, &current));
}

#[test]
fn a_key_is_recognised_by_its_id_in_signatures() {
    let folder = TestFolder::new();
    let key = SigningKey::generate();
    let settings = RegistrySettings {
        trust: SignaturePolicy::Require,
        keys: vec![folder.write_file("key.pem", &key.public_pem())],
        ..default_settings()
    };
    let sources = Sources::open(&single_registry(settings));
    let source = sources.find("release").expect("it is configured");
    let name = |key: &SigningKey| serde_json::json!({ "key": key.id() });
    assert!(source.has_key(&name(&key)));
    assert!(!source.has_key(&name(&SigningKey::generate())));
    assert!(!source.has_key(&serde_json::json!({})));
}

#[test]
fn a_location_is_parsed_as_it_is_written() {
    let digest = Digest::compute(b"a list");
    for text in [
        format!("blob:os/edge/files@{digest}"),
        "web:https://files.example/os/edge.json?v=1@2".to_owned(),
    ] {
        assert_eq!(FileLocation::parse(&text).expect("a location").to_string(), text);
    }
    for text in ["", "web:", "blob:os/edge", "blob:os/edge@sha256:00", "file:/etc/passwd"] {
        assert_eq!(FileLocation::parse(text), None, "{text}");
    }
}
