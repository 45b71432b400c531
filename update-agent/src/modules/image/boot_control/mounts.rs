//! Mounts and partitions, as the kernel reports them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::modules::image::device::disk_folder;
use crate::modules::image::slots::Slot;
use crate::os;

/// Maximum number of layers between a file system and its disk, such as an overlay, a loop device,
/// encryption and a logical volume.
const MAX_LAYERS: u8 = 8;

/// Options of an overlay with the paths below it. Since Linux 6.8 there may be one for each path.
const LOWER_OPTIONS: [&str; 2] = ["lowerdir=", "lowerdir+="];

/// A line of `/proc/self/mountinfo`; see `proc_pid_mountinfo(5)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Major and minor number of the device, separated by a colon.
    pub device: String,
    /// Mount point, as a path inside the managed root.
    pub mount_point: PathBuf,
    /// Type of the file system.
    pub fs_type: String,
    /// What is mounted: the path of a device, or any text.
    pub source: String,
    /// Whether the mount or the file system is read-only.
    pub read_only: bool,
    /// Paths below an overlay, as they were when it was mounted.
    pub lower_paths: Vec<PathBuf>,
}

/// Reads all mounts, oldest first. Lines that cannot be parsed are skipped.
pub fn read_mounts(mountinfo: &Path) -> io::Result<Vec<MountEntry>> {
    let text = os::read_lossy(mountinfo)?;
    Ok(text.lines().filter_map(parse_mount).collect())
}

fn parse_mount(line: &str) -> Option<MountEntry> {
    // A variable number of optional fields precedes the dash.
    let (before, behind) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(2);
    let device = before.next()?.to_owned();
    let at = before.nth(1)?;
    let options = before.next()?;
    let mut behind = behind.split(' ');
    let kind = behind.next()?.to_owned();
    let source = behind.next().unwrap_or_default();
    let own_options = behind.next().unwrap_or_default();
    let mut all = options.split(',').chain(own_options.split(','));
    Some(MountEntry {
        device,
        mount_point: PathBuf::from(unescape(at)),
        lower_paths: if kind == "overlay" { parse_lower_paths(own_options) } else { Vec::new() },
        fs_type: kind,
        source: unescape(source),
        read_only: all.any(|option| option == "ro"),
    })
}

/// The paths below an overlay, topmost first.
fn parse_lower_paths(options: &str) -> Vec<PathBuf> {
    let values = options
        .split(',')
        .filter_map(|option| LOWER_OPTIONS.iter().find_map(|name| option.strip_prefix(name)));
    let paths = values.flat_map(|value| value.split(':')).map(|path| PathBuf::from(unescape(path)));
    paths.filter(|path| path.is_absolute()).collect()
}

/// Decodes octal escapes: the kernel writes a space as a backslash and three digits.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut unescaped = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            unescaped.push(char::from(code));
            unescaped.push_str(&part[3..]);
        } else {
            unescaped.push('\\');
            unescaped.push_str(part);
        }
    }
    unescaped
}

/// The mount that contains `path`: the deepest one, and of several at one mount point the latest.
pub fn find_mount<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.mount_point));
    above.max_by_key(|mount| mount.mount_point.components().count())
}

/// A partition with a label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    /// Path of its device, relative to `/dev`.
    pub node: String,
    /// Major and minor number of the device, separated by a colon.
    pub device: String,
    /// Label in the partition table.
    pub label: String,
    /// Number in the partition table.
    pub number: u32,
    /// Folder of its disk in sysfs; `None` if the partition was removed.
    pub disk: Option<PathBuf>,
}

/// Reads all partitions that have a label. Partitions that cannot be read are skipped.
pub fn read_partitions(sys: &Path) -> Vec<Partition> {
    let Ok(folders) = fs::read_dir(sys.join("class/block")) else {
        return Vec::new();
    };
    folders
        .flatten()
        .filter_map(|folder| {
            let uevent = fs::read_to_string(folder.path().join("uevent")).ok()?;
            let disk = disk_folder(&folder.path());
            Some(Partition { disk, ..parse_partition(&uevent)? })
        })
        .collect()
}

fn parse_partition(uevent: &str) -> Option<Partition> {
    Some(Partition {
        node: uevent_value(uevent, "DEVNAME")?.to_owned(),
        device: device_number(uevent)?,
        label: uevent_value(uevent, "PARTNAME")?.to_owned(),
        number: uevent_value(uevent, "PARTN")?.parse().ok()?,
        disk: None,
    })
}

fn uevent_value<'a>(uevent: &'a str, name: &str) -> Option<&'a str> {
    uevent.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

