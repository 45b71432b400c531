//! The catalogue of operating systems.

pub mod catalogue;
pub mod revision;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::id::OsId;
use crate::invalid::Invalid;
use crate::text;

named! {
    /// How an operating system is updated.
    OsKind {
        /// Package by package.
        Mutable = "mutable",
        /// As a whole image.
        Immutable = "immutable",
    }
}

named! {
    /// Who provides an operating system (northbound section 1.3).
    OsProvider {
        /// Nothing was said.
        Unspecified = "unspecified",
        /// The infrastructure itself.
        Infra = "infra",
        /// A vendor's own tools.
        Lenovo = "lenovo",
    }
}

named! {
    /// How an installation is protected (northbound section 1.3).
    SecurityFeature {
        /// Nothing was said.
        Unspecified = "unspecified",
        /// Not at all.
        None = "none",
        /// Secure boot and full disk encryption.
        SecureBootAndFullDiskEncryption = "secure_boot_and_full_disk_encryption",
    }
}

/// One operating system that nodes run or may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsProfile {
    /// Its id.
    pub id: OsId,
    /// What it is.
    pub spec: OsSpec,
    /// When it was made.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

/// What an operating system is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsSpec {
    /// For people; unique in its project.
    pub name: String,
    /// How it is updated.
    pub kind: OsKind,
    /// Who provides it.
    pub provider: OsProvider,
    /// Such as `x86_64`.
    pub architecture: String,
    /// The line of releases that this is one of; unique in its project together with `image_id`.
    pub profile_name: String,
    /// The version of the image.
    pub image_id: String,
    /// Where the image lies.
    pub image_url: String,
    /// Of the image.
    pub sha256: Sha256,
    /// How it is protected.
    pub security_feature: SecurityFeature,
    /// For people.
    pub description: String,
    /// A JSON object as text; empty if there is none.
    pub metadata: String,
    /// Where its package repository lies.
    pub repo_url: String,
    /// Base64 of the CA that signs the image's server; empty if none.
    pub tls_ca_cert: String,
    /// Where the list of installed packages lies.
    pub installed_packages_url: String,
    /// Where the list of its open vulnerabilities lies.
    pub existing_cves_url: String,
    /// Where the list of its mended vulnerabilities lies.
    pub fixed_cves_url: String,
}

impl OsSpec {
    /// A package-managed operating system as a node reports it (engine section 8): made on demand, without an image.
    ///
    /// # Errors
    /// The release has no id, or a text that no profile may hold.
    pub fn of_release(release: &OsRelease, architecture: &str) -> Result<Self, Invalid> {
        if release.id.is_empty() {
            return Err(Invalid::new("os_release.id", "must not be empty"));
        }
        let profile_name = match release.version_id.as_str() {
            "" => release.id.clone(),
            version => format!("{}-{version}", release.id),
        };
        let name = if release.pretty_name.is_empty() {
            profile_name.clone()
        } else {
            tidy(&release.pretty_name, 128)
        };
        let spec = Self {
            name,
            kind: OsKind::Mutable,
            provider: OsProvider::Unspecified,
            architecture: machine(architecture).to_owned(),
            profile_name,
            image_id: release.version_id.clone(),
            image_url: String::new(),
            sha256: Sha256::NONE,
            security_feature: SecurityFeature::None,
            description: String::new(),
            metadata: String::new(),
            repo_url: String::new(),
            tls_ca_cert: String::new(),
            installed_packages_url: String::new(),
            existing_cves_url: String::new(),
            fixed_cves_url: String::new(),
        };
        spec.checked()
    }

    /// The same, if every text is one that the ancestor's clients can show (northbound section 1.3).
    ///
    /// # Errors
    /// Names the first field that is not.
    pub fn checked(self) -> Result<Self, Invalid> {
        text::check("name", &self.name, 128, "-_./: ()")?;
        text::check("architecture", &self.architecture, 20, "-_")?;
        text::check("profileName", &self.profile_name, 128, "-_./: ")?;
        text::check("imageId", &self.image_id, 500, text::TEXT)?;
        text::check("imageUrl", &self.image_url, 500, URL)?;
        text::check("repoUrl", &self.repo_url, 500, URL)?;
        text::check(
            "installedPackagesUrl",
            &self.installed_packages_url,
            200,
            URL,
        )?;
        text::check("existingCvesUrl", &self.existing_cves_url, 500, URL)?;
        text::check("fixedCvesUrl", &self.fixed_cves_url, 500, URL)?;
        text::check("tlsCaCert", &self.tls_ca_cert, 10_000, "+/=-_ \n")?;
        text::check(
            "description",
            &self.description,
            1_000,
            "-_.:;=?@!#,<>*(){}&%$^+` ",
        )?;
        if self.metadata.len() > 500 {
            return Err(Invalid::new("metadata", "longer than 500 bytes"));
        }
        if !self.metadata.is_empty() {
            serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&self.metadata)
                .map_err(|error| Invalid::new("metadata", format!("not a JSON object: {error}")))?;
        }
        Ok(self)
    }
}

/// An image that a node may be brought to: the part of an operating system that a node needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The entry of the catalogue.
    pub os: OsId,
    /// For people.
    pub name: String,
    /// The line of releases that it is one of.
    pub profile_name: String,
    /// Its version.
    pub image_id: String,
    /// Where it lies, as the catalogue has it.
    pub url: String,
    /// Of the file as it lies there.
    pub sha256: Sha256,
}

impl Image {
    /// The image of an operating system.
    #[must_use]
    pub fn of(profile: &OsProfile) -> Self {
        Self {
            os: profile.id,
            name: profile.spec.name.clone(),
            profile_name: profile.spec.profile_name.clone(),
            image_id: profile.spec.image_id.clone(),
            url: profile.spec.image_url.clone(),
            sha256: profile.spec.sha256.clone(),
        }
    }

