use std::io::Read;
use std::sync::Mutex;

use evenkeel_configuration::document::SecretRef;
use serde_json::{Value, json};

use super::super::{ContentDigest, ContentError, ContentSource, DesiredContent, FileSet, FileSpec};
use super::{FileMachine, NoFaults, document};

const SECRET: &str = "{content: {secretRef: {name: db, key: password}}}";

/// Gives the same content for every secret and download.
#[derive(Default)]
struct FixedContent(Mutex<&'static str>);

impl FixedContent {
    fn set(&self, content: &'static str) {
        *self.0.lock().unwrap() = content;
    }
}

impl ContentSource for FixedContent {
    fn open_secret(&self, _: &SecretRef) -> Result<Box<dyn Read + '_>, ContentError> {
        let content = *self.0.lock().unwrap();
        Ok(Box::new(content.as_bytes()))
    }

    fn open_download(&self, _: &str, _: ContentDigest) -> Result<Box<dyn Read + '_>, ContentError> {
        let content = *self.0.lock().unwrap();
        Ok(Box::new(content.as_bytes()))
    }
}

#[test]
fn a_secret_is_compared_without_its_digest_in_the_report() {
    let machine = FileMachine::new();
    machine.write("/etc/password", "old");
    machine.set_mode("/etc/password", 0o600);
    let document = document(&[("/etc/password", SECRET)]);
    let source = FixedContent::default();
    source.set("new");
    let report = machine.check_with(&document, &source).remove(0);
    assert_eq!(report.reason, "the content differs");
    assert_eq!(Value::Object(report.current), json!({"content": {}}));
    source.set("old");
    assert_eq!(machine.check_with(&document, &source)[0].reason, "");
}

#[test]
fn a_secret_without_a_value_is_bad_and_not_written() {
    let machine = FileMachine::new();
    let document = document(&[("/etc/password", SECRET)]);
    let reason = "the value of the secret db/password is not available here";
    let expected = format!("the file does not exist; {reason}");
    assert_eq!(machine.reasons(&document), [expected]);
    let plan = machine.plan(&document);
    assert_eq!(plan.refused[0].reason, reason);
    assert!(plan.is_empty());
}

#[test]
fn a_plan_has_no_digest_of_a_secret() {
    let machine = FileMachine::new();
    let document = document(&[("/etc/password", SECRET)]);
    let source = FixedContent::default();
    source.set("1234");
    let set = machine.plan_with(&document, &source).files;
    let json = serde_json::to_string(&set).unwrap();
    assert!(!json.contains("1234"), "{json}");
    assert!(!json.contains(&ContentDigest::from_bytes(b"1234").to_string()), "{json}");
    assert_eq!(serde_json::from_str::<FileSet>(&json).unwrap(), set);
}

#[test]
fn a_secret_that_changed_after_the_plan_is_written_with_its_new_value() {
    let machine = FileMachine::new();
    let document = document(&[("/etc/password", SECRET)]);
    let source = FixedContent::default();
    source.set("first");
    let set = machine.plan_with(&document, &source).files;
    source.set("second");
    let specs: Vec<FileSpec<'_>> = FileSpec::from_document(&document).collect();
    let mut changer = machine.changer(&NoFaults);
    changer.source = &source;
    assert_eq!(changer.apply(&set, &specs).unwrap().failed, []);
    assert_eq!(machine.read("/etc/password"), "second");
    assert_eq!(changer.apply(&set, &specs).unwrap().changed, [""; 0]);
    changer.source = &super::EmptyContentSource;
    let report = changer.apply(&set, &specs).unwrap();
    let reason = "the value of the secret db/password is not available here";
    assert_eq!(report.failed[0].reason, reason);
    assert_eq!(changer.revert().unwrap().changed, ["/etc/password"]);
}

#[test]
fn a_download_must_have_its_digest() {
    let machine = FileMachine::new();
    let digest = ContentDigest::from_bytes(b"good");
    let desired = format!("{{content: {{uri: 'https://x.example/f', sha256: '{digest}'}}}}");
    let document = document(&[("/etc/f", &desired)]);
    let source = FixedContent::default();
    let set = machine.plan(&document).files;
    let specs: Vec<FileSpec<'_>> = FileSpec::from_document(&document).collect();
    let mut changer = machine.changer(&NoFaults);
    changer.source = &source;
    source.set("bad");
    assert_eq!(changer.apply(&set, &specs).unwrap().failed.len(), 1);
    assert!(!machine.path("/etc/f").exists());
    source.set("good");
    changer.apply(&set, &specs).unwrap();
    assert_eq!(machine.read("/etc/f"), "good");
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    let content = DesiredContent::Base64(text.into());
    let mut reader = content.open(&super::EmptyContentSource).unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

#[test]
fn base64_is_decoded_with_its_padding() {
    assert_eq!(decode("").unwrap(), b"");
    assert_eq!(decode("Zg==").unwrap(), b"f");
    assert_eq!(decode("Zm8=").unwrap(), b"fo");
    assert_eq!(decode("Zm9v").unwrap(), b"foo");
    assert_eq!(decode("/+8A").unwrap(), [0xff, 0xef, 0x00]);
    for invalid in ["Zg", "Zg=", "Z===", "====", "Zh==", "Zg==Zg==", "Zm 9", "Zm9v\n"] {
        assert!(decode(invalid).is_err(), "{invalid:?}");
    }
}
