//! Tokens that are revoked before they expire: single tokens, and all tokens of a subject that were
//! issued up to some time.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::roles::Caller;

/// The revoked tokens. Every check is a look-up in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    tokens: HashSet<Uuid>,
    /// Per subject: issuers, and the time up to which the tokens of the subject are revoked.
    subjects: HashMap<String, Vec<(String, DateTime<Utc>)>>,
}

/// All tokens of a subject that were issued up to some time are revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedSubject {
    /// Issuer of the tokens; empty for tokens that we issued.
    pub issuer: String,
    pub subject: String,
    /// Tokens of this second and of earlier ones are revoked.
    pub revoked_until: DateTime<Utc>,
}

impl Revocations {
    /// Revokes tokens by their ids, and tokens of subjects.
    #[must_use]
    pub fn new(
        tokens: impl IntoIterator<Item = Uuid>,
        subjects: impl IntoIterator<Item = RevokedSubject>,
    ) -> Self {
        let mut revocations =
            Self { tokens: tokens.into_iter().collect(), subjects: HashMap::new() };
        for revoked in subjects {
            let issuers = revocations.subjects.entry(revoked.subject).or_default();
            issuers.push((revoked.issuer, revoked.revoked_until));
        }
        revocations
    }

    /// Whether the token of the caller is revoked. A token that does not say when it was issued is
    /// revoked with every other token of its subject.
    pub(crate) fn contain(&self, caller: &Caller) -> bool {
        // Only the ids of our own tokens are unique.
        let id = caller.token_id.filter(|_| caller.issued_by_us);
        id.is_some_and(|id| self.tokens.contains(&id)) || self.contain_subject(caller)
    }

    fn contain_subject(&self, caller: &Caller) -> bool {
        let Some(issuers) = self.subjects.get(caller.subject.as_str()) else {
            return false;
        };
        let issuer = if caller.issued_by_us { "" } else { &*caller.issuer };
        // Tokens count in whole seconds.
        let is_revoked = |until: DateTime<Utc>| {
            caller.issued_at.is_none_or(|at| at.timestamp() <= until.timestamp())
        };
        issuers.iter().any(|(of, until)| of == issuer && is_revoked(*until))
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::roles::Role;

    const NOON: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();

    fn caller(issued_by_us: bool, issued_at: Option<DateTime<Utc>>) -> Caller {
        Caller {
            issued_by_us,
            issuer: "https://login.example".into(),
            token_id: Some(Uuid::from_u128(1)),
            issued_at,
            ..Caller::new("alice", &[Role::Administrator], NOON + TimeDelta::hours(1))
        }
    }

    fn revoked(issuer: &str, subject: &str) -> RevokedSubject {
        RevokedSubject {
            issuer: issuer.to_owned(),
            subject: subject.to_owned(),
            revoked_until: NOON + TimeDelta::milliseconds(700),
        }
    }

    #[test]
    fn the_id_of_a_token_of_another_issuer_is_not_one_of_ours() {
        let revocations = Revocations::new([Uuid::from_u128(1)], []);
        assert!(revocations.contain(&caller(true, Some(NOON))));
        assert!(!revocations.contain(&caller(false, Some(NOON))));
        let other = Revocations::new([Uuid::from_u128(2)], []);
        assert!(!other.contain(&caller(true, Some(NOON))));
    }

    #[test]
    fn a_subject_loses_the_tokens_that_were_issued_up_to_the_revocation() {
        let revocations = Revocations::new([], [revoked("", "alice")]);
        let second = TimeDelta::seconds(1);
        for (issued_at, expected) in [
            (Some(NOON - second), true),
            (Some(NOON), true),
            (Some(NOON + second), false),
            (None, true),
        ] {
            assert_eq!(revocations.contain(&caller(true, issued_at)), expected, "{issued_at:?}");
        }
    }

    #[test]
    fn a_subject_is_revoked_only_for_its_issuer() {
        let theirs = Revocations::new([], [revoked("https://login.example", "alice")]);
        assert!(theirs.contain(&caller(false, Some(NOON))));
        assert!(!theirs.contain(&caller(true, Some(NOON))));
        let ours = Revocations::new([], [revoked("", "alice"), revoked("", "bob")]);
        assert!(!ours.contain(&caller(false, Some(NOON))));
        let other = Revocations::new([], [revoked("", "bob")]);
        assert!(!other.contain(&caller(true, Some(NOON))));
    }
}
