//! Every kind of tampering, and what must not look like it.

use chrono::{DateTime, TimeDelta};
use uuid::Uuid;

use super::*;

const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

const TENANT: TenantId = TenantId::new(Uuid::from_u128(7));

fn change(number: i64) -> RecordedChange {
    RecordedChange {
        number,
        transaction: 500 + number / 2,
        at: NOON + TimeDelta::seconds(number),
        kind: "policy".into(),
        id: 5,
        operation: "update".into(),
        scope_level: Some("site".into()),
        scope_id: Some(9),
        actor: (number % 3 != 0).then(|| "erika".into()),
        request_id: Some("r1".into()),
        client_address: None,
        before: Some(r#"{"name": "a"}"#.into()),
        after: Some(r#"{"name": "b"}"#.into()),
    }
}

/// Changes a part of the log, as somebody with access to the database could.
type Forgery<T> = fn(&mut T);

/// The log and the seals of a project, as the database has them.
#[derive(Clone)]
struct StoredLog {
    changes: Vec<RecordedChange>,
    seals: Vec<Seal>,
}

/// Seals changes, four at a time.
fn seal_all(changes: &[RecordedChange]) -> Vec<Seal> {
    let mut seals: Vec<Seal> = Vec::new();
    for batch in changes.chunks(4) {
        let up_to = batch.last().expect("a change").number + 1;
        let head = seals.last().map(Seal::head);
        let sealed_at = NOON + TimeDelta::seconds(up_to);
        seals.extend(Seal::create((TENANT, head), batch, up_to, sealed_at));
    }
    seals
}

fn stored_log() -> StoredLog {
    // Numbers of other projects are between them.
    let changes: Vec<RecordedChange> = (1..=20).map(|n| change(n * 5)).collect();
    let seals = seal_all(&changes);
    assert_eq!(seals.len(), 5);
    StoredLog { changes, seals }
}

fn scope(retention: ChangeRetention) -> VerificationScope {
    VerificationScope { since: None, retention }
}

/// Verifies as the store does: the changes in the order of their numbers, and the seals by their positions.
fn verify(log: &StoredLog, scope: VerificationScope) -> ChainReport {
    let mut log = log.clone();
    log.changes.sort_by_key(|change| change.number);
    log.seals.sort_by_key(|seal| seal.up_to);
    let mut verifier = ChainVerifier::new(scope);
    let mut changes = log.changes.into_iter().peekable();
    for seal in log.seals {
        while let Some(change) = changes.next_if(|change| change.number <= seal.up_to) {
            verifier.add_change(change);
        }
        verifier.check_seal(seal, NOON + TimeDelta::days(1));
    }
    changes.for_each(|change| verifier.add_change(change));
    verifier.finish()
}

fn faults(change_log: impl FnOnce(&mut StoredLog)) -> Vec<ChainFault> {
    let mut log = stored_log();
    change_log(&mut log);
    verify(&log, scope(ChangeRetention::default())).faults
}

fn seals_named_in(faults: &[ChainFault]) -> Vec<i64> {
    let seal = |fault: &ChainFault| match fault {
        ChainFault::MissingSeals { found, .. } => Some(*found),
        ChainFault::AlteredSeal { seal }
        | ChainFault::BrokenChain { seal, .. }
        | ChainFault::UnknownEncoding { seal, .. }
        | ChainFault::WrongCount { seal, .. }
        | ChainFault::AlteredChanges { seal, .. } => Some(*seal),
        ChainFault::ChangesWithoutSeal(_) => None,
    };
    faults.iter().filter_map(seal).collect()
}

#[test]
fn an_untouched_log_has_no_faults() {
    let log = stored_log();
    let report = verify(&log, scope(ChangeRetention::default()));
    let expected = ChainReport {
        seals: 5,
        unaltered: 20,
        newest: log.seals.last().cloned(),
        ..ChainReport::default()
    };
    assert_eq!(report, expected);
}

/// The encoding must never change: stored seals depend on it. The digest was computed with another program from the
/// description in docs/design/change-log.md.
#[test]
fn the_encoding_is_the_documented_one() {
    let seal = Seal::create((TENANT, None), &[change(1), change(3)], 4, NOON).expect("a seal");
    assert_eq!(seal.by_users.digest.to_string(), USERS_DIGEST);
    assert_eq!(seal.by_server.digest.to_string(), SERVER_DIGEST);
    assert_eq!(seal.digest.to_string(), SEAL_DIGEST);
}

const USERS_DIGEST: &str = "9748e62c64c1177c8f38230e457b8f8445c689850743a21928cff16b71de512c";
const SERVER_DIGEST: &str = "c0460244cf4b7fbb17b3979b35a63c0fc6fc5fe31292fddfb2d5a1f0609f1a00";
const SEAL_DIGEST: &str = "546d984407ea7eabac8506043c99a7c4e12cda5fab4465889439a3c9f51f615a";

#[test]
fn a_change_of_any_column_is_found() {
    let forgeries: [(&str, Forgery<RecordedChange>); 13] = [
        ("number", |change| change.number += 1),
        ("transaction", |change| change.transaction += 1),
        ("at", |change| change.at += TimeDelta::microseconds(1)),
        ("kind", |change| change.kind.push('x')),
        ("id", |change| change.id += 1),
        ("operation", |change| change.operation = "delete".into()),
        ("scope_level", |change| change.scope_level = None),
        ("scope_id", |change| change.scope_id = Some(10)),
        ("actor", |change| change.actor = Some("mallory".into())),
        ("request_id", |change| change.request_id = None),
        ("client_address", |change| change.client_address = Some(String::new())),
        ("before", |change| change.before = None),
        ("after", |change| change.after = Some(r#"{"name": "c"}"#.into())),
    ];
    for (column, forge) in forgeries {
        let found = faults(|log| forge(&mut log.changes[9]));
        assert_eq!(found.len(), 1, "{column}: {found:?}");
        assert_eq!(seals_named_in(&found), [3], "{column}");
        assert!(matches!(found[0], ChainFault::AlteredChanges { .. }), "{column}: {found:?}");
    }
    // A change that passes for one of the server is missing among those of users.
    let found = faults(|log| log.changes[9].actor = None);
    assert_eq!(seals_named_in(&found), [3, 3], "{found:?}");
    // A text moves from one column to the next.
    let found = faults(|log| {
        log.changes[9].request_id = None;
        log.changes[9].client_address = Some("r1".into());
    });
    assert_eq!(seals_named_in(&found), [3], "{found:?}");
}

#[test]
fn deleted_added_and_exchanged_changes_are_found() {
    let cases: [(Forgery<StoredLog>, usize); 4] = [
        (|log| log.changes.retain(|change| change.number != 50), 1),
        (|log| log.changes.push(change(52)), 1),
        // Two of users and two of the server.
        (|log| log.changes.retain(|change| !(41..=60).contains(&change.number)), 2),
        (
            |log| {
                let (one, other) = (log.changes[9].number, log.changes[10].number);
                log.changes[9].number = other;
                log.changes[10].number = one;
            },
            1,
        ),
    ];
    for (tamper, expected) in cases {
        let found = faults(tamper);
        assert_eq!(found.len(), expected, "{found:?}");
        assert!(seals_named_in(&found).iter().all(|seal| *seal == 3), "{found:?}");
    }
}

#[test]
fn altered_missing_and_exchanged_seals_are_found() {
    let found = faults(|log| log.seals[2].by_users.count -= 1);
    assert_eq!(found, [ChainFault::AlteredSeal { seal: 3 }]);
    let found = faults(|log| log.seals[2].sealed_at += TimeDelta::days(1));
    assert_eq!(found, [ChainFault::AlteredSeal { seal: 3 }]);
    // The changes of a removed seal belong to none.
    let found = faults(|log| log.seals.retain(|seal| seal.number != 3));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        matches!(found[0], ChainFault::ChangesWithoutSeal(span) if span.count == 4),
        "{found:?}"
    );
    assert_eq!(found[1], ChainFault::MissingSeals { before: 2, found: 4 });
    let found = faults(|log| {
        let (one, other) = (log.seals[1].up_to, log.seals[2].up_to);
        log.seals[1].up_to = other;
        log.seals[2].up_to = one;
    });
    assert!(found.len() >= 3, "{found:?}");
    let found = faults(|log| log.seals[3].encoding = 2);
    assert_eq!(found, [ChainFault::UnknownEncoding { seal: 4, encoding: 2 }]);
}

/// Who alters a change and its seal must replace all later seals as well.
#[test]
fn a_seal_that_was_made_again_does_not_fit_the_next_one() {
    let found = faults(|log| {
        log.changes[9].actor = Some("mallory".into());
        log.seals[2] = seal_all(&log.changes)[2].clone();
    });
    assert_eq!(found, [ChainFault::BrokenChain { seal: 4, before: 3 }]);
}

#[test]
fn a_chain_that_was_made_again_has_none_of_the_old_digests() {
    let log = stored_log();
    let mut forged = log.clone();
    forged.changes[1].actor = Some("mallory".into());
    forged.seals = seal_all(&forged.changes);
    // By itself it is valid. Only a digest that was stored elsewhere shows the forgery.
    assert_eq!(verify(&forged, scope(ChangeRetention::default())).faults, []);
    for seal in log.seals {
        assert!(forged.seals.iter().all(|forged| forged.digest != seal.digest));
    }
}

/// The last seals and their changes may be missing together. Only a digest that was stored elsewhere shows it.
#[test]
fn a_removed_end_of_the_seals_is_found_by_its_changes() {
    let found = faults(|log| log.seals.truncate(3));
    assert!(
        matches!(found[..], [ChainFault::ChangesWithoutSeal(span)] if span.count == 8),
        "{found:?}"
    );
    let found = faults(|log| {
        log.seals.truncate(3);
        log.changes.truncate(12);
    });
    assert_eq!(found, []);
}

#[test]
fn the_retention_removes_all_old_changes_of_a_class_and_nothing_else() {
    let mut log = stored_log();
    let remove_class = |log: &mut StoredLog, class, seals: usize| {
        let end = log.seals[seals - 1].up_to;
        log.changes.retain(|change| change.class() != class || change.number > end);
    };
    remove_class(&mut log, ChangeClass::Server, 4);
    let half_a_day = Some(TimeDelta::hours(12));
    let short = ChangeRetention { by_users: None, by_server: half_a_day };
    let report = verify(&log, scope(short));
    assert_eq!(report.faults, []);
    let kept = u64::try_from(log.changes.len()).expect("a number");
    let gone = report.removed.map(|span| span.count);
    assert_eq!((report.unaltered, gone), (kept, Some(20 - kept)));
    // Not with a longer retention, and not for changes of users.
    let month = ChangeRetention { by_users: None, by_server: Some(TimeDelta::days(30)) };
    for retention in [ChangeRetention::default(), month] {
        assert_eq!(seals_named_in(&verify(&log, scope(retention)).faults), [1, 2, 3, 4]);
    }
    remove_class(&mut log, ChangeClass::Users, 2);
    assert_eq!(seals_named_in(&verify(&log, scope(short)).faults), [1, 2]);
    // The retention never removes only some of the changes that a seal covers.
    let both = ChangeRetention { by_users: half_a_day, by_server: half_a_day };
    let mut log = stored_log();
    log.changes.retain(|change| change.number != 45);
    assert_eq!(seals_named_in(&verify(&log, scope(both)).faults), [3]);
    let mut log = stored_log();
    log.changes.remove(0);
    assert_eq!(seals_named_in(&verify(&log, scope(both)).faults), [1]);
}

#[test]
fn the_retention_removes_seals_without_changes_but_keeps_an_old_one() {
    let mut log = stored_log();
    let [second, third] = [1, 2].map(|n: usize| log.seals[n].clone());
    log.changes.retain(|change| change.number > second.up_to);
    log.seals.remove(0);
    let age = |seal: &Seal, less: i64| {
        let age = NOON + TimeDelta::days(1) - seal.sealed_at - TimeDelta::microseconds(less);
        ChangeRetention { by_users: Some(age), by_server: Some(TimeDelta::hours(1)) }
    };
    let report = verify(&log, scope(age(&second, 1)));
    assert_eq!((report.faults, report.removed_seals, report.seals), (vec![], 1, 4));
    // The first seal that is left is too young, so the ones before it may have been as well.
    let report = verify(&log, scope(age(&second, 0)));
    assert_eq!(seals_named_in(&report.faults)[0], 2, "{report:?}");
    assert!(matches!(report.faults[0], ChainFault::MissingSeals { before: 0, found: 2 }));
    // Nothing shows what was removed before the time from which on the log is verified.
    let since = Some(second.sealed_at + TimeDelta::microseconds(1));
    let short = VerificationScope { since, ..scope(age(&second, 0)) };
    assert_eq!(verify(&log, short).faults, []);
    // All changes of users are kept, so all seals are.
    let retention = ChangeRetention { by_users: None, by_server: Some(TimeDelta::hours(1)) };
    assert!(!verify(&log, scope(retention)).faults.is_empty());
    // Only at the beginning of a chain.
    let mut log = stored_log();
    log.seals.retain(|seal| seal.number != third.number);
    log.changes.retain(|change| change.number <= second.up_to || change.number > third.up_to);
    let found = verify(&log, scope(age(&third, 1))).faults;
    assert_eq!(found, [ChainFault::MissingSeals { before: 2, found: 4 }]);
}

#[test]
fn changes_that_were_sealed_before_a_time_can_be_skipped() {
    let mut log = stored_log();
    log.changes.drain(..4);
    let since = Some(log.seals[1].sealed_at);
    let scope = VerificationScope { since, ..scope(ChangeRetention::default()) };
    let report = verify(&log, scope);
    assert_eq!((report.faults, report.skipped, report.unaltered), (vec![], 4, 16));
    // Their seals are checked all the same.
    log.seals[0].by_users.count += 1;
    assert_eq!(verify(&log, scope).faults, [ChainFault::AlteredSeal { seal: 1 }]);
}

#[test]
fn a_digest_has_64_hexadecimal_digits() {
    let digest = stored_log().seals[0].digest;
    assert_eq!(digest.to_string().parse::<SealDigest>(), Ok(digest));
    for bad in [
        "",
        "ab",
        &"g".repeat(64),
        &"é".repeat(32),
        &digest.to_string()[1..],
        &format!("+{}", "1".repeat(63)),
    ] {
        assert!(bad.parse::<SealDigest>().is_err(), "{bad}");
    }
}
