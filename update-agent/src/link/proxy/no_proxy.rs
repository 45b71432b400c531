//! Hosts that are reached without the proxy: the entries of `no_proxy`, as curl and Go read them.

use std::net::IpAddr;

use super::unbracketed;

/// Maximum length of a host name in bytes (RFC 1035).
const MAX_NAME_BYTES: usize = 253;

/// An entry: `*`, a host with all hosts below it, an address or a network; except for `*` and networks also with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoProxyEntry {
    hosts: DirectHosts,
    /// The only port that the entry is for; `None` for all.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DirectHosts {
    All,
    /// All addresses that begin with the same bits, and the number of these bits.
    Network(IpAddr, u8),
    /// This host and all hosts below it. In lower case, without a dot at the beginning and the end.
    Domain(String),
}

impl NoProxyEntry {
    /// Parses an entry. `None` if it can match no host.
    pub fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim();
        if entry == "*" {
            return Some(Self { hosts: DirectHosts::All, port: None });
        }
        if let Some((address, length)) = entry.split_once('/') {
            let address: IpAddr = unbracketed(address).parse().ok()?;
            let length = u8::try_from(parse_digits(length)?).ok()?;
            return Some(Self { hosts: parse_network(address, length)?, port: None });
        }
        let (host, port) = split_port(entry)?;
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Self { hosts: parse_network(address, address_bits(address))?, port });
        }
        if entry.starts_with('[') {
            return None;
        }
        let domain = host.strip_prefix("*.").or_else(|| host.strip_prefix('.')).unwrap_or(host);
        let domain = domain.strip_suffix('.').unwrap_or(domain).to_ascii_lowercase();
        is_host_name(&domain).then_some(Self { hosts: DirectHosts::Domain(domain), port })
    }

    /// Whether a host is reached without the proxy.
    pub fn matches(&self, host: &str, port: u16) -> bool {
        if self.port.is_some_and(|own| own != port) {
            return false;
        }
        let host = unbracketed(host);
        match &self.hosts {
            DirectHosts::All => true,
            DirectHosts::Network(network, length) => host
                .parse::<IpAddr>()
                .is_ok_and(|address| is_in_network(address.to_canonical(), *network, *length)),
            DirectHosts::Domain(domain) => {
                let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
                let above = host.strip_suffix(domain.as_str());
                above.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
        }
    }
}

/// Splits `HOST`, `HOST:PORT`, an IPv6 address, `[ADDRESS]` and `[ADDRESS]:PORT`. `None` for other forms.
fn split_port(entry: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = if let Some(bracketed) = entry.strip_prefix('[') {
        bracketed.split_once(']')?
    } else {
        match entry.find(':') {
            // More than one colon: an IPv6 address.
            Some(at) if entry[at + 1..].contains(':') => (entry, ""),
            Some(at) => entry.split_at(at),
            None => (entry, ""),
        }
    };
    if port.is_empty() {
        return Some((host, None));
    }
    let port = u16::try_from(parse_digits(port.strip_prefix(':')?)?).ok()?;
    (port != 0).then_some((host, Some(port)))
}

/// A number of digits only: `parse` also accepts a sign.
fn parse_digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn address_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// A network; `None` if it would have more bits than an address. An IPv4 address in the form of IPv6 becomes one of IPv4, as
/// those that it is compared with.
fn parse_network(address: IpAddr, length: u8) -> Option<DirectHosts> {
    if length > address_bits(address) {
        return None;
    }
    let (address, length) = match (address.to_canonical(), length.checked_sub(96)) {
        (canonical @ IpAddr::V4(_), Some(length)) if address.is_ipv6() => (canonical, length),
        _ => (address, length),
    };
    Some(DirectHosts::Network(address, length))
}

fn is_in_network(address: IpAddr, network: IpAddr, length: u8) -> bool {
    let (difference, bits) = match (address, network) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (u128::from(one.to_bits() ^ other.to_bits()), 32),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits(), 128),
        _ => return false,
    };
    let remaining_bits = u32::saturating_sub(bits, u32::from(length));
    difference.checked_shr(remaining_bits).unwrap_or(0) == 0
}

