//! Who the machine is, and the names that the agent makes.

use std::path::Path;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{self, FileError};
use crate::os;
use crate::place::Place;

/// The name space of UUIDs that are made from a machine id.
const MACHINE_IDS: Uuid = Uuid::from_u128(0x6b0e_52d5_9a4c_4f0e_8c57_3f1d_a2b9_7e64);

/// machine-id(5), as seen from inside the managed root.
const MACHINE_ID: &str = "/etc/machine-id";

/// UUIDs that vendors leave in their firmware instead of one of the machine's own.
const PLACEHOLDERS: [u128; 9] = [
    0,
    u128::MAX,
    0x0300_0200_0400_0500_0006_0007_0008_0009,
    0x0002_0003_0004_0005_0006_0007_0008_0009,
    0x1234_5678_1234_5678_90ab_cdde_efaa_bbcc,
    0x1234_5678_1234_1234_1234_1234_5678_90ab,
    0xfefe_fefe_fefe_fefe_fefe_fefe_fefe_fefe,
    0x4c4c_4544_0000_2010_8020_80c0_4f20_2020,
    0x0000_0000_0000_0000_0000_0000_0000_0001,
];

/// Serial numbers that are none.
const NO_SERIALS: [&str; 9] = [
    "none",
    "n/a",
    "not specified",
    "not applicable",
    "default string",
    "system serial number",
    "to be filled by o.e.m.",
    "0123456789",
    "0",
];

/// Who the machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The machine's own.
    pub uuid: Uuid,
    /// The vendor's; empty if there is none.
    pub serial_number: String,
    /// Its name.
    pub host_name: String,
}

impl Identity {
    /// Looks: the UUID that was given, else that of the firmware, else one made from the machine id of the managed
    /// root. The firmware describes the machine and not a container or another root.
    pub fn of(place: &Place, given: Option<Uuid>) -> Result<Self, FileError> {
        let machine = place.is_own_system() && !in_container(Path::new("/"));
        let firmware = Path::new("/sys/class/dmi/id");
        let of_firmware = || firmware_uuid(firmware).filter(|_| machine);
        let uuid = match given.or_else(of_firmware) {
            Some(uuid) => uuid,
            None => of_machine_id(&machine_id(place)?),
        };
        let serial_number = firmware_serial(firmware).filter(|_| machine);
        Ok(Self {
            uuid,
            serial_number: serial_number.unwrap_or_default(),
            host_name: os::host_name(place),
        })
    }
}

/// What tells a machine from a copy of its disk in another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Marks {
    /// The firmware's UUID; none where it says nothing of the machine, or may not be read.
    pub firmware: Option<Uuid>,
    /// The UUID that is made from the machine id; none if there is no machine id.
    pub machine_id: Option<Uuid>,
}

impl Marks {
    /// Looks, and makes nothing.
    pub fn of(place: &Place) -> Self {
        let machine = place.is_own_system() && !in_container(Path::new("/"));
        let firmware = Path::new("/sys/class/dmi/id");
        Self {
            firmware: firmware_uuid(firmware).filter(|_| machine),
            machine_id: known_machine_id(place).map(|id| of_machine_id(&id)),
        }
    }

    /// Whether these are certainly the marks of another machine. The firmware decides if it spoke both times; the machine
    /// id if it was silent both times. A mark that is only missing tells nothing.
    pub fn are_of_another(&self, other: &Self) -> bool {
        match (self.firmware, other.firmware) {
            (Some(one), Some(other)) => one != other,
            (None, None) => match (self.machine_id, other.machine_id) {
                (Some(one), Some(other)) => one != other,
                _ => false,
            },
            _ => false,
        }
    }
}

/// A name for a new attempt: the one place where the agent rolls dice for a name.
pub fn new_attempt() -> Uuid {
    Uuid::new_v4()
}

fn firmware_uuid(firmware: &Path) -> Option<Uuid> {
    let uuid = Uuid::try_parse(&os::first_line(&firmware.join("product_uuid"))?).ok()?;
    (!PLACEHOLDERS.contains(&uuid.as_u128())).then_some(uuid)
}

fn firmware_serial(firmware: &Path) -> Option<String> {
    let serial = os::first_line(&firmware.join("product_serial"))?;
    (!NO_SERIALS.contains(&serial.to_lowercase().as_str())).then_some(serial)
}

/// Whether this is a container: what systemd, Docker and Podman leave behind to tell.
pub(crate) fn in_container(root: &Path) -> bool {
    let marks = ["run/systemd/container", "run/.containerenv", ".dockerenv"];
    let first_process = std::fs::read(root.join("proc/1/environ")).unwrap_or_default();
    marks.iter().any(|mark| root.join(mark).exists())
        || first_process
            .split(|byte| *byte == 0)
            .any(|variable| variable.starts_with(b"container="))
}

fn of_machine_id(id: &str) -> Uuid {
    Uuid::new_v5(&MACHINE_IDS, id.as_bytes())
}

/// machine-id(5) of the managed root, if it has one.
fn known_machine_id(place: &Place) -> Option<String> {
    let sound = |id: &String| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = os::first_line(&place.inside(MACHINE_ID)).filter(sound)?;
    Some(id.to_lowercase())
}

