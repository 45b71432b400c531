//! Identity of the machine, and IDs that the agent creates.

use std::path::Path;

use evenkeel_domain::host::SerialNumber;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{self, FileError};
use crate::os;
use crate::paths::AgentPaths;

/// Namespace of the UUIDs that are derived from a machine ID.
const MACHINE_ID_NAMESPACE: Uuid = Uuid::from_u128(0x6b0e_52d5_9a4c_4f0e_8c57_3f1d_a2b9_7e64);

/// Data of the firmware.
const FIRMWARE: &str = "/sys/class/dmi/id";

/// machine-id(5), as seen from inside the managed root.
const MACHINE_ID_FILE: &str = "/etc/machine-id";

/// UUIDs that vendors put into the firmware of many machines, in addition to those that repeat or count bytes.
const PLACEHOLDER_UUIDS: [u128; 6] = [
    0x0300_0200_0400_0500_0006_0007_0008_0009,
    0x0002_0003_0004_0005_0006_0007_0008_0009,
    0x1234_5678_1234_5678_90ab_cdde_efaa_bbcc,
    0x1234_5678_1234_1234_1234_1234_5678_90ab,
    0x4c4c_4544_0000_2010_8020_80c0_4f20_2020,
    0x0000_0000_0000_0000_0000_0000_0000_0001,
];

/// Identity of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// UUID of the machine.
    pub uuid: Uuid,
    /// Serial number of the vendor; empty if there is none.
    pub serial_number: String,
    pub host_name: String,
}

impl Identity {
    /// Detects the identity. The UUID is the given one, else that of the firmware, else it is
    /// derived from the machine ID of the managed root. The firmware does not identify a container
    /// or another root.
    pub fn detect(paths: &AgentPaths, override_uuid: Option<Uuid>) -> Result<Self, FileError> {
        let of_firmware = || firmware_uuid(Path::new(FIRMWARE)).filter(|_| has_firmware(paths));
        let uuid = match override_uuid.or_else(of_firmware) {
            Some(uuid) => uuid,
            None => uuid_from_machine_id(&ensure_machine_id(paths)?),
        };
        Ok(Self { uuid, serial_number: serial_number(paths), host_name: os::host_name(paths) })
    }
}

/// Marks that distinguish a machine from another one that runs a copy of its disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MachineMarks {
    /// UUID of the firmware; `None` if it does not identify the machine or cannot be read.
    pub firmware: Option<Uuid>,
    /// UUID derived from the machine ID; `None` if there is no machine ID.
    pub machine_id: Option<Uuid>,
}

impl MachineMarks {
    /// Detects the marks. Creates no machine ID.
    pub fn detect(paths: &AgentPaths) -> Self {
        Self {
            firmware: firmware_uuid(Path::new(FIRMWARE)).filter(|_| has_firmware(paths)),
            machine_id: read_machine_id(paths).map(|id| uuid_from_machine_id(&id)),
        }
    }

    /// The marks of a machine that enrols. Creates a machine ID if nothing else marks the machine: an enrolment with a
    /// given UUID needs none, and a copy of the disk would look like the original.
    pub fn establish(paths: &AgentPaths) -> Self {
        let marks = Self::detect(paths);
        if marks != Self::default() {
            return marks;
        }
        match ensure_machine_id(paths) {
            Ok(id) => Self { machine_id: Some(uuid_from_machine_id(&id)), ..marks },
            Err(error) => {
                tracing::warn!(%error, "the root has no machine ID: a copy of this machine cannot be recognized");
                marks
            }
        }
    }

