//! Version 1 of the encoding of changes and seals. A digest is the SHA-256 of a sequence of values. A value is a byte 1, its
//! length as eight bytes with the highest first, and its bytes; an absent value is a byte 0. Numbers have eight bytes, with
//! the highest first, times are numbers of microseconds since 1970. Sealed digests depend on this encoding, so a change of it
//! is a new version: the program then verifies a seal by the version that the seal names.

use sha2::{Digest, Sha256};

use super::{ChangeClass, RecordedChange, Seal, SealDigest, SealedChanges};

/// The first value of a digest of changes.
const CHANGES_TAG: &str = "evenkeel changes 1";

/// The first value of a digest of a seal.
const SEAL_TAG: &str = "evenkeel seal 1";

struct ValueHasher(Sha256);

impl ValueHasher {
    fn new(tag: &str) -> Self {
        let mut hasher = Self(Sha256::new());
        hasher.add_text(Some(tag));
        hasher
    }

    fn add_bytes(&mut self, value: Option<&[u8]>) {
        let Some(value) = value else {
            self.0.update([0_u8]);
            return;
        };
        let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
        self.0.update([1_u8]);
        self.0.update(length.to_be_bytes());
        self.0.update(value);
    }

    fn add_text(&mut self, value: Option<&str>) {
        self.add_bytes(value.map(str::as_bytes));
    }

    fn add_number(&mut self, value: i64) {
        self.add_bytes(Some(&value.to_be_bytes()));
    }

    fn add_optional_number(&mut self, value: Option<i32>) {
        match value {
            Some(value) => self.add_number(value.into()),
            None => self.add_bytes(None),
        }
    }

    fn finish(self) -> SealDigest {
        SealDigest(self.0.finalize().into())
    }
}

/// The number and the digest of the changes of a class, in the order of their numbers.
pub(super) fn seal_changes(changes: &[RecordedChange], class: ChangeClass) -> SealedChanges {
    let mut hasher = ValueHasher::new(CHANGES_TAG);
    let mut count: u32 = 0;
    for change in changes.iter().filter(|change| change.class() == class) {
        add_change(&mut hasher, change);
        count = count.saturating_add(1);
    }
    SealedChanges { count, digest: hasher.finish() }
}

fn add_change(hasher: &mut ValueHasher, change: &RecordedChange) {
    hasher.add_number(change.number);
    hasher.add_number(change.transaction);
    hasher.add_number(change.at.timestamp_micros());
    hasher.add_text(Some(&change.kind));
    hasher.add_number(change.id.into());
    hasher.add_text(Some(&change.operation));
    hasher.add_text(change.scope_level.as_deref());
    hasher.add_optional_number(change.scope_id);
    hasher.add_text(change.actor.as_deref());
    hasher.add_text(change.request_id.as_deref());
    hasher.add_text(change.client_address.as_deref());
    hasher.add_text(change.before.as_deref());
    hasher.add_text(change.after.as_deref());
}

/// The digest of everything that a seal states.
pub(super) fn digest_seal(seal: &Seal) -> SealDigest {
    let mut hasher = ValueHasher::new(SEAL_TAG);
    hasher.add_bytes(Some(seal.tenant.uuid().as_bytes()));
    hasher.add_number(seal.number);
    hasher.add_number(seal.encoding.into());
    hasher.add_number(seal.above);
    hasher.add_number(seal.up_to);
    for changes in [seal.by_users, seal.by_server] {
        hasher.add_number(changes.count.into());
        hasher.add_bytes(Some(changes.digest.as_bytes()));
    }
    hasher.add_number(seal.first_at.timestamp_micros());
    hasher.add_number(seal.last_at.timestamp_micros());
    hasher.add_number(seal.sealed_at.timestamp_micros());
    hasher.add_bytes(seal.previous.as_ref().map(|digest| &digest.as_bytes()[..]));
    hasher.finish()
}
