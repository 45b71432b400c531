//! The hardware that a node reports. What cannot be stored is left out and named in a condition; it
//! never makes the server refuse the facts.

use std::collections::HashSet;
use std::net::IpAddr;

use evenkeel_domain::condition::ConditionKind;
use evenkeel_domain::hardware::{Address, Capacity, Gpu, Hardware, Link, LinkState, Nic, Storage};
use evenkeel_domain::text::cut;
use evenkeel_proto::agent as wire;
use evenkeel_store::hardware::HardwareDigest;
use evenkeel_store::{StoreError, hardware};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::{MAX_CONDITION_BYTES, machine_names};
use crate::node_transaction::NodeTransaction;

/// The maximum length of a text, in bytes.
const MAX_TEXT_BYTES: usize = 128;

/// The maximum number of processors, cores or threads that is plausible.
const MAX_PROCESSORS: u32 = 1 << 20;

/// The maximum number of findings that the condition names.
const MAX_FINDINGS: usize = 10;

/// Hardware in the form in which it is stored.
#[derive(Debug)]
pub struct ReportedHardware {
    hardware: Hardware,
    digest: HardwareDigest,
}

/// Parses the hardware in the facts; `None` if they have none. Returns also the condition that a part
/// of it cannot be stored.
pub fn parse_hardware(
    facts: &wire::Facts,
) -> Option<(ReportedHardware, Option<(ConditionKind, String)>)> {
    let message = facts.hardware.as_ref()?;
    let serial_number = machine_names::serial_number(facts).unwrap_or_default();
    let digest = Sha256::new().chain_update(message.encode_to_vec()).chain_update(&serial_number);
    let mut findings = Findings::default();
    let hardware = Hardware { serial_number, ..parse_message(message, &mut findings) };
    let reported = ReportedHardware { hardware, digest: digest.finalize().into() };
    Some((reported, findings.into_condition()))
}

/// Stores hardware in the host of the node, if it has changed.
pub async fn store_hardware(
    node_tx: &NodeTransaction<'_>,
    reported: Option<ReportedHardware>,
) -> Result<(), StoreError> {
    let Some(ReportedHardware { hardware, digest }) = reported else {
        return Ok(());
    };
    let (tx, host) = (&node_tx.tx, node_tx.host.id);
    hardware::store_if_changed(tx, host, hardware, &digest, node_tx.now).await.map(drop)
}

fn parse_message(message: &wire::Hardware, findings: &mut Findings) -> Hardware {
    let nothing = wire::Firmware::default();
    let firmware = message.firmware.as_ref().unwrap_or(&nothing);
    let memory_bytes = Some(message.memory_bytes).filter(|bytes| i64::try_from(*bytes).is_ok());
    if memory_bytes.is_none() {
        findings.add("memory_bytes", "too large");
    }
    let mut left = Hardware::MAX_TOTAL_ADDRESSES;
    Hardware {
        memory_bytes: memory_bytes.unwrap_or_default(),
        cpu_model: findings.parse_text("cpu_model", &message.cpu_model),
        cpu_architecture: findings.parse_text("cpu_architecture", &message.cpu_architecture),
        cpu_sockets: findings.parse_count("cpu_sockets", message.cpu_sockets),
        cpu_cores: findings.parse_count("cpu_cores", message.cpu_cores),
        cpu_threads: findings.parse_count("cpu_threads", message.cpu_threads),
        product_name: findings.parse_text("product_name", &message.product_name),
        product_vendor: findings.parse_text("product_vendor", &message.product_vendor),
        bios_version: findings.parse_text("firmware.version", &firmware.version),
        bios_release_date: findings.parse_text("firmware.release_date", &firmware.release_date),
        bios_vendor: findings.parse_text("firmware.vendor", &firmware.vendor),
        storages: findings.parse_parts(
            "disks",
            &message.disks,
            |disk, _| parse_disk(disk),
            |storage| &storage.device_name,
        ),
        nics: findings.parse_parts(
            "network_interfaces",
            &message.network_interfaces,
            |interface, findings| {
                let nic = parse_interface(interface)?;
                let addresses = findings.parse_addresses(interface, left);
                left -= addresses.len();
                Ok(Nic { ipaddresses: addresses, ..nic })
            },
            |nic| &nic.device_name,
        ),
        gpus: findings.parse_parts(
            "graphics_processors",
            &message.graphics_processors,
            |processor, _| parse_graphics_processor(processor),
            |gpu| &gpu.pci_id,
        ),
        ..Hardware::default()
    }
}

