//! The detail of a sample: two JSON formats, or plain text.

use std::fmt;
use std::marker::PhantomData;
use std::sync::OnceLock;

use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::package::{ObservedPackage, PackageChange};
use crate::run::{Failure, FailureKind};
use crate::text;

/// The detail of a sample as the node sent it. A node may send megabytes, so the digest and the content are computed only
/// once.
#[derive(Clone, Debug, Default)]
pub struct SampleDetail {
    raw: String,
    digest: OnceLock<String>,
    content: OnceLock<Box<Detail>>,
}

impl SampleDetail {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Computes the digest and the content, so that later uses take no time.
    pub fn prepare(&self) {
        self.digest();
        self.content();
    }

    /// Whether the agent skips updates because its operating system is of another kind: its fixed text for that.
    pub(super) fn reports_skip(&self) -> bool {
        self.raw.starts_with("skipping ") && self.raw.contains(" update request on ")
    }

    pub(super) fn digest(&self) -> &str {
        self.digest.get_or_init(|| digest(&self.raw))
    }

    pub(super) fn content(&self) -> &Detail {
        self.content.get_or_init(|| Box::new(Detail::parse(&self.raw)))
    }
}

impl From<String> for SampleDetail {
    fn from(raw: String) -> Self {
        Self { raw, ..Self::default() }
    }
}

impl From<&str> for SampleDetail {
    fn from(raw: &str) -> Self {
        raw.to_owned().into()
    }
}

impl PartialEq for SampleDetail {
    fn eq(&self, other: &Self) -> bool {
        self.raw == other.raw
    }
}

impl Eq for SampleDetail {}

/// Distinguishes texts; not for secrets (64-bit FNV-1a and the length).
fn digest(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}-{}", text.len())
}

/// A parsed detail of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Packages that the detail names.
    pub packages: Vec<PackageChange>,
    /// Number of packages that were updated or installed, including those beyond the stored limit.
    pub changed_count: usize,
    /// Failure that the detail explains.
    pub failure: Option<Failure>,
    /// The raw text, cut to `MAX_DETAIL_BYTES`.
    pub text: String,
    /// Whether a part of the detail was dropped.
    pub is_cut: bool,
}

/// Maximum stored size of a detail, in bytes.
pub const MAX_DETAIL_BYTES: usize = 100_000;

/// Maximum number of packages that are read from a detail.
const MAX_PACKAGES: usize = 10_000;

/// Maximum size of a text of a package and of the reason of a failure, in bytes.
const MAX_TEXT_BYTES: usize = 256;
const MAX_REASON_BYTES: usize = 4_096;

/// Reason of a failure that the node did not explain.
const NO_REASON: &str = "the node gave no reason";

#[derive(Deserialize)]
struct Document {
    /// The format that EIM's server accepts.
    update_log: Option<BoundedLog<PackageEntry>>,
    /// The format that EIM's agents write.
    #[serde(rename = "UpdateLog")]
    agent_log: Option<BoundedLog<AgentEntry>>,
}

/// An entry of the server's format: one package.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PackageEntry {
    package_name: String,
    status: String,
    version: String,
    failure_reason: String,
    failure_log: String,
}

/// An entry of the agents' format: one update.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AgentEntry {
    #[serde(rename = "StatusDetail.Status")]
    status: String,
    #[serde(rename = "FailureReason")]
    failure_reason: String,
}

impl Detail {
    /// Parses a detail. Text in neither format is stored verbatim.
    #[must_use]
    pub fn parse(raw: &str) -> Self {
        let full_text = text::storable(raw);
        let mut detail = Self {
            text: text::cut(&full_text, MAX_DETAIL_BYTES),
            is_cut: MAX_DETAIL_BYTES < full_text.len(),
            ..Self::default()
        };
        match serde_json::from_str::<Document>(raw) {
            Ok(document) if document.is_recognised() => detail.apply_document(document),
            _ => detail.failure = failure_from_text(raw),
        }
        detail
    }

    /// The explained failure, otherwise one without a reason.
    #[must_use]
    pub fn failure(&self) -> Failure {
        self.failure.clone().unwrap_or_else(|| Failure::unexplained(NO_REASON))
    }

    /// Whether the detail names the kind of a failure, so it cannot belong to a successful update.
    #[must_use]
    pub fn names_failure_kind(&self) -> bool {
        let kind = self.failure.as_ref().map(|failure| failure.kind);
        kind.is_some_and(|kind| kind != FailureKind::Unspecified)
    }

    fn apply_document(&mut self, document: Document) {
        let entries = document.update_log.unwrap_or_default();
        self.is_cut |= entries.stored.len() < entries.count;
        self.changed_count = entries.changed_count;
        self.failure = entries.failure;
        let packages = entries.stored.into_iter();
        let packages = packages.filter(|entry| !entry.package_name.is_empty());
        self.packages = packages.map(PackageEntry::into_change).collect();
        let agent_failure = document.agent_log.and_then(|log| log.failure);
        self.failure = self.failure.take().or(agent_failure);
    }
}

