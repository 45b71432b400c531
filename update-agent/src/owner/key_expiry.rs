//! When `OpenPGP` public keys expire (RFC 9580). apt decides about keys itself; this explains its
//! decision to people.

use std::ops::RangeInclusive;

use chrono::{DateTime, Utc};

use super::key_block::{self, PUBLIC_KEY};

/// Types of packets.
const SIGNATURE: u8 = 2;
const PUBLIC_SUBKEY: u8 = 14;

/// Types of the signatures by which a key describes itself: those of its user IDs, and its direct
/// signature.
const USER_ID_SIGNATURES: RangeInclusive<u8> = 0x10..=0x13;
const DIRECT_SIGNATURE: u8 = 0x1f;

/// Types of subpackets.
const CREATION_TIME: u8 = 2;
const KEY_LIFETIME: u8 = 9;
const ISSUER_KEY_ID: u8 = 16;
const ISSUER_FINGERPRINT: u8 = 33;

/// A primary key that expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiringKey {
    /// Its fingerprint, in upper-case hexadecimal.
    pub fingerprint: String,
    /// When it expires, or has expired.
    pub expires: DateTime<Utc>,
}

/// The primary keys of a key file that expire. The newest signature of a key about itself decides.
/// Signatures are not verified, and subkeys are ignored.
pub fn find_expiring_keys(content: &[u8]) -> Vec<ExpiringKey> {
    if !key_block::is_armored(content) {
        return find_in_packets(content);
    }
    let blocks = key_block::decode_blocks(&String::from_utf8_lossy(content)).unwrap_or_default();
    blocks.iter().flat_map(|block| find_in_packets(block)).collect()
}

fn find_in_packets(mut data: &[u8]) -> Vec<ExpiringKey> {
    let mut keys: Vec<PrimaryKey> = Vec::new();
    let mut is_after_subkey = false;
    while let Some((kind, body, rest)) = key_block::split_packet(data) {
        match kind {
            PUBLIC_KEY => {
                keys.extend(PrimaryKey::parse(body));
                is_after_subkey = false;
            }
            PUBLIC_SUBKEY => is_after_subkey = true,
            SIGNATURE if !is_after_subkey => {
                if let (Some(key), Some(signature)) = (keys.last_mut(), KeySignature::parse(body)) {
                    key.add_signature(&signature);
                }
            }
            _ => {}
        }
        data = rest;
    }
    keys.into_iter().filter_map(PrimaryKey::into_expiring).collect()
}

#[derive(Debug)]
struct PrimaryKey {
    fingerprint: String,
    /// Seconds since 1970.
    created: u32,
    /// When its newest signature about itself was made, and the lifetime that the signature gives.
    newest: Option<(u32, u32)>,
}

impl PrimaryKey {
    /// Parses the body of a packet.
    fn parse(body: &[u8]) -> Option<Self> {
        let fingerprint = key_block::fingerprint(body).ok()?;
        Some(Self { fingerprint, created: read_u32(body.get(1..5)?)?, newest: None })
    }

    fn add_signature(&mut self, signature: &KeySignature<'_>) {
        let is_newest = self.newest.is_none_or(|(created, _)| created <= signature.created);
        if is_newest && signature.is_by(&self.fingerprint) {
            self.newest = Some((signature.created, signature.lifetime));
        }
    }

    /// None if it does not expire.
    fn into_expiring(self) -> Option<ExpiringKey> {
        let (_, lifetime) = self.newest.filter(|(_, lifetime)| *lifetime > 0)?;
        let seconds = i64::from(self.created) + i64::from(lifetime);
        let expires = DateTime::from_timestamp(seconds, 0)?;
        Some(ExpiringKey { fingerprint: self.fingerprint, expires })
    }
}

/// A signature about a key.
#[derive(Debug, Default)]
struct KeySignature<'a> {
    /// Seconds since 1970.
    created: u32,
    /// Lifetime of the key in seconds; 0 if it does not expire.
    lifetime: u32,
    /// The subpackets that name the issuer, by their types.
    issuers: Vec<(u8, &'a [u8])>,
}

