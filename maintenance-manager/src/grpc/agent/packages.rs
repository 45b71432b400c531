//! The list of installed packages. It is requested when its digest changes and stored once for all
//! nodes with the same list.

use evenkeel_domain::invalid::Invalid;
use evenkeel_store::contents::{self, ContentDigest};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tonic::Status;

use crate::admission::daily_limits::LimitedAmount;
use crate::node_transaction::NodeTransaction;
use crate::status;

/// The maximum length of a stored list in bytes, and the maximum number of packages in one.
const MAX_LIST_BYTES: usize = 12 << 20;
const MAX_PACKAGES: usize = 100_000;

/// An image manifest in the format of EIM's `installedPackages`.
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

/// A string whose content is ignored.
struct IgnoredText;

impl<'de> Deserialize<'de> for IgnoredText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(deserializer).map(|_| Self)
    }
}

/// The list that a node sent. It is checked before the transaction of the node begins, because it
/// may be megabytes long.
#[derive(Debug)]
pub struct PackageList {
    text: String,
    digest: ContentDigest,
    checked: Result<(), Invalid>,
}

impl PackageList {
    /// Parses a list; `None` if the node sent none.
    pub fn parse(text: String) -> Option<Self> {
        (!text.is_empty()).then(|| Self {
            digest: Sha256::digest(&text).into(),
            checked: validate(&text),
            text,
        })
    }
}

/// Stores the list if the node sent one. Otherwise reuses the same list of another node, if stored.
pub async fn apply(
    node_tx: &mut NodeTransaction<'_>,
    list: Option<PackageList>,
) -> Result<(), Status> {
    let Some(reported) = node_tx.node.reported_packages() else {
        return Ok(());
    };
    if node_tx.node.packages_digest == Some(reported) {
        return Ok(());
    }
    let (tx, now) = (&node_tx.tx, node_tx.now);
    // If packages changed after the list was made, the digest differs and the list is requested
    // again.
    if let Some(list) = list.filter(|list| list.digest == reported) {
        list.checked.map_err(status::from_invalid)?;
        let put = contents::insert_if_missing(tx, &reported, &list.text, now).await;
        if put.map_err(status::from_store_error)? {
            node_tx.charge(LimitedAmount::PackageLists, 1).await?;
        }
        node_tx.node.packages_digest = Some(reported);
    } else if contents::touch(tx, &reported, now).await.map_err(status::from_store_error)? {
        node_tx.node.packages_digest = Some(reported);
    }
    Ok(())
}

fn validate(text: &str) -> Result<(), Invalid> {
    let bad = |message: String| Invalid::new("packages", message);
    if text.len() > MAX_LIST_BYTES {
        return Err(bad(format!("longer than {MAX_LIST_BYTES} bytes")));
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
    fn only_a_package_list_is_stored() {
        let good = r#"{"repo":[{"name":"apt","version":"2.6.1","architecture":"amd64"}]}"#;
        assert_eq!(validate(good), Ok(()));
        assert_eq!(validate(r#"{"repo":[]}"#), Ok(()));
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"repo":[{"name":"apt"}]}"#,
            r#"{"repo":[{"name":1,"version":""}]}"#,
        ] {
            assert!(validate(bad).is_err(), "{bad}");
        }
        let many = vec![r#"{"name":"a","version":"1"}"#; MAX_PACKAGES + 1].join(",");
        assert!(validate(&format!(r#"{{"repo":[{many}]}}"#)).is_err());
        let long = format!(r#"{{"repo":[],"x":"{}"}}"#, "y".repeat(MAX_LIST_BYTES));
        assert!(validate(&long).is_err());
    }
}