/// Whether a text can be the name of a host. The last part of a name is no number, or the text is an invalid address.
fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.bytes().all(is_allowed)
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= MAX_NAME_BYTES
        && text.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 50002;

    fn is_direct(entry: &str, host: &str) -> bool {
        let parsed = NoProxyEntry::parse(entry);
        parsed.unwrap_or_else(|| panic!("{entry} is valid")).matches(host, PORT)
    }

    /// Each row: the entry, hosts that it matches, hosts that it does not match.
    #[test]
    fn an_entry_matches_what_it_matches_for_curl_and_go() {
        type Hosts = &'static [&'static str];
        let rows: [(&str, Hosts, Hosts); 22] = [
            ("*", &["keel.example", "10.0.0.1", "fd00::1"], &[]),
            (
                "keel.example",
                &["KEEL.example", "a.keel.example", "keel.example."],
                &["mykeel.example"],
            ),
            ("Example", &["keel.example", "example"], &["example.org"]),
            (".example", &["keel.example", "example"], &["keelexample"]),
            ("*.example", &["keel.example"], &["keel.examples"]),
            ("example.", &["keel.example"], &[]),
            ("keel.example:50002", &["keel.example", "a.keel.example"], &[]),
            ("keel.example:443", &[], &["keel.example"]),
            (" keel.example ", &["keel.example"], &[]),
            ("my_host-1", &["my_host-1"], &[]),
            ("10.0.0.1", &["10.0.0.1", "::ffff:10.0.0.1"], &["10.0.0.10", "1.10.0.0.1"]),
            ("10.0.0.1:50002", &["10.0.0.1"], &[]),
            ("10.0.0.1:1", &[], &["10.0.0.1"]),
            ("127.0.0.0/8", &["127.0.0.1", "127.255.255.255"], &["128.0.0.1", "localhost", "::1"]),
            ("10.1.2.3/20", &["10.1.15.255", "10.1.0.0"], &["10.1.16.0"]),
            ("0.0.0.0/0", &["1.2.3.4"], &["fd00::1", "keel.example"]),
            ("fd00::1", &["fd00::1", "[fd00::1]", "FD00:0::1"], &["fd00::2"]),
            ("[fd00::1]", &["fd00::1"], &[]),
            ("[fd00::1]:50002", &["fd00::1"], &[]),
            ("[fd00::1]:443", &[], &["fd00::1"]),
            ("fd00::/8", &["fd12::9"], &["fe80::1", "10.0.0.1"]),
            ("::ffff:10.0.0.0/104", &["10.9.9.9"], &["11.0.0.1"]),
        ];
        for (entry, direct, others) in rows {
            for host in direct {
                assert!(is_direct(entry, host), "{entry} matches {host}");
            }
            for host in others {
                assert!(!is_direct(entry, host), "{entry} does not match {host}");
            }
        }
        assert!(is_direct("::/0", "fd00::1"));
    }

    #[test]
    fn an_entry_that_can_match_no_host_is_invalid() {
        for entry in [
            "",
            " ",
            ".",
            "..example",
            "a..b",
            "http://keel.example",
            "keel.example/path",
            "10.0.0.0/33",
            "fd00::/129",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "10.0.0.0/255.0.0.0",
            "10.0.0",
            "10.0.0.256",
            "10.*",
            "keel*",
            "*example",
            "a.example,b.example",
            "a.example b.example",
            "keel.example:",
            "keel.example:0",
            "keel.example:65536",
            "keel.example:+1",
            "[fd00::1",
            "[fd00::1]443",
            "[keel.example]",
            "fd00:::1",
            "keel\u{e9}.example",
        ] {
            assert_eq!(NoProxyEntry::parse(entry), None, "{entry:?}");
        }
    }
}
