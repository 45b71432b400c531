//! Information about the operating system.

use std::fs;
use std::io;
use std::path::Path;

use chrono::{DateTime, Utc};
use rustix::fs::statfs;

use crate::paths::AgentPaths;

/// os-release(5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsRelease {
    /// For example `debian`.
    pub id: String,
    /// For example `12`.
    pub version_id: String,
    /// For example `Debian GNU/Linux 12 (bookworm)`.
    pub pretty_name: String,
    /// For example `bookworm`.
    pub version_codename: String,
    /// Profile name of the running image; empty if the system is not an image.
    pub image_id: String,
    pub image_version: String,
}

/// The running image of the operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootedImage {
    /// Name of the image's profile.
    pub profile_name: String,
    /// Version of the image.
    pub image_id: String,
}

impl OsRelease {
    /// Reads the file of the managed root; the fields are empty if there is none.
    pub fn read(paths: &AgentPaths) -> Self {
        let text = ["/etc/os-release", "/usr/lib/os-release"]
            .iter()
            .find_map(|path| fs::read_to_string(paths.inside(path)).ok());
        Self::parse(&text.unwrap_or_default())
    }

    /// The image that the managed root was installed from; `None` if it is not an image.
    pub fn booted_image(&self) -> Option<BootedImage> {
        let is_image = !self.image_id.is_empty() && !self.image_version.is_empty();
        is_image.then(|| BootedImage {
            profile_name: self.image_id.clone(),
            image_id: self.image_version.clone(),
        })
    }

    fn parse(text: &str) -> Self {
        let mut release = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.trim().split_once('=') else {
                continue;
            };
            let field = match key {
                "ID" => &mut release.id,
                "VERSION_ID" => &mut release.version_id,
                "PRETTY_NAME" => &mut release.pretty_name,
                "VERSION_CODENAME" => &mut release.version_codename,
                "IMAGE_ID" => &mut release.image_id,
                "IMAGE_VERSION" => &mut release.image_version,
                _ => continue,
            };
            *field = unquote(value);
        }
        release
    }
}

/// Parses a value as the shell does: removes quotes, resolves backslashes.
fn unquote(value: &str) -> String {
    let inner = ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote))
        .unwrap_or(value);
    let mut characters = inner.chars();
    let mut text = String::with_capacity(inner.len());
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.extend(characters.next()),
            other => text.push(other),
        }
    }
    text
}

/// ID of the current boot.
pub fn boot_id() -> String {
    first_line(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default()
}

/// When the kernel started, from a file like `/proc/stat`.
pub fn boot_time(stat: &Path) -> Option<DateTime<Utc>> {
    let text = read_lossy(stat).ok()?;
    let seconds = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    DateTime::from_timestamp(seconds.trim().parse().ok()?, 0)
}

/// Release of the running kernel. It is read from a file, over which a test can mount another one.
pub fn kernel_release() -> String {
    let release = first_line(Path::new("/proc/sys/kernel/osrelease"));
    release.unwrap_or_else(|| rustix::system::uname().release().to_string_lossy().into_owned())
}

/// The kernel's name of the architecture (`uname -m`), such as `x86_64`.
pub fn machine() -> String {
    rustix::system::uname().machine().to_string_lossy().into_owned()
}

/// Converts the kernel's name of an architecture to Debian's; unknown names stay as they are.
pub fn debian_architecture(machine: &str) -> &str {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "i686" => "i386",
        other => other,
    }
}

/// Whether the managed root has a package database. An image may have none.
pub fn has_dpkg(paths: &AgentPaths) -> bool {
    paths.inside("/var/lib/dpkg").is_dir()
}

/// Whether systemd is the service manager of the system.
pub fn runs_systemd(paths: &AgentPaths) -> bool {
    paths.inside("/run/systemd/system").is_dir()
}

/// Host name: the managed root's own, else the kernel's.
pub fn host_name(paths: &AgentPaths) -> String {
    let running = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    if paths.is_own_system() {
        return running();
    }
    first_line(&paths.inside("/etc/hostname")).unwrap_or_else(running)
}

