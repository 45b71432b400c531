//! The network interfaces of the machine and their addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::Path;

use super::system_files::{clean_text, list_names, read_lines, read_number, read_text};

/// Maximum number of reported interfaces, and of addresses of one.
const MAX_INTERFACES: usize = 128;
const MAX_ADDRESSES: usize = 32;

/// Maximum number of interfaces below one, such as a bond below a bridge, whose own lower ones are read.
const MAX_LOWER_INTERFACES: usize = 256;

/// Flags of a route (`RTF_UP`, `RTF_GATEWAY`, `RTF_REJECT`).
const ROUTE_UP: u32 = 0x1;
const ROUTE_GATEWAY: u32 = 0x2;
const ROUTE_REJECT: u32 = 0x200;

/// Flags of an IPv6 address that is not reported: temporary, failed, deprecated or tentative
/// (`IFA_F_…`). Temporary ones change each day.
const UNSTABLE_ADDRESS: u32 = 0x01 | 0x08 | 0x20 | 0x40;

/// Scope of an IPv6 address that is valid beyond its link.
const GLOBAL_SCOPE: &str = "00";

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Device name such as `eth0`.
    pub name: String,
    /// Address of the PCI device such as `0000:00:1f.6`; empty if there is none.
    pub pci_address: String,
    pub mac_address: String,
    /// Maximum transmission unit in bytes.
    pub mtu: u32,
    /// `None` if the driver does not know it.
    pub has_link: Option<bool>,
    /// Addresses with the length of their prefix such as `192.0.2.7/24`.
    pub addresses: Vec<String>,
    /// Number of virtual functions that are enabled (SR-IOV).
    pub virtual_functions: u32,
    /// Number of virtual functions that the device can have.
    pub max_virtual_functions: u32,
}

/// Reads the interfaces below a root, sorted by name: those with a device, and those that are stacked
/// on one of them (bonds, bridges, VLANs). Virtual interfaces of containers and tunnels are left out.
pub fn read_network_interfaces(root: &Path) -> Vec<NetworkInterface> {
    let folder = root.join("sys/class/net");
    let mut addresses = read_addresses(root);
    let names = list_names(&folder).into_iter();
    let names = names.filter(|name| has_device(&folder, name));
    let interfaces = names.take(MAX_INTERFACES).map(|name| {
        let addresses = addresses.remove(&name).unwrap_or_default();
        read_interface(&folder.join(&name), &name, &addresses)
    });
    interfaces.collect()
}

/// Whether an interface has a device or is stacked on an interface with one. A bridge may have hundreds
/// of lower interfaces, and the one with a device may be the last.
fn has_device(folder: &Path, name: &str) -> bool {
    let (mut visited, mut pending) = (BTreeSet::new(), vec![name.to_owned()]);
    while let Some(name) = pending.pop() {
        let interface = folder.join(&name);
        if interface.join("device").is_dir() {
            return true;
        }
        if visited.len() < MAX_LOWER_INTERFACES && visited.insert(name) {
            let names = list_names(&interface).into_iter();
            pending.extend(names.filter_map(|name| Some(name.strip_prefix("lower_")?.to_owned())));
        }
    }
    false
}

fn read_interface(
    interface: &Path,
    name: &str,
    addresses: &BTreeSet<(IpAddr, u32)>,
) -> NetworkInterface {
    let device = interface.join("device");
    let addresses = addresses.iter().take(MAX_ADDRESSES);
    NetworkInterface {
        name: clean_text(name.as_bytes()),
        pci_address: pci_address(&device),
        mac_address: read_text(&interface.join("address")),
        mtu: read_number(&interface.join("mtu")).unwrap_or_default(),
        has_link: match read_text(&interface.join("operstate")).as_str() {
            "up" => Some(true),
            "down" | "lowerlayerdown" | "notpresent" | "dormant" => Some(false),
            _ => None,
        },
        addresses: addresses.map(|(address, prefix)| format!("{address}/{prefix}")).collect(),
        virtual_functions: read_number(&device.join("sriov_numvfs")).unwrap_or_default(),
        max_virtual_functions: read_number(&device.join("sriov_totalvfs")).unwrap_or_default(),
    }
}

/// The PCI device of an interface. Devices of other buses, such as USB and virtio, hang on one.
fn pci_address(device: &Path) -> String {
    let path = fs::canonicalize(device).unwrap_or_default();
    let address = path.iter().rev().filter_map(OsStr::to_str).find(|name| is_pci_address(name));
    address.unwrap_or_default().to_owned()
}