impl<'a> KeySignature<'a> {
    /// Parses the body of a packet. None if the signature is not about a key.
    fn parse(body: &'a [u8]) -> Option<Self> {
        let (&version, rest) = body.split_first()?;
        let length_bytes = match version {
            4 => 2,
            6 => 4,
            _ => return None,
        };
        let (&kind, rest) = rest.split_first()?;
        if !(USER_ID_SIGNATURES.contains(&kind) || kind == DIRECT_SIGNATURE) {
            return None;
        }
        // Two bytes name the algorithms.
        let (length, rest) = key_block::split_number(rest.get(2..)?, length_bytes)?;
        let (hashed, rest) = rest.split_at_checked(length)?;
        let (length, rest) = key_block::split_number(rest, length_bytes)?;
        let unhashed = rest.get(..length)?;
        let mut signature = Self::default();
        for (kind, data) in split_subpackets(hashed) {
            match kind {
                CREATION_TIME => signature.created = read_u32(data)?,
                KEY_LIFETIME => signature.lifetime = read_u32(data)?,
                _ => signature.issuers.push((kind, data)),
            }
        }
        signature.issuers.extend(split_subpackets(unhashed));
        signature.issuers.retain(|(kind, _)| matches!(*kind, ISSUER_KEY_ID | ISSUER_FINGERPRINT));
        Some(signature)
    }

    /// Whether the key with a fingerprint claims to have made it.
    fn is_by(&self, fingerprint: &str) -> bool {
        self.issuers.iter().any(|(kind, data)| match *kind {
            ISSUER_FINGERPRINT => {
                data.get(1..).is_some_and(|issuer| key_block::to_hex(issuer) == fingerprint)
            }
            // The end of a fingerprint of version 4, the beginning of one of version 6.
            _ if data.len() != 8 => false,
            _ if fingerprint.len() == 40 => fingerprint.ends_with(&key_block::to_hex(data)),
            _ => fingerprint.starts_with(&key_block::to_hex(data)),
        })
    }
}

/// The types and the data of the subpackets, up to the first invalid one.
fn split_subpackets(mut area: &[u8]) -> Vec<(u8, &[u8])> {
    let mut subpackets = Vec::new();
    while let Some((kind, data, rest)) = split_subpacket(area) {
        subpackets.push((kind, data));
        area = rest;
    }
    subpackets
}

/// The type and the data of the first subpacket, and the data after it.
fn split_subpacket(area: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&first, rest) = area.split_first()?;
    let (length, rest) = match first {
        0..192 => (usize::from(first), rest),
        192..255 => {
            let (&second, rest) = rest.split_first()?;
            ((usize::from(first) - 192) * 256 + usize::from(second) + 192, rest)
        }
        255 => key_block::split_number(rest, 4)?,
    };
    let (subpacket, rest) = rest.split_at_checked(length)?;
    let (&kind, data) = subpacket.split_first()?;
    // The highest bit marks a critical subpacket.
    Some((kind & 0x7f, data, rest))
}

