use std::os::unix::fs::{PermissionsExt, symlink};

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use tempfile::TempDir;

use super::*;
use crate::model::ImageRules;

/// A key, its identifier, and its signature of [`image_spec`], all made with openssl.
const OPENSSL_KEY: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEJkcucDpWhC54/+YC5IhUqt166cce
2GjrSUvp+OHImQQof2/1ysUfbdskib6Hfo1wEmpCQ565GvPavyaK4hMEzw==
-----END PUBLIC KEY-----
";
const OPENSSL_ID: &str = "ff73dfc64bd624d631aaf35334962fb09dcc687bf94a891a6c58b29aa383d680";
const OPENSSL_SIGNATURE: &str = "MEQCIASOa0mnIsKAGiVCADsnwYbP3uC87pqtI7H4Mp+cqxkZAiA63LBBYylc\
                                 bZKItVZ15lRpO10v9fFisJ6UMpEkozt7Ow==";

const P384_KEY: &str = "-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEWN9euTL/N5zbzFeOXs1RAIcbRHSG7glm
xHAHceKmDKAF3aMP56uLSYXflrHgcXSy8jwlswwYKoyKBKcCIoAa9CYp+DerouUZ
c37urFHaQ7jVblI07Z+T+e2zy3JGwibS
-----END PUBLIC KEY-----
";
const ED25519_KEY: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAMSAcs7ci+lHpuFsTFh1pGyzvHzoQStSArWgXX7ncysU=
-----END PUBLIC KEY-----
";
const COMPRESSED_KEY: &str = "-----BEGIN PUBLIC KEY-----
MDkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDIgADJkcucDpWhC54/+YC5IhUqt166cce
2GjrSUvp+OHImQQ=
-----END PUBLIC KEY-----
";

fn image_spec() -> ImageSpec {
    ImageSpec {
        os_id: "os-1".into(),
        name: "Board 1.1".into(),
        profile_name: "board".into(),
        image_id: "1.1".into(),
        architecture: "amd64".into(),
        url: "https://images.example/board-1.1.raw.zst".into(),
        sha256: Sha256::hash(b"image"),
        signatures: Vec::new(),
        rules: ImageRules::default(),
        allow_retry: false,
    }
}

/// A publisher who signs images.
struct Publisher(EcdsaKeyPair);

impl Publisher {
    fn new() -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_ASN1_SIGNING, SystemRandom::new());
        let secret = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        let key = EcdsaKeyPair::from_pkcs8(algorithm, secret.as_ref(), &random).expect("a key");
        Self(key)
    }

    fn der(&self) -> Vec<u8> {
        [&P256_SPKI_PREFIX[..], self.0.public_key().as_ref()].concat()
    }

    fn pem(&self) -> String {
        pem(&self.der())
    }

    /// Adds a signature of the spec's current statement.
    fn sign(&self, mut spec: ImageSpec) -> ImageSpec {
        let signature = self.0.sign(&SystemRandom::new(), signed_statement(&spec).as_bytes());
        let signature = STANDARD.encode(signature.expect("a signature"));
        let id = Sha256::hash(&self.der());
        spec.signatures.push(format!("{id}:{signature}"));
        spec
    }
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
}

/// A folder of keys that only its owner can write.
fn create_keys_folder(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let keys = root.path().join("keys");
    fs::create_dir(&keys).expect("a folder");
    chmod(&keys, 0o755);
    for (name, content) in files {
        fs::write(keys.join(name), content).expect("a file");
        chmod(&keys.join(name), 0o644);
    }
    root
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
}

fn load(root: &TempDir) -> Result<ImageKeys, String> {
    ImageKeys::load(&root.path().join("keys")).map_err(|failure| {
        assert_eq!(failure.kind, FailureKind::Signature);
        failure.reason
    })
}