/// Whether a name has the form `0000:00:1f.6`.
fn is_pci_address(name: &str) -> bool {
    let mut parts = name.split([':', '.']);
    let mut has_digits = |lengths: RangeInclusive<usize>| {
        parts.next().is_some_and(|part| {
            lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    has_digits(4..=8)
        && has_digits(2..=2)
        && has_digits(2..=2)
        && has_digits(1..=1)
        && parts.next().is_none()
}

/// The addresses of each interface with the length of their prefix.
fn read_addresses(root: &Path) -> BTreeMap<String, BTreeSet<(IpAddr, u32)>> {
    let folder = root.join("proc/net");
    let routes = parse_routes(&read_lines(&folder.join("route")));
    let mut addresses: BTreeMap<String, BTreeSet<(IpAddr, u32)>> = BTreeMap::new();
    let local = parse_local_addresses(&read_lines(&folder.join("fib_trie")));
    for (interface, address, prefix) in assign_addresses(&routes, &local) {
        let of_interface = addresses.entry(interface.to_owned()).or_default();
        of_interface.insert((IpAddr::V4(address), prefix));
    }
    for line in read_lines(&folder.join("if_inet6")).lines() {
        if let Some((interface, address, prefix)) = parse_ipv6_address(line) {
            let of_interface = addresses.entry(interface.to_owned()).or_default();
            of_interface.insert((IpAddr::V6(address), prefix));
        }
    }
    addresses
}

/// A route of IPv4.
#[derive(Debug)]
struct Ipv4Route {
    interface: String,
    /// Address of the network as a number.
    network: u32,
    prefix_length: u32,
    metric: u32,
    has_gateway: bool,
}

impl Ipv4Route {
    fn contains(&self, address: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - self.prefix_length).unwrap_or(0);
        address.to_bits() & mask == self.network & mask
    }
}

/// Parses `/proc/net/route`: columns with numbers in hexadecimal. Addresses are in network byte order,
/// printed as a number of the machine.
fn parse_routes(text: &str) -> Vec<Ipv4Route> {
    let route = |line: &str| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[interface, network, _, flags, _, _, metric, mask, ..] = columns.as_slice() else {
            return None;
        };
        let number = |column: &str| u32::from_str_radix(column, 16).ok();
        let flags = number(flags)?;
        let is_usable = flags & ROUTE_UP != 0 && flags & ROUTE_REJECT == 0;
        is_usable.then_some(Ipv4Route {
            interface: interface.to_owned(),
            network: u32::from_be_bytes(number(network)?.to_ne_bytes()),
            prefix_length: number(mask)?.count_ones(),
            metric: metric.parse().ok()?,
            has_gateway: flags & ROUTE_GATEWAY != 0,
        })
    };
    text.lines().skip(1).filter_map(route).collect()
}

/// The addresses of the machine in `/proc/net/fib_trie`, except those of the loopback network.
fn parse_local_addresses(text: &str) -> BTreeSet<Ipv4Addr> {
    let mut leaf: Option<Ipv4Addr> = None;
    let mut addresses = BTreeSet::new();
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line.starts_with("/32 host LOCAL") {
            addresses.extend(leaf.filter(|address| !address.is_loopback()));
        }
    }
    addresses
}

/// The interface of each address, with the length of its prefix. An address without a connected network
/// belongs to the interface of the default route if that has no other address, as in some clouds.
/// Otherwise it is left out: it is the address of a service, a tunnel or a load balancer, which comes
/// and goes.
fn assign_addresses<'a>(
    routes: &'a [Ipv4Route],
    local: &BTreeSet<Ipv4Addr>,
) -> Vec<(&'a str, Ipv4Addr, u32)> {
    let (mut assigned, mut single) = (Vec::new(), Vec::new());
    for address in local {
        match find_network(routes, *address) {
            Some(route) => assigned.push((route.interface.as_str(), *address, route.prefix_length)),
            None => single.push(*address),
        }
    }
    let default = routes.iter().filter(|route| route.prefix_length == 0);
    let default = default.min_by_key(|route| route.metric).map(|route| route.interface.as_str());
    if let Some(name) = default
        && assigned.iter().all(|(interface, ..)| *interface != name)
    {
        assigned.extend(single.into_iter().map(|address| (name, address, 32)));
    }
    assigned
}

/// The smallest network that contains an address and is connected without a gateway.
fn find_network(routes: &[Ipv4Route], address: Ipv4Addr) -> Option<&Ipv4Route> {
    let connected = routes.iter().filter(|route| {
        !route.has_gateway && (1..32).contains(&route.prefix_length) && route.contains(address)
    });
    connected.min_by_key(|route| (32 - route.prefix_length, route.metric))
}

