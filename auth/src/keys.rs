//! With which key is signed, and whose signatures count.
//!
//! The folder of our own keys:
//!
//! | file | what it is |
//! | --- | --- |
//! | `signing.pem` | the Ed25519 key that signs, in PKCS #8; made at the first start, mode 0600 |
//! | any other `*.pem` | one more Ed25519 key, private or public, whose signatures count |
//!
//! To change the key, rename `signing.pem` (say, to `2026.pem`) and start anew: a new one is made, and tokens of the old
//! one count until they expire. Replicas share the folder. A key's id is its RFC 7638 thumbprint.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData, SubjectPublicKeyInfo};
use sha2::{Digest, Sha256};

use crate::file::{self, FileError};

/// A key whose signatures count.
#[derive(Clone)]
pub(crate) struct VerificationKey {
    pub(crate) id: Option<String>,
    pub(crate) key: DecodingKey,
    /// What it signs by; a signature by anything else does not count.
    pub(crate) algorithms: Vec<Algorithm>,
}

impl std::fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("VerificationKey").field(&self.id).finish()
    }
}

impl VerificationKey {
    /// Whether a signature by this algorithm can be of this key.
    pub(crate) fn signs_by(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    /// Whether this is the same key under the same name.
    pub(crate) fn is(&self, other: &Self) -> bool {
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

/// Our own keys.
pub struct Keys {
    pub(crate) signing: EncodingKey,
    pub(crate) signing_id: String,
    /// Raw public keys with their ids, that of the signing key first.
    public: Vec<(String, Vec<u8>)>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<&String> = self.public.iter().map(|(id, _)| id).collect();
        f.debug_struct("Keys").field("ids", &ids).finish()
    }
}

impl Keys {
    /// Reads the keys in `folder`. Makes the folder and the signing key if they are not there.
    pub fn open(folder: &Path) -> Result<Self, FileError> {
        file::folder(folder)?;
        let path = folder.join("signing.pem");
        let pem = file::read_or_make(&path, 0o600, || {
            let key = KeyPair::generate_for(&PKCS_ED25519);
            Ok(key
                .map_err(FileError::make("a signing key"))?
                .serialize_pem())
        })?;
        file::warn_if_open(&path);
        let signing = EncodingKey::from_ed_pem(pem.as_bytes())
            .map_err(|error| FileError::content(&path, error))?;
        let public = public_key(&pem).map_err(|why| FileError::content(&path, why))?;
        let signing_id = thumbprint(&public);
        let mut keys = Self {
            signing,
            signing_id: signing_id.clone(),
            public: vec![(signing_id, public)],
        };
        keys.read_others(folder, &path)?;
        Ok(keys)
    }

    fn read_others(&mut self, folder: &Path, signing: &Path) -> Result<(), FileError> {
        let entries = fs::read_dir(folder).map_err(FileError::io("read", folder))?;
        let mut paths: Vec<_> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "pem") && path != signing)
            .collect();
        paths.sort();
        for path in paths {
            let pem = fs::read_to_string(&path).map_err(FileError::io("read", &path))?;
            let public = public_key(&pem).map_err(|why| FileError::content(&path, why))?;
            let id = thumbprint(&public);
            if self.public.iter().all(|(known, _)| *known != id) {
                self.public.push((id, public));
            }
        }
        Ok(())
    }

    /// The id of the key that signs.
    #[must_use]
    pub fn signing_id(&self) -> &str {
        &self.signing_id
    }

    /// The public keys as a JSON Web Key Set (RFC 7517), for others who verify our tokens.
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

    pub(crate) fn verification(&self) -> Vec<VerificationKey> {
        let key = |(id, public): &(String, Vec<u8>)| VerificationKey {
            id: Some(id.clone()),
            key: DecodingKey::from_ed_der(public),
            algorithms: vec![Algorithm::EdDSA],
        };
        self.public.iter().map(key).collect()
    }
}

/// The raw Ed25519 public key of a private or public key.
fn public_key(pem: &str) -> Result<Vec<u8>, String> {
    if pem.contains("PRIVATE KEY-----") {
        let pair = KeyPair::from_pem(pem).map_err(|error| error.to_string())?;
        if *pair.algorithm() != PKCS_ED25519 {
            return Err("this is no Ed25519 key".to_owned());
        }
        return Ok(pair.public_key_raw().to_vec());
    }
    let public = SubjectPublicKeyInfo::from_pem(pem).map_err(|error| error.to_string())?;
    if *public.algorithm() != PKCS_ED25519 || public.der_bytes().len() != 32 {
        return Err("this is no Ed25519 key".to_owned());
    }
    Ok(public.der_bytes().to_vec())
}

/// RFC 7638: the SHA-256 of the required members in the order of their names.
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
        let public = URL_SAFE_NO_PAD
            .decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
            .unwrap();
        assert_eq!(
            thumbprint(&public),
            "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
        );
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
    fn a_renamed_signing_key_is_published_beside_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let old = Keys::open(folder.path()).unwrap();
        fs::rename(
            folder.path().join("signing.pem"),
            folder.path().join("2026.pem"),
        )
        .unwrap();

        let new = Keys::open(folder.path()).unwrap();

        assert_ne!(new.signing_id(), old.signing_id());
        let jwks = new.jwks();
        assert_eq!(jwks["keys"][0]["kid"], new.signing_id());
        assert_eq!(jwks["keys"][1]["kid"], old.signing_id());
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
            (
                KeyPair::generate().unwrap().serialize_pem(),
                "signing.pem is not usable",
            ),
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
        assert!(
            error.contains("other.pem is not usable: this is no Ed25519 key"),
            "{error}"
        );
    }
}