/// Whether the system needs a reboot, and for which packages. The file may be older than any
/// attempt, so it does not tell which change needs the reboot. An unreadable list of packages does
/// not matter.
pub fn reboot_required(paths: &AgentPaths) -> io::Result<(bool, Vec<String>)> {
    let required = paths.inside("/run/reboot-required").try_exists()?;
    let by = fs::read(paths.inside("/run/reboot-required.pkgs")).unwrap_or_default();
    let text = String::from_utf8_lossy(&by);
    let lines = text.lines().map(str::trim);
    let mut by: Vec<String> = lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
    by.sort_unstable();
    by.dedup();
    Ok((required, by))
}

/// Reads a text of the kernel or of another program. Users choose some of the names in it, so invalid
/// UTF-8 is replaced and is no error.
pub fn read_lossy(path: &Path) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a folder is on a tmpfs, so that a copy of the disk has none of its files.
pub fn is_in_memory(folder: &Path) -> bool {
    // TMPFS_MAGIC of statfs(2).
    statfs(folder).is_ok_and(|stats| stats.f_type == 0x0102_1994)
}

/// The first line of a file, if it is not empty.
pub fn first_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_in_memory_is_recognised() {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let tmpfs = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (folder, fs_type) = (fields.next()?, fields.next()?);
            (fs_type == "tmpfs" && Path::new(folder).is_dir()).then_some(folder)
        });
        if let Some(folder) = tmpfs {
            assert!(is_in_memory(Path::new(folder)), "{folder}");
        }
        assert!(!is_in_memory(Path::new("/proc")));
        assert!(!is_in_memory(Path::new("/no/such/folder")));
    }

    #[test]
    fn an_os_release_is_read_as_the_shell_would() {
        let text = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\n# ID=no\n\nID=debian\nVERSION_CODENAME='book\\'worm'\n";
        let release = OsRelease::parse(text);
        assert_eq!(release.pretty_name, "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(release.version_id, "12");
        assert_eq!(release.id, "debian");
        assert_eq!(release.version_codename, "book'worm");
    }

    #[test]
    fn an_image_needs_both_an_id_and_a_version() {
        let image = |text: &str| OsRelease::parse(text).booted_image();
        let booted = image("ID=demo\nIMAGE_ID=demo\nIMAGE_VERSION=\"1.1\"\n").unwrap();
        assert_eq!(booted.profile_name, "demo");
        assert_eq!(booted.image_id, "1.1");
        assert_eq!(image("IMAGE_ID=demo\n"), None);
        assert_eq!(image("IMAGE_VERSION=1.1\nIMAGE_ID=\n"), None);
    }

    #[test]
    fn an_architecture_has_two_names() {
        assert_eq!(debian_architecture("x86_64"), "amd64");
        assert_eq!(debian_architecture("amd64"), "amd64");
        assert_eq!(debian_architecture("riscv64"), "riscv64");
        assert!(!machine().is_empty());
    }

    #[test]
    fn a_reboot_is_required_when_a_package_requests_it() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        assert_eq!(reboot_required(&paths).unwrap(), (false, Vec::new()));
        fs::create_dir(root.path().join("run")).unwrap();
        fs::write(root.path().join("run/reboot-required"), "").unwrap();
        fs::write(root.path().join("run/reboot-required.pkgs"), "b\na\nb\n").unwrap();
        assert_eq!(reboot_required(&paths).unwrap(), (true, vec!["a".to_owned(), "b".to_owned()]));

        fs::write(root.path().join("run/reboot-required.pkgs"), b"\xff\n").unwrap();
        assert!(reboot_required(&paths).unwrap().0, "the file still counts");
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn any_quoted_value_is_read_as_it_was_written() {
        let samples = [
            "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\n# ID=no\n\nID=debian\n",
            "IMAGE_ID='a\\'b'\nIMAGE_VERSION=\\\n",
        ];
        fuzz("os-release", |rng| {
            let release = OsRelease::parse(&text(rng, &samples, "\n\r=\"'\\# $`\u{0}"));
            let fields =
                [&release.id, &release.version_id, &release.pretty_name, &release.image_id];
            assert!(fields.iter().all(|field| !field.contains('\n')), "{release:?}");

            let value = text(rng, &samples, "\"'\\=\r \u{e9}").replace('\n', " ");
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"");
            let again = OsRelease::parse(&format!("NAME=x\nID=\"{escaped}\"\n"));
            assert_eq!(again.id, value);
        });
    }
}