fn parse_disk(disk: &wire::Disk) -> Result<Storage, String> {
    Ok(Storage {
        device_name: check_name(&disk.name)?,
        model: check_text("model", &disk.model)?,
        vendor: check_text("vendor", &disk.vendor)?,
        serial: check_text("serial", &disk.serial)?,
        wwid: check_text("wwid", &disk.wwid)?,
        capacity_bytes: Capacity(disk.size_bytes),
        timestamps: None,
    })
}

/// Parses an interface without its addresses.
fn parse_interface(interface: &wire::NetworkInterface) -> Result<Nic, String> {
    Ok(Nic {
        device_name: check_name(&interface.name)?,
        pci_identifier: check_text("pci_address", &interface.pci_address)?,
        mac_addr: check_text("mac_address", &interface.mac_address)?,
        sriov_enabled: interface.virtual_functions > 0,
        sriov_vfs_num: interface.virtual_functions,
        sriov_vfs_total: interface.max_virtual_functions,
        mtu: interface.mtu,
        link_state: LinkState {
            kind: match interface.link_state() {
                wire::LinkState::Unspecified => Link::Unspecified,
                wire::LinkState::Up => Link::Up,
                wire::LinkState::Down => Link::Down,
            },
            timestamps: None,
        },
        ..Nic::default()
    })
}

fn parse_graphics_processor(processor: &wire::GraphicsProcessor) -> Result<Gpu, String> {
    Ok(Gpu {
        pci_id: check_name(&processor.pci_address)?,
        vendor: check_text("vendor", &processor.vendor)?,
        product: check_text("product", &processor.product)?,
        device_name: check_text("device_name", &processor.device_name)?,
        ..Gpu::default()
    })
}

/// Parses an address with the length of its prefix, such as `192.0.2.7/24`, and writes it in the usual
/// form.
fn parse_address(text: &str) -> Option<String> {
    let (address, prefix) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let max_prefix: u8 = if address.is_ipv4() { 32 } else { 128 };
    let prefix: u8 = prefix.parse().ok().filter(|prefix| *prefix <= max_prefix)?;
    Some(format!("{address}/{prefix}"))
}

/// Checks the name of a part.
fn check_name(name: &str) -> Result<String, String> {
    if name.is_empty() {
        return Err("no name".to_owned());
    }
    check_text("name", name)
}

fn check_text(field: &str, text: &str) -> Result<String, String> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(format!("{field}: longer than {MAX_TEXT_BYTES} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("{field}: control characters are not allowed"));
    }
    Ok(text.to_owned())
}

/// What cannot be stored.
#[derive(Debug, Default)]
struct Findings {
    /// The first ones.
    texts: Vec<String>,
    count: usize,
}

impl Findings {
    fn add(&mut self, part: &str, why: &str) {
        self.count += 1;
        if self.texts.len() < MAX_FINDINGS {
            self.texts.push(format!("{part}: {why}"));
        }
    }

    /// A text of the machine; empty if it cannot be stored.
    fn parse_text(&mut self, field: &str, text: &str) -> String {
        check_text(field, text).unwrap_or_else(|why| {
            self.add("hardware", &why);
            String::new()
        })
    }

    /// A number of processors; 0 if it is not plausible.
    fn parse_count(&mut self, field: &str, count: u32) -> u32 {
        if count <= MAX_PROCESSORS {
            return count;
        }
        self.add(field, "too large");
        0
    }

