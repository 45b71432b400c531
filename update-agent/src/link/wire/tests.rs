use super::*;
use crate::facts::{
    Disk, Hardware, HeldBackCause, HeldBackPackage, HeldBackUpdate, NetworkInterface, SlotFact,
};
use crate::model::{Failure, Sha256};
use crate::modules::MODULES;
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
fn an_enrolment_brings_a_certificate_or_a_bearer_token() {
    let answer = |certificate: &[u8], credential: &str| pb::EnrollResponse {
        certificate: certificate.to_vec(),
        credential: credential.to_owned(),
        ..pb::EnrollResponse::default()
    };
    let enrolled = parse_enrollment(answer(b"x509", "")).unwrap();
    assert_eq!(enrolled.certificates.client, b"x509");
    assert!(enrolled.credential.is_none());
    let enrolled = parse_enrollment(answer(b"", "token")).unwrap();
    assert!(enrolled.certificates.client.is_empty());
    assert_eq!(enrolled.credential.unwrap().reveal(), "token");
    assert!(parse_enrollment(answer(b"", "")).is_err());
    assert!(parse_renewal(pb::RenewResponse::default()).is_err());
}

#[test]
fn an_unknown_spec_differs_from_a_missing_target() {
    let fetch = |target| pb::Decision {
        act: Some(pb::decision::Act::Fetch(pb::Fetch { target })),
        ..pb::Decision::default()
    };
    let unknown = pb::Target { digest: "d".into(), spec: None };
    let Action::Fetch(target) = parse_decision(fetch(Some(unknown)), MODULES).unwrap().action
    else {
        panic!("a fetch")
    };
    assert!(target.spec.is_empty());
    assert!(parse_decision(fetch(None), MODULES).is_err());
    assert!(parse_decision(fetch(Some(pb::Target::default())), MODULES).is_err());
    assert_eq!(parse_decision(pb::Decision::default(), MODULES).unwrap().action, Action::Idle);
}

#[test]
fn a_kernel_is_an_unknown_spec() {
    let message = pb::Target {
        digest: "d".into(),
        spec: Some(pb::target::Spec::Kernel(pb::Kernel::default())),
    };
    assert!(parse_target(Some(message), MODULES).unwrap().spec.is_empty());
}

#[test]
fn an_event_holds_the_totals_of_the_plan_or_the_failure() {
    let target = UpdateTarget { digest: "d".into(), spec: ModuleParts::default() };
    let mut entry = JournalEntry::new(uuid::Uuid::from_u128(1), target);
    entry.plan.reboot_expected = true;
    let message = |kind: EventKind| {
        let event = AttemptEvent {
            sequence: 7,
            at: DateTime::UNIX_EPOCH,
            boot_id: "boot-1".into(),
            kind,
            report: None,
            interruptions: Vec::new(),
        };
        event_message(&event, &entry, MODULES).kind.unwrap()
    };
    let pb::event::Kind::Downloading(downloading) = message(EventKind::Downloading) else {
        panic!("a plan")
    };
    assert!(downloading.plan.unwrap().reboot_expected);
    let failure = || Failure::new(FailureKind::Verify, "it hung");
    let pb::event::Kind::Failed(end) = message(EventKind::Failed { failure: failure() }) else {
        panic!("a failure")
    };
    assert_eq!(end.reason, "it hung");
    let pb::event::Kind::Reverted(end) = message(EventKind::Reverted { failure: failure() }) else {
        panic!("a failure")
    };
    assert_eq!(end.reason, "it hung");
}

