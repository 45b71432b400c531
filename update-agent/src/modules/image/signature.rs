//! Who may publish images for this node: public keys that lie in a folder of the machine, and no other.
//!
//! Signed is not the file but a [`statement`] that names what it is, so that nobody can serve an old image under a new
//! name. The signatures are ECDSA with P-256 and SHA-256, in ASN.1, as `openssl dgst -sha256 -sign` makes them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject as _;

use crate::model::{Failure, FailureKind, ImageWish, Sha256};
use crate::owner::{only_root_writes, only_root_writes_in, read_trusted};

/// A longer file holds more than a key.
const MOST_BYTES: u64 = 16 << 10;

/// More keys are a mistake.
const MOST_KEYS: usize = 64;

/// Of a wish's signatures so many are looked at. An image may have 8.
const MOST_SIGNATURES: usize = 32;

/// How the `SubjectPublicKeyInfo` of an uncompressed point on P-256 begins in DER (RFC 5480): the algorithm
/// `id-ecPublicKey`, the curve `prime256v1`, and a string of 66 bytes of which the first says that no bit is unused.
const P256: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The first byte of an uncompressed point, and the length of one (SEC 1, 2.3.3).
const UNCOMPRESSED: u8 = 4;
const POINT: usize = 65;

/// The keys of those who may publish images for this node.
#[derive(Clone, Debug)]
pub struct Keys {
    folder: PathBuf,
    keys: Vec<Key>,
}

#[derive(Clone, Debug)]
struct Key {
    /// SHA-256 of the key's `SubjectPublicKeyInfo`.
    id: Sha256,
    point: Vec<u8>,
}

impl Keys {
    /// Reads the files `*.pem` of a folder, one key each. A folder that is not there has none. Fails with
    /// [`FailureKind::Signature`] if one of them is no key, or if others than root could have put one there: none of
    /// them is then relied on.
    pub fn load(folder: &Path) -> Result<Self, Failure> {
        let refuse = |why: String| {
            let folder = folder.display();
            refused(format!(
                "the keys of images in {folder} cannot be relied on: {why}"
            ))
        };
        let unreadable = |error: io::Error| refuse(error.to_string());
        let mut keys = Vec::new();
        let found = match fs::metadata(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = folder.to_owned();
                return Ok(Self { folder, keys });
            }
            found => found.map_err(unreadable)?,
        };
        only_root_writes(&found).map_err(refuse)?;
        // Who may write above it could put another folder in its place.
        let above = folder.parent().unwrap_or(Path::new("/"));
        only_root_writes_in(above).map_err(|why| refuse(format!("{}: {why}", above.display())))?;
        for entry in fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            // What has another name is a copy that an editor or dpkg left, or text for people.
            if path.extension().is_none_or(|extension| extension != "pem") {
                continue;
            }
            let key = read(&path).map_err(|why| refuse(format!("{}: {why}", path.display())))?;
            keys.push(key);
            if keys.len() > MOST_KEYS {
                return Err(refuse(format!("there are more than {MOST_KEYS}")));
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            keys,
        })
    }

    /// Whether one of the keys signed what is wished for. Else fails with [`FailureKind::Signature`].
    pub fn check(&self, wish: &ImageWish) -> Result<(), Failure> {
        let refuse = |why: String| {
            Err(refused(format!(
                "the image {:?} of {:?} is not taken: {why}",
                wish.image_id, wish.profile_name
            )))
        };
        // With a line end in it a field could pass for two, and a signature for that of another statement.
        let fields = [&wish.profile_name, &wish.image_id, &wish.architecture];
        if fields.iter().any(|field| field.contains(char::is_control)) {
            let why = "its name, its profile or its architecture has a control character";
            return refuse(why.to_owned());
        }
        let folder = self.folder.display();
        if self.keys.is_empty() {
            return refuse(format!(
                "this node knows no key to check it with; put the publisher's public key into {folder} as a file with \
                 the ending .pem"
            ));
        }
        if wish.signatures.is_empty() {
            return refuse("it is not signed; publish it with a key".to_owned());
        }
        let statement = statement(wish);
        let mut whys = Vec::new();
        for signature in wish.signatures.iter().take(MOST_SIGNATURES) {
            match self.verify(&statement, signature) {
                Ok(()) => return Ok(()),
                Err(why) => whys.push(why),
            }
        }
        refuse(whys.join("; "))
    }

    /// Whether a signature is good; else why not.
    fn verify(&self, statement: &str, signature: &str) -> Result<(), String> {
        let parts = signature.split_once(':');
        let parts = parts.and_then(|(id, bytes)| {
            let id: Sha256 = id.parse().ok()?;
            Some((id, STANDARD.decode(bytes).ok()?))
        });
        let Some((id, bytes)) = parts else {
            return Err("a signature is not <SHA-256 of the key>:<base64>".to_owned());
        };
        let Some(key) = self.keys.iter().find(|key| key.id == id) else {
            let folder = self.folder.display();
            return Err(format!(
                "it is signed by the key {id}, which is not in {folder}"
            ));
        };
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &key.point)
            .verify(statement.as_bytes(), &bytes)
            .map_err(|_| {
                format!(
                    "the signature by the key {id} is not one of this image: it was changed, or given another name, \
                     profile or architecture"
                )
            })
    }
}

/// What is signed of an image: five lines, each with a line end.
pub fn statement(wish: &ImageWish) -> String {
    format!(
        "evenkeel-image-1\n{}\n{}\n{}\n{}\n",
        wish.profile_name, wish.image_id, wish.architecture, wish.sha256
    )
}

/// The key in a file.
fn read(path: &Path) -> Result<Key, String> {
    let text = read_trusted(path, MOST_BYTES)?;
    key(&text.ok_or("it is not there any more")?)
}

/// The only key of a PEM text.
fn key(pem: &[u8]) -> Result<Key, String> {
    let mut keys = SubjectPublicKeyInfoDer::pem_slice_iter(pem);
    let der = match keys.next() {
        Some(Ok(der)) => der,
        Some(Err(error)) => return Err(format!("it is no PEM: {error}")),
        None => return Err("it has no PUBLIC KEY (only public keys belong here)".to_owned()),
    };
    if keys.next().is_some() {
        return Err("it has more than one key; give each a file".to_owned());
    }
    let point = der
        .strip_prefix(P256.as_slice())
        .filter(|point| point.len() == POINT && point.first() == Some(&UNCOMPRESSED))
        .ok_or("it is no key for ECDSA with P-256 and an uncompressed point")?;
    Ok(Key {
        id: Sha256::of(&der),
        point: point.to_vec(),
    })
}

fn refused(reason: String) -> Failure {
    Failure::new(FailureKind::Signature, reason)
}

#[cfg(test)]
mod tests;