/// Parses a line of `/proc/net/if_inet6`: address, number of the interface, length of the prefix,
/// scope, flags, name of the interface.
fn parse_ipv6_address(line: &str) -> Option<(&str, Ipv6Addr, u32)> {
    let columns: Vec<&str> = line.split_ascii_whitespace().collect();
    let &[address, _, prefix, scope, flags, interface] = columns.as_slice() else {
        return None;
    };
    if scope != GLOBAL_SCOPE || address.len() != 32 {
        return None;
    }
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let address = u128::from_str_radix(address, 16).ok()?;
    let prefix = u32::from_str_radix(prefix, 16).ok().filter(|prefix| *prefix <= 128)?;
    (flags & UNSTABLE_ADDRESS == 0).then(|| (interface, Ipv6Addr::from_bits(address), prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
eth1\t000200C0\t00000000\t0001\t0\t0\t200\t00FFFFFF\t0\t0\t0
br0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
lo\t0000010A\t00000000\t0201\t0\t0\t0\t0000FFFF\t0\t0\t0
eth9\tbroken
";

    #[test]
    fn an_address_belongs_to_the_interface_of_its_smallest_network() {
        let routes = parse_routes(ROUTES);
        assert_eq!(routes.len(), 4, "{routes:?}");
        let own = Ipv4Addr::new(192, 0, 2, 7);
        let bridged = Ipv4Addr::new(10, 1, 0, 5);
        let service = Ipv4Addr::new(172, 31, 1, 9);
        let assign = |routes, addresses: &[Ipv4Addr]| {
            assign_addresses(routes, &addresses.iter().copied().collect())
        };
        assert_eq!(
            assign(&routes, &[own, bridged, service]),
            [("br0", bridged, 8), ("eth0", own, 24)],
            "an address without a network is not one of an interface with another address"
        );
        assert_eq!(
            assign(&routes, &[bridged, service]),
            [("br0", bridged, 8), ("eth0", service, 32)],
            "the only address of the interface of the default route"
        );
        assert!(assign(&[], &[own]).is_empty());
    }

    #[test]
    fn the_addresses_of_the_machine_are_the_local_leaves_of_the_trie() {
        let trie = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 192.0.2.0
        /24 link UNICAST
Local:
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 192.0.2.7
        /32 host LOCAL
     |-- 192.0.2.255
        /32 link BROADCAST
     |-- not an address
        /32 host LOCAL
";
        assert_eq!(
            parse_local_addresses(trie).into_iter().collect::<Vec<_>>(),
            [Ipv4Addr::new(192, 0, 2, 7)]
        );
    }

    #[test]
    fn only_lasting_global_addresses_of_ipv6_are_reported() {
        let line = |scope: &str, flags: &str| {
            format!("20010db8000000000000000000000007 02 40 {scope} {flags}     eth0")
        };
        let stable = line("00", "80");
        let expected = ("eth0", "2001:db8::7".parse().unwrap(), 64);
        assert_eq!(parse_ipv6_address(&stable), Some(expected));
        assert_eq!(parse_ipv6_address(&line("00", "00")), Some(expected));
        for line in [
            line("20", "80"),
            line("00", "01"),
            line("00", "a0"),
            line("00", "zz"),
            "20010db8 02 40 00 80 eth0".to_owned(),
            "20010db8000000000000000000000007 02 ff 00 80 eth0".to_owned(),
            String::new(),
        ] {
            assert_eq!(parse_ipv6_address(&line), None, "{line}");
        }
    }

    #[test]
    fn a_pci_address_has_a_domain_a_bus_a_device_and_a_function() {
        assert!(is_pci_address("0000:00:1f.6"));
        assert!(is_pci_address("10000:e1:00.0"));
        for name in ["virtio0", "pci0000:00", "0000:00:1f", "0000:00:1f.6.1", "0000:00:1g.6", ""] {
            assert!(!is_pci_address(name), "{name}");
        }
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn any_text_yields_valid_addresses() {
        let samples = [
            "Iface\tDestination\neth0\t000200C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n",
            "Local:\n |-- 192.0.2.7\n /32 host LOCAL\n",
            "20010db8000000000000000000000007 02 40 00 80     eth0\n",
        ];
        fuzz("/proc/net", |rng| {
            let routes = parse_routes(&text(rng, &samples, "\t\n 0123456789ABCDEF|-/."));
            let local = parse_local_addresses(&text(rng, &samples, "\n |-/.0123456789"));
            assert!(!local.iter().any(Ipv4Addr::is_loopback), "{local:?}");
            let assigned = assign_addresses(&routes, &local);
            assert!(assigned.iter().all(|(_, _, prefix)| *prefix <= 32), "{assigned:?}");
            for line in text(rng, &samples, "\n 0123456789abcdef").lines() {
                let parsed = parse_ipv6_address(line);
                assert!(parsed.is_none_or(|(_, _, prefix)| prefix <= 128), "{parsed:?}");
            }
        });
    }
}
