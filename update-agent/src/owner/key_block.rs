//! Reads the fingerprints of `OpenPGP` public keys (RFC 9580), armored or binary.

use std::fmt::Write as _;

use evenkeel_domain::key_block::public_keys;
pub use evenkeel_domain::key_block::{
    PUBLIC_KEY, decode_blocks, is_armored, split_number, split_packet,
};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// Fingerprints of the keys in armored text, in upper-case hexadecimal. Blanks around lines, and
/// lines with only a dot, are those of a DEB822 field. Fails if there is no key.
pub fn armored_fingerprints(text: &str) -> Result<Vec<String>, String> {
    let mut fingerprints = Vec::new();
    for block in decode_blocks(text)? {
        fingerprints.extend(binary_fingerprints(&block)?);
    }
    if fingerprints.is_empty() {
        Err("there is no public key block".to_owned())
    } else {
        Ok(fingerprints)
    }
}

/// Fingerprints of the keys in a binary keyring, in upper-case hexadecimal; not those of subkeys.
/// Fails if there is no key.
pub fn binary_fingerprints(data: &[u8]) -> Result<Vec<String>, String> {
    public_keys(data)?.into_iter().map(fingerprint).collect()
}

/// The fingerprint of a public key from its packet's body (RFC 9580, 5.5.4).
pub(super) fn fingerprint(body: &[u8]) -> Result<String, String> {
    let too_long = |_| "a key is too long".to_owned();
    let (mut context, prefix, length) = match body.first() {
        Some(4) => {
            let length = u16::try_from(body.len()).map_err(too_long)?;
            (Context::new(&SHA1_FOR_LEGACY_USE_ONLY), 0x99, length.to_be_bytes().to_vec())
        }
        Some(6) => {
            let length = u32::try_from(body.len()).map_err(too_long)?;
            (Context::new(&SHA256), 0x9b, length.to_be_bytes().to_vec())
        }
        Some(version) => return Err(format!("a key has the unsupported version {version}")),
        None => return Err("a key is empty".to_owned()),
    };
    context.update(&[prefix]);
    context.update(&length);
    context.update(body);
    Ok(to_hex(context.finish().as_ref()))
}

/// Upper-case hexadecimal.
pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String does not fail.
        write!(text, "{byte:02X}").ok();
        text
    })
}

#[cfg(test)]
pub(super) mod testing {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use evenkeel_domain::key_block::{BLOCK_BEGIN, BLOCK_END};

    use super::*;

    /// An invented key of version 4 in armored text, and its fingerprint. `number` distinguishes
    /// keys.
    pub fn armored_key(number: u8) -> (String, String) {
        let body = [4, 0, 0, 0, number, 22, 1, 2, 3];
        let packet = packet(0xc6, &body);
        let text = format!(
            "{BLOCK_BEGIN}\nComment: a test\n\n{}\n=ABCD\n{BLOCK_END}\n",
            STANDARD.encode(packet)
        );
        (text, fingerprint(&body).unwrap())
    }

    /// A packet with a length of one byte.
    pub fn packet(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u8::try_from(body.len()).unwrap();
        [&[tag, length][..], body].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{armored_key, packet};
    use super::*;

    /// The key of RFC 9580, A.1 (version 4) with the fingerprint that the RFC names.
    const RFC_KEY: &str = "\
-----BEGIN PGP PUBLIC KEY BLOCK-----

xjMEU/NfCxYJKwYBBAHaRw8BAQdAPwmJlL3ZFu1AUxl5NOSofIBzOhKA1i+AEJku
Q+47JAY=
-----END PGP PUBLIC KEY BLOCK-----
";
    const RFC_FINGERPRINT: &str = "C959BDBAFA32A2F89A153B678CFDE12197965A9A";

    #[test]
    fn the_fingerprint_of_a_known_key_is_calculated() {
        assert_eq!(armored_fingerprints(RFC_KEY).unwrap(), [RFC_FINGERPRINT]);
        // As apt's deb822 format has it.
        let field: String = RFC_KEY
            .lines()
            .map(|line| if line.is_empty() { "." } else { line })
            .fold(String::new(), |field, line| field + " " + line + "\n");
        assert_eq!(armored_fingerprints(&field).unwrap(), [RFC_FINGERPRINT]);
    }

    #[test]
    fn every_key_of_a_file_is_found_and_other_packets_are_skipped() {
        let (first, one) = armored_key(1);
        let (second, two) = armored_key(2);
        assert_ne!(one, two);
        let both = armored_fingerprints(&format!("{first}\n{second}")).unwrap();
        assert_eq!(both, [one.clone(), two]);
        // A subkey (14) and a user ID (13), the latter in the old format.
        let body = [4, 0, 0, 0, 1, 22, 1, 2, 3];
        let binary = [packet(0xc6, &body), packet(0xce, &body), packet(0xb4, b"name")].concat();
        assert_eq!(binary_fingerprints(&binary).unwrap(), [one]);
    }

    #[test]
    fn a_text_without_a_key_or_with_a_private_key_is_an_error() {
        for text in ["", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n", "nonsense"] {
            assert!(armored_fingerprints(text).is_err(), "{text}");
        }
        for data in [&b""[..], b"text", &[0xc6], &[0xc6, 200], &[0xc6, 2, 4], &[0xc6, 1, 3]] {
            assert!(binary_fingerprints(data).is_err(), "{data:?}");
        }
        let error = binary_fingerprints(&packet(0xc5, &[4])).unwrap_err();
        assert!(error.contains("private"), "{error}");
    }
}
