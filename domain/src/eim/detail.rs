//! The detail of a sample: two dialects of JSON, or plain text (southbound section 1.9).

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::package::{FoundPackage, PackageChange};
use crate::run::{Failure, FailureKind};
use crate::text;

/// What the detail of a sample says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// The packages that were touched, where it names any.
    pub packages: Vec<PackageChange>,
    /// How many packages it says were updated or installed, kept ones or not.
    pub changed: usize,
    /// Why it failed, where it says so.
    pub failure: Option<Failure>,
    /// The text itself, cut to what a run can keep.
    pub text: String,
    /// Whether anything of it could not be kept.
    pub is_cut: bool,
}

/// How much of a detail a run keeps, in bytes (northbound section 1.3).
pub const MAX_DETAIL: usize = 100_000;

/// The most packages that are taken from a detail.
const MAX_PACKAGES: usize = 10_000;

/// The longest text of a package, and the longest reason of a failure, in bytes.
const MAX_TEXT: usize = 256;
const MAX_REASON: usize = 4_096;

/// What is said of a failure that nobody explained.
const NO_REASON: &str = "the node gave no reason";

#[derive(Deserialize)]
struct Document {
    /// The dialect that the ancestor's server accepts.
    update_log: Option<Bounded<Entry>>,
    /// The dialect that its agents write.
    #[serde(rename = "UpdateLog")]
    agent_log: Option<Bounded<AgentEntry>>,
}

/// An entry of the dialect that the server accepts: one package.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    package_name: String,
    status: String,
    version: String,
    failure_reason: String,
    failure_log: String,
}

/// An entry of the dialect that the agents write: one update.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AgentEntry {
    #[serde(rename = "StatusDetail.Status")]
    status: String,
    #[serde(rename = "FailureReason")]
    failure_reason: String,
}

impl Detail {
    /// Reads a detail. What is neither dialect is kept as text.
    #[must_use]
    pub fn read(raw: &str) -> Self {
        let whole = text::storable(raw);
        let mut detail = Self {
            text: text::cut(&whole, MAX_DETAIL),
            is_cut: MAX_DETAIL < whole.len(),
            ..Self::default()
        };
        match serde_json::from_str::<Document>(raw) {
            Ok(document) if document.is_known() => detail.take(document),
            _ => detail.failure = plain_failure(raw),
        }
        detail
    }

    /// Why it failed: what the detail says, else its text.
    #[must_use]
    pub fn failure(&self) -> Failure {
        self.failure
            .clone()
            .unwrap_or_else(|| Failure::unexplained(NO_REASON))
    }

    /// Whether it names the kind of a failure, so that it cannot be the words of an update that went well.
    #[must_use]
    pub fn explains_a_failure(&self) -> bool {
        let kind = self.failure.as_ref().map(|failure| failure.kind);
        kind.is_some_and(|kind| kind != FailureKind::Unspecified)
    }

    fn take(&mut self, document: Document) {
        let entries = document.update_log.unwrap_or_default();
        self.is_cut |= entries.kept.len() < entries.count;
        self.changed = entries.changed;
        self.failure = entries.failure;
        let named = entries.kept.into_iter();
        let named = named.filter(|entry| !entry.package_name.is_empty());
        self.packages = named.map(Entry::into_change).collect();
        let told = document.agent_log.and_then(|log| log.failure);
        self.failure = self.failure.take().or(told);
    }
}

impl Document {
    const fn is_known(&self) -> bool {
        self.update_log.is_some() || self.agent_log.is_some()
    }
}

impl Failure {
    fn unexplained(reason: &str) -> Self {
        Self {
            kind: FailureKind::Unspecified,
            reason: reason.to_owned(),
        }
    }
}

/// What an entry contributes besides itself.
trait Tells {
    /// Whether it says that a package was updated or installed.
    fn is_change(&self) -> bool;
    /// Why it failed, if it did.
    fn failure(&self) -> Option<Failure>;
}

impl Tells for Entry {
    fn is_change(&self) -> bool {
        self.status == "installed"
    }

    fn failure(&self) -> Option<Failure> {
        match self.status.as_str() {
            "failed" => Some(failure(&self.failure_reason, &self.failure_log)),
            "rolledback" => {
                let mut failure = failure(&self.failure_reason, &self.failure_log);
                if failure.reason == NO_REASON {
                    "it was rolled back".clone_into(&mut failure.reason);
                }
                Some(failure)
            }
            _ => None,
        }
    }
}

impl Tells for AgentEntry {
    fn is_change(&self) -> bool {
        false
    }

    fn failure(&self) -> Option<Failure> {
        let failed = self.status.eq_ignore_ascii_case("fail") || !self.failure_reason.is_empty();
        failed.then(|| failure(&self.failure_reason, ""))
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

/// The entries of a log: the first ones themselves, of all of them what they tell. A node may send millions.
struct Bounded<T> {
    kept: Vec<T>,
    count: usize,
    changed: usize,
    failure: Option<Failure>,
}

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            count: 0,
            changed: 0,
            failure: None,
        }
    }
}

impl<'de, T: DeserializeOwned + Tells> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Entries(PhantomData))
    }
}

struct Entries<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned + Tells> Visitor<'de> for Entries<T> {
    type Value = Bounded<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Bounded<T>, A::Error> {
        let mut all = Bounded::default();
        while let Some(entry) = entries.next_element::<T>()? {
            all.count += 1;
            all.changed += usize::from(entry.is_change());
            all.failure = all.failure.take().or_else(|| entry.failure());
            if all.kept.len() < MAX_PACKAGES {
                all.kept.push(entry);
            }
        }
        Ok(all)
    }
}

/// The reasons that the ancestor's agents give; `updatetool` is one that its server does not know.
fn failure(reason: &str, log: &str) -> Failure {
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
    let short = |text: &str| text::storable(&text::cut(text, MAX_REASON));
    let reason = match (reason, log) {
        ("" | "nofailure", "") => NO_REASON.to_owned(),
        (reason, "") => reason.to_owned(),
        ("" | "nofailure", log) => short(log),
        (reason, log) => format!("{}: {}", short(reason), short(log)),
    };
    Failure {
        kind,
        reason: text::cut(&short(&reason), MAX_REASON),
    }
}

/// Plain text is all that a download's error comes with.
fn plain_failure(raw: &str) -> Option<Failure> {
    if raw.is_empty() {
        return None;
    }
    let kind = if raw.starts_with("cannot download") {
        FailureKind::Download
    } else {
        FailureKind::Unspecified
    };
    let reason = text::cut(&text::storable(&text::cut(raw, MAX_REASON)), MAX_REASON);
    Some(Failure { kind, reason })
}
