//! The server's own keys: the keys that sign, and the keys whose signatures are accepted.
//!
//! There is one set of keys for each purpose ([`KeyPurpose`]). Each has its own folder: the folder
//! of our own keys for the credentials of nodes, and its subfolder `operators` for the tokens of
//! operators.
//!
//! | file | content |
//! | --- | --- |
//! | `signing.pem` | the Ed25519 key that signs, in PKCS #8; created at the first start, mode 0600 |
//! | any other `*.pem` | a further Ed25519 key, private or public, whose signatures are accepted |
//!
//! To rotate a key, rename `signing.pem` (for example to `2026.pem`) and restart. The server
//! creates a new key and accepts tokens of the old key until they expire. Replicas share the
//! folder. The id of a key is its RFC 7638 thumbprint.

use std::path::{Path, PathBuf};
use std::{fs, io};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData, SubjectPublicKeyInfo};
use sha2::{Digest, Sha256};

use crate::file::{self, FileError};

/// File of the key that signs.
const SIGNING_KEY_FILE: &str = "signing.pem";

/// A key whose signatures are accepted.
#[derive(Clone)]
pub(crate) struct VerificationKey {
    pub(crate) id: Option<String>,
    pub(crate) key: DecodingKey,
    /// Algorithms of the key. Signatures by other algorithms are rejected.
    pub(crate) algorithms: Vec<Algorithm>,
}

impl std::fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("VerificationKey").field(&self.id).finish()
    }
}

impl VerificationKey {
    /// Whether the key can sign by this algorithm.
    pub(crate) fn signs_by(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    /// Whether both are the same key with the same id.
    pub(crate) fn is_same_key(&self, other: &Self) -> bool {
        use DecodingKeyKind as K;
        let same = match (self.key.kind(), other.key.kind()) {
            (K::SecretOrDer(one), K::SecretOrDer(another)) => one == another,
            (K::RsaModulusExponent { n, e }, K::RsaModulusExponent { n: m, e: f }) => {
                n == m && e == f
            }
            _ => false,
        };
        same && self.id == other.id
    }
}

/// What a key signs. A key of one purpose never verifies a token of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPurpose {
    /// Tokens of operators: access tokens and refresh tokens.
    Operators,
    /// Credentials of nodes.
    Nodes,
}

impl KeyPurpose {
    /// The folder of the keys of this purpose, in the folder of all keys.
    #[must_use]
    pub fn folder(self, keys: &Path) -> PathBuf {
        match self {
            Self::Operators => keys.join("operators"),
            Self::Nodes => keys.to_owned(),
        }
    }
}

/// The server's own keys.
#[derive(Debug)]
pub struct Keys {
    pub(crate) operators: KeyRing,
    pub(crate) nodes: KeyRing,
}

impl Keys {
    /// Reads the keys in `folder`. Creates the folders and the signing keys that do not exist.
    pub fn open(folder: &Path) -> Result<Self, FileError> {
        let nodes = KeyRing::open(&KeyPurpose::Nodes.folder(folder))?;
        let operators = KeyRing::open(&KeyPurpose::Operators.folder(folder))?;
        Self::from_rings(folder, operators, nodes)
    }

    /// Reads the keys in `folder`; none if a signing key is missing. Creates nothing.
    pub fn read(folder: &Path) -> Result<Option<Self>, FileError> {
        let nodes = KeyRing::read(&KeyPurpose::Nodes.folder(folder))?;
        let operators = KeyRing::read(&KeyPurpose::Operators.folder(folder))?;
        let both = operators.zip(nodes);
        both.map(|(operators, nodes)| Self::from_rings(folder, operators, nodes)).transpose()
    }

    /// The ids of all keys of a purpose in `folder`, which need not have a signing key. Creates
    /// nothing.
    pub fn ids_in(folder: &Path, purpose: KeyPurpose) -> Result<Vec<String>, FileError> {
        let public = key_files(&purpose.folder(folder))?.into_iter();
        public.map(|path| Ok(thumbprint(&read_public_key(&path)?))).collect()
    }

    /// Refuses a key that is in both folders: it would verify tokens of both purposes.
    fn from_rings(folder: &Path, operators: KeyRing, nodes: KeyRing) -> Result<Self, FileError> {
        let is_shared = |id: &String| nodes.public.iter().any(|(other, _)| other == id);
        if let Some((id, _)) = operators.public.iter().find(|(id, _)| is_shared(id)) {
            let folder = KeyPurpose::Operators.folder(folder);
            let why = format!("its key {id} is also a key for the credentials of nodes");
            return Err(FileError::content(&folder, why));
        }
        Ok(Self { operators, nodes })
    }

