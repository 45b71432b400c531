//! Identifiers: 32 bits, with one type for each kind of resource.

use crate::invalid::Invalid;

/// Declares an identifier type, printed as `host-0a1b2c3d`.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// The text before the dash.
            pub const PREFIX: &str = $prefix;

            /// The identifier of the `n`th resource of its kind. Different numbers give different identifiers.
            #[must_use]
            pub const fn nth(n: u32) -> Self {
                Self(scatter(n ^ salt($prefix)))
            }

            /// The number that [`Self::nth`] converts into this identifier.
            #[must_use]
            pub const fn number(self) -> u32 {
                gather(self.0) ^ salt($prefix)
            }

            /// The identifier with these bits, as stored in the database.
            #[must_use]
            pub const fn from_bits(bits: u32) -> Self {
                Self(bits)
            }

            /// The bits, as stored in the database.
            #[must_use]
            pub const fn bits(self) -> u32 {
                self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}-{:08x}", $prefix, self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                parse(text, $prefix).map(Self)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id! {
    HostId, "host"
}
id! {
    /// Id of an instance: the operating system on a host.
    InstanceId, "inst"
}
id! {
    /// Id of an operating system in the catalogue.
    OsId, "os"
}
id! {
    /// Id of an update policy.
    PolicyId, "osupdatepolicy"
}
id! {
    /// Id of an update run.
    RunId, "osupdaterun"
}
id! {
    /// Id of a schedule that opens one window.
    SingleScheduleId, "singlesche"
}
id! {
    /// Id of a schedule that opens windows repeatedly.
    RepeatedScheduleId, "repeatedsche"
}
id! {
    /// Id of a region, which may lie in another region.
    RegionId, "region"
}
id! {
    SiteId, "site"
}
id! {
    /// Id of a provider of hosts.
    ProviderId, "provider"
}
id! {
    /// Id of a cloud-init configuration.
    CustomConfigId, "customconfig"
}
id! {
    LocalAccountId, "localaccount"
}
id! {
    /// Id of an IP address of a network interface.
    IpAddressId, "ipaddr"
}
id! {
    JoinTokenId, "jointoken"
}
id! {
    /// Id of a webhook that receives notifications.
    NotificationTargetId, "notificationtarget"
}

/// The text is not an identifier of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadId {
    /// The text does not have the prefix of this kind.
    #[error("`{text}` is not an id of the form {prefix}-0a1b2c3d")]
    OtherKind {
        /// The given text.
        text: String,
        /// The expected text before the dash.
        prefix: &'static str,
    },
    /// The prefix is right, but the rest is not eight lower-case hexadecimal digits, so no such resource can exist.
    #[error("`{text}` is not a valid id: eight lower-case hexadecimal digits must follow the dash")]
    Malformed {
        /// The given text.
        text: String,
    },
}

fn parse(text: &str, prefix: &'static str) -> Result<u32, BadId> {
    let digits = text
        .strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix('-'))
        .ok_or_else(|| BadId::OtherKind { text: text.to_owned(), prefix })?;
    let impossible = || BadId::Malformed { text: text.to_owned() };
    let is_hex = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != 8 || !digits.as_bytes().iter().all(is_hex) {
        return Err(impossible());
    }
    u32::from_str_radix(digits, 16).map_err(|_| impossible())
}

/// Gives the first resources of different kinds different digits (FNV-1a of the prefix).
const fn salt(prefix: &str) -> u32 {
    let (bytes, mut hash, mut at) = (prefix.as_bytes(), 0x811c_9dc5_u32, 0);
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

/// Parses the id in a field.
///
/// # Errors
/// The text is not an id of this kind.
pub fn parse_id<T: std::str::FromStr<Err = BadId>>(
    field: &'static str,
    text: &str,
) -> Result<T, Invalid> {
    text.parse().map_err(|error: BadId| Invalid::new(field, error.to_string()))
}

/// Spreads consecutive numbers over all 32 bits. Each step is reversible, so different numbers stay different.
#[must_use]
pub const fn scatter(n: u32) -> u32 {
    let n = (n ^ (n >> 16)).wrapping_mul(0x7feb_352d);
    let n = (n ^ (n >> 15)).wrapping_mul(0x846c_a68b);
    n ^ (n >> 16)
}

/// The number that [`scatter`] has spread: its steps in reverse, with the inverses of its factors modulo 2^32.
const fn gather(n: u32) -> u32 {
    let n = (n ^ (n >> 16)).wrapping_mul(0x4302_1123);
    let n = (n ^ (n >> 15) ^ (n >> 30)).wrapping_mul(0x1d69_e2a5);
    n ^ (n >> 16)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_id_reads_as_it_prints(bits: u32) {
            let id = HostId::from_bits(bits);
            prop_assert_eq!(id.to_string().parse::<HostId>(), Ok(id));
        }

        #[test]
        fn an_id_has_the_number_that_it_was_created_from(number: u32) {
            prop_assert_eq!(HostId::nth(number).number(), number);
            prop_assert_eq!(RunId::nth(number).number(), number);
        }

        #[test]
        fn no_text_causes_a_panic(text in "\\PC{0,20}") {
            let _ = text.parse::<HostId>();
        }
    }

    #[test]
    fn consecutive_numbers_never_meet() {
        let ids: HashSet<_> = (0..100_000).map(HostId::nth).collect();
        assert_eq!(ids.len(), 100_000);
    }

    #[test]
    fn the_first_things_of_different_kinds_look_different() {
        assert_ne!(HostId::nth(1).bits(), InstanceId::nth(1).bits());
    }

    #[test]
    fn another_kind_is_distinguished_from_a_malformed_id() {
        let other = |text: &str| matches!(text.parse::<HostId>(), Err(BadId::OtherKind { .. }));
        let impossible =
            |text: &str| matches!(text.parse::<HostId>(), Err(BadId::Malformed { .. }));
        assert!(other("inst-0a1b2c3d"));
        assert!(other("HOST-0a1b2c3d"));
        assert!(other("host"));
        assert!(impossible("host-0A1B2C3D"));
        assert!(impossible("host-0a1b2c3"));
        assert!(impossible("host-+a1b2c3d"));
    }
}
