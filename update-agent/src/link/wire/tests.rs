use super::*;
use crate::facts::SlotFact;
use crate::model::{Failure, ImageChange, Sha256};
use crate::modules::image::slots::BadImage;

#[test]
fn a_permit_that_expired_in_transit_is_refused() {
    let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
    let answer = |before, now| pb::BeginResponse {
        answer: Some(pb::begin_response::Answer::Granted(pb::Granted { start_deadline: before })),
        now,
    };
    let granted = StartPermit::Granted { start_deadline: DateTime::from_timestamp(10, 0) };
    assert_eq!(parse_start_permit(answer(at(10), at(9))).unwrap(), granted);
    assert!(matches!(
        parse_start_permit(answer(at(10), at(10))).unwrap(),
        StartPermit::Refused { .. }
    ));
    assert!(parse_start_permit(pb::BeginResponse::default()).is_err());
}

#[test]
fn an_unknown_spec_differs_from_a_missing_target() {
    let fetch = |target| pb::Decision {
        act: Some(pb::decision::Act::Fetch(pb::Fetch { target })),
        ..pb::Decision::default()
    };
    let unknown = pb::Target { digest: "d".into(), spec: None };
    let Action::Fetch(target) = parse_decision(fetch(Some(unknown))).unwrap().action else {
        panic!("a fetch")
    };
    assert_eq!(target.spec, UpdateSpec::Unknown);
    assert!(parse_decision(fetch(None)).is_err());
    assert!(parse_decision(fetch(Some(pb::Target::default()))).is_err());
    assert_eq!(parse_decision(pb::Decision::default()).unwrap().action, Action::Idle);
}

#[test]
fn a_kernel_is_an_unknown_spec() {
    let message = pb::Target {
        digest: "d".into(),
        spec: Some(pb::target::Spec::Kernel(pb::Kernel::default())),
    };
    assert_eq!(parse_target(Some(message)).unwrap().spec, UpdateSpec::Unknown);
}

#[test]
fn every_final_event_names_the_booted_image() {
    let failure = || Failure::new(FailureKind::Verify, "it hung");
    let ended = |booted: Option<&str>| {
        let booted = booted.map(str::to_owned);
        let results = Vec::new();
        [
            EventKind::Finished { results: results.clone(), booted: booted.clone() },
            EventKind::Failed { failure: failure(), results, booted: booted.clone() },
            EventKind::Reverted { failure: failure(), booted },
        ]
    };
    for (booted, expected) in [(Some("1.0"), "1.0"), (None, "")] {
        for kind in ended(booted) {
            let message = event_message(&AttemptEvent {
                sequence: 7,
                at: DateTime::UNIX_EPOCH,
                boot_id: "boot-1".into(),
                kind,
                report: None,
            });
            let (image_id, why) = match message.kind.unwrap() {
                pb::event::Kind::Finished(end) => (end.booted_image_id, None),
                pb::event::Kind::Failed(end) => (end.booted_image_id, Some(end.reason)),
                pb::event::Kind::Reverted(end) => (end.booted_image_id, Some(end.reason)),
                other => panic!("{other:?}"),
            };
            assert_eq!(image_id, expected);
            assert!(why.is_none_or(|why| why == "it hung"));
        }
    }
}

#[test]
fn a_plan_names_the_image_before_and_after() {
    let mut plan = UpdatePlan { reboot_expected: true, ..UpdatePlan::default() };
    assert_eq!(plan_message(&plan).image, None);
    plan.image = Some(ImageChange {
        profile_name: "edge".into(),
        before: "1.0".into(),
        after: "1.1".into(),
    });
    let expected = pb::ImageChange {
        profile_name: "edge".into(),
        before: "1.0".into(),
        desired: "1.1".into(),
    };
    assert_eq!(plan_message(&plan).image, Some(expected));
}

#[test]
fn bad_images_and_slots_are_reported_and_change_the_digest() {
    let mut facts = Facts::default();
    let before = facts_digest(&facts);
    let file = Sha256::hash(b"1.1");
    facts.bad_images.push(BadImage {
        file,
        image_id: "1.1".into(),
        why: "it hung".into(),
        at: DateTime::UNIX_EPOCH,
    });
    let with_bad = facts_digest(&facts);
    facts.slots.push(SlotFact {
        name: "root-a".into(),
        state: "good".into(),
        image_id: "1.0".into(),
    });
    assert_ne!(with_bad, before);
    assert_ne!(facts_digest(&facts), with_bad);

    let message = facts_message(&facts);

    let bad =
        pb::BadImage { sha256: file.to_string(), image_id: "1.1".into(), reason: "it hung".into() };
    assert_eq!(message.bad_images, [bad]);
    let slot =
        pb::ImageSlot { name: "root-a".into(), state: "good".into(), image_id: "1.0".into() };
    assert_eq!(message.slots, [slot]);
    // The time of the failure comes from the node's own clock and must not change the digest.
    facts.bad_images[0].at = DateTime::from_timestamp(9, 0).unwrap();
    assert_eq!(facts_message(&facts), message);
}

#[test]
fn a_grant_and_its_windows_need_an_end() {
    let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
    let grant_message = |expires| pb::OfflineGrant {
        target_digest: "d".into(),
        windows: vec![
            pb::Window { start: at(1), end: at(2) },
            pb::Window { start: at(3), end: None },
        ],
        expires_at: expires,
    };
    let heard = parse_grant(grant_message(at(9))).unwrap();
    assert_eq!(heard.windows.len(), 1);
    assert_eq!(heard.windows[0].end.timestamp(), 2);
    assert_eq!(heard.expires.timestamp(), 9);
    assert_eq!(parse_grant(grant_message(None)), None);
}

#[test]
fn the_poll_interval_has_a_minimum() {
    let soon = parse_poll_answer(pb::PollResponse::default()).unwrap();
    assert_eq!(soon.next_poll, MIN_POLL_INTERVAL);
    let later = pb::PollResponse { next_poll_millis: 30_000, ..pb::PollResponse::default() };
    assert_eq!(parse_poll_answer(later).unwrap().next_poll, Duration::from_secs(30));
}

#[test]
fn the_digest_changes_with_the_facts() {
    let mut facts = Facts::default();
    let before = facts_digest(&facts);
    assert_eq!(facts_digest(&facts), before);
    facts.audit = "x".into();
    assert_ne!(facts_digest(&facts), before);
}