    /// Whether these marks certainly belong to another machine. If both have a firmware UUID, these
    /// decide; if neither has one, the machine IDs decide. A missing mark decides nothing.
    pub fn identifies_other_machine(&self, other: &Self) -> bool {
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

/// Serial number of the vendor; empty if there is none.
pub fn serial_number(paths: &AgentPaths) -> String {
    let serial = firmware_serial(Path::new(FIRMWARE)).filter(|_| has_firmware(paths));
    serial.unwrap_or_default()
}

/// Whether the firmware identifies the machine. It does not identify a container or another root.
fn has_firmware(paths: &AgentPaths) -> bool {
    paths.is_own_system() && !is_container(Path::new("/"))
}

/// Creates the ID of a new attempt. The agent creates no other random IDs for attempts.
pub fn new_attempt_id() -> Uuid {
    Uuid::new_v4()
}

/// The session of this agent process. Agents that run `once` share one until the next boot or the next service: otherwise
/// the facts of each differ, and each sends all of them. They do not share it if a copy of the disk would have its file.
pub fn choose_session(paths: &AgentPaths, once: bool) -> Uuid {
    let file = paths.session();
    if once && paths.is_own_system() && file.parent().is_some_and(os::is_in_memory) {
        return shared_session(&file, &os::boot_id());
    }
    end_shared_session(&file);
    Uuid::new_v4()
}

/// Removes the session that agents share which run once. An agent that returned to it after another session would look
/// like a second machine.
fn end_shared_session(file: &Path) {
    if let Err(error) = durable::remove_file(file) {
        tracing::debug!(%error, "cannot remove the session of earlier agents");
    }
}

fn shared_session(file: &Path, boot_id: &str) -> Uuid {
    let stored = durable::read_file(file).ok().flatten();
    if let Some(session) = stored.and_then(|content| parse_session(&content, boot_id)) {
        return session;
    }
    let session = Uuid::new_v4();
    let content = format!("{boot_id} {session}\n");
    if let Err(error) = durable::replace_file(file, content.as_bytes(), 0o600) {
        tracing::debug!(%error, "cannot store the session for the next agent");
    }
    session
}

/// The session, if it is of this boot.
fn parse_session(content: &[u8], boot_id: &str) -> Option<Uuid> {
    let (boot, session) = str::from_utf8(content).ok()?.split_once(' ')?;
    if boot == boot_id { Uuid::parse_str(session.trim()).ok() } else { None }
}

fn firmware_uuid(firmware: &Path) -> Option<Uuid> {
    let uuid = Uuid::try_parse(&os::first_line(&firmware.join("product_uuid"))?).ok()?;
    (!is_placeholder(uuid)).then_some(uuid)
}

/// Whether a UUID identifies no machine: it is a known constant, or its bytes are all equal or count up. The firmware may
/// store the first three fields in the other byte order.
fn is_placeholder(uuid: Uuid) -> bool {
    let is_pattern = |bytes: [u8; 16]| {
        let is_each_pair = |follows: fn(u8, u8) -> bool| {
            bytes.iter().zip(bytes.iter().skip(1)).all(|(one, next)| follows(*one, *next))
        };
        is_each_pair(|one, next| one == next)
            || is_each_pair(|one, next| one.checked_add(1) == Some(next))
    };
    PLACEHOLDER_UUIDS.contains(&uuid.as_u128())
        || is_pattern(*uuid.as_bytes())
        || is_pattern(uuid.to_bytes_le())
}

/// The serial number, by the rules of the server.
fn firmware_serial(firmware: &Path) -> Option<String> {
    let serial = SerialNumber::from_report(&os::first_line(&firmware.join("product_serial"))?)?;
    Some(serial.as_str().to_owned())
}

/// Whether the root is a container, according to the files of systemd, Docker and Podman.
pub(crate) fn is_container(root: &Path) -> bool {
    let marks = ["run/systemd/container", "run/.containerenv", ".dockerenv"];
    let first_process = std::fs::read(root.join("proc/1/environ")).unwrap_or_default();
    marks.iter().any(|mark| root.join(mark).exists())
        || first_process
            .split(|byte| *byte == 0)
            .any(|variable| variable.starts_with(b"container="))
}

fn uuid_from_machine_id(id: &str) -> Uuid {
    Uuid::new_v5(&MACHINE_ID_NAMESPACE, id.as_bytes())
}

/// machine-id(5) of the managed root, if it has one.
fn read_machine_id(paths: &AgentPaths) -> Option<String> {
    let sound = |id: &String| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = os::first_line(&paths.inside(MACHINE_ID_FILE)).filter(sound)?;
    Some(id.to_lowercase())
}

/// machine-id(5) of the managed root. Creates it if it is missing or empty.
fn ensure_machine_id(paths: &AgentPaths) -> Result<String, FileError> {
    if let Some(id) = read_machine_id(paths) {
        return Ok(id);
    }
    let path = paths.inside(MACHINE_ID_FILE);
    let id = Uuid::new_v4().simple().to_string();
    durable::replace_file(&path, format!("{id}\n").as_bytes(), 0o444)?;
    tracing::info!(file = %path.display(), "the root had no machine ID, created one");
    Ok(id)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn test_root() -> (tempfile::TempDir, AgentPaths) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let paths = AgentPaths::new(root.path(), None);
        (root, paths)
    }

    #[test]
    fn agents_that_run_once_share_a_session_in_one_boot() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("session");
        let session = shared_session(&file, "boot-1");
        assert_eq!(shared_session(&file, "boot-1"), session);
        let after_reboot = shared_session(&file, "boot-2");
        assert_ne!(after_reboot, session);
        assert_eq!(shared_session(&file, "boot-2"), after_reboot);
        fs::write(&file, "boot-2 noise\n").unwrap();
        assert_ne!(shared_session(&file, "boot-2"), after_reboot);
        end_shared_session(&file);
        end_shared_session(&file);
        assert_ne!(shared_session(&file, "boot-2"), after_reboot, "a service ran in between");
        let nowhere = Path::new("/proc/nowhere/session");
        assert_ne!(shared_session(nowhere, "boot-1"), shared_session(nowhere, "boot-1"));
    }

