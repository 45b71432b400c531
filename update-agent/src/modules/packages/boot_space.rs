//! Free space in `/boot`, `/boot/efi` and `/boot/firmware`, which are often small.
//!
//! A new kernel adds its files there. The change of some other packages rebuilds the initial RAM
//! disk, which is first written next to the old one, or the boot loader. Packages that do not fit, or
//! that write to a read-only file system, are held back, and the rest of the update is applied.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::dpkg::DPKG_INFO_FOLDER;
use super::parse::{PlannedInstall, Simulation};
use super::rules::AptVersion;
use crate::model::SpaceNeed;
use crate::paths::AgentPaths;

const BOOT_FOLDERS: [&str; 3] = ["/boot", "/boot/efi", "/boot/firmware"];

/// Deepest folder with kernels: `/boot/efi/MACHINE_ID/RELEASE`, or `/boot/efi/EFI/Linux`.
const MAX_DEPTH: usize = 4;

/// Size of a kernel with its initial RAM disk if there is none to compare with, in bytes.
const DEFAULT_KERNEL_BYTES: u64 = 128 << 20;

/// Size of the other files of a kernel, such as `System.map`, in bytes.
const KERNEL_DATA_BYTES: u64 = 8 << 20;

/// Space that must stay free, in bytes: an initial RAM disk may grow with a change.
const FREE_MARGIN_BYTES: u64 = 4 << 20;

/// Texts in the triggers or the postinst script of a package whose change rebuilds initial RAM disks
/// or copies kernels.
const REBUILD_TEXTS: [&str; 5] =
    ["update-initramfs", "dracut", "kernel-install", "flash-kernel", "/etc/kernel/postinst.d"];

/// The same for the boot loader and its settings.
const BOOT_LOADER_TEXTS: [&str; 4] = ["grub-install", "update-grub", "grub-mkconfig", "bootctl"];

/// What a package writes to the boot file systems. The least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BootWrite {
    /// The boot loader or its settings, which hardly grow.
    BootLoader,
    /// Initial RAM disks.
    Rebuild,
    /// The files of an installed kernel, next to the old ones.
    SameKernel,
    /// The files of a kernel that is not installed yet.
    NewKernel,
}

/// A planned version that writes to the boot file systems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootWriter {
    version: AptVersion,
    write: BootWrite,
}

/// A file system with kernels, and the sizes of the largest files on it in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootFileSystem {
    path: &'static str,
    free: u64,
    kernel: u64,
    initramfs: u64,
    is_read_only: bool,
}

impl BootFileSystem {
    fn has_kernel(&self) -> bool {
        self.kernel > 0 || self.initramfs > 0
    }

    /// Whether the change of a package fails because it writes there.
    fn blocks(&self, writer: &BootWriter) -> bool {
        self.is_read_only
            && match writer.write {
                BootWrite::BootLoader => true,
                BootWrite::Rebuild => self.initramfs > 0,
                // dpkg unpacks the files of every kernel into `/boot`.
                BootWrite::SameKernel | BootWrite::NewKernel => {
                    self.path == "/boot" || self.has_kernel()
                }
            }
    }

    /// The bytes that the packages write.
    fn needed_bytes<'a>(&self, writers: impl Iterator<Item = &'a BootWriter>) -> u64 {
        let mut sum: u64 = 0;
        let mut rebuild = 0;
        for writer in writers.filter(|writer| writer.write > BootWrite::BootLoader) {
            rebuild = self.initramfs;
            let bytes = match writer.write {
                BootWrite::NewKernel if self.has_kernel() => {
                    self.kernel.saturating_add(self.initramfs).saturating_add(KERNEL_DATA_BYTES)
                }
                BootWrite::NewKernel if self.path == "/boot" => DEFAULT_KERNEL_BYTES,
                BootWrite::SameKernel if self.has_kernel() => {
                    self.kernel.saturating_add(KERNEL_DATA_BYTES)
                }
                _ => 0,
            };
            sum = sum.saturating_add(bytes);
        }
        sum.saturating_add(rebuild)
    }

    fn has_space<'a>(&self, writers: impl Iterator<Item = &'a BootWriter>) -> bool {
        let needed = self.needed_bytes(writers);
        needed == 0 || needed.saturating_add(FREE_MARGIN_BYTES) <= self.free
    }
}