    /// The newest of some images; none if there are none. One whose version cannot be compared with another's is never
    /// the newer one.
    #[must_use]
    pub fn newest<'a>(images: impl IntoIterator<Item = &'a Self>) -> Option<&'a Self> {
        images.into_iter().reduce(|best, image| {
            let order = compare_versions(&image.image_id, &best.image_id);
            let readable = parts(&best.image_id).is_none() && parts(&image.image_id).is_some();
            if readable || order == Some(Ordering::Greater) {
                image
            } else {
                best
            }
        })
    }
}

/// Compares versions of images: parts between dots and dashes, as numbers, a missing part is less (engine section 9).
/// None if a part is no number: then neither is newer.
#[must_use]
pub fn compare_versions(one: &str, other: &str) -> Option<Ordering> {
    Some(parts(one)?.cmp(&parts(other)?))
}

fn parts(version: &str) -> Option<Vec<u128>> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let read = |part: &str| is_number(part).then(|| part.parse().ok()).flatten();
    version.split(['.', '-']).map(read).collect()
}

const URL: &str = "-_.~:/?#[]@!$&'()*+,;=% ";

/// What os-release(5) says of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsRelease {
    /// Such as `debian`.
    pub id: String,
    /// Such as `12`.
    pub version_id: String,
    /// Such as `Debian GNU/Linux 12 (bookworm)`.
    pub pretty_name: String,
    /// Such as `bookworm`.
    pub codename: String,
}

/// A SHA-256 digest as 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sha256(std::borrow::Cow<'static, str>);

impl Sha256 {
    /// Stands for no image at all: 64 zeros.
    pub const NONE: Self = Self(std::borrow::Cow::Borrowed(
        "0000000000000000000000000000000000000000000000000000000000000000",
    ));

    /// Reads a digest.
    ///
    /// # Errors
    /// The text is not 64 lower-case hexadecimal digits.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() == 64 && text.bytes().all(is_hex) {
            Ok(Self(text.to_owned().into()))
        } else {
            Err(Invalid::new(
                field,
                "a SHA-256 digest has 64 lower-case hexadecimal digits",
            ))
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The kernel's name of an architecture for Debian's (`uname -m`); others stay as they are.
#[must_use]
pub fn machine(debian: &str) -> &str {
    match debian {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        "i386" => "i686",
        other => other,
    }
}

fn tidy(text: &str, max: usize) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./: ()".contains(c);
    let chars = text.trim().chars().take(max);
    chars.map(|c| if allowed(c) { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bookworm() -> OsRelease {
        OsRelease {
            id: "debian".into(),
            version_id: "12".into(),
            pretty_name: "Debian GNU/Linux 12 (bookworm)".into(),
            codename: "bookworm".into(),
        }
    }

    #[test]
    fn a_release_becomes_a_profile() {
        let spec = OsSpec::of_release(&bookworm(), "amd64").expect("a profile");
        assert_eq!(spec.name, "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(spec.profile_name, "debian-12");
        assert_eq!(spec.architecture, "x86_64");
        assert_eq!(spec.kind, OsKind::Mutable);
        assert_eq!(spec.sha256, Sha256::NONE);
    }

    #[test]
    fn a_release_with_a_strange_name_still_has_a_profile() {
        let release = OsRelease {
            pretty_name: "Ölinux \"7\"".into(),
            ..bookworm()
        };
        let spec = OsSpec::of_release(&release, "amd64").expect("a profile");
        assert_eq!(spec.name, "-linux -7-");
        let nameless = OsRelease::default();
        assert!(OsSpec::of_release(&nameless, "amd64").is_err());
    }

    #[test]
    fn versions_of_images_are_compared_number_by_number() {
        for (older, newer) in [
            ("3.0.20250717.0732", "3.0.20250717.2200"),
            ("3.0.20260602", "3.0.20260602.2200"),
            ("3.0.20250504-0732", "3.0.20250504-2200"),
            ("3.0.9", "3.0.10"),
        ] {
            assert_eq!(
                compare_versions(newer, older),
                Some(Ordering::Greater),
                "{newer}"
            );
            assert_eq!(
                compare_versions(older, newer),
                Some(Ordering::Less),
                "{older}"
            );
        }
        for unreadable in ["", "3.x", "3..0", "v3.0", "3.0+1"] {
            assert_eq!(compare_versions(unreadable, "3.0"), None, "{unreadable}");
            assert_eq!(compare_versions("3.0", unreadable), None, "{unreadable}");
        }
    }

    #[test]
    fn the_newest_image_is_never_one_that_cannot_be_compared() {
        let image = |version: &str| Image {
            os: OsId::nth(1),
            name: version.into(),
            profile_name: "edge".into(),
            image_id: version.into(),
            url: String::new(),
            sha256: Sha256::NONE,
        };
        let newest = |versions: &[&str]| {
            let images: Vec<_> = versions.iter().map(|version| image(version)).collect();
            Image::newest(&images).map(|image| image.image_id.clone())
        };
        assert_eq!(
            newest(&["main", "3.0.1", "3.0.2"]).as_deref(),
            Some("3.0.2")
        );
        assert_eq!(
            newest(&["3.0.2", "main", "3.0.1"]).as_deref(),
            Some("3.0.2")
        );
        assert_eq!(newest(&[]), None);
    }

    #[test]
    fn a_digest_is_lower_case() {
        assert!(Sha256::parse("sha256", &"a".repeat(64)).is_ok());
        for bad in ["a".repeat(63), "A".repeat(64), "g".repeat(64)] {
            assert!(Sha256::parse("sha256", &bad).is_err());
        }
    }
}