impl Document {
    const fn is_recognised(&self) -> bool {
        self.update_log.is_some() || self.agent_log.is_some()
    }
}

impl Failure {
    fn unexplained(reason: &str) -> Self {
        Self { kind: FailureKind::Unspecified, reason: reason.to_owned() }
    }
}

/// What an entry contributes to the summary of its log.
trait LogEntry {
    /// Whether the entry reports an updated or installed package.
    fn is_change(&self) -> bool;
    /// The failure that the entry reports.
    fn failure(&self) -> Option<Failure>;
}

impl LogEntry for PackageEntry {
    fn is_change(&self) -> bool {
        self.status == "installed"
    }

    fn failure(&self) -> Option<Failure> {
        match self.status.as_str() {
            "failed" => Some(parse_failure(&self.failure_reason, &self.failure_log)),
            "rolledback" => {
                let mut failure = parse_failure(&self.failure_reason, &self.failure_log);
                if failure.reason == NO_REASON {
                    "it was rolled back".clone_into(&mut failure.reason);
                }
                Some(failure)
            }
            _ => None,
        }
    }
}

impl LogEntry for AgentEntry {
    fn is_change(&self) -> bool {
        false
    }

    fn failure(&self) -> Option<Failure> {
        let failed = self.status.eq_ignore_ascii_case("fail") || !self.failure_reason.is_empty();
        failed.then(|| parse_failure(&self.failure_reason, ""))
    }
}

impl PackageEntry {
    fn into_change(self) -> PackageChange {
        let short = |text: &str| text::cut(&text::storable(text), MAX_TEXT_BYTES);
        let version = Some(short(&self.version)).filter(|version| !version.is_empty());
        let reported = ObservedPackage { version: version.clone(), state: short(&self.status) };
        PackageChange {
            name: short(&self.package_name),
            architecture: String::new(),
            before: None,
            desired: version,
            observed: Some(reported),
            ..PackageChange::default()
        }
    }
}

/// The first entries of a log and a summary of all of them. A node may send millions.
struct BoundedLog<T> {
    stored: Vec<T>,
    count: usize,
    changed_count: usize,
    failure: Option<Failure>,
}

impl<T> Default for BoundedLog<T> {
    fn default() -> Self {
        Self { stored: Vec::new(), count: 0, changed_count: 0, failure: None }
    }
}

impl<'de, T: DeserializeOwned + LogEntry> Deserialize<'de> for BoundedLog<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedLogVisitor(PhantomData))
    }
}

struct BoundedLogVisitor<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned + LogEntry> Visitor<'de> for BoundedLogVisitor<T> {
    type Value = BoundedLog<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<BoundedLog<T>, A::Error> {
        let mut all = BoundedLog::default();
        while let Some(entry) = entries.next_element::<T>()? {
            all.count += 1;
            all.changed_count += usize::from(entry.is_change());
            all.failure = all.failure.take().or_else(|| entry.failure());
            if all.stored.len() < MAX_PACKAGES {
                all.stored.push(entry);
            }
        }
        Ok(all)
    }
}

/// Maps the reasons of EIM's agents. EIM's server does not know the reason `updatetool`.
fn parse_failure(reason: &str, log: &str) -> Failure {
    let kind = match reason.to_ascii_lowercase().as_str() {
        "download" | "rsauthentication" => FailureKind::Download,
        "insufficientstorage" => FailureKind::Storage,
        "signaturecheck" => FailureKind::Signature,
        "utwrite" | "utbootconfiguration" | "updatetool" | "inbm" | "installation" => {
            FailureKind::Apply
        }
        "bootloader" => FailureKind::Reboot,
        "criticalservices" | "oscommit" => FailureKind::Verify,
        _ => FailureKind::Unspecified,
    };
    let short = |text: &str| text::storable(&text::cut(text, MAX_REASON_BYTES));
    let reason = match (reason, log) {
        ("" | "nofailure", "") => NO_REASON.to_owned(),
        (reason, "") => reason.to_owned(),
        ("" | "nofailure", log) => short(log),
        (reason, log) => format!("{}: {}", short(reason), short(log)),
    };
    Failure { kind, reason: text::cut(&short(&reason), MAX_REASON_BYTES) }
}

/// A failed download reports its error as plain text.
fn failure_from_text(raw: &str) -> Option<Failure> {
    if raw.is_empty() {
        return None;
    }
    let kind = if raw.starts_with("cannot download") {
        FailureKind::Download
    } else {
        FailureKind::Unspecified
    };
    let reason = text::cut(&text::storable(&text::cut(raw, MAX_REASON_BYTES)), MAX_REASON_BYTES);
    Some(Failure { kind, reason })
}
