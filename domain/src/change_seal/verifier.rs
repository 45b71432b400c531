//! Compares the changes of a project with its seals.

use std::mem;

use super::encoding::{digest_seal, seal_changes};
use super::{
    CURRENT_ENCODING, ChainHead, ChangeClass, ChangeRetention, ChangeSpan, RecordedChange, Seal,
};
use crate::Time;

/// What a verification compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerificationScope {
    /// Changes that were sealed before are not compared with their seals. The seals that are left are checked all the same.
    pub since: Option<Time>,
    /// Sealed changes that are older than this and missing count as removed by the retention.
    pub retention: ChangeRetention,
}

/// A difference between the log and its seals.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainFault {
    /// Numbers of seals are not consecutive.
    #[error(
        "seal {found} follows seal {before}: the seals between them are missing, or seals were moved"
    )]
    MissingSeals { before: i64, found: i64 },
    #[error("seal {seal} was altered: its content does not have its digest")]
    AlteredSeal { seal: i64 },
    /// A seal names another seal than the one before it.
    #[error("seal {seal} does not continue seal {before}: one of them was replaced")]
    BrokenChain { seal: i64, before: i64 },
    #[error(
        "seal {seal} has the encoding {encoding}, which this program does not know: use a newer release"
    )]
    UnknownEncoding { seal: i64, encoding: i16 },
    #[error("seal {seal} covers {expected} changes of {class} ({span}), but the log has {found}")]
    WrongCount { seal: i64, class: ChangeClass, expected: u32, found: u32, span: ChangeSpan },
    #[error("changes of {class} that seal {seal} covers were altered ({span})")]
    AlteredChanges { seal: i64, class: ChangeClass, span: ChangeSpan },
    /// The range of numbers is sealed, but no seal of the project covers the changes.
    #[error(
        "no seal covers {0}, but later changes are sealed: they were added later, or their seal was removed"
    )]
    ChangesWithoutSeal(ChangeSpan),
}

/// The result of a verification of one project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainReport {
    /// Number of seals.
    pub seals: u64,
    /// Number of changes that are as they were sealed.
    pub unaltered: u64,
    /// Number of sealed changes that were not compared.
    pub skipped: u64,
    /// Changes that the retention removed. The times are those of the seals that cover them.
    pub removed: Option<ChangeSpan>,
    /// Number of seals at the beginning of the chain that the retention removed.
    pub removed_seals: u64,
    pub faults: Vec<ChainFault>,
    /// The newest seal.
    pub newest: Option<Seal>,
}

/// Verifies the chain of one project: takes its changes and its seals one after the other.
#[derive(Debug)]
pub struct ChainVerifier {
    scope: VerificationScope,
    head: Option<ChainHead>,
    /// Changes that no seal has covered so far, in the order of their numbers.
    pending: Vec<RecordedChange>,
    report: ChainReport,
}

impl ChainVerifier {
    #[must_use]
    pub fn new(scope: VerificationScope) -> Self {
        Self { scope, head: None, pending: Vec::new(), report: ChainReport::default() }
    }

    /// Adds a change of the log, in the order of the numbers, before the seal that covers it.
    pub fn add_change(&mut self, change: RecordedChange) {
        self.pending.push(change);
    }

    /// Checks the next seal of the project. Its changes were read at `now` or before: the retention may have removed changes
    /// since the verification began.
    pub fn check_seal(&mut self, seal: Seal, now: Time) {
        let end = self.pending.partition_point(|change| change.number <= seal.up_to);
        let later = self.pending.split_off(end);
        let mut covered = mem::replace(&mut self.pending, later);
        let start = covered.partition_point(|change| change.number <= seal.above);
        let before: Vec<RecordedChange> = covered.drain(..start).collect();
        self.add_uncovered(&before);
        self.report.seals += 1;
        self.check_link(&seal, now);
        self.head = Some(seal.head());
        if seal.encoding != CURRENT_ENCODING {
            let (seal, encoding) = (seal.number, seal.encoding);
            self.report.faults.push(ChainFault::UnknownEncoding { seal, encoding });
        } else if digest_seal(&seal) != seal.digest {
            self.report.faults.push(ChainFault::AlteredSeal { seal: seal.number });
        } else if self.scope.since.is_some_and(|since| seal.sealed_at < since) {
            self.report.skipped += seal.count();
        } else {
            for class in [ChangeClass::Users, ChangeClass::Server] {
                let removed_before = self.scope.retention.removed_before(class, now);
                let may_be_removed = removed_before.is_some_and(|before| seal.sealed_at < before);
                self.check_changes((&seal, class), &covered, may_be_removed);
            }
        }
        self.report.newest = Some(seal);
    }

    /// The report, once all changes and seals were checked.
    #[must_use]
    pub fn finish(mut self) -> ChainReport {
        let left = mem::take(&mut self.pending);
        self.add_uncovered(&left);
        self.report
    }

    /// Checks that a seal continues the one before it. The first one may have any number if it is old: the retention removes
    /// the seals before it, and keeps one that is older than all retentions. Its digest covers its time. A retention may have
    /// been shorter before `since`.
    fn check_link(&mut self, seal: &Seal, now: Time) {
        let removed_before = self.scope.retention.seals_removed_before(now);
        let is_old =
            [removed_before, self.scope.since].iter().flatten().any(|time| seal.sealed_at < *time);
        if self.head.is_none() && seal.number > 1 && seal.previous.is_some() && is_old {
            self.report.removed_seals = seal.number.abs_diff(1);
            return;
        }
        let before = self.head.map_or(0, |head| head.number);
        let expected = self.head.map(|head| head.digest);
        let expected_above = self.head.map_or(0, |head| head.up_to);
        if seal.number != before + 1 {
            let found = seal.number;
            self.report.faults.push(ChainFault::MissingSeals { before, found });
        } else if seal.previous != expected || seal.above != expected_above {
            let seal = seal.number;
            self.report.faults.push(ChainFault::BrokenChain { seal, before });
        }
    }

    /// Compares the changes of a class with the seal that covers them. The retention removes all changes of a class that
    /// a seal covers at once.
    fn check_changes(
        &mut self,
        (seal, class): (&Seal, ChangeClass),
        covered: &[RecordedChange],
        may_be_removed: bool,
    ) {
        let (sealed, found) = (seal.sealed_changes(class), seal_changes(covered, class));
        if sealed == found {
            self.report.unaltered += u64::from(found.count);
            return;
        }
        let count = u64::from(sealed.count);
        let span = ChangeSpan { count, first_at: seal.first_at, last_at: seal.last_at };
        if found.count == 0 && may_be_removed {
            let removed = self.report.removed.map_or(span, |removed| removed.join(span));
            self.report.removed = Some(removed);
            return;
        }
        let number = seal.number;
        self.report.faults.push(if sealed.count == found.count {
            ChainFault::AlteredChanges { seal: number, class, span }
        } else {
            let (expected, found) = (sealed.count, found.count);
            ChainFault::WrongCount { seal: number, class, expected, found, span }
        });
    }

    fn add_uncovered(&mut self, changes: &[RecordedChange]) {
        if let Some(span) = ChangeSpan::from_changes(changes) {
            self.report.faults.push(ChainFault::ChangesWithoutSeal(span));
        }
    }
}
