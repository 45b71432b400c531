//! Operating system images and their versions.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::{OsProfile, Sha256, kernel_architecture};
use crate::id::OsId;

/// An image that a node can install: the part of an operating system profile that a node needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Id of the catalogue entry.
    pub os: OsId,
    /// For users.
    pub name: String,
    /// Profile: the series of releases that the image belongs to.
    pub profile_name: String,
    /// Version.
    pub image_id: String,
    /// URL as in the catalogue.
    pub url: String,
    /// Digest of the file at the URL.
    pub sha256: Sha256,
    /// Architecture exactly as in the catalogue, because the signature covers it; empty if not set.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub architecture: String,
    /// Signatures: see [`OsSpec::image_signatures`](super::OsSpec::image_signatures).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<String>,
}

impl Image {
    /// The image of an operating system profile.
    #[must_use]
    pub fn from_profile(profile: &OsProfile) -> Self {
        let spec = &profile.spec;
        Self {
            os: profile.id,
            name: spec.name.clone(),
            profile_name: spec.profile_name.clone(),
            image_id: spec.image_id.clone(),
            url: spec.image_url.clone(),
            sha256: spec.sha256.clone(),
            architecture: spec.architecture.clone(),
            signatures: spec.image_signatures.clone(),
        }
    }

    /// Whether the image can run on a machine of this architecture, named by Debian or by the kernel. An empty
    /// architecture of the image or of the machine fits any.
    #[must_use]
    pub fn fits(&self, architecture: &str) -> bool {
        let (made_for, runs) =
            (kernel_architecture(&self.architecture), kernel_architecture(architecture));
        made_for.is_empty() || runs.is_empty() || made_for == runs
    }

    /// The same image without signatures.
    #[must_use]
    pub fn without_signatures(&self) -> Self {
        Self {
            os: self.os,
            name: self.name.clone(),
            profile_name: self.profile_name.clone(),
            image_id: self.image_id.clone(),
            url: self.url.clone(),
            sha256: self.sha256.clone(),
            architecture: self.architecture.clone(),
            signatures: Vec::new(),
        }
    }

    /// The newest of some images; `None` if there are none. An image whose version cannot be compared is never newer
    /// than another one.
    #[must_use]
    pub fn newest<'a>(images: impl IntoIterator<Item = &'a Self>) -> Option<&'a Self> {
        images.into_iter().reduce(|best, image| {
            let order = compare_versions(&image.image_id, &best.image_id);
            let readable =
                version_parts(&best.image_id).is_none() && version_parts(&image.image_id).is_some();
            if readable || order == Some(Ordering::Greater) { image } else { best }
        })
    }
}

/// Compares image versions: splits them at dots and dashes and compares the parts as numbers; a missing part is less.
/// `None` if a part is not a number: then neither version is newer.
#[must_use]
pub fn compare_versions(one: &str, other: &str) -> Option<Ordering> {
    Some(version_parts(one)?.cmp(&version_parts(other)?))
}

fn version_parts(version: &str) -> Option<Vec<u128>> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let read = |part: &str| is_number(part).then(|| part.parse().ok()).flatten();
    version.split(['.', '-']).map(read).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn image(version: &str) -> Image {
        Image {
            os: OsId::nth(1),
            name: version.into(),
            profile_name: "edge".into(),
            image_id: version.into(),
            url: String::new(),
            sha256: Sha256::NONE,
            architecture: String::new(),
            signatures: Vec::new(),
        }
    }

    #[test]
    fn versions_of_images_are_compared_number_by_number() {
        for (older, newer) in [
            ("3.0.20250717.0732", "3.0.20250717.2200"),
            ("3.0.20260602", "3.0.20260602.2200"),
            ("3.0.20250504-0732", "3.0.20250504-2200"),
            ("3.0.9", "3.0.10"),
        ] {
            assert_eq!(compare_versions(newer, older), Some(Ordering::Greater), "{newer}");
            assert_eq!(compare_versions(older, newer), Some(Ordering::Less), "{older}");
        }
        for unreadable in ["", "3.x", "3..0", "v3.0", "3.0+1"] {
            assert_eq!(compare_versions(unreadable, "3.0"), None, "{unreadable}");
            assert_eq!(compare_versions("3.0", unreadable), None, "{unreadable}");
        }
    }

    #[test]
    fn the_newest_image_is_never_one_that_cannot_be_compared() {
        let newest = |versions: &[&str]| {
            let images: Vec<_> = versions.iter().map(|version| image(version)).collect();
            Image::newest(&images).map(|image| image.image_id.clone())
        };
        assert_eq!(newest(&["main", "3.0.1", "3.0.2"]).as_deref(), Some("3.0.2"));
        assert_eq!(newest(&["3.0.2", "main", "3.0.1"]).as_deref(), Some("3.0.2"));
        assert_eq!(newest(&[]), None);
    }

    #[test]
    fn an_image_fits_the_machines_that_it_is_made_for() {
        for (made_for, runs, fits) in [
            ("", "aarch64", true),
            ("aarch64", "", true),
            ("", "", true),
            ("amd64", "x86_64", true),
            ("x86_64", "amd64", true),
            ("arm64", "aarch64", true),
            ("riscv64", "riscv64", true),
            ("x86_64", "aarch64", false),
            ("amd64", "i386", false),
        ] {
            let image = Image { architecture: made_for.to_owned(), ..image("1") };
            assert_eq!(image.fits(runs), fits, "{made_for:?} on {runs:?}");
        }
    }

    proptest! {
        #[test]
        fn an_image_fits_its_architecture_by_either_name(
            one in "(amd64|arm64|i386|x86_64|\\PC{0,9})",
            other in "(x86_64|\\PC{0,9})",
        ) {
            let made_for = |architecture: &str| Image {
                architecture: architecture.to_owned(),
                ..image("1")
            };
            prop_assert!(made_for(&one).fits(&one) && made_for(&one).fits(kernel_architecture(&one)));
            prop_assert_eq!(made_for(&one).fits(&other), made_for(&other).fits(&one));
            prop_assert!(made_for("").fits(&one) && made_for(&one).fits(""));
        }
    }

    #[test]
    fn an_image_stored_by_an_older_release_has_no_architecture_and_no_signature() {
        let old = json!({
            "os": OsId::nth(1), "name": "1", "profile_name": "edge", "image_id": "1", "url": "",
            "sha256": Sha256::NONE,
        });
        let read: Image = serde_json::from_value(old.clone()).expect("an image");
        assert_eq!(read, image("1"));
        assert_eq!(serde_json::to_value(&read).expect("JSON"), old);
        let signed = Image {
            architecture: "amd64".to_owned(),
            signatures: vec!["a signature".to_owned()],
            ..read
        };
        let stored = serde_json::to_value(&signed).expect("JSON");
        let restored: Image = serde_json::from_value(stored).expect("an image");
        assert_eq!(restored, signed);
        let unsigned = signed.without_signatures();
        assert!(unsigned.signatures.is_empty());
        let signatures = signed.signatures.clone();
        assert_eq!(Image { signatures, ..unsigned }, signed, "everything else is unchanged");
    }
}