    #[test]
    fn an_agent_shares_no_session_in_a_file_that_is_copied_with_the_disk() {
        let (root, paths) = test_root();
        fs::create_dir(root.path().join("run")).unwrap();
        fs::write(paths.session(), format!("{} {}\n", os::boot_id(), Uuid::from_u128(7))).unwrap();
        assert_ne!(choose_session(&paths, true), Uuid::from_u128(7));
        assert!(!paths.session().exists());
        assert_ne!(choose_session(&paths, true), choose_session(&paths, true));
        assert!(!paths.session().exists());
    }

    #[test]
    fn another_root_is_identified_by_its_machine_id_not_by_the_firmware() {
        let (root, paths) = test_root();
        let id = root.path().join("etc/machine-id");
        fs::write(&id, "0123456789abcdef0123456789abcdef\n").unwrap();
        fs::write(root.path().join("etc/hostname"), "edge-1\n").unwrap();

        let identity = Identity::detect(&paths, None).unwrap();

        assert_eq!(identity.uuid.get_version_num(), 5);
        assert_eq!(identity.host_name, "edge-1");
        assert_eq!(identity.serial_number, "");
        assert_eq!(Identity::detect(&paths, None).unwrap(), identity);
        fs::write(&id, "1123456789abcdef0123456789abcdef\n").unwrap();
        assert_ne!(Identity::detect(&paths, None).unwrap().uuid, identity.uuid);
    }

