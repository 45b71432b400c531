//! Parses what RAUC prints as JSON.
//!
//! Unknown fields are ignored, because newer versions of RAUC add some. Names of slots and paths of
//! devices are checked, because they become arguments of commands.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::model::Sha256;
use crate::modules::image::slots::{RawImage, Slot};

/// State of a slot that runs.
const BOOTED_STATE: &str = "booted";

/// Boot status of a slot that the boot loader may start.
const GOOD_STATUS: &str = "good";

/// Type of a slot whose image RAUC copies without changes.
const RAW_TYPE: &str = "raw";

/// A slot from which a system boots, with its number and its name.
type BootableSlot = (u32, String, StatusSlot);

/// What `rauc status` reports about the two slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaucStatus {
    /// The kind of machine, which must be that of a bundle.
    pub compatible: String,
    /// The running slot, if it is known.
    pub booted: Option<Slot>,
    /// The slot that the boot loader starts next, if it is known.
    pub primary: Option<Slot>,
    a: RaucSlot,
    b: RaucSlot,
}

/// A slot of RAUC from which a system boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaucSlot {
    /// Name in the configuration of RAUC, such as `rootfs.0`.
    pub name: String,
    /// Name for the boot loader.
    pub bootname: String,
    pub device: PathBuf,
    /// Whether RAUC copies an image into the slot without changes.
    pub is_raw: bool,
    /// Whether the boot loader may start the slot.
    pub is_good: bool,
    /// The image that RAUC installed last.
    pub installed: Option<RawImage>,
}

/// What `rauc info` reports about a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RaucBundle {
    /// The kind of machine for which the bundle is.
    pub compatible: String,
}

#[derive(Deserialize)]
struct StatusDocument {
    compatible: String,
    boot_primary: Option<String>,
    /// Each element is an object with one member, the name of a slot.
    slots: Vec<BTreeMap<String, StatusSlot>>,
}

#[derive(Deserialize)]
struct StatusSlot {
    class: String,
    device: String,
    #[serde(rename = "type")]
    slot_type: String,
    bootname: Option<String>,
    state: String,
    parent: Option<String>,
    boot_status: Option<String>,
    slot_status: Option<InstallationStatus>,
}

#[derive(Deserialize)]
struct InstallationStatus {
    checksum: Option<InstalledChecksum>,
}

#[derive(Deserialize)]
struct InstalledChecksum {
    sha256: Option<Sha256>,
    size: Option<u64>,
}

impl RaucStatus {
    /// Parses the output of `rauc status --detailed --output-format=json`. Fails unless there are
    /// exactly two slots from which a system boots, both of one class.
    pub fn parse(output: &str) -> Result<Self, String> {
        let document: StatusDocument = serde_json::from_str(output)
            .map_err(|error| format!("cannot parse the status that RAUC reports: {error}"))?;
        let mut bootable: Vec<BootableSlot> = Vec::new();
        for (name, slot) in document.slots.into_iter().flatten() {
            if is_bootable(&slot) {
                bootable.push((parse_index(&name, &slot.class)?, name, slot));
            }
        }
        bootable.sort_by_key(|(index, ..)| *index);
        let [(first_index, a_name, a), (second_index, b_name, b)] =
            <[BootableSlot; 2]>::try_from(bootable).map_err(|found| unsupported_slots(&found))?;
        if a.class != b.class || first_index == second_index {
            return Err(format!(
                "RAUC boots from {a_name} and {b_name}, which are not two slots of one class: only two slots of one class \
                 are supported"
            ));
        }
        let booted = match (a.state == BOOTED_STATE, b.state == BOOTED_STATE) {
            (true, true) => {
                return Err(format!("RAUC reports both {a_name} and {b_name} as booted"));
            }
            (true, false) => Some(Slot::A),
            (false, true) => Some(Slot::B),
            (false, false) => None,
        };
        let primary = match document.boot_primary {
            None => None,
            Some(name) if name == a_name => Some(Slot::A),
            Some(name) if name == b_name => Some(Slot::B),
            Some(name) => {
                return Err(format!("RAUC reports the unknown slot {name:?} as the next to boot"));
            }
        };
        Ok(Self {
            compatible: document.compatible,
            booted,
            primary,
            a: RaucSlot::from_status(a_name, a)?,
            b: RaucSlot::from_status(b_name, b)?,
        })
    }

