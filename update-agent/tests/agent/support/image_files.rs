//! Image files, and a CA for the server that serves them.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_update_agent::model::{ImageRules, ImageSpec, Sha256};
use flate2::Compression;
use flate2::write::GzEncoder;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;

/// 64 KiB of zeros, packed by `xz -6`.
pub const XZ_ZEROS: [u8; 136] = [
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x00, 0x21, 0x01,
    0x16, 0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0xe0, 0xff, 0xff, 0x00, 0x4c, 0x5d, 0x00, 0x00,
    0x6f, 0xfd, 0xff, 0xff, 0xa3, 0xb7, 0xff, 0x47, 0x3e, 0x48, 0x15, 0x72, 0x39, 0x61, 0x51, 0xb8,
    0x92, 0x28, 0xe6, 0xa3, 0x86, 0x07, 0xf9, 0xee, 0xe4, 0x1e, 0x82, 0xd3, 0x2f, 0xc5, 0x3a, 0x3c,
    0x01, 0x4b, 0xb1, 0x7e, 0xc9, 0x8a, 0x8a, 0x4d, 0x2f, 0xa3, 0x0d, 0xd9, 0x7f, 0xa6, 0xe3, 0x8c,
    0x23, 0x11, 0x53, 0xe0, 0x59, 0x18, 0xc5, 0x75, 0x8a, 0xe2, 0x77, 0xf8, 0xb6, 0x94, 0x7f, 0x0c,
    0x6a, 0xc0, 0xde, 0x74, 0x49, 0x64, 0x5c, 0x9e, 0x3a, 0xd1, 0x00, 0x00, 0xeb, 0x8e, 0x97, 0xd7,
    0x00, 0x01, 0x64, 0x80, 0x80, 0x04, 0x00, 0x00, 0xe4, 0x37, 0x86, 0x0b, 0x3e, 0x30, 0x0d, 0x8b,
    0x02, 0x00, 0x00, 0x00, 0x00, 0x01, 0x59, 0x5a,
];

/// Incompressible bytes, the same for the same seed.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    // xorshift64 never turns an odd number into zero.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Packs like `gzip -9`.
pub fn gzip(content: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(content).expect("memory");
    packer.finish().expect("memory")
}

/// Packs like `zstd`.
pub fn zstandard(content: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(content, 3).expect("memory")
}

/// Packs like `zstd --long=26`.
pub fn zstd_with_wide_window(content: &[u8]) -> Vec<u8> {
    let mut packer = zstd::Encoder::new(Vec::new(), 1).expect("memory");
    packer.window_log(26).expect("a window");
    packer.write_all(content).expect("memory");
    let small = packer.finish().expect("memory");
    assert_eq!(small[5], (26 - 10) << 3, "64 MiB (RFC 8878, 3.1.1.1.2)");
    small
}

/// An image spec for the file at a URL.
pub fn image_spec(url: String, file: &[u8]) -> ImageSpec {
    ImageSpec {
        os_id: "os-1".to_owned(),
        name: "Demo 1.1".to_owned(),
        profile_name: "demo".to_owned(),
        image_id: "1.1".to_owned(),
        architecture: "x86_64".to_owned(),
        url,
        sha256: Sha256::hash(file),
        signatures: Vec::new(),
        rules: ImageRules::default(),
        allow_retry: false,
    }
}

/// A private certificate authority.
pub struct TestAuthority {
    ca: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl TestAuthority {
    pub fn new() -> Self {
        let mut params = certificate_params("an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let ca = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Self { ca, folder };
        fs::write(authority.ca_file(), authority.ca.pem()).expect("a file");
        authority
    }

    /// The file with the CA certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The TLS configuration of a server for a host name or address.
    pub fn server_config_for(&self, host: &str) -> ServerConfig {
        let key = KeyPair::generate().expect("a key");
        let hosts = CertificateParams::new([host.to_owned()]).expect("a host");
        let mut params = certificate_params("a server of images");
        params.subject_alt_names = hosts.subject_alt_names;
        let certificate = params.signed_by(&key, &self.ca).expect("a certificate");
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::from(key))
            .expect("a certificate with its key")
    }
}

/// Names a certificate. Some programs take a certificate with the name of its CA for a self-signed one, so the names must
/// differ.
fn certificate_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