    #[test]
    fn a_root_without_machine_id_gets_one() {
        for content in [None, Some(""), Some("uninitialized\n")] {
            let (root, paths) = test_root();
            let path = root.path().join("etc/machine-id");
            if let Some(content) = content {
                fs::write(&path, content).unwrap();
            }
            let identity = Identity::detect(&paths, None).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap().len(), 33);
            assert_eq!(Identity::detect(&paths, None).unwrap().uuid, identity.uuid);
        }
    }

    #[test]
    fn a_copied_disk_in_another_machine_is_detected() {
        let marks = |firmware: Option<u128>, machine_id: Option<u128>| MachineMarks {
            firmware: firmware.map(Uuid::from_u128),
            machine_id: machine_id.map(Uuid::from_u128),
        };
        let enrolled = marks(Some(1), Some(2));
        assert!(enrolled.identifies_other_machine(&marks(Some(3), Some(2))));
        assert!(!enrolled.identifies_other_machine(&marks(Some(1), Some(9))), "reinstalled");
        assert!(!enrolled.identifies_other_machine(&marks(None, Some(9))), "not readable");
        let silent = marks(None, Some(2));
        assert!(silent.identifies_other_machine(&marks(None, Some(3))));
        assert!(!silent.identifies_other_machine(&marks(None, None)));
        assert!(!silent.identifies_other_machine(&marks(Some(1), Some(3))));
    }

    #[test]
    fn detecting_marks_creates_no_machine_id() {
        let (root, paths) = test_root();
        assert_eq!(MachineMarks::detect(&paths), MachineMarks::default());
        assert!(!root.path().join("etc/machine-id").exists());
        let identity = Identity::detect(&paths, None).unwrap();
        assert_eq!(MachineMarks::detect(&paths).machine_id, Some(identity.uuid));
    }

    #[test]
    fn a_machine_without_marks_gets_a_machine_id_when_it_enrols() {
        let (root, paths) = test_root();
        Identity::detect(&paths, Some(Uuid::from_u128(5))).unwrap();
        let marks = MachineMarks::establish(&paths);
        assert!(marks.machine_id.is_some());
        assert_eq!(MachineMarks::detect(&paths), marks);
        assert_eq!(MachineMarks::establish(&paths), marks, "an existing machine ID stays");
        // A root that cannot be written enrols all the same.
        let file = root.path().join("etc");
        fs::remove_dir_all(&file).unwrap();
        fs::write(&file, "").unwrap();
        assert_eq!(MachineMarks::establish(&paths), MachineMarks::default());
    }

    #[test]
    fn a_given_uuid_takes_precedence() {
        let (_root, paths) = test_root();
        let uuid = Uuid::from_u128(5);
        assert_eq!(Identity::detect(&paths, Some(uuid)).unwrap().uuid, uuid);
    }

    #[test]
    fn placeholders_in_the_firmware_are_no_identity() {
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
    fn uuids_of_many_machines_are_placeholders() {
        for text in [
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "01010101-0101-0101-0101-010101010101",
            "20202020-2020-2020-2020-202020202020",
            "00010203-0405-0607-0809-0a0b0c0d0e0f",
            "01020304-0506-0708-090a-0b0c0d0e0f10",
            "03020100-0504-0706-0809-0a0b0c0d0e0f",
            "03000200-0400-0500-0006-000700080009",
            "fefefefe-fefe-fefe-fefe-fefefefefefe",
        ] {
            assert!(is_placeholder(text.parse().unwrap()), "{text}");
        }
        for text in [
            "4c4c4544-0042-3510-8052-b4c04f4a3532",
            "00010203-0405-0607-0809-0a0b0c0d0e00",
            "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe00",
            "01010101-0101-0101-0101-010101010102",
        ] {
            assert!(!is_placeholder(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_serial_number_is_kept_as_the_vendor_wrote_it() {
        let firmware = tempfile::tempdir().unwrap();
        let serial = |text: &str| {
            fs::write(firmware.path().join("product_serial"), text).unwrap();
            firmware_serial(firmware.path())
        };
        for text in ["VMware-56 4d 8f 0a", "CN-0X3D66-74261", "/ABC/"] {
            assert_eq!(serial(&format!("{text}\n")).as_deref(), Some(text));
        }
        for text in ["INVALID", "XXXXXXXX", "00000000", "123456789", "Unknown", "0", "", " "] {
            assert_eq!(serial(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_container_is_recognised() {
        let root = tempfile::tempdir().unwrap();
        assert!(!is_container(root.path()));
        fs::create_dir_all(root.path().join("proc/1")).unwrap();
        fs::write(root.path().join("proc/1/environ"), b"TERM=x\0container=lxc\0").unwrap();
        assert!(is_container(root.path()));
        fs::write(root.path().join("proc/1/environ"), b"TERM=x\0").unwrap();
        assert!(!is_container(root.path()));
        fs::write(root.path().join(".dockerenv"), b"").unwrap();
        assert!(is_container(root.path()));
    }
}