    /// The parts of one kind that can be stored. Each needs a name of its own.
    fn parse_parts<M, P>(
        &mut self,
        kind: &str,
        messages: &[M],
        mut parse: impl FnMut(&M, &mut Self) -> Result<P, String>,
        name: impl Fn(&P) -> &String,
    ) -> Vec<P> {
        if messages.len() > Hardware::MAX_PARTS {
            self.add(kind, &format!("more than {}", Hardware::MAX_PARTS));
        }
        let (mut parts, mut names) = (Vec::new(), HashSet::new());
        for (number, message) in messages.iter().take(Hardware::MAX_PARTS).enumerate() {
            let part = parse(message, self).and_then(|part| {
                let is_new = names.insert(name(&part).clone());
                is_new.then_some(part).ok_or_else(|| "its name is not unique".to_owned())
            });
            match part {
                Ok(part) => parts.push(part),
                Err(why) => self.add(&format!("{kind}[{number}]"), &why),
            }
        }
        parts
    }

    /// The addresses of an interface, at most `left`.
    fn parse_addresses(&mut self, interface: &wire::NetworkInterface, left: usize) -> Vec<Address> {
        let max = left.min(Hardware::MAX_ADDRESSES);
        if interface.addresses.len() > max {
            self.add(&interface.name, &format!("more than {max} addresses"));
        }
        let mut texts = HashSet::new();
        let mut addresses = Vec::new();
        for text in interface.addresses.iter().take(max) {
            match parse_address(text) {
                Some(address) if texts.insert(address.clone()) => {
                    addresses.push(Address { address, ..Address::default() });
                }
                Some(_) => (),
                None => self.add(&interface.name, "an invalid address"),
            }
        }
        addresses
    }

