//! The server's own keys: the key that signs, and the keys whose signatures are accepted.
//!
//! The folder of our own keys:
//!
//! | file | content |
//! | --- | --- |
//! | `signing.pem` | the Ed25519 key that signs, in PKCS #8; created at the first start, mode 0600 |
//! | any other `*.pem` | a further Ed25519 key, private or public, whose signatures are accepted |
//!
//! To rotate the key, rename `signing.pem` (for example to `2026.pem`) and restart. The server
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

/// The server's own keys.
pub struct Keys {
    pub(crate) signing: EncodingKey,
    pub(crate) signing_id: String,
    /// Raw public keys with their ids; that of the signing key first.
    public: Vec<(String, Vec<u8>)>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<&String> = self.public.iter().map(|(id, _)| id).collect();
        f.debug_struct("Keys").field("ids", &ids).finish()
    }
}

impl Keys {
    /// Reads the keys in `folder`. Creates the folder and the signing key if they do not exist.
    pub fn open(folder: &Path) -> Result<Self, FileError> {
        file::create_private_folder(folder)?;
        let pem = file::read_or_create(&folder.join(SIGNING_KEY_FILE), 0o600, || {
            let key = KeyPair::generate_for(&PKCS_ED25519);
            Ok(key.map_err(FileError::create("a signing key"))?.serialize_pem())
        })?;
        Self::from_signing_key(folder, &pem)
    }

    /// Reads the keys in `folder`; none if it has no signing key. Creates nothing.
    pub fn read(folder: &Path) -> Result<Option<Self>, FileError> {
        let pem = file::read(&folder.join(SIGNING_KEY_FILE))?;
        pem.map(|pem| Self::from_signing_key(folder, &pem)).transpose()
    }

    /// The ids of all keys in `folder`, which need not have a signing key. Creates nothing.
    pub fn ids_in(folder: &Path) -> Result<Vec<String>, FileError> {
        let public = key_files(folder)?.into_iter().map(|path| read_public_key(&path));
        public.map(|public| Ok(thumbprint(&public?))).collect()
    }

    fn from_signing_key(folder: &Path, pem: &str) -> Result<Self, FileError> {
        let path = folder.join(SIGNING_KEY_FILE);
        file::warn_if_open(&path);
        let signing = EncodingKey::from_ed_pem(pem.as_bytes())
            .map_err(|error| FileError::content(&path, error))?;
        let public = public_key(pem).map_err(|why| FileError::content(&path, why))?;
        let signing_id = thumbprint(&public);
        let mut keys =
            Self { signing, signing_id: signing_id.clone(), public: vec![(signing_id, public)] };
        for other in key_files(folder)?.into_iter().filter(|other| *other != path) {
            let public = read_public_key(&other)?;
            let id = thumbprint(&public);
            if keys.public.iter().all(|(existing, _)| *existing != id) {
                keys.public.push((id, public));
            }
        }
        Ok(keys)
    }

    #[must_use]
    pub fn signing_id(&self) -> &str {
        &self.signing_id
    }

    /// The public keys as a JSON Web Key Set (RFC 7517), for other services that verify our tokens.
    #[must_use]
    pub fn jwks(&self) -> serde_json::Value {
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

    #[test]
    fn the_signing_key_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let first = Keys::open(&folder.path().join("keys")).unwrap();
        let second = Keys::open(&folder.path().join("keys")).unwrap();
        assert_eq!(first.signing_id(), second.signing_id());
        assert_eq!(second.jwks()["keys"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn a_renamed_signing_key_is_published_next_to_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let old = Keys::open(folder.path()).unwrap();
        fs::rename(folder.path().join("signing.pem"), folder.path().join("2026.pem")).unwrap();

        let new = Keys::open(folder.path()).unwrap();

        assert_ne!(new.signing_id(), old.signing_id());
        let jwks = new.jwks();
        assert_eq!(jwks["keys"][0]["kid"], new.signing_id());
        assert_eq!(jwks["keys"][1]["kid"], old.signing_id());
    }

    #[test]
    fn keys_are_read_without_creating_any() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        assert!(Keys::read(&path).unwrap().is_none());
        assert!(Keys::ids_in(&path).unwrap().is_empty());
        assert!(!path.exists());

        let first = Keys::open(&path).unwrap();
        let read = Keys::read(&path).unwrap().unwrap();
        assert_eq!(read.signing_id(), first.signing_id());
        fs::rename(path.join("signing.pem"), path.join("2026.pem")).unwrap();
        assert!(Keys::read(&path).unwrap().is_none());
        assert_eq!(Keys::ids_in(&path).unwrap(), [first.signing_id()]);
    }

    #[test]
    fn a_public_key_is_enough_to_verify_with() {
        let folder = tempfile::tempdir().unwrap();
        let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        fs::write(folder.path().join("other.pem"), pair.public_key_pem()).unwrap();
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
