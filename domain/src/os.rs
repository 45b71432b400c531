//! The catalogue of operating systems.

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
    /// Who vouches for the image: each is `<key>:<signature>`, the SHA-256 of the public key (its `SubjectPublicKeyInfo` as
    /// DER) in 64 small hexadecimal digits, and the signature in base64. Nodes know the keys and check them.
    pub image_signatures: Vec<String>,
}

impl OsSpec {
    /// How many signatures an image may have.
    pub const MAX_IMAGE_SIGNATURES: usize = 8;

    /// The longest signature of an image as it is written, in bytes.
    pub const MAX_IMAGE_SIGNATURE: usize = 256;

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
            image_signatures: Vec::new(),
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
        check_signatures(&self.image_signatures)?;
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

/// What each can be is said at [`OsSpec::image_signatures`].
fn check_signatures(all: &[String]) -> Result<(), Invalid> {
    const FIELD: &str = "imageSignatures";
    let (many, long) = (OsSpec::MAX_IMAGE_SIGNATURES, OsSpec::MAX_IMAGE_SIGNATURE);
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
            "each must be the SHA-256 of the key in 64 small hexadecimal digits, a colon, and the signature in base64, in \
             at most {long} bytes"
        ),
    ))
}

fn is_signature(text: &str) -> bool {
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
    text.split_once(':').is_some_and(|(key, signature)| {
        is_digest(key) && !signature.is_empty() && signature.bytes().all(is_base64)
    })
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
        if is_digest(text) {
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

fn is_digest(text: &str) -> bool {
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == 64 && text.bytes().all(is_hex)
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
    fn a_signature_of_an_image_is_a_key_and_base64() {
        let checked = |signatures: &[String]| {
            let spec = OsSpec::of_release(&bookworm(), "amd64").expect("a profile");
            let image_signatures = signatures.to_vec();
            let spec = OsSpec {
                image_signatures,
                ..spec
            };
            spec.checked().map(|spec| spec.image_signatures)
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