#[test]
fn bad_images_and_slots_are_reported_and_change_the_digest() {
    let mut facts = Facts::default();
    let before = facts_digest(&facts);
    let file = Sha256::hash(b"1.1");
    facts.bad_images.push(BadImage {
        file,
        image_id: "1.1".into(),
        reason: "it hung".into(),
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
fn the_state_of_the_package_lists_and_the_sources_of_updates_are_reported() {
    let mut facts = Facts::default();
    let without_packages = facts_digest(&facts);
    assert_eq!(facts_message(&facts).package_lists, None);
    facts.package_lists = Some(PackageLists {
        refreshed_at: DateTime::from_timestamp(7, 0),
        error: "no route to host".into(),
    });
    facts.held_back.push(HeldBackUpdate {
        package: HeldBackPackage {
            name: "openssl".into(),
            architecture: "amd64".into(),
            installed: "1".into(),
            available: "2".into(),
            cause: HeldBackCause::Pinned,
        },
        suites: vec!["bookworm-security".into()],
        origins: vec!["Debian-Security".into()],
    });
    assert_ne!(facts_digest(&facts), without_packages);

    let message = facts_message(&facts);

    let lists = message.package_lists.unwrap();
    assert_eq!(lists.refreshed_at, Some(Timestamp { seconds: 7, nanos: 0 }));
    assert_eq!(lists.error, "no route to host");
    let held_back = &message.held_back[0];
    assert_eq!(
        (held_back.name.as_str(), held_back.cause()),
        ("openssl", pb::HeldBackCause::Pinned)
    );
    assert_eq!(held_back.suites, ["bookworm-security"]);
    assert_eq!(held_back.origins, ["Debian-Security"]);
}

#[test]
fn a_refresh_that_changes_nothing_else_is_reported_once_a_day() {
    let digest = |refreshed_at: Option<i64>, error: &str| {
        let refreshed_at = refreshed_at.and_then(|at| DateTime::from_timestamp(at, 5));
        let lists = PackageLists { refreshed_at, error: error.into() };
        facts_digest(&Facts { package_lists: Some(lists), ..Facts::default() })
    };
    let first = digest(Some(SECONDS_PER_DAY), "");
    assert_eq!(digest(Some(2 * SECONDS_PER_DAY - 1), ""), first);
    for (refreshed_at, error) in [
        (Some(2 * SECONDS_PER_DAY), ""),
        (Some(SECONDS_PER_DAY - 1), ""),
        (Some(SECONDS_PER_DAY), "no route to host"),
        (None, ""),
    ] {
        assert_ne!(digest(refreshed_at, error), first, "{refreshed_at:?} {error}");
    }
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
    let soon = parse_poll_answer(pb::PollResponse::default(), MODULES).unwrap();
    assert_eq!(soon.next_poll, MIN_POLL_INTERVAL);
    let later = pb::PollResponse { next_poll_millis: 30_000, ..pb::PollResponse::default() };
    assert_eq!(parse_poll_answer(later, MODULES).unwrap().next_poll, Duration::from_secs(30));
}

#[test]
fn the_digest_changes_with_the_facts() {
    let mut facts = Facts::default();
    let before = facts_digest(&facts);
    assert_eq!(facts_digest(&facts), before);
    facts.audit = "x".into();
    assert_ne!(facts_digest(&facts), before);
}

#[test]
fn hardware_and_the_hour_of_the_boot_change_the_digest() {
    let mut facts = Facts::default();
    let without = facts_digest(&facts);
    let interface = NetworkInterface {
        name: "eth0".into(),
        has_link: Some(true),
        addresses: vec!["192.0.2.7/24".into()],
        ..NetworkInterface::default()
    };
    let disk = Disk { name: "sda".into(), size_bytes: 1 << 40, ..Disk::default() };
    facts.hardware = Some(Hardware {
        memory_bytes: 1 << 34,
        disks: vec![disk],
        network_interfaces: vec![interface],
        ..Hardware::default()
    });
    let with_hardware = facts_digest(&facts);
    assert_ne!(with_hardware, without);
    let message = facts_message(&facts).hardware.unwrap();
    assert_eq!((message.memory_bytes, message.disks[0].size_bytes), (1 << 34, 1 << 40));
    let interface = &message.network_interfaces[0];
    assert_eq!(interface.link_state(), pb::LinkState::Up);
    assert_eq!(interface.addresses, ["192.0.2.7/24"]);

    let mut digest = |seconds: i64| {
        facts.boot_time = DateTime::from_timestamp(seconds, 0);
        assert_eq!(facts_message(&facts).boot_time.unwrap().seconds, seconds);
        facts_digest(&facts)
    };
    let at_seven = digest(7 * 3_600);
    assert_ne!(at_seven, with_hardware);
    assert_eq!(digest(7 * 3_600 + 3_599), at_seven);
    assert_ne!(digest(8 * 3_600), at_seven);
}