fn keys_of(publishers: &[&Publisher]) -> ImageKeys {
    let texts: Vec<_> = publishers.iter().map(|publisher| publisher.pem()).collect();
    let names: Vec<_> = (0..publishers.len()).map(|number| format!("{number}.pem")).collect();
    let files = names.iter().map(String::as_str);
    let files: Vec<_> = files.zip(texts.iter().map(String::as_str)).collect();
    load(&create_keys_folder(&files)).expect("keys")
}

fn refusal(keys: &ImageKeys, spec: &ImageSpec) -> String {
    let failure = keys.check(spec).expect_err("a refusal");
    assert_eq!(failure.kind, FailureKind::Signature);
    failure.reason
}

#[test]
fn the_statement_names_image_profile_architecture_and_file() {
    let digest = Sha256::hash(b"image");
    let text = format!("evenkeel-image-1\nboard\n1.1\namd64\n{digest}\n");
    assert_eq!(signed_statement(&image_spec()), text);
}

#[test]
fn an_image_signed_by_a_key_of_this_node_is_accepted() {
    let (ours, theirs) = (Publisher::new(), Publisher::new());
    keys_of(&[&ours]).check(&ours.sign(image_spec())).unwrap();
    keys_of(&[&theirs, &ours]).check(&ours.sign(image_spec())).unwrap();
    // One valid signature is enough, whatever its position.
    let both = ours.sign(theirs.sign(image_spec()));
    keys_of(&[&ours]).check(&both).unwrap();
    let mut among_rubbish = image_spec();
    among_rubbish.signatures = vec!["rubbish".into(), "1:2".into()];
    keys_of(&[&ours]).check(&ours.sign(among_rubbish)).unwrap();
}

#[test]
fn a_key_and_a_signature_from_openssl_are_accepted() {
    let keys = load(&create_keys_folder(&[("openssl.pem", OPENSSL_KEY)])).unwrap();
    let mut spec = image_spec();
    spec.signatures = vec![format!("{OPENSSL_ID}:{OPENSSL_SIGNATURE}")];
    keys.check(&spec).unwrap();
}

#[test]
fn a_signature_of_another_image_is_refused() {
    let publisher = Publisher::new();
    let keys = keys_of(&[&publisher]);
    let signed = publisher.sign(image_spec());
    let changes: [fn(&mut ImageSpec); 4] = [
        |spec| spec.profile_name = "other".into(),
        |spec| spec.image_id = "1.2".into(),
        |spec| spec.architecture = "arm64".into(),
        |spec| spec.sha256 = Sha256::hash(b"other"),
    ];
    for change in changes {
        let mut forged = signed.clone();
        change(&mut forged);
        let why = refusal(&keys, &forged);
        assert!(why.contains("does not match this image"), "{why}");
    }
    // The address and the retry flag are not signed: the digest identifies the file.
    let mut moved = signed;
    moved.url = "https://mirror.example/1".into();
    moved.allow_retry = true;
    keys.check(&moved).unwrap();
}

#[test]
fn an_image_without_a_signature_by_a_known_key_is_refused() {
    let (ours, theirs) = (Publisher::new(), Publisher::new());
    let why = refusal(&keys_of(&[]), &ours.sign(image_spec()));
    assert!(why.contains("this node has no key"), "{why}");
    let why = refusal(&keys_of(&[&ours]), &image_spec());
    assert!(why.contains("it is not signed"), "{why}");
    let why = refusal(&keys_of(&[&ours]), &theirs.sign(image_spec()));
    let id = Sha256::hash(&theirs.der());
    let expected = format!("it is signed by the key {id}");
    assert!(why.contains(&expected), "{why}");
}

#[test]
fn a_malformed_signature_is_refused() {
    let publisher = Publisher::new();
    let keys = keys_of(&[&publisher]);
    let id = Sha256::hash(&publisher.der());
    let good = publisher.sign(image_spec()).signatures.remove(0);
    let upper = good.replace(&id.to_string(), &id.to_string().to_uppercase());
    let (empty, bad) = (format!("{id}:"), format!("{id}:?"));
    for signature in ["", ":", "rubbish", &empty, &bad, &upper] {
        let mut spec = image_spec();
        spec.signatures = vec![signature.to_owned()];
        refusal(&keys, &spec);
    }
}

