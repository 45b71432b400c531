//! Free space in `/boot`, `/boot/efi` and `/boot/firmware`, which are often small.
//!
//! A new kernel adds its files there. The change of some other packages rebuilds the initial RAM
//! disk, which is first written next to the old one, or the boot loader. Packages that do not fit, or
//! that write to a read-only file system, are held back, and the rest of the update is applied.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::dpkg::DPKG_INFO_FOLDER;
use super::parse::{DpkgPackage, ExactVersion, PlannedInstall, Simulation};
use super::plan::InstalledPackages;
use super::rules::{AptVersion, matches_pattern};
use crate::model::SpaceNeed;
use crate::paths::AgentPaths;

const BOOT_FOLDERS: [&str; 3] = ["/boot", "/boot/efi", "/boot/firmware"];

/// Deepest folder with kernels: `/boot/efi/MACHINE_ID/RELEASE`, or `/boot/efi/EFI/Linux`.
const MAX_DEPTH: usize = 4;

/// Size of a kernel with its initial RAM disk if there is none to compare with, in bytes.
const DEFAULT_KERNEL_BYTES: u64 = 128 << 20;

/// Size of the other files of a kernel, such as `System.map`, in bytes.
const KERNEL_DATA_BYTES: u64 = 8 << 20;

/// Smallest installed size of a kernel, in bytes. A package that only depends on a kernel has some KiB.
const MIN_KERNEL_BYTES: u64 = 4 << 20;

/// Packages with names like those of kernels, without a kernel.
const KERNEL_ADDITIONS: [&str; 7] =
    ["*-dbg", "*-dbgsym", "*-dkms", "*-headers*", "*-tools*", "*-source*", "*-doc"];

/// Packages whose installation rebuilds initial RAM disks.
const NEW_REBUILD_PACKAGES: [&str; 12] = [
    "*-dkms",
    "*-firmware",
    "*-initramfs",
    "*-microcode",
    "dracut*",
    "firmware-*",
    "flash-kernel",
    "initramfs-tools*",
    "lvm2",
    "mdadm",
    "plymouth*",
    "udev",
];

/// Space that must stay free, in bytes: an initial RAM disk may grow with a change.
const FREE_MARGIN_BYTES: u64 = 4 << 20;

/// Texts in the triggers or the postinst script of a package whose change rebuilds initial RAM disks
/// or copies kernels.
const REBUILD_TEXTS: [&str; 6] = [
    "update-initramfs",
    "dracut",
    "kernel-install",
    "flash-kernel",
    "/etc/kernel/postinst.d",
    "dkms/common.postinst",
];

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

