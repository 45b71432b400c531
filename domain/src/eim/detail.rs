//! The detail of a sample: two dialects of JSON, or plain text (southbound section 1.9).

use serde::Deserialize;

use crate::package::{FoundPackage, PackageChange};
use crate::run::{Failure, FailureKind};
use crate::text;

/// What the detail of a sample says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The packages that were touched, where it names any.
    pub packages: Vec<PackageChange>,
    /// Why it failed, where it says so.
    pub failure: Option<Failure>,
    /// The text itself, cut to what a run can keep.
    pub text: String,
}

/// How much of a detail a run keeps, in bytes (northbound section 1.3).
pub const MAX_DETAIL: usize = 100_000;

/// The most packages that are taken from a detail, and the longest text of one, in bytes.
const MAX_PACKAGES: usize = 10_000;
const MAX_TEXT: usize = 256;

#[derive(Deserialize)]
struct Document {
    /// The dialect that the ancestor's server accepts.
    update_log: Option<Vec<Entry>>,
    /// The dialect that its agents write.
    #[serde(rename = "UpdateLog")]
    agent_log: Option<Vec<AgentEntry>>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Entry {
    package_name: String,
    status: String,
    version: String,
    failure_reason: String,
    failure_log: String,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct AgentEntry {
    #[serde(rename = "FailureReason")]
    failure_reason: String,
}

impl Detail {
    /// Reads a detail. What is neither dialect is kept as text.
    #[must_use]
    pub fn read(raw: &str) -> Self {
        let mut detail = Self {
            packages: Vec::new(),
            failure: None,
            text: text::cut(raw, MAX_DETAIL),
        };
        let Ok(document) = serde_json::from_str::<Document>(raw) else {
            return detail;
        };
        let entries = document.update_log.unwrap_or_default();
        for entry in entries.into_iter().take(MAX_PACKAGES) {
            if entry.status == "failed" && detail.failure.is_none() {
                detail.failure = Some(failure(&entry.failure_reason, &entry.failure_log));
            }
            if !entry.package_name.is_empty() {
                detail.packages.push(entry.into_change());
            }
        }
        for entry in document.agent_log.unwrap_or_default() {
            if !entry.failure_reason.is_empty() && detail.failure.is_none() {
                detail.failure = Some(failure(&entry.failure_reason, ""));
            }
        }
        detail
    }

    /// Why it failed: what the detail says, else its text.
    #[must_use]
    pub fn failure(&self) -> Failure {
        self.failure.clone().unwrap_or_else(|| Failure {
            kind: FailureKind::Unspecified,
            reason: match self.text.as_str() {
                "" => "the node gave no reason".to_owned(),
                text => text::cut(text, 4_096),
            },
        })
    }
}

impl Entry {
    fn into_change(self) -> PackageChange {
        let short = |text: &str| text::cut(&text::storable(text), MAX_TEXT);
        let version = Some(short(&self.version)).filter(|version| !version.is_empty());
        let found = FoundPackage {
            version: version.clone(),
            state: short(&self.status),
        };
        PackageChange {
            name: short(&self.package_name),
            architecture: String::new(),
            before: None,
            wanted: version,
            found: Some(found),
        }
    }
}

fn failure(reason: &str, log: &str) -> Failure {
    let kind = match reason.to_ascii_lowercase().as_str() {
        "download" | "rsauthentication" => FailureKind::Download,
        "insufficientstorage" => FailureKind::Storage,
        "signaturecheck" => FailureKind::Signature,
        "utwrite" | "utbootconfiguration" | "updatetool" | "inbm" => FailureKind::Apply,
        "bootloader" => FailureKind::Reboot,
        "criticalservices" | "oscommit" => FailureKind::Verify,
        _ => FailureKind::Unspecified,
    };
    let (reason, log) = (&text::storable(reason)[..], &text::storable(log)[..]);
    let reason = match (reason, log) {
        ("", "") => "the node gave no reason".to_owned(),
        (reason, "") => text::cut(reason, 4_096),
        ("", log) => text::cut(log, 4_096),
        (reason, log) => text::cut(&format!("{reason}: {log}"), 4_096),
    };
    Failure { kind, reason }
}
