//! Catalogue of operating systems.

pub mod catalogue;
mod image;
pub mod revision;

pub use image::{Image, compare_versions};

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::id::OsId;
use crate::invalid::Invalid;
use crate::text;

named! {
    /// How an operating system is updated.
    OsKind {
        Mutable = "mutable",
        Immutable = "immutable",
    }
}

named! {
    /// Who provides an operating system.
    OsProvider {
        /// Not set.
        Unspecified = "unspecified",
        /// The edge infrastructure.
        Infra = "infra",
        /// Tools of Lenovo.
        Lenovo = "lenovo",
    }
}

named! {
    /// How an installation is protected.
    SecurityFeature {
        /// Not set.
        Unspecified = "unspecified",
        /// No protection.
        None = "none",
        SecureBootAndFullDiskEncryption = "secure_boot_and_full_disk_encryption",
    }
}

/// An operating system that nodes run or may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsProfile {
    pub id: OsId,
    pub spec: OsSpec,
    /// Whether only a newer release knows its kind. The kind then reads as that of packages, and updates wait.
    pub has_unknown_kind: bool,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Content of an operating system profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsSpec {
    /// For users; unique in its project.
    pub name: String,
    pub kind: OsKind,
    pub provider: OsProvider,
    /// Architecture such as `x86_64`.
    pub architecture: String,
    /// Profile: the series of releases that this image belongs to. Unique in its project together with `image_id`.
    pub profile_name: String,
    /// Version of the image.
    pub image_id: String,
    pub image_url: String,
    pub sha256: Sha256,
    pub security_feature: SecurityFeature,
    /// For users.
    pub description: String,
    /// A JSON object as text; empty if there is none.
    pub metadata: String,
    /// URL of its package repository.
    pub repo_url: String,
    /// Base64 of the CA certificate for the image server; empty for none.
    pub tls_ca_cert: String,
    /// URL of the list of installed packages.
    pub installed_packages_url: String,
    /// URL of the list of open vulnerabilities.
    pub existing_cves_url: String,
    /// URL of the list of fixed vulnerabilities.
    pub fixed_cves_url: String,
    /// Signatures of the image, each `<key>:<signature>`: the SHA-256 of the public key (its `SubjectPublicKeyInfo` as DER)
    /// in 64 lower-case hexadecimal digits, and the signature in Base64. Nodes know the keys and verify the signatures.
    pub image_signatures: Vec<String>,
}

impl OsSpec {
    /// Maximum number of signatures of an image.
    pub const MAX_IMAGE_SIGNATURES: usize = 8;

    /// Maximum length of a signature as written, in bytes.
    pub const MAX_IMAGE_SIGNATURE_BYTES: usize = 256;

    /// The profile of a package-managed operating system, created when a node reports its release. It has no image.
    ///
    /// # Errors
    /// The release has no id, or a text that a profile cannot hold.
    pub fn from_release(release: &OsRelease, architecture: &str) -> Result<Self, Invalid> {
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
            sanitize_name(&release.pretty_name, 128)
        };
        let spec = Self {
            name,
            kind: OsKind::Mutable,
            provider: OsProvider::Unspecified,
            architecture: kernel_architecture(architecture).to_owned(),
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
            image_signatures: Vec::new(),
        };
        spec.validated()
    }

    /// Checks that EIM's clients can show every text.
    ///
    /// # Errors
    /// Names the first invalid field.
    pub fn validated(self) -> Result<Self, Invalid> {
        text::check("name", &self.name, 128, "-_./: ()")?;
        text::check("architecture", &self.architecture, 20, "-_")?;
        text::check("profileName", &self.profile_name, 128, "-_./: ")?;
        text::check("imageId", &self.image_id, 500, text::TEXT_PUNCTUATION)?;
        text::check("imageUrl", &self.image_url, 500, URL_PUNCTUATION)?;
        text::check("repoUrl", &self.repo_url, 500, URL_PUNCTUATION)?;
        text::check("installedPackagesUrl", &self.installed_packages_url, 200, URL_PUNCTUATION)?;
        text::check("existingCvesUrl", &self.existing_cves_url, 500, URL_PUNCTUATION)?;
        text::check("fixedCvesUrl", &self.fixed_cves_url, 500, URL_PUNCTUATION)?;
        check_signatures(&self.image_signatures)?;
        text::check("tlsCaCert", &self.tls_ca_cert, 10_000, "+/=-_ \n")?;
        text::check("description", &self.description, 1_000, "-_.:;=?@!#,<>*(){}&%$^+` ")?;
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

/// Checks the form that [`OsSpec::image_signatures`] describes.
fn check_signatures(all: &[String]) -> Result<(), Invalid> {
    const FIELD: &str = "imageSignatures";
    let (many, long) = (OsSpec::MAX_IMAGE_SIGNATURES, OsSpec::MAX_IMAGE_SIGNATURE_BYTES);
    if all.len() > many {
        let why = format!("{} signatures are more than {many}", all.len());
        return Err(Invalid::new(FIELD, why));
    }
    if all.iter().all(|one| one.len() <= long && is_signature(one)) {
        return Ok(());
    }
    Err(Invalid::new(
        FIELD,
        format!(
            "each must be the SHA-256 of the key in 64 lower-case hexadecimal digits, a colon, and the signature in Base64, \
             at most {long} bytes in total"
        ),
    ))
}

fn is_signature(text: &str) -> bool {
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
    text.split_once(':').is_some_and(|(key, signature)| {
        is_digest(key) && !signature.is_empty() && signature.bytes().all(is_base64)
    })
}

const URL_PUNCTUATION: &str = "-_.~:/?#[]@!$&'()*+,;=% ";

/// Release of a node's operating system, from os-release(5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsRelease {
    /// Id such as `debian`.
    pub id: String,
    /// Version such as `12`.
    pub version_id: String,
    /// Name such as `Debian GNU/Linux 12 (bookworm)`.
    pub pretty_name: String,
    /// Codename such as `bookworm`.
    pub codename: String,
}