    pub fn slot(&self, slot: Slot) -> &RaucSlot {
        match slot {
            Slot::A => &self.a,
            Slot::B => &self.b,
        }
    }
}

impl RaucSlot {
    fn from_status(name: String, slot: StatusSlot) -> Result<Self, String> {
        if !slot.device.starts_with('/') {
            return Err(format!(
                "RAUC reports {:?} as the device of {name}, which is not an absolute path",
                slot.device
            ));
        }
        let checksum = slot.slot_status.and_then(|status| status.checksum);
        let installed = checksum
            .and_then(|checksum| checksum.sha256.zip(checksum.size))
            .map(|(sha256, bytes)| RawImage { sha256, bytes });
        Ok(Self {
            name,
            bootname: slot.bootname.unwrap_or_default(),
            device: slot.device.into(),
            is_raw: slot.slot_type == RAW_TYPE,
            is_good: slot.boot_status.as_deref() == Some(GOOD_STATUS),
            installed,
        })
    }
}

impl RaucBundle {
    /// Parses the output of `rauc info --output-format=json`.
    pub fn parse(output: &str) -> Result<Self, String> {
        serde_json::from_str(output)
            .map_err(|error| format!("cannot parse what RAUC reports about the bundle: {error}"))
    }
}

/// Whether the boot loader starts a slot by itself. A slot with a parent belongs to another one.
fn is_bootable(slot: &StatusSlot) -> bool {
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    is_set(&slot.bootname) && !is_set(&slot.parent)
}

/// The number of a slot with the name `CLASS.NUMBER`.
fn parse_index(name: &str, class: &str) -> Result<u32, String> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    let is_class = !class.starts_with('-') && !class.is_empty() && class.bytes().all(is_letter);
    let index = name.strip_prefix(class).and_then(|rest| rest.strip_prefix('.'));
    let index = index.filter(|index| is_class && index.bytes().all(|byte| byte.is_ascii_digit()));
    index.and_then(|index| index.parse().ok()).ok_or_else(|| {
        format!(
            "RAUC reports a slot {name:?} of the class {class:?}, and slots are named CLASS.NUMBER"
        )
    })
}