/// Major and minor number of a device, separated by a colon.
fn device_number(uevent: &str) -> Option<String> {
    Some(format!("{}:{}", uevent_value(uevent, "MAJOR")?, uevent_value(uevent, "MINOR")?))
}

/// The disk of the running system, as its folder in sysfs. A partition of another disk may have the
/// name of a slot, for example on the disk of another node. In this order:
///
/// 1. The disk with the root file system, or below it if the root is an overlay.
/// 2. The disk with the ESP, if it has a slot.
/// 3. The only disk with slots, if `runs_slot`: if the root is not on a disk, the ESP may be on
///    another one.
/// 4. The disk with the ESP, unless several other disks have slots.
///
/// `runs_slot` is whether the command line or the loader shows that the system runs from a slot. A
/// system with its root on several disks or on a network may have a foreign disk with slots.
///
/// `None` if several disks have slots and it is unknown which one the system runs from.
pub fn find_system_disk(
    mounts: &[MountEntry],
    esp: Option<&Path>,
    sys: &Path,
    runs_slot: bool,
) -> Option<PathBuf> {
    let search = DiskSearch { mounts, sys };
    if let Some(disk) = search.disk_of_path(Path::new("/"), MAX_LAYERS) {
        return Some(disk);
    }
    let esp_disk = esp.and_then(|esp| search.disk_of_path(esp, MAX_LAYERS));
    match disks_with_slots(sys).as_slice() {
        [only] if runs_slot => Some(only.clone()),
        [] | [_] => esp_disk,
        several => esp_disk.filter(|disk| several.contains(disk)),
    }
}

/// The disks that have a partition with the name of a slot, as their folders in sysfs.
pub fn disks_with_slots(sys: &Path) -> Vec<PathBuf> {
    let slots = read_partitions(sys).into_iter();
    let slots = slots.filter(|partition| slot_of_label(&partition.label).is_some());
    let mut disks: Vec<PathBuf> = slots.filter_map(|slot| slot.disk).collect();
    disks.sort_unstable();
    disks.dedup();
    disks
}

/// Searches for the disk below a file system.
#[derive(Clone, Copy)]
struct DiskSearch<'a> {
    mounts: &'a [MountEntry],
    sys: &'a Path,
}

impl DiskSearch<'_> {
    /// The disk of the file system that contains a path. `None` if it is not on one disk, or below
    /// too many layers.
    fn disk_of_path(self, path: &Path, layers: u8) -> Option<PathBuf> {
        self.disk_of_mount(find_mount(self.mounts, path)?, layers)
    }

    fn disk_of_mount(self, mount: &MountEntry, layers: u8) -> Option<PathBuf> {
        let layers = layers.checked_sub(1)?;
        if let Some(device) = self.find_device(mount) {
            return self.disk_of_device(&device, layers);
        }
        // A path that is no longer visible seems to be in the root, which may be this overlay.
        let below = mount.lower_paths.iter().filter_map(|path| find_mount(self.mounts, path));
        let mut below = below.filter(|below| below.mount_point != Path::new("/"));
        below.find_map(|below| self.disk_of_mount(below, layers))
    }

    /// The folder in sysfs of the device of a mount. Some file systems, such as btrfs, have device
    /// numbers of their own, so the source is compared as well.
    fn find_device(self, mount: &MountEntry) -> Option<PathBuf> {
        let node = mount.source.strip_prefix("/dev/");
        let is_named = |uevent: &str| node.is_some() && uevent_value(uevent, "DEVNAME") == node;
        let is_numbered = |uevent: &str| device_number(uevent).as_ref() == Some(&mount.device);
        let mut named = None;
        for folder in fs::read_dir(self.sys.join("class/block")).ok()?.flatten() {
            let Ok(uevent) = fs::read_to_string(folder.path().join("uevent")) else {
                continue;
            };
            if is_numbered(&uevent) {
                return Some(folder.path());
            }
            if is_named(&uevent) {
                named = Some(folder.path());
            }
        }
        named
    }

    /// The disk of a block device. A mapped device is on the disk of the devices below it, if that
    /// is one disk. A loop device is on the disk of its file.
    fn disk_of_device(self, device: &Path, layers: u8) -> Option<PathBuf> {
        let layers = layers.checked_sub(1)?;
        if let Some(file) = os::first_line(&device.join("loop/backing_file")) {
            return self.disk_of_path(Path::new(&file), layers);
        }
        let below = fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
        let below: Vec<PathBuf> = below.map(|slave| slave.path()).collect();
        let Some((first, others)) = below.split_first() else {
            return disk_folder(device);
        };
        let disk = self.disk_of_device(first, layers)?;
        let is_one_disk =
            |other: &PathBuf| self.disk_of_device(other, layers).as_ref() == Some(&disk);
        others.iter().all(is_one_disk).then_some(disk)
    }
}

