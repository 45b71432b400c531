//! Verifies who published an image: only the public keys in a folder of this machine are trusted.
//!
//! The publisher signs not the file but a [`signed_statement`] that names the image, so that an old
//! image cannot be served under a new name. Signatures are ECDSA with P-256 and SHA-256, in ASN.1,
//! as `openssl dgst -sha256 -sign` makes them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject as _;

use crate::model::{Failure, FailureKind, ImageSpec, Sha256};
use crate::owner::{check_only_root_writes, check_only_root_writes_in, read_trusted};

/// Larger files contain more than a key.
const MAX_KEY_FILE_BYTES: u64 = 16 << 10;

/// More keys are a mistake.
const MAX_KEYS: usize = 64;

/// Only this many signatures of a spec are checked. An image may have 8.
const MAX_SIGNATURES: usize = 32;

/// DER prefix of the `SubjectPublicKeyInfo` of an uncompressed point on P-256 (RFC 5480): the
/// algorithm `id-ecPublicKey`, the curve `prime256v1`, and a bit string of 66 bytes whose first
/// byte says that no bit is unused.
const P256_SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The first byte of an uncompressed point, and the length of one (SEC 1, 2.3.3).
const UNCOMPRESSED_POINT_TAG: u8 = 4;
const POINT_BYTES: usize = 65;

/// Keys of the publishers that this node trusts.
#[derive(Clone, Debug)]
pub struct ImageKeys {
    folder: PathBuf,
    keys: Vec<ImageKey>,
}

#[derive(Clone, Debug)]
struct ImageKey {
    /// SHA-256 of the key's `SubjectPublicKeyInfo`.
    id: Sha256,
    point: Vec<u8>,
}

impl ImageKeys {
    /// Reads the files `*.pem` of a folder, one key each. A missing folder has no keys. Fails with
    /// [`FailureKind::Signature`] if a file is not a key or if other users than root can write
    /// there: then none of the keys is trusted.
    pub fn load(folder: &Path) -> Result<Self, Failure> {
        let refuse = |why: String| {
            let folder = folder.display();
            signature_failure(format!("the image keys in {folder} cannot be trusted: {why}"))
        };
        let unreadable = |error: io::Error| refuse(error.to_string());
        let mut keys = Vec::new();
        let metadata = match fs::metadata(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = folder.to_owned();
                return Ok(Self { folder, keys });
            }
            metadata => metadata.map_err(unreadable)?,
        };
        check_only_root_writes(&metadata).map_err(refuse)?;
        // A user who can write to the parent could replace the folder.
        let above = folder.parent().unwrap_or(Path::new("/"));
        check_only_root_writes_in(above)
            .map_err(|why| refuse(format!("{}: {why}", above.display())))?;
        for entry in fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            // Other names are copies that an editor or dpkg left, or text for people.
            if path.extension().is_none_or(|extension| extension != "pem") {
                continue;
            }
            let key =
                read_key_file(&path).map_err(|why| refuse(format!("{}: {why}", path.display())))?;
            keys.push(key);
            if keys.len() > MAX_KEYS {
                return Err(refuse(format!("there are more than {MAX_KEYS}")));
            }
        }
        Ok(Self { folder: folder.to_owned(), keys })
    }

    /// Fails with [`FailureKind::Signature`] unless one of the keys signed the image.
    pub fn check(&self, spec: &ImageSpec) -> Result<(), Failure> {
        let refuse = |why: String| {
            Err(signature_failure(format!(
                "the image {:?} of {:?} is refused: {why}",
                spec.image_id, spec.profile_name
            )))
        };
        // A line end in a field could make the signature of another statement valid for this one.
        let fields = [&spec.profile_name, &spec.image_id, &spec.architecture];
        if fields.iter().any(|field| field.contains(char::is_control)) {
            let why = "its name, its profile or its architecture has a control character";
            return refuse(why.to_owned());
        }
        let folder = self.folder.display();
        if self.keys.is_empty() {
            return refuse(format!(
                "this node has no key to verify it; put the publisher's public key into {folder} \
                 as a file with the ending .pem"
            ));
        }
        if spec.signatures.is_empty() {
            return refuse("it is not signed; publish it with a key".to_owned());
        }
        let statement = signed_statement(spec);
        let mut reasons = Vec::new();
        for signature in spec.signatures.iter().take(MAX_SIGNATURES) {
            match self.verify_signature(&statement, signature) {
                Ok(()) => return Ok(()),
                Err(why) => reasons.push(why),
            }
        }
        refuse(reasons.join("; "))
    }

    /// Fails with the reason if a signature is not valid.
    fn verify_signature(&self, statement: &str, signature: &str) -> Result<(), String> {
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
            return Err(format!("it is signed by the key {id}, which is not in {folder}"));
        };
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &key.point)
            .verify(statement.as_bytes(), &bytes)
            .map_err(|_| {
                format!(
                    "the signature by the key {id} does not match this image: its file, name, \
                     profile or architecture was changed"
                )
            })
    }
}

/// The signed text: five lines, each with a line end.
pub fn signed_statement(spec: &ImageSpec) -> String {
    format!(
        "evenkeel-image-1\n{}\n{}\n{}\n{}\n",
        spec.profile_name, spec.image_id, spec.architecture, spec.sha256
    )
}

fn read_key_file(path: &Path) -> Result<ImageKey, String> {
    let text = read_trusted(path, MAX_KEY_FILE_BYTES)?;
    parse_key(&text.ok_or("it does not exist any more")?)
}

/// The only key of a PEM text.
fn parse_key(pem: &[u8]) -> Result<ImageKey, String> {
    let mut keys = SubjectPublicKeyInfoDer::pem_slice_iter(pem);
    let der = match keys.next() {
        Some(Ok(der)) => der,
        Some(Err(error)) => return Err(format!("it is not PEM: {error}")),
        None => return Err("it has no PUBLIC KEY (only public keys belong here)".to_owned()),
    };
    if keys.next().is_some() {
        return Err("it has more than one key; give each a file".to_owned());
    }
    let point = der
        .strip_prefix(P256_SPKI_PREFIX.as_slice())
        .filter(|point| {
            point.len() == POINT_BYTES && point.first() == Some(&UNCOMPRESSED_POINT_TAG)
        })
        .ok_or("it is not a key for ECDSA with P-256 and an uncompressed point")?;
    Ok(ImageKey { id: Sha256::hash(&der), point: point.to_vec() })
}

fn signature_failure(reason: String) -> Failure {
    Failure::new(FailureKind::Signature, reason)
}

#[cfg(test)]
mod tests;