/// A SHA-256 digest as 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sha256(std::borrow::Cow<'static, str>);

impl Sha256 {
    /// Stands for a missing image: 64 zeros.
    pub const NONE: Self = Self(std::borrow::Cow::Borrowed(
        "0000000000000000000000000000000000000000000000000000000000000000",
    ));

    /// Parses a digest.
    ///
    /// # Errors
    /// The text is not 64 lower-case hexadecimal digits.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        if is_digest(text) {
            Ok(Self(text.to_owned().into()))
        } else {
            Err(Invalid::new(field, "a SHA-256 digest has 64 lower-case hexadecimal digits"))
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_digest(text: &str) -> bool {
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == 64 && text.bytes().all(is_hex)
}

/// Translates Debian's name of an architecture to the kernel's (`uname -m`); other names stay unchanged.
#[must_use]
pub fn kernel_architecture(debian: &str) -> &str {
    match debian {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        "i386" => "i686",
        other => other,
    }
}

fn sanitize_name(text: &str, max: usize) -> String {
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
        let spec = OsSpec::from_release(&bookworm(), "amd64").expect("a profile");
        assert_eq!(spec.name, "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(spec.profile_name, "debian-12");
        assert_eq!(spec.architecture, "x86_64");
        assert_eq!(spec.kind, OsKind::Mutable);
        assert_eq!(spec.sha256, Sha256::NONE);
    }

    #[test]
    fn a_release_with_an_unusual_name_still_has_a_profile() {
        let release = OsRelease { pretty_name: "Ölinux \"7\"".into(), ..bookworm() };
        let spec = OsSpec::from_release(&release, "amd64").expect("a profile");
        assert_eq!(spec.name, "-linux -7-");
        let nameless = OsRelease::default();
        assert!(OsSpec::from_release(&nameless, "amd64").is_err());
    }

    #[test]
    fn a_signature_of_an_image_is_a_key_and_base64() {
        let checked = |signatures: &[String]| {
            let spec = OsSpec::from_release(&bookworm(), "amd64").expect("a profile");
            let image_signatures = signatures.to_vec();
            let spec = OsSpec { image_signatures, ..spec };
            spec.validated().map(|spec| spec.image_signatures)
        };
        let key = "0123456789abcdef".repeat(4);
        let longest = format!("{key}:{}", "A".repeat(191));
        for good in ["MEUCIQ+/a9==", "="] {
            let one = [format!("{key}:{good}")];
            assert_eq!(checked(&one).as_deref(), Ok(one.as_slice()));
        }
        assert_eq!(longest.len(), 256);
        assert!(checked(&vec![longest.clone(); 8]).is_ok());
        let refused = |signatures: &[String]| checked(signatures).expect_err("no signature").field;
        assert_eq!(refused(&vec![longest.clone(); 9]), "imageSignatures");
        for bad in [
            String::new(),
            key.clone(),
            format!("{key}:"),
            format!("{key}:a b"),
            format!("{key}:a:b"),
            format!("{key}:\u{e4}"),
            format!("{key}:a\n"),
            format!("{}:ab", &key[1..]),
            format!("0{key}:ab"),
            format!("{}:ab", key.to_uppercase()),
            format!("{}g:ab", &key[1..]),
            format!("\u{e4}{}:ab", &key[2..]),
            format!("{longest}A"),
        ] {
            assert_eq!(refused(&[longest.clone(), bad]), "imageSignatures");
        }
    }

    #[test]
    fn a_digest_is_lower_case() {
        assert!(Sha256::parse("sha256", &"a".repeat(64)).is_ok());
        for bad in ["a".repeat(63), "A".repeat(64), "g".repeat(64)] {
            assert!(Sha256::parse("sha256", &bad).is_err());
        }
    }
}