/// Why these slots are not supported.
fn unsupported_slots(found: &[BootableSlot]) -> String {
    let names: Vec<&str> = found.iter().map(|(_, name, _)| name.as_str()).collect();
    let names = if names.is_empty() { "no slot".to_owned() } else { names.join(", ") };
    format!("RAUC boots from {names}: only systems with exactly two bootable slots are supported")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// RAUC 1.8 of Debian 12, which runs from the first slot and has installed nothing.
    const FRESH: &str = r#"{"compatible":"evenkeel-test","variant":"","booted":"A","boot_primary":"rootfs.0","slots":[{"rootfs.1":{"class":"rootfs","device":"/dev/vda3","type":"raw","bootname":"B","state":"inactive","parent":null,"mountpoint":null,"boot_status":"bad","slot_status":{"bundle":{"compatible":null}}}},{"rootfs.0":{"class":"rootfs","device":"/dev/vda2","type":"raw","bootname":"A","state":"booted","parent":null,"mountpoint":null,"boot_status":"good","slot_status":{"bundle":{"compatible":null}}}}]}"#;

    /// The same after `rauc install` and `rauc status mark-active rootfs.1`.
    const ACTIVATED: &str = r#"{"compatible":"evenkeel-test","variant":"","booted":"A","boot_primary":"rootfs.1","slots":[{"rootfs.1":{"class":"rootfs","device":"/dev/vda3","type":"raw","bootname":"B","state":"inactive","parent":null,"mountpoint":null,"boot_status":"bad","slot_status":{"bundle":{"compatible":"evenkeel-test","version":"1.1"},"checksum":{"sha256":"c57875d176736bb785d0b57e974b2207d08d0fe2e2fe4324c9c8fb1b10eefee0","size":1048576},"installed":{"timestamp":"2026-11-29T22:05:46Z","count":1},"activated":{"timestamp":"2026-11-29T22:08:23Z","count":1},"status":"ok"}}},{"rootfs.0":{"class":"rootfs","device":"/dev/vda2","type":"raw","bootname":"A","state":"booted","parent":null,"mountpoint":null,"boot_status":"good","slot_status":{"bundle":{"compatible":null}}}}]}"#;

    /// Other names, a slot that belongs to another one, and fields that RAUC 1.8 does not have.
    const WITH_CHILDREN: &str = r#"{"compatible":"c","variant":"","booted":"system1","boot_primary":"system.10","slots":[
        {"app.0":{"class":"app","device":"/dev/vda4","type":"ext4","bootname":null,"state":"inactive","parent":"system.2","mountpoint":null,"boot_status":null,"slot_status":{"bundle":{"compatible":null}}}},
        {"system.10":{"class":"system","device":"/dev/vda3","type":"ext4","bootname":"system1","state":"booted","parent":null,"mountpoint":"/","boot_status":"good","slot_status":{"bundle":{"compatible":"c","version":"2","hash":"00"},"installed":{"timestamp":"t","count":3,"transaction":"u"},"status":"ok"}}},
        {"system.2":{"class":"system","device":"/dev/vda2","type":"ext4","bootname":"system0","state":"inactive","parent":null,"mountpoint":null,"boot_status":"good"}}
        ],"artifact-repositories":[]}"#;

    #[test]
    fn the_recorded_outputs_are_parsed() {
        let fresh = RaucStatus::parse(FRESH).unwrap();
        assert_eq!((fresh.booted, fresh.primary), (Some(Slot::A), Some(Slot::A)));
        let (a, b) = (fresh.slot(Slot::A), fresh.slot(Slot::B));
        assert_eq!((a.name.as_str(), b.name.as_str()), ("rootfs.0", "rootfs.1"));
        assert_eq!(b.device, Path::new("/dev/vda3"));
        assert!(a.is_good && !b.is_good && b.is_raw && b.installed.is_none());

        let activated = RaucStatus::parse(ACTIVATED).unwrap();
        assert_eq!((activated.booted, activated.primary), (Some(Slot::A), Some(Slot::B)));
        let installed = activated.slot(Slot::B).installed.unwrap();
        assert_eq!(installed.bytes, 1_048_576);
        assert!(installed.sha256.to_string().starts_with("c57875d1"));

        let other = RaucStatus::parse(WITH_CHILDREN).unwrap();
        assert_eq!((other.booted, other.primary), (Some(Slot::B), Some(Slot::B)));
        assert_eq!(other.slot(Slot::A).name, "system.2", "the lower number is the first slot");
        assert!(!other.slot(Slot::B).is_raw && other.slot(Slot::B).installed.is_none());

        let bundle = r#"{"compatible":"evenkeel-test","version":"1.1","description":null,"build":null,"hooks":[],"images":[]}"#;
        assert_eq!(RaucBundle::parse(bundle).unwrap().compatible, "evenkeel-test");
    }

    #[test]
    fn a_primary_or_running_slot_that_rauc_does_not_know_is_none() {
        let unknown = FRESH
            .replace(r#""boot_primary":"rootfs.0""#, r#""boot_primary":null"#)
            .replace(r#""state":"booted""#, r#""state":"inactive""#);
        let status = RaucStatus::parse(&unknown).unwrap();
        assert_eq!((status.booted, status.primary), (None, None));
    }

    #[test]
    fn slots_that_are_not_supported_and_garbled_outputs_are_refused() {
        let third = r#","slots":[{"rescue.0":{"class":"rescue","device":"/dev/vda9","type":"raw","bootname":"R","state":"inactive","parent":null,"boot_status":"good"}},"#;
        for (output, reason) in [
            (FRESH.replace(r#","slots":["#, third), "rescue.0"),
            (FRESH.replace(r#""bootname":"B""#, r#""bootname":null"#), "boots from rootfs.0:"),
            (FRESH.replace(r#""bootname""#, r#""name""#), "boots from no slot"),
            (
                FRESH.replace(
                    r#""class":"rootfs","device":"/dev/vda3""#,
                    r#""class":"x","device":"/dev/vda3""#,
                ),
                "CLASS.NUMBER",
            ),
            (FRESH.replace("rootfs.1", "rootfs.0"), "not two slots of one class"),
            (FRESH.replace("rootfs.1", "rootfs.-1"), "CLASS.NUMBER"),
            (FRESH.replace("rootfs", "--help"), "CLASS.NUMBER"),
            (FRESH.replace("rootfs.1", "rootfs.99999999999"), "CLASS.NUMBER"),
            (FRESH.replace("inactive", "booted"), "both"),
            (FRESH.replace(r#"primary":"rootfs.0"#, r#"primary":"rootfs.7"#), "unknown slot"),
            (FRESH.replace("/dev/vda3", "vda3"), "absolute path"),
            (ACTIVATED.replace("c57875d1", "C57875d1"), "cannot parse"),
            (ACTIVATED.replace("1048576", "-1"), "cannot parse"),
            (FRESH[..FRESH.len() - 1].to_owned(), "cannot parse"),
            (format!("{FRESH}{FRESH}"), "cannot parse"),
            (r#"{"compatible":"c","slots":{}}"#.to_owned(), "cannot parse"),
            ("[".repeat(100_000), "cannot parse"),
            (String::new(), "cannot parse"),
        ] {
            let error = RaucStatus::parse(&output).unwrap_err();
            assert!(error.contains(reason), "{reason}: {error}");
        }
        RaucBundle::parse("{}").unwrap_err();
        RaucBundle::parse("idle").unwrap_err();
    }

    #[test]
    fn a_changed_output_causes_no_panic_and_no_unsafe_argument() {
        for output in [FRESH, ACTIVATED, WITH_CHILDREN] {
            for at in 0..output.len() {
                RaucStatus::parse(&output[..at]).unwrap_err();
                for byte in [b'"', b'{', b'-', b'.', b' ', b'9', b'\n', 0, 0xff] {
                    let mut bytes = output.as_bytes().to_vec();
                    bytes[at] = byte;
                    let Ok(status) = RaucStatus::parse(&String::from_utf8_lossy(&bytes)) else {
                        continue;
                    };
                    for slot in Slot::ALL.map(|slot| status.slot(slot)) {
                        let is_safe = slot.name.bytes().all(|byte| byte.is_ascii_graphic());
                        assert!(is_safe && !slot.name.starts_with('-'), "{:?}", slot.name);
                        assert!(slot.device.is_absolute(), "{:?}", slot.device);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn a_status_names_two_slots_or_is_refused() {
        let samples = [
            r#"{"compatible":"c","boot_primary":"rootfs.0","slots":[{"rootfs.1":{"class":"rootfs","device":"/dev/vda3",
               "type":"raw","bootname":"B","state":"inactive","parent":null,"boot_status":"bad","slot_status":{"checksum":
               {"sha256":"c57875d176736bb785d0b57e974b2207d08d0fe2e2fe4324c9c8fb1b10eefee0","size":1048576}}}},
               {"rootfs.0":{"class":"rootfs","device":"/dev/vda2","type":"raw","bootname":"A","state":"booted",
               "parent":null,"boot_status":"good"}}]}"#,
            r#"{"compatible":"c","slots":[]}"#,
        ];
        fuzz("rauc status", |rng| {
            let output = text(rng, &samples, "{}[]\",:.-/ 0123456789\u{1b}nulbootedrootfs");
            RaucBundle::parse(&output).ok();
            let Ok(status) = RaucStatus::parse(&output) else {
                return;
            };
            let [a, b] = [Slot::A, Slot::B].map(|slot| status.slot(slot));
            assert_ne!(a.name, b.name);
            for slot in [a, b] {
                assert!(slot.device.is_absolute(), "{slot:?}");
                let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
                assert!(
                    slot.name.bytes().all(is_letter) && !slot.name.starts_with('-'),
                    "{slot:?}"
                );
            }
        });
    }
}
