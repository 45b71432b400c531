//! Image specs, the facts of images and their events between the agent and the server.

use chrono::DateTime;
use evenkeel_kit::Secret;
use evenkeel_proto::agent as pb;
use evenkeel_update_agent::facts::{Facts, SlotFact};
use evenkeel_update_agent::journal::JournalEntry;
use evenkeel_update_agent::link::ServerLink;
use evenkeel_update_agent::model::{
    Action, AttemptEvent, EventKind, ImageChange, ImageRules, ImageSpec, ModuleParts,
    Sha256 as Digest256, UpdateTarget,
};
use evenkeel_update_agent::modules::Module as _;
use evenkeel_update_agent::modules::image::slots::BadImage;
use evenkeel_update_agent::modules::image::{ImageModule, ImageReport};
use uuid::Uuid;

use super::{poll_query, trusted_link};
use crate::support::server::TestServer;

/// An image spec with every field set, as protobuf message and as the agent understands it.
fn image_spec() -> (pb::Image, ImageSpec) {
    let sha256 = Digest256::hash(b"1.1");
    let message = pb::Image {
        os_id: "os-0a1b2c3d".into(),
        name: "Edge 1.1".into(),
        image_id: "1.1".into(),
        url: "edge/1.1.raw.zst".into(),
        sha256: sha256.to_string(),
        profile_name: "edge".into(),
        architecture: "x86_64".into(),
        signatures: vec!["key:one".into(), "key:two".into()],
        rules: Some(pb::ImageRules {
            download_bytes_per_second: 1 << 40,
            max_bytes: 1 << 50,
            attempts: 0,
        }),
        is_retry: true,
    };
    let understood = ImageSpec {
        os_id: message.os_id.clone(),
        name: message.name.clone(),
        profile_name: message.profile_name.clone(),
        image_id: message.image_id.clone(),
        architecture: message.architecture.clone(),
        url: message.url.clone(),
        sha256,
        signatures: message.signatures.clone(),
        rules: ImageRules { download_bytes_per_second: 1 << 40, max_bytes: 1 << 50, attempts: 0 },
        allow_retry: true,
    };
    (message, understood)
}

#[tokio::test]
async fn an_image_spec_and_the_facts_of_images_cross_the_wire() {
    let server = TestServer::start_on_loopback().await;
    let link = trusted_link(&server).await;
    link.set_credential(&Secret::new("first-credential")).unwrap();
    let (message, understood) = image_spec();
    server.state.lock().unwrap().target =
        Some(pb::Target { digest: "d".into(), spec: Some(pb::target::Spec::Image(message)) });
    let file = Digest256::hash(b"1.0.5");
    let facts = Facts {
        bad_images: vec![BadImage {
            file,
            image_id: "1.0.5".into(),
            reason: "it hung".into(),
            at: DateTime::UNIX_EPOCH,
        }],
        slots: vec![SlotFact {
            name: "root-b".into(),
            state: "bad".into(),
            image_id: "1.0.5".into(),
        }],
        ..Facts::default()
    };

    let answer = link.poll(poll_query(&facts, true)).await.unwrap();

    assert!(!answer.want_facts, "the digests agree");
    let Action::Fetch(target) = answer.decision.action else { panic!("{:?}", answer.decision) };
    assert_eq!(target.spec.read(ImageModule::NAME), Some(understood));
    let state = server.state.lock().unwrap();
    let facts_received = state.facts.as_ref().unwrap();
    let bad = &facts_received.bad_images[0];
    assert_eq!(bad.sha256, file.to_string());
    assert_eq!((&*bad.image_id, &*bad.reason), ("1.0.5", "it hung"));
    let slot = &facts_received.slots[0];
    assert_eq!((&*slot.name, &*slot.state), ("root-b", "bad"));
    assert_eq!(slot.image_id, "1.0.5");
}

#[tokio::test]
async fn the_images_before_and_after_cross_the_wire() {
    let server = TestServer::start_on_loopback().await;
    let link = trusted_link(&server).await;
    link.set_credential(&Secret::new("first-credential")).unwrap();
    let spec = ModuleParts::of(ImageModule::NAME, &image_spec().1).unwrap();
    let digest = "d".to_owned();
    let mut entry = JournalEntry::new(Uuid::from_u128(1), UpdateTarget { digest, spec });
    let change = Some(ImageChange {
        profile_name: "edge".into(),
        before: "1.0".into(),
        after: "1.1".into(),
    });
    let report = ImageReport { change, booted: Some("1.1".into()) };
    entry.reports = ModuleParts::of(ImageModule::NAME, &report).unwrap();
    for (sequence, kind) in (1..).zip([EventKind::Downloading, EventKind::Finished]) {
        entry.events.push(AttemptEvent {
            sequence,
            at: DateTime::UNIX_EPOCH,
            boot_id: "boot-1".into(),
            kind,
            report: None,
            interruptions: Vec::new(),
        });
    }

    assert_eq!(link.report(&entry).await.unwrap(), 2);

    let state = server.state.lock().unwrap();
    let events = state.reported_events.values().next().unwrap();
    let Some(pb::event::Kind::Downloading(downloading)) = &events[0].kind else {
        panic!("{events:?}")
    };
    let plan = downloading.plan.as_ref().unwrap();
    let change = plan.image.as_ref().unwrap();
    assert_eq!(change.profile_name, "edge");
    assert_eq!((&*change.before, &*change.desired), ("1.0", "1.1"));
    let Some(pb::event::Kind::Finished(finished)) = &events[1].kind else { panic!("{events:?}") };
    assert_eq!(finished.booted_image_id, "1.1");
}