/// The planned versions that must be held back: those that write to a read-only file system; and of
/// the others the new kernels if there is too little space, or everything that needs space if that is
/// not enough.
pub fn find_blocked_writers(
    file_systems: &[BootFileSystem],
    writers: &[BootWriter],
) -> BTreeSet<AptVersion> {
    let (mut blocked, others): (Vec<&BootWriter>, Vec<&BootWriter>) =
        writers.iter().partition(|&writer| file_systems.iter().any(|system| system.blocks(writer)));
    let fits = |&most: &BootWrite| {
        let written = || others.iter().copied().filter(move |writer| writer.write <= most);
        file_systems.iter().all(|system| system.has_space(written()))
    };
    let most = [BootWrite::NewKernel, BootWrite::SameKernel].into_iter().find(fits);
    let most = most.unwrap_or(BootWrite::BootLoader);
    blocked.extend(others.iter().copied().filter(|writer| writer.write > most));
    blocked.into_iter().map(|writer| writer.version.clone()).collect()
}

/// The space that the packages need on the boot file systems. A need on a read-only file system makes
/// the update wait, whatever minimum of free space is configured: so it is at least one byte.
pub fn boot_space_needs(file_systems: &[BootFileSystem], writers: &[BootWriter]) -> Vec<SpaceNeed> {
    let need = |system: &BootFileSystem| {
        let bytes = system.needed_bytes(writers.iter());
        let is_blocked = writers.iter().any(|writer| system.blocks(writer));
        (bytes > 0 || is_blocked).then(|| SpaceNeed {
            path: system.path.to_owned(),
            bytes: bytes.max(u64::from(is_blocked)),
            max_free: Some(FREE_MARGIN_BYTES),
        })
    };
    file_systems.iter().filter_map(need).collect()
}

/// Whether kernels are on a read-only file system, so that they cannot be removed.
pub fn has_read_only_kernels(file_systems: &[BootFileSystem]) -> bool {
    file_systems.iter().any(|system| system.is_read_only && system.has_kernel())
}

/// The planned versions that write to the boot file systems.
pub fn find_boot_writers(paths: &AgentPaths, simulation: &Simulation) -> Vec<BootWriter> {
    let writer = |install: &PlannedInstall| {
        let write = match &install.before {
            None if is_kernel_image(install.name()) => BootWrite::NewKernel,
            Some(_) if is_kernel_image(install.name()) => BootWrite::SameKernel,
            _ => find_script_write(paths, install)?,
        };
        Some(BootWriter { version: (install.package.clone(), install.after.clone()), write })
    };
    simulation.installs.iter().filter_map(writer).collect()
}

/// Whether a package contains a kernel, and does not only depend on one.
fn is_kernel_image(name: &str) -> bool {
    let release =
        name.strip_prefix("linux-image-unsigned-").or_else(|| name.strip_prefix("linux-image-"));
    release.is_some_and(|release| release.starts_with(|c: char| c.is_ascii_digit()))
}

/// What the triggers and scripts of the installed version of a package write. Nothing can be found out
/// about a new package.
fn find_script_write(paths: &AgentPaths, install: &PlannedInstall) -> Option<BootWrite> {
    let folder = paths.inside(DPKG_INFO_FOLDER);
    let names = [install.name().to_owned(), format!("{}:{}", install.name(), install.architecture)];
    let files =
        names.iter().flat_map(|name| ["triggers", "postinst"].map(|end| format!("{name}.{end}")));
    let contents: Vec<_> = files
        .map(|file| fs::read(folder.join(file)).unwrap_or_default())
        .map(|content| String::from_utf8_lossy(&content).into_owned())
        .collect();
    let has_any = |texts: &[&str]| {
        contents.iter().any(|content| texts.iter().any(|text| content.contains(text)))
    };
    if has_any(&REBUILD_TEXTS) {
        Some(BootWrite::Rebuild)
    } else if has_any(&BOOT_LOADER_TEXTS) {
        Some(BootWrite::BootLoader)
    } else {
        None
    }
}

/// Measures the boot file systems. One that cannot be read is left out.
pub fn measure_boot_file_systems(paths: &AgentPaths) -> Vec<BootFileSystem> {
    let mut devices = BTreeSet::new();
    let mut file_systems = Vec::new();
    for path in BOOT_FOLDERS {
        let folder = paths.inside(path);
        let Ok(metadata) = fs::metadata(&folder) else {
            continue;
        };
        if !metadata.is_dir() || !devices.insert(metadata.dev()) {
            continue;
        }
        let Ok(stats) = statvfs(&folder) else {
            continue;
        };
        let mut system = BootFileSystem {
            path,
            free: stats.f_bavail.saturating_mul(stats.f_frsize),
            kernel: 0,
            initramfs: 0,
            is_read_only: stats.f_flag.contains(StatVfsMountFlags::RDONLY),
        };
        measure_files(&folder, metadata.dev(), MAX_DEPTH, &mut system);
        file_systems.push(system);
    }
    file_systems
}