fn read_u32(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
pub(super) mod testing {
    /// A key that `GnuPG` created on 2020-01-01 with a lifetime of one year, and its fingerprint.
    pub const EXPIRED_KEY: &str = "\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEXgvhABYJKwYBBAHaRw8BAQdAa8MxY67BydTNK3cKRGYOAeuSrdLpnphNqbN3
w+ODWSy0E1Rlc3QgPHRlc3RAZXhhbXBsZT6IlgQTFggAPhYhBKXsF3p96UEVT08M
HHYzyhQ4qpscBQJeC+EAAhsDBQkB4TOABQsJCAcCBhUKCQgLAgQWAgMBAh4BAheA
AAoJEHYzyhQ4qpscTIgBAPuHGlPbosOyiXuImOGM/lfL22thCzRmF6dCbosIMr7p
AQDKcDRCAhSGn/FU4aiX3m9OXz6ipzJfAbl5fCmqU6wZCQ==
=dGZA
-----END PGP PUBLIC KEY BLOCK-----
";
    pub const EXPIRED_FINGERPRINT: &str = "A5EC177A7DE941154F4F0C1C7633CA1438AA9B1C";
}

#[cfg(test)]
mod tests {
    use super::testing::{EXPIRED_FINGERPRINT, EXPIRED_KEY};
    use super::*;
    use crate::owner::key_block::testing::packet;

    /// An invented key that was created 1,000 seconds after 1970.
    const KEY: [u8; 9] = [4, 0, 0, 3, 0xe8, 22, 1, 2, 3];

    fn subpacket(kind: u8, data: &[u8]) -> Vec<u8> {
        let length = u8::try_from(data.len() + 1).unwrap();
        [&[length, kind][..], data].concat()
    }

    /// A signature packet of version 4 with the creation time, the lifetime and the issuer.
    fn signature(kind: u8, created: u32, lifetime: u32, issuer: &str) -> Vec<u8> {
        let id: Vec<u8> = (24..40)
            .step_by(2)
            .map(|at| u8::from_str_radix(&issuer[at..at + 2], 16).unwrap())
            .collect();
        let hashed = [
            subpacket(CREATION_TIME, &created.to_be_bytes()),
            subpacket(KEY_LIFETIME | 0x80, &lifetime.to_be_bytes()),
        ]
        .concat();
        let unhashed = subpacket(ISSUER_KEY_ID, &id);
        let area = |area: &[u8]| [&[0, u8::try_from(area.len()).unwrap()][..], area].concat();
        let body = [vec![4, kind, 22, 8], area(&hashed), area(&unhashed), vec![1, 2]].concat();
        packet(0xc2, &body)
    }

    fn expiries(packets: &[Vec<u8>]) -> Vec<i64> {
        let found = find_expiring_keys(&packets.concat());
        found.iter().map(|key| key.expires.timestamp()).collect()
    }

    #[test]
    fn the_expiry_of_a_key_of_gnupg_is_found() {
        let keys = find_expiring_keys(EXPIRED_KEY.as_bytes());
        let [key] = keys.as_slice() else { panic!("{keys:?}") };
        assert_eq!(key.fingerprint, EXPIRED_FINGERPRINT);
        assert_eq!(key.expires.to_rfc3339(), "2020-12-31T00:00:00+00:00");
    }

    #[test]
    fn the_newest_signature_of_a_key_about_itself_decides() {
        let own = key_block::fingerprint(&KEY).unwrap();
        let other = "0".repeat(40);
        let key = packet(0xc6, &KEY);
        let first = signature(0x13, 2_000, 500, &own);
        assert_eq!(expiries(&[key.clone(), first.clone()]), [1_500]);
        assert_eq!(expiries(std::slice::from_ref(&key)), [0_i64; 0]);
        for (later, expected) in [
            (signature(0x13, 3_000, 9_000, &own), vec![10_000_i64]),
            (signature(0x1f, 3_000, 0, &own), vec![]),
            // An earlier one, one of another key, and one that binds a subkey.
            (signature(0x13, 1_000, 0, &own), vec![1_500]),
            (signature(0x13, 3_000, 0, &other), vec![1_500]),
            (signature(0x18, 3_000, 0, &own), vec![1_500]),
        ] {
            let packets = [key.clone(), first.clone(), later.clone()];
            assert_eq!(expiries(&packets), expected, "{later:?}");
            let packets = [key.clone(), later.clone(), first.clone()];
            assert_eq!(expiries(&packets), expected, "{later:?}");
        }
        let subkey = packet(0xce, &KEY);
        let late = signature(0x13, 3_000, 0, &own);
        assert_eq!(expiries(&[key, first, subkey, late]), [1_500]);
    }

    #[test]
    fn a_damaged_key_does_not_expire() {
        let own = key_block::fingerprint(&KEY).unwrap();
        let whole = [packet(0xc6, &KEY), signature(0x13, 2_000, 500, &own)].concat();
        for end in 0..whole.len() {
            assert_eq!(find_expiring_keys(&whole[..end]), [], "{end}");
        }
    }
}