/// The planned versions that must be held back: those that write to a read-only file system, and those
/// of the others that do not fit. What needs least is taken first, so a new kernel never takes the space
/// of a rebuild.
pub fn find_blocked_writers(
    file_systems: &[BootFileSystem],
    writers: &[BootWriter],
) -> BTreeSet<AptVersion> {
    let (mut blocked, mut others): (Vec<&BootWriter>, Vec<&BootWriter>) =
        writers.iter().partition(|&writer| file_systems.iter().any(|system| system.blocks(writer)));
    // The order is stable: the kernels stay in the order of `find_boot_writers`.
    others.sort_by_key(|writer| writer.write);
    let mut fitting: Vec<&BootWriter> = Vec::new();
    for writer in others {
        fitting.push(writer);
        if !file_systems.iter().all(|system| system.has_space(fitting.iter().copied())) {
            fitting.pop();
            blocked.push(writer);
        }
    }
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

/// The planned versions that write to the boot file systems. Kernels of the kind that runs come first.
/// `sizes`: installed sizes in bytes of the new packages with `needs_size`.
pub fn find_boot_writers(
    paths: &AgentPaths,
    simulation: &Simulation,
    sizes: &BTreeMap<ExactVersion, u64>,
    running_kernel: &str,
) -> Vec<BootWriter> {
    let writer = |install: &PlannedInstall| {
        let write = match &install.before {
            Some(_) if is_kernel_image(install.name()) || owns_kernel(paths, install) => {
                BootWrite::SameKernel
            }
            Some(_) => find_script_write(paths, install)?,
            None => find_new_write(install, sizes)?,
        };
        Some(BootWriter { version: (install.package.clone(), install.after.clone()), write })
    };
    let mut writers: Vec<_> = simulation.installs.iter().filter_map(writer).collect();
    let kind = strip_digits(running_kernel);
    let is_running_kind = |package: &str| {
        strip_image_prefix(package).is_some_and(|release| strip_digits(release) == kind)
    };
    writers.sort_by_key(|writer| !is_running_kind(&writer.version.0));
    writers
}

/// What remains of a kernel's release in its next version, such as `..--cloud-amd`.
fn strip_digits(release: &str) -> String {
    release.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

fn strip_image_prefix(name: &str) -> Option<&str> {
    name.strip_prefix("linux-image-unsigned-").or_else(|| name.strip_prefix("linux-image-"))
}

/// Whether a package contains a kernel by Debian's rules for names, and does not only depend on one.
fn is_kernel_image(name: &str) -> bool {
    let release = strip_image_prefix(name).filter(|_| !is_kernel_addition(name));
    release.is_some_and(|release| release.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether a package belongs to a kernel and has none.
fn is_kernel_addition(name: &str) -> bool {
    KERNEL_ADDITIONS.iter().any(|pattern| matches_pattern(pattern, name))
}

/// Whether only the size of a new package distinguishes a kernel from a package that depends on one. Board
/// vendors use names such as `linux-image-edge-sunxi64` and `raspberrypi-kernel`.
pub fn needs_size(install: &PlannedInstall) -> bool {
    let name = install.name();
    install.before.is_none()
        && (name.starts_with("linux-image-") || name.contains("kernel"))
        && !is_kernel_image(name)
        && !is_kernel_addition(name)
}

/// What a new package writes. Its scripts are known only after the download, so its name decides.
fn find_new_write(
    install: &PlannedInstall,
    sizes: &BTreeMap<ExactVersion, u64>,
) -> Option<BootWrite> {
    let name = install.name();
    let exact = (name.to_owned(), install.after.clone(), install.architecture.clone());
    let is_large = sizes.get(&exact).is_some_and(|size| *size >= MIN_KERNEL_BYTES);
    if is_kernel_image(name) || (needs_size(install) && is_large) {
        return Some(BootWrite::NewKernel);
    }
    let rebuilds = NEW_REBUILD_PACKAGES.iter().any(|pattern| matches_pattern(pattern, name));
    rebuilds.then_some(BootWrite::Rebuild)
}

/// Whether the installed version of a package contains a kernel, whatever its name is.
fn owns_kernel(paths: &AgentPaths, install: &PlannedInstall) -> bool {
    let name = install.name();
    let is_kernel = |file: &str| {
        let name = file.strip_prefix("/boot/").and_then(|file| file.rsplit('/').next());
        name.is_some_and(is_kernel_file)
    };
    (name.starts_with("linux-") || name.contains("kernel"))
        && read_info_files(paths, name, &install.architecture, &["list"])
            .iter()
            .any(|list| list.lines().any(is_kernel))
}

/// What the triggers and scripts of the installed version of a package write.
fn find_script_write(paths: &AgentPaths, install: &PlannedInstall) -> Option<BootWrite> {
    let ends = ["triggers", "postinst"];
    let contents = read_info_files(paths, install.name(), &install.architecture, &ends);
    if contains_any(&contents, &REBUILD_TEXTS) {
        Some(BootWrite::Rebuild)
    } else if contains_any(&contents, &BOOT_LOADER_TEXTS) {
        Some(BootWrite::BootLoader)
    } else {
        None
    }
}

/// The packages whose planned removal rebuilds initial RAM disks. The removal of a kernel makes space.
pub fn find_removal_rebuilds(
    paths: &AgentPaths,
    simulation: &Simulation,
    installed: &InstalledPackages<'_>,
) -> Vec<BootWriter> {
    let rebuild = |package: &String| {
        let DpkgPackage { name, architecture, version, .. } = installed.get(package)?;
        let contents = read_info_files(paths, name, architecture, &["triggers", "postrm"]);
        let rebuilds = !is_kernel_image(name) && contains_any(&contents, &REBUILD_TEXTS);
        let version = (package.clone(), version.clone());
        rebuilds.then_some(BootWriter { version, write: BootWrite::Rebuild })
    };
    simulation.removals.iter().filter_map(rebuild).collect()
}

fn contains_any(contents: &[String], texts: &[&str]) -> bool {
    contents.iter().any(|content| texts.iter().any(|text| content.contains(text)))
}

/// Files that dpkg has about an installed package.
fn read_info_files(
    paths: &AgentPaths,
    name: &str,
    architecture: &str,
    ends: &[&str],
) -> Vec<String> {
    let folder = paths.inside(DPKG_INFO_FOLDER);
    let names = [name.to_owned(), format!("{name}:{architecture}")];
    let files = names.iter().flat_map(|name| ends.iter().map(move |end| format!("{name}.{end}")));
    let contents = files.map(|file| fs::read(folder.join(file)).unwrap_or_default());
    contents.map(|content| String::from_utf8_lossy(&content).into_owned()).collect()
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
    use crate::modules::packages::dpkg_samples::{installed_packages, root_with_info_files};
    use crate::modules::packages::plan::index_by_apt_name;

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

    fn planned_install(package: &str, before: Option<&str>, architecture: &str) -> PlannedInstall {
        PlannedInstall {
            package: package.into(),
            before: before.map(str::to_owned),
            after: "2".into(),
            architecture: architecture.into(),
            origins: Vec::new(),
        }
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
    fn of_two_new_kernels_only_the_one_that_does_not_fit_is_held_back() {
        let writers = [
            writer("running", BootWrite::NewKernel),
            writer("other", BootWrite::NewKernel),
            writer("udev", BootWrite::Rebuild),
        ];
        // Each kernel needs 8 + 40 + 8 MiB, the rebuild 40 MiB, and 4 MiB stay free.
        for (free, expected) in [(156, ""), (155, "other"), (100, "other"), (99, "other running")] {
            let boot = file_system("/boot", free, 8, 40);
            assert_eq!(names_of_blocked(&[boot], &writers), expected, "{free} MiB");
        }
        // A kernel that is installed already needs less than a new one.
        let writers = [writer("a", BootWrite::SameKernel), writer("b", BootWrite::SameKernel)];
        assert_eq!(names_of_blocked(&[file_system("/boot", 60, 8, 40)], &writers), "b");
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
        let (_root, paths) = root_with_info_files(&[
            ("lvm2.triggers", "activate-noawait update-initramfs\n"),
            ("libx:amd64.postinst", "#!/bin/sh\nupdate-initramfs -u\n"),
            ("grub-pc.postinst", "#!/bin/sh\nupdate-grub\n"),
            ("plain.postinst", "#!/bin/sh\nldconfig\n"),
        ]);
        let install = |package, before| planned_install(package, before, "amd64");
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
        let writers = find_boot_writers(&paths, &simulation, &BTreeMap::new(), "5.10.0-1-other");
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
    fn a_kernel_of_a_board_vendor_is_found_by_its_files_or_by_its_size() {
        let (_root, paths) = root_with_info_files(&[
            ("raspberrypi-kernel.list", "/.\n/boot\n/boot/kernel8.img\n"),
            ("linux-image-edge-rockchip64:arm64.list", "/boot/vmlinuz-6.12.1-edge-rockchip64\n"),
            ("linux-image-amd64.list", "/usr/share/doc/linux-image-amd64\n"),
            ("other.list", "/boot/vmlinuz-6.1\n"),
        ]);
        let install = |package, before| planned_install(package, before, "arm64");
        let simulation = Simulation {
            installs: vec![
                install("raspberrypi-kernel", Some("1")),
                install("linux-image-edge-rockchip64", Some("1")),
                install("linux-image-amd64", Some("1")),
                install("other", Some("1")),
                install("linux-image-current-sunxi64", None),
                install("linux-image-cloud-amd64", None),
                install("linux-image-6.1.0-41-amd64-dbg", None),
                install("raspberrypi-kernel-headers", None),
                install("firmware-linux", None),
                install("nvidia-kernel-dkms", None),
                install("plain", None),
            ],
            ..Simulation::default()
        };
        let unclear: Vec<_> =
            simulation.installs.iter().filter(|install| needs_size(install)).collect();
        assert_eq!(unclear, [&simulation.installs[4], &simulation.installs[5]]);
        let size = |install: &PlannedInstall, bytes| {
            let exact = (install.package.clone(), install.after.clone(), "arm64".to_owned());
            (exact, bytes)
        };
        let sizes = BTreeMap::from([size(unclear[0], 60 << 20), size(unclear[1], 14 << 10)]);
        let writers = find_boot_writers(&paths, &simulation, &sizes, "");
        let found: Vec<_> =
            writers.iter().map(|writer| (writer.version.0.as_str(), writer.write)).collect();
        assert_eq!(
            found,
            [
                ("raspberrypi-kernel", BootWrite::SameKernel),
                ("linux-image-edge-rockchip64", BootWrite::SameKernel),
                ("linux-image-current-sunxi64", BootWrite::NewKernel),
                ("firmware-linux", BootWrite::Rebuild),
                ("nvidia-kernel-dkms", BootWrite::Rebuild),
            ]
        );
    }

    #[test]
    fn a_removal_that_rebuilds_the_initial_ram_disk_is_found() {
        let rebuild = "update-initramfs -u\n";
        let (_root, paths) = root_with_info_files(&[
            ("lvm2.postrm", rebuild),
            ("plain.postrm", "ldconfig\n"),
            ("linux-image-6.1.0-40-amd64.postrm", rebuild),
        ]);
        let names = ["lvm2", "plain", "linux-image-6.1.0-40-amd64"];
        let packages = installed_packages(&names);
        let simulation = Simulation {
            removals: ["gone"].into_iter().chain(names).map(str::to_owned).collect(),
            ..Simulation::default()
        };
        let installed = index_by_apt_name(&packages, "amd64");
        let found = find_removal_rebuilds(&paths, &simulation, &installed);
        assert_eq!(found, [writer("lvm2", BootWrite::Rebuild)]);
    }

    #[test]
    fn a_new_kernel_of_the_kind_that_runs_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let names = ["linux-image-6.1.0-41-cloud-amd64", "linux-image-6.1.0-41-amd64"];
        let installs = names.map(|name| planned_install(name, None, "amd64")).to_vec();
        let simulation = Simulation { installs, ..Simulation::default() };
        for (running, expected) in
            [("6.1.0-9-cloud-amd64", names[0]), ("6.1.0-40-amd64", names[1]), ("", names[0])]
        {
            let writers = find_boot_writers(&paths, &simulation, &BTreeMap::new(), running);
            assert_eq!(writers[0].version.0, expected, "{running}");
        }
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