    /// The id of the key that signs for a purpose.
    #[must_use]
    pub fn signing_id(&self, purpose: KeyPurpose) -> &str {
        &self.ring(purpose).signing_id
    }

    /// The public keys for tokens of operators as a JSON Web Key Set (RFC 7517), for other services
    /// that verify them.
    #[must_use]
    pub fn jwks(&self) -> serde_json::Value {
        self.operators.jwks()
    }

    pub(crate) fn ring(&self, purpose: KeyPurpose) -> &KeyRing {
        match purpose {
            KeyPurpose::Operators => &self.operators,
            KeyPurpose::Nodes => &self.nodes,
        }
    }
}

/// The keys of one purpose.
pub(crate) struct KeyRing {
    pub(crate) signing: EncodingKey,
    pub(crate) signing_id: String,
    /// Raw public keys with their ids; that of the signing key first.
    public: Vec<(String, Vec<u8>)>,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<&String> = self.public.iter().map(|(id, _)| id).collect();
        f.debug_struct("KeyRing").field("ids", &ids).finish()
    }
}

impl KeyRing {
    fn open(folder: &Path) -> Result<Self, FileError> {
        file::create_private_folder(folder)?;
        let pem = file::read_or_create(&folder.join(SIGNING_KEY_FILE), 0o600, || {
            let key = KeyPair::generate_for(&PKCS_ED25519);
            Ok(key.map_err(FileError::create("a signing key"))?.serialize_pem())
        })?;
        Self::from_signing_key(folder, &pem)
    }

    fn read(folder: &Path) -> Result<Option<Self>, FileError> {
        let pem = file::read(&folder.join(SIGNING_KEY_FILE))?;
        pem.map(|pem| Self::from_signing_key(folder, &pem)).transpose()
    }

    fn from_signing_key(folder: &Path, pem: &str) -> Result<Self, FileError> {
        let path = folder.join(SIGNING_KEY_FILE);
        file::warn_if_open(&path);
        let signing = EncodingKey::from_ed_pem(pem.as_bytes())
            .map_err(|error| FileError::content(&path, error))?;
        let public = public_key(pem).map_err(|why| FileError::content(&path, why))?;
        let signing_id = thumbprint(&public);
        let mut ring =
            Self { signing, signing_id: signing_id.clone(), public: vec![(signing_id, public)] };
        for other in key_files(folder)?.into_iter().filter(|other| *other != path) {
            let public = read_public_key(&other)?;
            let id = thumbprint(&public);
            if ring.public.iter().all(|(existing, _)| *existing != id) {
                ring.public.push((id, public));
            }
        }
        Ok(ring)
    }

    fn jwks(&self) -> serde_json::Value {
        let key = |(id, public): &(String, Vec<u8>)| {
            serde_json::json!({
                "kty": "OKP",
                "crv": "Ed25519",
                "x": URL_SAFE_NO_PAD.encode(public),
                "kid": id,
                "alg": "EdDSA",
                "use": "sig",
            })
        };
        serde_json::json!({ "keys": self.public.iter().map(key).collect::<Vec<_>>() })
    }

    pub(crate) fn verification_keys(&self) -> Vec<VerificationKey> {
        let key = |(id, public): &(String, Vec<u8>)| VerificationKey {
            id: Some(id.clone()),
            key: DecodingKey::from_ed_der(public),
            algorithms: vec![Algorithm::EdDSA],
        };
        self.public.iter().map(key).collect()
    }
}

/// The key files in a folder, by name; none if the folder does not exist.
fn key_files(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(FileError::io("read", folder)(error)),
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "pem")).collect();
    paths.sort();
    Ok(paths)
}

fn read_public_key(path: &Path) -> Result<Vec<u8>, FileError> {
    let pem = fs::read_to_string(path).map_err(FileError::io("read", path))?;
    public_key(&pem).map_err(|why| FileError::content(path, why))
}

/// The raw Ed25519 public key of a PEM file with a private or public key.
fn public_key(pem: &str) -> Result<Vec<u8>, String> {
    if pem.contains("PRIVATE KEY-----") {
        let pair = KeyPair::from_pem(pem).map_err(|error| error.to_string())?;
        if *pair.algorithm() != PKCS_ED25519 {
            return Err("it is not an Ed25519 key".to_owned());
        }
        return Ok(pair.public_key_raw().to_vec());
    }
    let public = SubjectPublicKeyInfo::from_pem(pem).map_err(|error| error.to_string())?;
    if *public.algorithm() != PKCS_ED25519 || public.der_bytes().len() != 32 {
        return Err("it is not an Ed25519 key".to_owned());
    }
    Ok(public.der_bytes().to_vec())
}

