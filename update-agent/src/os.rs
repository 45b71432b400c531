//! What the system says about itself.

use std::fs;
use std::io;
use std::path::Path;

use crate::place::Place;

/// os-release(5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsRelease {
    /// Such as `debian`.
    pub id: String,
    /// Such as `12`.
    pub version_id: String,
    /// Such as `Debian GNU/Linux 12 (bookworm)`.
    pub pretty_name: String,
    /// Such as `bookworm`.
    pub version_codename: String,
    /// The line of releases of the image that runs; empty if it is none.
    pub image_id: String,
    /// The version of that image.
    pub image_version: String,
}

/// The image of the operating system that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootedImage {
    /// The line of releases that it is one of.
    pub profile_name: String,
    /// Its version in that line.
    pub image_id: String,
}

impl OsRelease {
    /// That of the managed root; empty fields if it has none.
    pub fn of(place: &Place) -> Self {
        let text = ["/etc/os-release", "/usr/lib/os-release"]
            .iter()
            .find_map(|path| fs::read_to_string(place.inside(path)).ok());
        Self::parse(&text.unwrap_or_default())
    }

    /// The image that the managed root is; `None` if it was not made as one.
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
            *field = unquoted(value);
        }
        release
    }
}

/// A value as the shell would read it: quotes removed, backslashes resolved.
fn unquoted(value: &str) -> String {
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

/// The boot that the kernel is in.
pub fn boot_id() -> String {
    first_line(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default()
}

/// The kernel that runs.
pub fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// The kernel's name of the architecture (`uname -m`), such as `x86_64`.
pub fn machine() -> String {
    rustix::system::uname()
        .machine()
        .to_string_lossy()
        .into_owned()
}

/// Debian's name of an architecture for the kernel's; others stay as they are.
pub fn debian_architecture(machine: &str) -> &str {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "i686" => "i386",
        other => other,
    }
}

/// Whether the managed root has a database of packages. An image may come without one.
pub fn has_dpkg(place: &Place) -> bool {
    place.inside("/var/lib/dpkg").is_dir()
}

/// The name of the machine: the managed root's own, else the kernel's.
pub fn host_name(place: &Place) -> String {
    let running = || {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned()
    };
    if place.is_own_system() {
        return running();
    }
    first_line(&place.inside("/etc/hostname")).unwrap_or_else(running)
}

/// Whether the system waits for a reboot, and for which packages. The mark may be older than any attempt: it tells what
/// is, not who did it. What cannot be read of the packages leaves the mark as it is.
pub fn reboot_required(place: &Place) -> io::Result<(bool, Vec<String>)> {
    let required = place.inside("/run/reboot-required").try_exists()?;
    let by = fs::read(place.inside("/run/reboot-required.pkgs")).unwrap_or_default();
    let text = String::from_utf8_lossy(&by);
    let lines = text.lines().map(str::trim);
    let mut by: Vec<String> = lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    by.sort_unstable();
    by.dedup();
    Ok((required, by))
}

/// The first line of a file, if there is one with something in it.
pub fn first_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn an_image_says_what_it_is_and_what_says_half_of_it_is_none() {
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
    fn a_reboot_is_required_when_a_package_said_so() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        assert_eq!(reboot_required(&place).unwrap(), (false, Vec::new()));
        fs::create_dir(root.path().join("run")).unwrap();
        fs::write(root.path().join("run/reboot-required"), "").unwrap();
        fs::write(root.path().join("run/reboot-required.pkgs"), "b\na\nb\n").unwrap();
        assert_eq!(
            reboot_required(&place).unwrap(),
            (true, vec!["a".to_owned(), "b".to_owned()])
        );

        fs::write(root.path().join("run/reboot-required.pkgs"), b"\xff\n").unwrap();
        assert!(reboot_required(&place).unwrap().0, "the mark is the mark");
    }
}