/// Finds the largest kernel and initial RAM disk below a folder, on its file system.
fn measure_files(folder: &Path, device: u64, depth: usize, system: &mut BootFileSystem) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // Links are not followed.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if metadata.is_dir() && metadata.dev() == device && depth > 1 {
            measure_files(&entry.path(), device, depth - 1, system);
        } else if metadata.is_file() && is_initramfs_file(&name) {
            system.initramfs = system.initramfs.max(metadata.len());
        } else if metadata.is_file() && is_kernel_file(&name) {
            system.kernel = system.kernel.max(metadata.len());
        }
    }
}

/// Names of Debian, of `kernel-install`, and of the Raspberry Pi.
fn is_initramfs_file(name: &str) -> bool {
    name.starts_with("initrd") || name.starts_with("initramfs")
}

fn is_kernel_file(name: &str) -> bool {
    name.starts_with("vmlinu")
        || name == "linux"
        || (name.starts_with("kernel")
            && Path::new(name).extension().is_some_and(|end| end == "img"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEBIBYTE: u64 = 1 << 20;

    fn file_system(path: &'static str, free: u64, kernel: u64, initramfs: u64) -> BootFileSystem {
        BootFileSystem {
            path,
            free: free * MEBIBYTE,
            kernel: kernel * MEBIBYTE,
            initramfs: initramfs * MEBIBYTE,
            is_read_only: false,
        }
    }

    fn names_of_blocked(file_systems: &[BootFileSystem], writers: &[BootWriter]) -> String {
        let names = find_blocked_writers(file_systems, writers).into_iter().map(|(name, _)| name);
        names.collect::<Vec<_>>().join(" ")
    }

    fn writer(name: &str, write: BootWrite) -> BootWriter {
        BootWriter { version: (name.to_owned(), "1".to_owned()), write }
    }

    #[test]
    fn only_what_does_not_fit_is_held_back() {
        let writers = [
            writer("kernel", BootWrite::NewKernel),
            writer("udev", BootWrite::Rebuild),
            writer("grub", BootWrite::BootLoader),
        ];
        let held_back = names_of_blocked;
        // A new kernel needs 8 + 40 + 8 MiB and 40 MiB for the rebuild, and 4 MiB stay free.
        for (free, expected) in [(100, ""), (99, "kernel"), (44, "kernel"), (43, "kernel udev")] {
            let boot = file_system("/boot", free, 8, 40);
            assert_eq!(held_back(&[boot], &writers), expected, "{free} MiB");
        }
        let boot = file_system("/boot", 1_000, 8, 40);
        let firmware = file_system("/boot/firmware", 50, 8, 40);
        assert_eq!(held_back(&[boot.clone(), firmware], &writers), "kernel");
        // A boot partition with nothing but a boot loader gets no kernel.
        assert_eq!(held_back(&[boot, file_system("/boot/efi", 0, 0, 0)], &writers), "");
        let same = [writer("kernel", BootWrite::SameKernel)];
        assert_eq!(held_back(&[file_system("/boot", 60, 8, 40)], &same), "");
        assert_eq!(held_back(&[file_system("/boot", 59, 8, 40)], &same), "kernel");
        // Without a kernel to compare with, the usual size counts.
        assert_eq!(held_back(&[file_system("/boot", 131, 0, 0)], &writers), "kernel");
        assert_eq!(held_back(&[file_system("/boot", 132, 0, 0)], &writers), "");
        assert_eq!(held_back(&[file_system("/boot", 0, 8, 40)], &[]), "");
    }

    #[test]
    fn what_writes_to_a_read_only_file_system_is_held_back_and_nothing_else_is() {
        let writers = [
            writer("grub", BootWrite::BootLoader),
            writer("kernel", BootWrite::NewKernel),
            writer("same", BootWrite::SameKernel),
            writer("udev", BootWrite::Rebuild),
        ];
        let read_only = |path, kernel, initramfs| BootFileSystem {
            is_read_only: true,
            ..file_system(path, 1_000, kernel, initramfs)
        };
        let boot = file_system("/boot", 1_000, 8, 40);
        assert!(has_read_only_kernels(&[boot.clone(), read_only("/boot/efi", 8, 0)]));
        assert!(!has_read_only_kernels(&[boot.clone(), read_only("/boot/efi", 0, 0)]));
        for (file_systems, expected) in [
            (vec![boot.clone()], ""),
            (vec![read_only("/boot", 8, 40)], "grub kernel same udev"),
            // Without an initial RAM disk nothing is rebuilt.
            (vec![read_only("/boot", 0, 0)], "grub kernel same"),
            (vec![boot.clone(), read_only("/boot/efi", 0, 0)], "grub"),
            (vec![boot.clone(), read_only("/boot/efi", 8, 0)], "grub kernel same"),
            (
                vec![file_system("/boot", 0, 8, 40), read_only("/boot/efi", 0, 0)],
                "grub kernel same udev",
            ),
        ] {
            assert_eq!(names_of_blocked(&file_systems, &writers), expected, "{file_systems:?}");
            let needs = boot_space_needs(&file_systems, &writers);
            assert!(needs.len() == file_systems.len(), "a named package waits: {needs:?}");
            // A file system is checked only if something is required, and `gate.min_free` may be 0.
            let required = |need: &SpaceNeed| need.bytes.saturating_add(need.reserved_bytes(0));
            assert!(needs.iter().all(|need| required(need) > 0), "{needs:?}");
            let plain = boot_space_needs(&file_systems, &[]);
            assert!(plain.is_empty(), "the others do not wait: {plain:?}");
        }
    }

    #[test]
    fn a_package_that_writes_to_boot_is_found_by_its_triggers_and_scripts() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let folder = paths.inside(DPKG_INFO_FOLDER);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("lvm2.triggers"), "activate-noawait update-initramfs\n").unwrap();
        fs::write(folder.join("libx:amd64.postinst"), "#!/bin/sh\nupdate-initramfs -u\n").unwrap();
        fs::write(folder.join("grub-pc.postinst"), "#!/bin/sh\nupdate-grub\n").unwrap();
        fs::write(folder.join("plain.postinst"), "#!/bin/sh\nldconfig\n").unwrap();
        let install = |package: &str, before: Option<&str>| PlannedInstall {
            package: package.into(),
            before: before.map(str::to_owned),
            after: "2".into(),
            architecture: "amd64".into(),
            origins: Vec::new(),
        };
        let simulation = Simulation {
            installs: vec![
                install("lvm2", Some("1")),
                install("libx", Some("1")),
                install("grub-pc", Some("1")),
                install("plain", Some("1")),
                install("linux-image-amd64", Some("1")),
                install("linux-image-6.1.0-41-amd64", None),
                install("linux-image-6.1.0-40-amd64", Some("1")),
            ],
            ..Simulation::default()
        };
        let writers = find_boot_writers(&paths, &simulation);
        let found: Vec<_> =
            writers.iter().map(|writer| (writer.version.0.as_str(), writer.write)).collect();
        assert_eq!(
            found,
            [
                ("lvm2", BootWrite::Rebuild),
                ("libx", BootWrite::Rebuild),
                ("grub-pc", BootWrite::BootLoader),
                ("linux-image-6.1.0-41-amd64", BootWrite::NewKernel),
                ("linux-image-6.1.0-40-amd64", BootWrite::SameKernel),
            ]
        );
    }

    #[test]
    fn the_largest_kernel_and_initial_ram_disk_are_measured() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let folder = paths.inside("/boot/0123/6.1");
        fs::create_dir_all(&folder).unwrap();
        let boot = paths.inside("/boot");
        fs::write(boot.join("vmlinuz-6.1.0-40-amd64"), [0; 3]).unwrap();
        fs::write(boot.join("initrd.img-6.1.0-40-amd64"), [0; 5]).unwrap();
        fs::write(boot.join("System.map-6.1.0-40-amd64"), [0; 99]).unwrap();
        fs::write(folder.join("linux"), [0; 4]).unwrap();
        let [measured] = &measure_boot_file_systems(&paths)[..] else { panic!("one file system") };
        assert_eq!((measured.path, measured.kernel, measured.initramfs), ("/boot", 4, 5));
        let writers = [writer("udev", BootWrite::Rebuild)];
        let needs = boot_space_needs(std::slice::from_ref(measured), &writers);
        assert_eq!((needs[0].path.as_str(), needs[0].bytes), ("/boot", 5));
        assert!(boot_space_needs(std::slice::from_ref(measured), &[]).is_empty());
    }
}