/// Thumbprint of RFC 7638: SHA-256 of the required members, ordered by name.
fn thumbprint(public: &[u8]) -> String {
    let x = URL_SAFE_NO_PAD.encode(public);
    let members = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    URL_SAFE_NO_PAD.encode(Sha256::digest(members))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thumbprint_is_that_of_the_rfc() {
        // RFC 8037, appendix A.3.
        let public = URL_SAFE_NO_PAD.decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo").unwrap();
        assert_eq!(thumbprint(&public), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    const PURPOSES: [KeyPurpose; 2] = [KeyPurpose::Operators, KeyPurpose::Nodes];

    #[test]
    fn the_signing_keys_are_created_once() {
        let folder = tempfile::tempdir().unwrap();
        let first = Keys::open(&folder.path().join("keys")).unwrap();
        let second = Keys::open(&folder.path().join("keys")).unwrap();
        for purpose in PURPOSES {
            assert_eq!(first.signing_id(purpose), second.signing_id(purpose));
        }
        assert_eq!(second.jwks()["keys"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn the_only_key_of_an_earlier_release_stays_the_key_of_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        fs::write(folder.path().join("signing.pem"), pair.serialize_pem()).unwrap();
        assert!(Keys::read(folder.path()).unwrap().is_none(), "nothing is created");

        let keys = Keys::open(folder.path()).unwrap();

        let old = thumbprint(pair.public_key_raw());
        assert_eq!(keys.signing_id(KeyPurpose::Nodes), old);
        assert_ne!(keys.signing_id(KeyPurpose::Operators), old);
        assert_eq!(keys.jwks()["keys"][0]["kid"], keys.signing_id(KeyPurpose::Operators));
    }

    #[test]
    fn a_key_for_both_purposes_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        Keys::open(folder.path()).unwrap();
        let copy = folder.path().join("operators/copy.pem");
        fs::copy(folder.path().join("signing.pem"), copy).unwrap();
        let error = Keys::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is also a key for the credentials of nodes"), "{error}");
    }

    #[test]
    fn a_renamed_signing_key_is_published_next_to_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let old = Keys::open(folder.path()).unwrap();
        let operators = folder.path().join("operators");
        fs::rename(operators.join("signing.pem"), operators.join("2026.pem")).unwrap();

        let new = Keys::open(folder.path()).unwrap();

        let purpose = KeyPurpose::Operators;
        assert_ne!(new.signing_id(purpose), old.signing_id(purpose));
        assert_eq!(new.signing_id(KeyPurpose::Nodes), old.signing_id(KeyPurpose::Nodes));
        let jwks = new.jwks();
        assert_eq!(jwks["keys"][0]["kid"], new.signing_id(purpose));
        assert_eq!(jwks["keys"][1]["kid"], old.signing_id(purpose));
    }

    #[test]
    fn keys_are_read_without_creating_any() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        assert!(Keys::read(&path).unwrap().is_none());
        assert!(Keys::ids_in(&path, KeyPurpose::Nodes).unwrap().is_empty());
        assert!(!path.exists());

        let first = Keys::open(&path).unwrap();
        let read = Keys::read(&path).unwrap().unwrap();
        for purpose in PURPOSES {
            assert_eq!(read.signing_id(purpose), first.signing_id(purpose));
            assert_eq!(Keys::ids_in(&path, purpose).unwrap(), [first.signing_id(purpose)]);
        }
        fs::rename(path.join("signing.pem"), path.join("2026.pem")).unwrap();
        assert!(Keys::read(&path).unwrap().is_none());
        let known = Keys::ids_in(&path, KeyPurpose::Nodes).unwrap();
        assert_eq!(known, [first.signing_id(KeyPurpose::Nodes)]);
    }

    #[test]
    fn a_public_key_is_enough_to_verify_with() {
        let folder = tempfile::tempdir().unwrap();
        Keys::open(folder.path()).unwrap();
        let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        fs::write(folder.path().join("operators/other.pem"), pair.public_key_pem()).unwrap();
        let keys = Keys::open(folder.path()).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.public_key_raw());
        assert_eq!(keys.jwks()["keys"][1]["x"], x);
    }

    #[test]
    fn a_file_that_holds_no_ed25519_key_is_named() {
        for (content, why) in [
            ("nonsense".to_owned(), "signing.pem is not usable"),
            (KeyPair::generate().unwrap().serialize_pem(), "signing.pem is not usable"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("signing.pem"), content).unwrap();
            let error = Keys::open(folder.path()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let rsa_like = KeyPair::generate().unwrap().public_key_pem();
        fs::write(folder.path().join("other.pem"), rsa_like).unwrap();
        let error = Keys::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("other.pem is not usable: it is not an Ed25519 key"), "{error}");
    }
}
