//! To which addresses the server connects for webhooks. A user of a project chooses the URL, and must
//! not reach the network of the server with it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What an address is, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressClass {
    /// It can be an address of the internet.
    Public,
    /// An address of this machine or of a private network.
    Private,
    /// A link-local address, an address of metadata services, or one that no server has. No setting
    /// allows it.
    Forbidden,
}

/// Addresses of metadata services that are in no other class.
const METADATA_ADDRESSES: [Ipv4Addr; 2] =
    [Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200)];

/// The metadata services of Google and Scaleway over IPv6. Those of AWS are in a network of their own.
const METADATA_ADDRESSES_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];

/// Classifies an address. An IPv6 address that contains an IPv4 address has the class of that one.
pub(crate) fn classify(address: IpAddr) -> AddressClass {
    match address {
        IpAddr::V4(address) => classify_v4(address),
        IpAddr::V6(address) => classify_v6(address),
    }
}

fn classify_v4(address: Ipv4Addr) -> AddressClass {
    if METADATA_ADDRESSES.contains(&address) {
        return AddressClass::Forbidden;
    }
    match address.octets() {
        [127 | 10, ..] | [192, 168, ..] => AddressClass::Private,
        [172, b, ..] if (16..=31).contains(&b) => AddressClass::Private,
        // Shared addresses of providers.
        [100, b, ..] if (64..=127).contains(&b) => AddressClass::Private,
        // This network, link-local, protocol assignments, documentation, relays, benchmarks,
        // multicast, reserved, broadcast.
        [0 | 224..=255, ..]
        | [169, 254, ..]
        | [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => AddressClass::Forbidden,
        _ => AddressClass::Public,
    }
}

fn classify_v6(address: Ipv6Addr) -> AddressClass {
    if METADATA_ADDRESSES_V6.contains(&address) {
        return AddressClass::Forbidden;
    }
    let segments = address.segments();
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressClass::Private,
        // Mapped, compatible and translated IPv4 addresses.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => classify_v4(embedded(high, low)),
        // 6to4.
        [0x2002, high, low, ..] => classify_v4(embedded(high, low)),
        // Services of AWS for its machines: metadata, credentials, name servers.
        [0xfd00, 0xec2, ..] => AddressClass::Forbidden,
        // Unique local.
        [first, ..] if first & 0xfe00 == 0xfc00 => AddressClass::Private,
        // Protocol assignments such as Teredo, and documentation.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => AddressClass::Forbidden,
        [0x3fff, second, ..] if second < 0x1000 => AddressClass::Forbidden,
        [0x2000..=0x3fff, ..] => AddressClass::Public,
        // Link-local, site-local, multicast, unassigned.
        _ => AddressClass::Forbidden,
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(text: &str) -> AddressClass {
        classify(text.parse().expect(text))
    }

    #[test]
    fn addresses_of_the_internet_are_public() {
        for public in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.0.1",
            "172.32.0.1",
            "192.167.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
        ] {
            assert_eq!(class(public), AddressClass::Public, "{public}");
        }
    }

    #[test]
    fn addresses_of_the_own_network_are_private() {
        for private in [
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "::1",
            "fc00::1",
            "fdff::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "::ffff:0:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "2002:a00:1::",
        ] {
            assert_eq!(class(private), AddressClass::Private, "{private}");
        }
    }

    #[test]
    fn addresses_of_metadata_services_and_of_no_server_are_forbidden() {
        for forbidden in [
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "169.254.0.1",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:42::42",
            "2001::1",
            "2001:db8::1",
            "3fff::1",
            "4000::1",
            "64:ff9b:1::1",
            "::ffff:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "2002:a9fe:a9fe::",
        ] {
            assert_eq!(class(forbidden), AddressClass::Forbidden, "{forbidden}");
        }
    }
}