#[test]
fn a_field_with_a_control_character_is_refused_even_if_signed() {
    let publisher = Publisher::new();
    let keys = keys_of(&[&publisher]);
    let changes: [fn(&mut ImageSpec); 3] = [
        |spec| spec.profile_name = "board\n1.1".into(),
        |spec| spec.image_id = "1.1\0".into(),
        |spec| spec.architecture = "amd64\r".into(),
    ];
    for change in changes {
        let mut spec = image_spec();
        change(&mut spec);
        let why = refusal(&keys, &publisher.sign(spec));
        assert!(why.ends_with("has a control character"), "{why}");
        assert!(!why.contains(char::is_control), "{why:?}");
    }
}

#[test]
fn a_missing_folder_has_no_keys_and_other_files_are_ignored() {
    let root = tempfile::tempdir().unwrap();
    refusal(&load(&root).unwrap(), &image_spec());
    let root =
        create_keys_folder(&[("README", "text"), ("a.pem~", "old"), ("b.pem.dpkg-new", "new")]);
    let why = refusal(&load(&root).unwrap(), &image_spec());
    assert!(why.contains("this node has no key"), "{why}");
}

#[test]
fn an_invalid_key_file_is_refused_by_name() {
    let publisher = Publisher::new();
    let mut hybrid = publisher.der();
    hybrid[26] = 6;
    let mut longer = publisher.der();
    longer.push(0);
    let private = "-----BEGIN PRIVATE KEY-----\nMAAA\n-----END PRIVATE KEY-----\n";
    let cases: [(&str, &str); 11] = [
        ("", "only public keys belong here"),
        ("rubbish", "only public keys belong here"),
        (private, "only public keys belong here"),
        (&OPENSSL_KEY[..100], "it is not PEM"),
        (&OPENSSL_KEY.repeat(2), "more than one key"),
        (P384_KEY, "not a key for ECDSA with P-256"),
        (ED25519_KEY, "not a key for ECDSA with P-256"),
        (COMPRESSED_KEY, "not a key for ECDSA with P-256"),
        (&pem(&hybrid), "not a key for ECDSA with P-256"),
        (&pem(&longer), "not a key for ECDSA with P-256"),
        (&"x".repeat(20 << 10), "it is longer than"),
    ];
    for (content, expected) in cases {
        let why = load(&create_keys_folder(&[("a.pem", content)])).unwrap_err();
        assert!(why.contains("a.pem: ") && why.contains(expected), "{why}");
        assert!(why.contains("cannot be trusted"), "{why}");
    }
}

#[test]
fn keys_that_others_can_write_are_refused() {
    let root = create_keys_folder(&[("a.pem", OPENSSL_KEY)]);
    let keys = root.path().join("keys");
    load(&root).unwrap();
    for (path, mode) in [(&keys.join("a.pem"), 0o664), (&keys, 0o777)] {
        let before = fs::metadata(path).unwrap().permissions();
        chmod(path, mode);
        let why = load(&root).unwrap_err();
        assert!(why.ends_with("users other than root may write to it"), "{why}");
        fs::set_permissions(path, before).unwrap();
    }
    chmod(root.path(), 0o777);
    let why = load(&root).unwrap_err();
    assert!(why.ends_with("users other than root may write to it"), "{why}");
    chmod(root.path(), 0o755);

    symlink(keys.join("a.pem"), keys.join("b.pem")).unwrap();
    let why = load(&root).unwrap_err();
    assert!(why.ends_with("b.pem: it is a symbolic link"), "{why}");
}

#[test]
fn too_many_keys_are_refused() {
    let names: Vec<_> = (0..=MAX_KEYS).map(|number| format!("{number}.pem")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), OPENSSL_KEY)).collect();
    let why = load(&create_keys_folder(&files)).unwrap_err();
    assert!(why.ends_with("there are more than 64"), "{why}");
}
