use std::os::unix::fs::{PermissionsExt, symlink};

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use tempfile::TempDir;

use super::*;
use crate::model::ImageRules;

/// A key, its identifier, and its signature of [`wish`], all made with openssl.
const OPENSSL: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEJkcucDpWhC54/+YC5IhUqt166cce
2GjrSUvp+OHImQQof2/1ysUfbdskib6Hfo1wEmpCQ565GvPavyaK4hMEzw==
-----END PUBLIC KEY-----
";
const OPENSSL_ID: &str = "ff73dfc64bd624d631aaf35334962fb09dcc687bf94a891a6c58b29aa383d680";
const OPENSSL_SIGNATURE: &str = "MEQCIASOa0mnIsKAGiVCADsnwYbP3uC87pqtI7H4Mp+cqxkZAiA63LBBYylc\
                                 bZKItVZ15lRpO10v9fFisJ6UMpEkozt7Ow==";

const P384: &str = "-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEWN9euTL/N5zbzFeOXs1RAIcbRHSG7glm
xHAHceKmDKAF3aMP56uLSYXflrHgcXSy8jwlswwYKoyKBKcCIoAa9CYp+DerouUZ
c37urFHaQ7jVblI07Z+T+e2zy3JGwibS
-----END PUBLIC KEY-----
";
const ED25519: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAMSAcs7ci+lHpuFsTFh1pGyzvHzoQStSArWgXX7ncysU=
-----END PUBLIC KEY-----
";
const COMPRESSED: &str = "-----BEGIN PUBLIC KEY-----
MDkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDIgADJkcucDpWhC54/+YC5IhUqt166cce
2GjrSUvp+OHImQQ=
-----END PUBLIC KEY-----
";

fn wish() -> ImageWish {
    ImageWish {
        os_id: "os-1".into(),
        name: "Board 1.1".into(),
        profile_name: "board".into(),
        image_id: "1.1".into(),
        architecture: "amd64".into(),
        url: "https://images.example/board-1.1.raw.zst".into(),
        sha256: Sha256::of(b"image"),
        signatures: Vec::new(),
        rules: ImageRules::default(),
        again: false,
    }
}

/// Who signs images in these tests.
struct Publisher(EcdsaKeyPair);

impl Publisher {
    fn new() -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_ASN1_SIGNING, SystemRandom::new());
        let secret = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        let key = EcdsaKeyPair::from_pkcs8(algorithm, secret.as_ref(), &random).expect("a key");
        Self(key)
    }

    fn der(&self) -> Vec<u8> {
        [&P256[..], self.0.public_key().as_ref()].concat()
    }

    fn pem(&self) -> String {
        pem(&self.der())
    }

    /// The wish with a signature of its statement as it is now.
    fn sign(&self, mut wish: ImageWish) -> ImageWish {
        let signature = self
            .0
            .sign(&SystemRandom::new(), statement(&wish).as_bytes());
        let signature = STANDARD.encode(signature.expect("a signature"));
        let id = Sha256::of(&self.der());
        wish.signatures.push(format!("{id}:{signature}"));
        wish
    }
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
}