/// machine-id(5) of the managed root, made if it is missing or empty.
fn machine_id(place: &Place) -> Result<String, FileError> {
    if let Some(id) = known_machine_id(place) {
        return Ok(id);
    }
    let path = place.inside(MACHINE_ID);
    let id = Uuid::new_v4().simple().to_string();
    durable::replace(&path, format!("{id}\n").as_bytes(), 0o444)?;
    tracing::info!(file = %path.display(), "the root had no machine id, one was made");
    Ok(id)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn root() -> (tempfile::TempDir, Place) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let place = Place::new(root.path(), None);
        (root, place)
    }

    #[test]
    fn another_root_is_known_by_its_machine_id_not_by_the_firmware() {
        let (root, place) = root();
        let id = root.path().join("etc/machine-id");
        fs::write(&id, "0123456789abcdef0123456789abcdef\n").unwrap();
        fs::write(root.path().join("etc/hostname"), "edge-1\n").unwrap();

        let identity = Identity::of(&place, None).unwrap();

        assert_eq!(identity.uuid.get_version_num(), 5);
        assert_eq!(identity.host_name, "edge-1");
        assert_eq!(identity.serial_number, "");
        assert_eq!(Identity::of(&place, None).unwrap(), identity);
        fs::write(&id, "1123456789abcdef0123456789abcdef\n").unwrap();
        assert_ne!(Identity::of(&place, None).unwrap().uuid, identity.uuid);
    }

    #[test]
    fn a_root_without_machine_id_gets_one() {
        for content in [None, Some(""), Some("uninitialized\n")] {
            let (root, place) = root();
            let path = root.path().join("etc/machine-id");
            if let Some(content) = content {
                fs::write(&path, content).unwrap();
            }
            let identity = Identity::of(&place, None).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap().len(), 33);
            assert_eq!(Identity::of(&place, None).unwrap().uuid, identity.uuid);
        }
    }

    #[test]
    fn a_copy_of_the_disk_in_another_machine_is_another_machine() {
        let marks = |firmware: Option<u128>, machine_id: Option<u128>| Marks {
            firmware: firmware.map(Uuid::from_u128),
            machine_id: machine_id.map(Uuid::from_u128),
        };
        let enrolled = marks(Some(1), Some(2));
        assert!(enrolled.are_of_another(&marks(Some(3), Some(2))));
        assert!(
            !enrolled.are_of_another(&marks(Some(1), Some(9))),
            "set up anew"
        );
        assert!(
            !enrolled.are_of_another(&marks(None, Some(9))),
            "not readable"
        );
        let silent = marks(None, Some(2));
        assert!(silent.are_of_another(&marks(None, Some(3))));
        assert!(!silent.are_of_another(&marks(None, None)));
        assert!(!silent.are_of_another(&marks(Some(1), Some(3))));
    }

    #[test]
    fn to_look_for_marks_makes_none() {
        let (root, place) = root();
        assert_eq!(Marks::of(&place), Marks::default());
        assert!(!root.path().join("etc/machine-id").exists());
        let identity = Identity::of(&place, None).unwrap();
        assert_eq!(Marks::of(&place).machine_id, Some(identity.uuid));
    }

    #[test]
    fn the_uuid_that_was_given_wins() {
        let (_root, place) = root();
        let given = Uuid::from_u128(5);
        assert_eq!(Identity::of(&place, Some(given)).unwrap().uuid, given);
    }

    #[test]
    fn what_a_vendor_left_in_the_firmware_is_no_identity() {
        let firmware = tempfile::tempdir().unwrap();
        let uuid = firmware.path().join("product_uuid");
        let serial = firmware.path().join("product_serial");
        assert_eq!(firmware_uuid(firmware.path()), None);
        fs::write(&uuid, "03000200-0400-0500-0006-000700080009\n").unwrap();
        fs::write(&serial, "To Be Filled By O.E.M.\n").unwrap();
        assert_eq!(firmware_uuid(firmware.path()), None);
        assert_eq!(firmware_serial(firmware.path()), None);
        fs::write(&uuid, "4C4C4544-0042-3510-8052-B4C04F4A3532\n").unwrap();
        fs::write(&serial, "ABC123\n").unwrap();
        assert_eq!(
            firmware_uuid(firmware.path()).unwrap().to_string(),
            "4c4c4544-0042-3510-8052-b4c04f4a3532"
        );
        assert_eq!(firmware_serial(firmware.path()).unwrap(), "ABC123");
    }

    #[test]
    fn a_container_is_recognised() {
        let root = tempfile::tempdir().unwrap();
        assert!(!in_container(root.path()));
        fs::create_dir_all(root.path().join("proc/1")).unwrap();
        fs::write(
            root.path().join("proc/1/environ"),
            b"TERM=x\0container=lxc\0",
        )
        .unwrap();
        assert!(in_container(root.path()));
        fs::write(root.path().join("proc/1/environ"), b"TERM=x\0").unwrap();
        assert!(!in_container(root.path()));
        fs::write(root.path().join(".dockerenv"), b"").unwrap();
        assert!(in_container(root.path()));
    }
}
