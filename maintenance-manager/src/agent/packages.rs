//! The list of installed packages: asked for when its digest changed, and kept once for all nodes that have the same.

use evenkeel_domain::invalid::Invalid;
use evenkeel_store::contents::{self, Digest};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tonic::Status;

use crate::progress::Scene;
use crate::status;

/// The longest list that is kept, in bytes, and the most packages in one.
const MAX_TEXT: usize = 12 << 20;
const MAX_PACKAGES: usize = 100_000;

/// The shape of an image's manifest (northbound section 1.3, `installedPackages`).
#[derive(Deserialize)]
struct Manifest {
    repo: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    #[serde(rename = "name")]
    _name: IgnoredText,
    #[serde(rename = "version")]
    _version: IgnoredText,
}

/// A text whose letters do not matter here.
struct IgnoredText;

impl<'de> Deserialize<'de> for IgnoredText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(deserializer).map(|_| Self)
    }
}

/// Whether the node should send its list, given what it says that the digest of that is and the one that is kept.
pub fn are_wanted(said: Option<Digest>, kept: Option<Digest>) -> bool {
    said.is_some() && said != kept
}

/// Takes the list that a node sent, if it did; else looks whether another node has sent the same one.
pub async fn take(scene: &mut Scene<'_>, text: &str) -> Result<(), Status> {
    let Some(said) = scene.node.said_packages() else {
        return Ok(());
    };
    if scene.node.packages_digest == Some(said) {
        return Ok(());
    }
    let (tx, now) = (&scene.tx, scene.now);
    // What was installed since then has another digest, and is asked for.
    if !text.is_empty() && digest(text) == said {
        check(text).map_err(status::invalid)?;
        let put = contents::put(tx, &said, text, now).await;
        put.map_err(status::store)?;
        scene.node.packages_digest = Some(said);
    } else if contents::touch(tx, &said, now)
        .await
        .map_err(status::store)?
    {
        scene.node.packages_digest = Some(said);
    }
    Ok(())
}

fn digest(text: &str) -> Digest {
    Sha256::digest(text).into()
}

fn check(text: &str) -> Result<(), Invalid> {
    let bad = |message: String| Invalid::new("packages", message);
    if text.len() > MAX_TEXT {
        return Err(bad(format!("longer than {MAX_TEXT} bytes")));
    }
    if text.contains('\0') {
        return Err(bad("has a zero byte".to_owned()));
    }
    let manifest: Manifest =
        serde_json::from_str(text).map_err(|error| bad(format!("not a list: {error}")))?;
    if manifest.repo.len() > MAX_PACKAGES {
        return Err(bad(format!("more than {MAX_PACKAGES} packages")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_list_of_packages_is_kept() {
        let good = r#"{"repo":[{"name":"apt","version":"2.6.1","architecture":"amd64"}]}"#;
        assert_eq!(check(good), Ok(()));
        assert_eq!(check(r#"{"repo":[]}"#), Ok(()));
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"repo":[{"name":"apt"}]}"#,
            r#"{"repo":[{"name":1,"version":""}]}"#,
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
        let many = vec![r#"{"name":"a","version":"1"}"#; MAX_PACKAGES + 1].join(",");
        assert!(check(&format!(r#"{{"repo":[{many}]}}"#)).is_err());
        let long = format!(r#"{{"repo":[],"x":"{}"}}"#, "y".repeat(MAX_TEXT));
        assert!(check(&long).is_err());
    }
}