/// A folder of keys that only its owner writes.
fn folder(files: &[(&str, &str)]) -> TempDir {
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

fn load(root: &TempDir) -> Result<Keys, String> {
    Keys::load(&root.path().join("keys")).map_err(|failure| {
        assert_eq!(failure.kind, FailureKind::Signature);
        failure.reason
    })
}

fn keys(of: &[&Publisher]) -> Keys {
    let texts: Vec<_> = of.iter().map(|publisher| publisher.pem()).collect();
    let names: Vec<_> = (0..of.len())
        .map(|number| format!("{number}.pem"))
        .collect();
    let files = names.iter().map(String::as_str);
    let files: Vec<_> = files.zip(texts.iter().map(String::as_str)).collect();
    load(&folder(&files)).expect("keys")
}

fn refusal(keys: &Keys, wish: &ImageWish) -> String {
    let failure = keys.check(wish).expect_err("a refusal");
    assert_eq!(failure.kind, FailureKind::Signature);
    failure.reason
}

#[test]
fn what_is_signed_names_the_image_its_profile_its_architecture_and_its_file() {
    let digest = Sha256::of(b"image");
    let text = format!("evenkeel-image-1\nboard\n1.1\namd64\n{digest}\n");
    assert_eq!(statement(&wish()), text);
}

#[test]
fn an_image_is_taken_if_a_key_of_this_node_signed_it() {
    let (ours, theirs) = (Publisher::new(), Publisher::new());
    keys(&[&ours]).check(&ours.sign(wish())).unwrap();
    keys(&[&theirs, &ours]).check(&ours.sign(wish())).unwrap();
    // One good signature is enough, wherever it stands.
    let both = ours.sign(theirs.sign(wish()));
    keys(&[&ours]).check(&both).unwrap();
    let mut among_rubbish = wish();
    among_rubbish.signatures = vec!["rubbish".into(), "1:2".into()];
    keys(&[&ours]).check(&ours.sign(among_rubbish)).unwrap();
}

#[test]
fn a_key_and_a_signature_made_with_openssl_are_understood() {
    let keys = load(&folder(&[("openssl.pem", OPENSSL)])).unwrap();
    let mut wish = wish();
    wish.signatures = vec![format!("{OPENSSL_ID}:{OPENSSL_SIGNATURE}")];
    keys.check(&wish).unwrap();
}

#[test]
fn a_signature_of_anything_else_is_none_of_this_image() {
    let publisher = Publisher::new();
    let keys = keys(&[&publisher]);
    let signed = publisher.sign(wish());
    let changes: [fn(&mut ImageWish); 4] = [
        |wish| wish.profile_name = "other".into(),
        |wish| wish.image_id = "1.2".into(),
        |wish| wish.architecture = "arm64".into(),
        |wish| wish.sha256 = Sha256::of(b"other"),
    ];
    for change in changes {
        let mut forged = signed.clone();
        change(&mut forged);
        let why = refusal(&keys, &forged);
        assert!(why.contains("is not one of this image"), "{why}");
    }
    // From where it is fetched, and how, is not signed: the digest says what it must be.
    let mut moved = signed;
    moved.url = "https://mirror.example/1".into();
    moved.again = true;
    keys.check(&moved).unwrap();
}

#[test]
fn without_a_key_or_a_signature_by_one_nothing_is_taken() {
    let (ours, theirs) = (Publisher::new(), Publisher::new());
    let why = refusal(&keys(&[]), &ours.sign(wish()));
    assert!(why.contains("this node knows no key"), "{why}");
    let why = refusal(&keys(&[&ours]), &wish());
    assert!(why.contains("it is not signed"), "{why}");
    let why = refusal(&keys(&[&ours]), &theirs.sign(wish()));
    let id = Sha256::of(&theirs.der());
    let expected = format!("it is signed by the key {id}");
    assert!(why.contains(&expected), "{why}");
}

#[test]
fn a_signature_that_is_none_is_refused() {
    let publisher = Publisher::new();
    let keys = keys(&[&publisher]);
    let id = Sha256::of(&publisher.der());
    let good = publisher.sign(wish()).signatures.remove(0);
    let upper = good.replace(&id.to_string(), &id.to_string().to_uppercase());
    let (empty, bad) = (format!("{id}:"), format!("{id}:?"));
    for signature in ["", ":", "rubbish", &empty, &bad, &upper] {
        let mut wish = wish();
        wish.signatures = vec![signature.to_owned()];
        refusal(&keys, &wish);
    }
}

#[test]
fn a_field_that_could_pass_for_two_is_refused_although_it_is_signed() {
    let publisher = Publisher::new();
    let keys = keys(&[&publisher]);
    let changes: [fn(&mut ImageWish); 3] = [
        |wish| wish.profile_name = "board\n1.1".into(),
        |wish| wish.image_id = "1.1\0".into(),
        |wish| wish.architecture = "amd64\r".into(),
    ];
    for change in changes {
        let mut wish = wish();
        change(&mut wish);
        let why = refusal(&keys, &publisher.sign(wish));
        assert!(why.ends_with("has a control character"), "{why}");
        assert!(!why.contains(char::is_control), "{why:?}");
    }
}

#[test]
fn a_folder_that_is_not_there_has_no_keys_and_other_files_are_none() {
    let root = tempfile::tempdir().unwrap();
    refusal(&load(&root).unwrap(), &wish());
    let root = folder(&[
        ("README", "text"),
        ("a.pem~", "old"),
        ("b.pem.dpkg-new", "new"),
    ]);
    let why = refusal(&load(&root).unwrap(), &wish());
    assert!(why.contains("this node knows no key"), "{why}");
}

#[test]
fn a_file_that_is_no_public_key_for_p_256_is_refused_by_name() {
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
        (&OPENSSL[..100], "it is no PEM"),
        (&OPENSSL.repeat(2), "more than one key"),
        (P384, "no key for ECDSA with P-256"),
        (ED25519, "no key for ECDSA with P-256"),
        (COMPRESSED, "no key for ECDSA with P-256"),
        (&pem(&hybrid), "no key for ECDSA with P-256"),
        (&pem(&longer), "no key for ECDSA with P-256"),
        (&"x".repeat(20 << 10), "it is longer than"),
    ];
    for (content, expected) in cases {
        let why = load(&folder(&[("a.pem", content)])).unwrap_err();
        assert!(why.contains("a.pem: ") && why.contains(expected), "{why}");
        assert!(why.contains("cannot be relied on"), "{why}");
    }
}

#[test]
fn keys_that_others_could_have_put_there_are_not_relied_on() {
    let root = folder(&[("a.pem", OPENSSL)]);
    let keys = root.path().join("keys");
    load(&root).unwrap();
    for (path, mode) in [(&keys.join("a.pem"), 0o664), (&keys, 0o777)] {
        let before = fs::metadata(path).unwrap().permissions();
        chmod(path, mode);
        let why = load(&root).unwrap_err();
        assert!(why.ends_with("others than root may write it"), "{why}");
        fs::set_permissions(path, before).unwrap();
    }
    chmod(root.path(), 0o777);
    let why = load(&root).unwrap_err();
    assert!(why.ends_with("others than root may write it"), "{why}");
    chmod(root.path(), 0o755);

    symlink(keys.join("a.pem"), keys.join("b.pem")).unwrap();
    let why = load(&root).unwrap_err();
    assert!(why.ends_with("b.pem: it is a symbolic link"), "{why}");
}

#[test]
fn more_keys_than_anybody_has_are_refused() {
    let names: Vec<_> = (0..=MOST_KEYS)
        .map(|number| format!("{number}.pem"))
        .collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), OPENSSL)).collect();
    let why = load(&folder(&files)).unwrap_err();
    assert!(why.ends_with("there are more than 64"), "{why}");
}
