//! `OpenPGP` public keys (RFC 9580), armored or binary, without their fingerprints: the server checks
//! with it what agents will accept.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// First line of an armored key.
pub const BLOCK_BEGIN: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";

/// Last line of an armored key.
pub const BLOCK_END: &str = "-----END PGP PUBLIC KEY BLOCK-----";

/// Types of packets.
const SECRET_KEY: u8 = 5;
pub const PUBLIC_KEY: u8 = 6;
const SECRET_SUBKEY: u8 = 7;

/// Whether a key file is armored text.
#[must_use]
pub fn is_armored(content: &[u8]) -> bool {
    content.windows(BLOCK_BEGIN.len()).any(|part| part == BLOCK_BEGIN.as_bytes())
}

/// Checks armored text. Blanks around lines, and lines with only a dot, are those of a DEB822 field.
///
/// # Errors
/// A block is not a public key, or there is none.
pub fn check_armored(text: &str) -> Result<(), String> {
    let blocks = decode_blocks(text)?;
    for block in &blocks {
        public_keys(block)?;
    }
    if blocks.is_empty() { Err("there is no public key block".to_owned()) } else { Ok(()) }
}

/// The packets in each block of armored text.
///
/// # Errors
/// A block has no end, or is not base64.
pub fn decode_blocks(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while lines.by_ref().any(|line| line == BLOCK_BEGIN) {
        let mut encoded = String::new();
        let mut has_data_ended = false;
        loop {
            let line = lines.next().ok_or("a key block has no end")?;
            if line == BLOCK_END {
                break;
            }
            // The data ends with a checksum. Headers such as `Comment: x` precede it.
            has_data_ended |= line.starts_with('=');
            if !has_data_ended && line != "." && !line.contains(':') {
                encoded.push_str(line);
            }
        }
        blocks.push(STANDARD.decode(encoded).map_err(|error| error.to_string())?);
    }
    Ok(blocks)
}

/// The bodies of the keys in a binary keyring; not those of subkeys. Each has a version and a length
/// that its fingerprint can be made of.
///
/// # Errors
/// It contains something else than packets of keys, a private key, or no key.
pub fn public_keys(mut data: &[u8]) -> Result<Vec<&[u8]>, String> {
    let mut keys = Vec::new();
    while !data.is_empty() {
        let (kind, body, rest) = split_packet(data).ok_or("it is not an OpenPGP key")?;
        match kind {
            SECRET_KEY | SECRET_SUBKEY => {
                return Err("it contains a private key; only public keys belong here".to_owned());
            }
            PUBLIC_KEY => keys.push(checked_key(body)?),
            _ => {}
        }
        data = rest;
    }
    if keys.is_empty() { Err("there is no public key".to_owned()) } else { Ok(keys) }
}

fn checked_key(body: &[u8]) -> Result<&[u8], String> {
    let max_length = match body.first() {
        Some(4) => usize::from(u16::MAX),
        Some(6) => usize::try_from(u32::MAX).unwrap_or(usize::MAX),
        Some(version) => return Err(format!("a key has the unsupported version {version}")),
        None => return Err("a key is empty".to_owned()),
    };
    if body.len() > max_length { Err("a key is too long".to_owned()) } else { Ok(body) }
}

/// The type and the body of the first packet, and the data after it. `None` if the packet is
/// invalid, or has a partial or indeterminate length, which keys must not have.
#[must_use]
pub fn split_packet(data: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, data) = data.split_first()?;
    if tag & 0x80 == 0 {
        return None;
    }
    let (kind, (length, data)) = if tag & 0x40 == 0 {
        let length_bytes = match tag & 0x03 {
            0 => 1,
            1 => 2,
            2 => 4,
            _ => return None,
        };
        ((tag >> 2) & 0x0f, split_number(data, length_bytes)?)
    } else {
        let (&first, rest) = data.split_first()?;
        let length = match first {
            0..192 => (usize::from(first), rest),
            192..224 => {
                let (&second, rest) = rest.split_first()?;
                ((usize::from(first) - 192) * 256 + usize::from(second) + 192, rest)
            }
            255 => split_number(rest, 4)?,
            _ => return None,
        };
        (tag & 0x3f, length)
    };
    let (body, rest) = data.split_at_checked(length)?;
    Some((kind, body, rest))
}

/// A big-endian number of `length` bytes, and the data after it.
#[must_use]
pub fn split_number(data: &[u8], length: usize) -> Option<(usize, &[u8])> {
    let (number, rest) = data.split_at_checked(length)?;
    let value = number
        .iter()
        .try_fold(0_usize, |value, byte| value.checked_mul(256)?.checked_add(usize::from(*byte)))?;
    Some((value, rest))
}
