//! What is mounted, and which partitions there are, as the kernel tells it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::modules::image::slots::Slot;

/// A line of `/proc/self/mountinfo`; see `proc_pid_mountinfo(5)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of the device, with a colon between.
    pub device: String,
    /// Where it is mounted, as seen from inside the managed root.
    pub at: PathBuf,
    /// The type of the file system.
    pub kind: String,
    /// Whether the mount or the file system is read-only.
    pub read_only: bool,
}

/// All mounts, in the order in which they were made. Lines that are not understood are left out.
pub fn read(mountinfo: &Path) -> io::Result<Vec<Mount>> {
    let text = fs::read_to_string(mountinfo)?;
    Ok(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mount> {
    // Optional fields lie before the dash; how many varies.
    let (before, behind) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(2);
    let device = before.next()?.to_owned();
    let at = before.nth(1)?;
    let options = before.next()?;
    let mut behind = behind.split(' ');
    let kind = behind.next()?.to_owned();
    let own_options = behind.nth(1).unwrap_or_default();
    let mut all = options.split(',').chain(own_options.split(','));
    Some(Mount {
        device,
        at: PathBuf::from(unescaped(at)),
        kind,
        read_only: all.any(|option| option == "ro"),
    })
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            whole.push(char::from(code));
            whole.push_str(&part[3..]);
        } else {
            whole.push('\\');
            whole.push_str(part);
        }
    }
    whole
}

/// The mount that `path` lies in: of those above it the deepest, and of several at one place the last.
pub fn of_path<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    above.max_by_key(|mount| mount.at.components().count())
}

/// A partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// The name of its device below `/dev`.
    pub node: String,
    /// Major and minor number of the device, with a colon between.
    pub device: String,
    /// Its label in the partition table.
    pub label: String,
    /// Its number in the partition table.
    pub number: u32,
}

/// All partitions that have a label. What cannot be read is left out.
pub fn partitions(sys: &Path) -> Vec<Partition> {
    let Ok(folders) = fs::read_dir(sys.join("class/block")) else {
        return Vec::new();
    };
    folders
        .flatten()
        .filter_map(|folder| fs::read_to_string(folder.path().join("uevent")).ok())
        .filter_map(|uevent| partition(&uevent))
        .collect()
}

fn partition(uevent: &str) -> Option<Partition> {
    let value = |name: &str| {
        let mut lines = uevent.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    Some(Partition {
        node: value("DEVNAME")?.to_owned(),
        device: format!("{}:{}", value("MAJOR")?, value("MINOR")?),
        label: value("PARTNAME")?.to_owned(),
        number: value("PARTN")?.parse().ok()?,
    })
}

/// The partition that the running system has as its root. `None` if the root lies on something else, such as an
/// overlay.
pub fn of_root(mounts: &[Mount], sys: &Path) -> Option<Partition> {
    let root = of_path(mounts, Path::new("/"))?;
    partitions(sys)
        .into_iter()
        .find(|partition| partition.device == root.device)
}

/// The slot that the kernel's command line names as the root.
pub fn slot_of_cmdline(cmdline: &str) -> Option<Slot> {
    let root = cmdline
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("root="))
        .next_back()?;
    let label = root.trim_matches('"').strip_prefix("PARTLABEL=")?;
    slot_of_label(label)
}

/// The slot with this label.
pub fn slot_of_label(label: &str) -> Option<Slot> {
    [Slot::A, Slot::B]
        .into_iter()
        .find(|slot| slot.label() == label)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "22 1 254:2 / / ro,relatime shared:1 - erofs /dev/root ro,user_xattr\n\
        23 22 254:1 / /efi rw,relatime shared:2 master:3 - vfat /dev/vda1 rw,fmask=0022,errors=remount-ro\n\
        24 22 254:4 / /my\\040data rw - ext4 /dev/vda4 rw\n\
        broken\n\
        25 22 254:1 / /boot rw - vfat /dev/vda1 ro\n";

    fn mounts() -> Vec<Mount> {
        LINES.lines().filter_map(parse).collect()
    }

    #[test]
    fn a_mount_is_found_with_all_that_varies_in_its_line() {
        let mounts = mounts();
        assert_eq!(mounts.len(), 4);
        let esp = of_path(&mounts, Path::new("/efi/loader/entries")).unwrap();
        assert_eq!((esp.kind.as_str(), esp.device.as_str()), ("vfat", "254:1"));
        assert!(!esp.read_only, "`remount-ro` is what comes of errors");
        let data = of_path(&mounts, Path::new("/my data/agent")).unwrap();
        assert_eq!(data.at, Path::new("/my data"));
        let root = of_path(&mounts, Path::new("/efix")).unwrap();
        assert!(root.at == Path::new("/") && root.read_only);
        let late = of_path(&mounts, Path::new("/boot")).unwrap();
        assert!(late.read_only, "the file system itself became read-only");
    }

    #[test]
    fn the_root_is_found_among_the_partitions() {
        let sys = tempfile::tempdir().unwrap();
        let uevents = [
            ("vda", "MAJOR=254\nMINOR=0\nDEVNAME=vda\nDEVTYPE=disk\n"),
            (
                "vda2",
                "MAJOR=254\nMINOR=2\nDEVNAME=vda2\nPARTN=2\nPARTNAME=root-a\n",
            ),
        ];
        for (node, uevent) in uevents {
            let folder = sys.path().join("class/block").join(node);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("uevent"), uevent).unwrap();
        }
        let root = of_root(&mounts(), sys.path()).unwrap();
        assert_eq!((root.label.as_str(), root.number), ("root-a", 2));
        assert_eq!(of_root(&mounts(), Path::new("/nowhere")), None);
    }

    #[test]
    fn a_command_line_names_a_slot_by_its_last_root() {
        let cases = [
            ("quiet root=PARTLABEL=root-b ro", Some(Slot::B)),
            ("root=PARTLABEL=root-b root=PARTLABEL=root-a", Some(Slot::A)),
            ("root=/dev/vda2", None),
            ("root=PARTLABEL=root-c", None),
            ("noroot=PARTLABEL=root-a", None),
            ("", None),
        ];
        for (cmdline, slot) in cases {
            assert_eq!(slot_of_cmdline(cmdline), slot, "{cmdline}");
        }
    }
}