/// The partition of the root file system. `None` if the root is not on a partition, for example on
/// an overlay.
pub fn find_root_partition(mounts: &[MountEntry], sys: &Path) -> Option<Partition> {
    let root = find_mount(mounts, Path::new("/"))?;
    read_partitions(sys).into_iter().find(|partition| partition.device == root.device)
}

/// The slot whose root the kernel's command line names.
pub fn slot_of_cmdline(cmdline: &str) -> Option<Slot> {
    let root = cmdline
        .split_whitespace()
        .filter_map(|argument| argument.strip_prefix("root="))
        .next_back()?;
    let label = root.trim_matches('"').strip_prefix("PARTLABEL=")?;
    slot_of_label(label)
}

pub fn slot_of_label(label: &str) -> Option<Slot> {
    [Slot::A, Slot::B].into_iter().find(|slot| slot.label() == label)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO_LINES: &str = "22 1 254:2 / / ro,relatime shared:1 - erofs /dev/root ro,user_xattr\n\
        23 22 254:1 / /efi rw,relatime shared:2 master:3 - vfat /dev/vda1 rw,fmask=0022,errors=remount-ro\n\
        24 22 254:4 / /my\\040data rw - ext4 /dev/vda4 rw\n\
        broken\n\
        25 22 254:1 / /boot rw - vfat /dev/vda1 ro\n";

    fn test_mounts() -> Vec<MountEntry> {
        MOUNTINFO_LINES.lines().filter_map(parse_mount).collect()
    }

    #[test]
    fn a_mount_is_parsed_with_all_optional_fields() {
        let mounts = test_mounts();
        assert_eq!(mounts.len(), 4);
        let esp = find_mount(&mounts, Path::new("/efi/loader/entries")).unwrap();
        assert_eq!((esp.fs_type.as_str(), esp.device.as_str()), ("vfat", "254:1"));
        assert!(!esp.read_only, "`remount-ro` applies only after an error");
        let data = find_mount(&mounts, Path::new("/my data/agent")).unwrap();
        assert_eq!(data.mount_point, Path::new("/my data"));
        let root = find_mount(&mounts, Path::new("/efix")).unwrap();
        assert!(root.mount_point == Path::new("/") && root.read_only);
        let late = find_mount(&mounts, Path::new("/boot")).unwrap();
        assert!(late.read_only, "the file system itself became read-only");
        assert_eq!(late.source, "/dev/vda1");
    }

    #[test]
    fn the_absolute_paths_below_an_overlay_are_parsed() {
        let lower = |options: &str, kind: &str| {
            let line = format!("22 1 0:31 / / rw - {kind} overlay rw,{options},workdir=/w");
            parse_mount(&line).unwrap().lower_paths
        };
        let paths = ["/run/a b", "/ro"].map(PathBuf::from);
        assert_eq!(lower("lowerdir=/run/a\\040b:/ro,upperdir=/u", "overlay"), paths);
        assert_eq!(lower("lowerdir+=/run/a\\040b,lowerdir+=/ro", "overlay"), paths);
        assert_eq!(lower("lowerdir=ro::/ro", "overlay"), [PathBuf::from("/ro")]);
        assert!(lower("lowerdir=/ro", "ext4").is_empty());
    }

    /// Users may mount file systems of their own in their folders.
    #[test]
    fn a_mount_point_that_is_not_utf8_hides_no_other_mount() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mountinfo");
        let line = b"26 22 0:40 / /home/ada/\xff rw - fuse.x x rw\n";
        fs::write(&file, [&line[..], MOUNTINFO_LINES.as_bytes()].concat()).unwrap();
        assert_eq!(read_mounts(&file).unwrap()[1..], test_mounts());
    }

    #[test]
    fn the_root_is_found_among_the_partitions() {
        let sys = tempfile::tempdir().unwrap();
        let uevents = [
            ("vda", "MAJOR=254\nMINOR=0\nDEVNAME=vda\nDEVTYPE=disk\n"),
            ("vda2", "MAJOR=254\nMINOR=2\nDEVNAME=vda2\nPARTN=2\nPARTNAME=root-a\n"),
        ];
        for (node, uevent) in uevents {
            let folder = sys.path().join("class/block").join(node);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("uevent"), uevent).unwrap();
        }
        let root = find_root_partition(&test_mounts(), sys.path()).unwrap();
        assert_eq!((root.label.as_str(), root.number), ("root-a", 2));
        assert_eq!(find_root_partition(&test_mounts(), Path::new("/nowhere")), None);
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