    fn into_condition(self) -> Option<(ConditionKind, String)> {
        if self.count == 0 {
            return None;
        }
        let mut text = format!("a part of its hardware is not stored: {}", self.texts.join("; "));
        if self.texts.len() < self.count {
            text.push_str("; and more");
        }
        Some((ConditionKind::HardwareIncomplete, cut(&text, MAX_CONDITION_BYTES)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a message. Returns the text of the condition as well.
    fn parse(message: wire::Hardware) -> (Hardware, String) {
        let facts = wire::Facts { hardware: Some(message), ..wire::Facts::default() };
        let (reported, condition) = parse_hardware(&facts).expect("hardware");
        (reported.hardware, condition.map(|(_, text)| text).unwrap_or_default())
    }

    fn disk(name: &str, serial: &str) -> wire::Disk {
        wire::Disk { name: name.to_owned(), serial: serial.to_owned(), ..wire::Disk::default() }
    }

    fn interface(name: &str, addresses: &[&str]) -> wire::NetworkInterface {
        wire::NetworkInterface {
            name: name.to_owned(),
            addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
            ..wire::NetworkInterface::default()
        }
    }

    #[test]
    fn facts_without_hardware_have_none() {
        assert!(parse_hardware(&wire::Facts::default()).is_none());
    }

    #[test]
    fn hardware_is_converted_to_the_fields_of_eim() {
        let (hardware, condition) = parse(wire::Hardware {
            cpu_model: "Xeon".to_owned(),
            cpu_threads: 16,
            memory_bytes: 1 << 34,
            firmware: Some(wire::Firmware {
                vendor: "Dell Inc.".to_owned(),
                ..wire::Firmware::default()
            }),
            disks: vec![wire::Disk { size_bytes: u64::MAX, ..disk("sda", "S1") }],
            network_interfaces: vec![wire::NetworkInterface {
                link_state: wire::LinkState::Down.into(),
                virtual_functions: 2,
                ..interface("eth0", &["192.0.2.7/24", "2001:DB8::7/64", "192.0.2.7/24"])
            }],
            graphics_processors: vec![wire::GraphicsProcessor {
                pci_address: "0000:00:02.0".to_owned(),
                vendor: "Intel".to_owned(),
                ..wire::GraphicsProcessor::default()
            }],
            ..wire::Hardware::default()
        });
        assert_eq!(condition, "");
        let gpu = &hardware.gpus[0];
        assert_eq!((gpu.pci_id.as_str(), gpu.vendor.as_str()), ("0000:00:02.0", "Intel"));
        assert_eq!((hardware.cpu_model.as_str(), hardware.cpu_threads), ("Xeon", 16));
        assert_eq!((hardware.memory_bytes, hardware.bios_vendor.as_str()), (1 << 34, "Dell Inc."));
        assert_eq!(hardware.storages[0].capacity_bytes, Capacity(u64::MAX));
        let nic = &hardware.nics[0];
        assert_eq!((nic.link_state.kind, nic.sriov_enabled), (Link::Down, true));
        let addresses: Vec<_> = nic.ipaddresses.iter().map(|one| one.address.as_str()).collect();
        assert_eq!(addresses, ["192.0.2.7/24", "2001:db8::7/64"]);
    }

    #[test]
    fn what_cannot_be_stored_is_left_out_and_named() {
        let (hardware, condition) = parse(wire::Hardware {
            cpu_model: "Xeon\u{1b}[31m".to_owned(),
            cpu_cores: u32::MAX,
            memory_bytes: u64::MAX,
            product_name: "x".repeat(129),
            disks: vec![disk("sda", "S\0"), disk("", ""), disk("sdb", "1"), disk("sdb", "2")],
            network_interfaces: vec![interface("eth0", &["192.0.2.7/33", "edge/8", "::1/128"])],
            ..wire::Hardware::default()
        });
        assert_eq!(
            condition,
            "a part of its hardware is not stored: memory_bytes: too large; \
             hardware: cpu_model: control characters are not allowed; cpu_cores: too large; \
             hardware: product_name: longer than 128 bytes; \
             disks[0]: serial: control characters are not allowed; disks[1]: no name; \
             disks[3]: its name is not unique; eth0: an invalid address; eth0: an invalid address"
        );
        assert_eq!((hardware.cpu_model.as_str(), hardware.cpu_cores), ("", 0));
        assert_eq!((hardware.memory_bytes, hardware.product_name.as_str()), (0, ""));
        let disks: Vec<_> = hardware.storages.iter().map(|disk| disk.serial.as_str()).collect();
        assert_eq!(disks, ["1"]);
        assert_eq!(hardware.nics[0].ipaddresses.len(), 1);
    }

    #[test]
    fn parts_addresses_and_the_condition_are_limited() {
        let addresses: Vec<String> = (0..200).map(|n| format!("10.0.0.{n}/8")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let (hardware, condition) = parse(wire::Hardware {
            disks: vec![disk("sda", &"x".repeat(5_000)); 1_000],
            network_interfaces: (0..1_000)
                .map(|n| interface(&format!("eth{n}"), &addresses))
                .collect(),
            ..wire::Hardware::default()
        });
        assert_eq!(hardware.storages.len(), 0);
        assert_eq!(hardware.nics.len(), Hardware::MAX_PARTS);
        let counts = hardware.nics.iter().map(|nic| nic.ipaddresses.len());
        assert_eq!(counts.sum::<usize>(), Hardware::MAX_TOTAL_ADDRESSES);
        assert!(condition.len() <= MAX_CONDITION_BYTES && condition.ends_with("; and more"));
    }

    #[test]
    fn the_digest_covers_the_serial_number() {
        let digest = |serial: &str| {
            let facts = wire::Facts {
                hardware: Some(wire::Hardware::default()),
                serial_number: serial.to_owned(),
                ..wire::Facts::default()
            };
            parse_hardware(&facts).expect("hardware").0.digest
        };
        assert_eq!(digest("SN-12345"), digest("SN-12345"));
        assert_ne!(digest("SN-12345"), digest("SN-54321"));
    }
}
