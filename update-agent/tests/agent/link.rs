//! The wire: real gRPC over real TLS on the loopback.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use chrono::DateTime;
use evenkeel_kit::Secret;
use evenkeel_proto::agent as pb;
use evenkeel_update_agent::facts::{Facts, SlotFact};
use evenkeel_update_agent::identity::Identity;
use evenkeel_update_agent::journal::Entry;
use evenkeel_update_agent::link::{
    Applicant, GrpcLink, JoinToken, Link, LinkError, Question, Trust, TrustError,
};
use evenkeel_update_agent::model::{
    Act, Event, ImageChange, ImageRules, ImageWish, News, Plan, Sha256 as Digest256, Target, Wish,
};
use evenkeel_update_agent::modules::image::slots::BadImage;
use evenkeel_update_agent::os::{BootedImage, OsRelease};
use rcgen::SanType;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::support::server::{SECRET, TestServer};

const DEADLINE: Duration = Duration::from_secs(20);

fn applicant(token: &JoinToken) -> Applicant {
    Applicant {
        token: token.text.clone(),
        identity: Identity {
            uuid: Uuid::from_u128(7),
            serial_number: "S1".into(),
            host_name: "edge-1".into(),
        },
        os_release: OsRelease {
            id: "debian".into(),
            ..OsRelease::default()
        },
        architecture: "amd64".into(),
        public_key: vec![1, 2, 3],
        booted_image: Some(BootedImage {
            profile_name: "edge".into(),
            image_id: "1.0".into(),
        }),
    }
}

fn question(facts: &Facts, whole: bool) -> Question<'_> {
    Question {
        facts,
        whole,
        packages: None,
        attempt: None,
        waiting: "",
        tag: 0,
        hold: Duration::ZERO,
    }
}

async fn trusting(server: &TestServer) -> GrpcLink {
    let token = JoinToken::parse(&server.token()).unwrap();
    let trust = settled(&server.url(), &token).await.unwrap();
    linked(&server.url(), &trust)
}

/// Who may vouch for a server that is reached without a proxy.
async fn settled(url: &str, token: &JoinToken) -> Result<Trust, TrustError> {
    Trust::settle(url, token, None, None).await
}

fn linked(url: &str, trust: &Trust) -> GrpcLink {
    GrpcLink::new(url, trust, None, DEADLINE).unwrap()
}

#[tokio::test]
async fn a_node_enrols_with_the_authority_that_its_token_names() {
    let server = TestServer::on_loopback().await;
    let token = JoinToken::parse(&server.token()).unwrap();
    let trust = settled(&server.url(), &token).await.unwrap();
    let Trust::Ca(pem) = &trust else {
        panic!("an authority")
    };
    assert_eq!(lines(pem), lines(&server.ca_pem));
    let link = linked(&server.url(), &trust);

    let enrolled = link.enroll(&applicant(&token)).await.unwrap();

    assert_eq!(enrolled.host_id, "host-0a1b2c3d");
    assert_eq!(enrolled.credential.reveal(), "first-credential");
    let brain = server.brain.lock().unwrap();
    let request = brain.enrolled.as_ref().unwrap();
    assert_eq!(request.join_token, server.token());
    assert_eq!(request.public_key, [1, 2, 3]);
    let image = request.booted_image.as_ref().unwrap();
    assert_eq!((&*image.profile_name, &*image.image_id), ("edge", "1.0"));
    let identity = request.identity.as_ref().unwrap();
    assert_eq!(identity.uuid, "00000000-0000-0000-0000-000000000007");
}

fn lines(pem: &str) -> Vec<&str> {
    pem.lines().map(str::trim).collect()
}

#[tokio::test]
async fn a_server_that_another_authority_vouches_for_is_not_spoken_to() {
    let server = TestServer::on_loopback().await;
    let other = TestServer::on_loopback().await;
    let token = JoinToken::parse(&other.token()).unwrap();

    let error = settled(&server.url(), &token).await.unwrap_err();
    let text = evenkeel_kit::chain(&error).to_string();
    assert!(text.contains("UnknownIssuer"), "{text}");

    let trust = Trust::Ca(other.ca_pem.clone());
    let link = linked(&server.url(), &trust);
    let error = link.enroll(&applicant(&token)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("invalid peer certificate"), "{text}");
    assert!(server.brain.lock().unwrap().calls.is_empty());
}

#[tokio::test]
async fn a_certificate_of_the_right_authority_for_another_host_is_not_enough() {
    let name = SanType::DnsName("keel.example".try_into().unwrap());
    let server = TestServer::start(name).await;
    let token = JoinToken::parse(&server.token()).unwrap();
    let error = settled(&server.url(), &token).await.unwrap_err();
    let text = evenkeel_kit::chain(&error).to_string();
    assert!(text.contains("not valid for name"), "{text}");
}

#[tokio::test]
async fn a_file_with_the_authority_goes_before_the_token() {
    let server = TestServer::on_loopback().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, &server.ca_pem).unwrap();
    let token = JoinToken::parse(&format!("ekj1..{SECRET}")).unwrap();
    let trust = Trust::settle(&server.url(), &token, Some(&file), None)
        .await
        .unwrap();
    let link = linked(&server.url(), &trust);
    link.enroll(&applicant(&token)).await.unwrap();
}

#[tokio::test]
async fn the_systems_authorities_do_not_vouch_for_a_server_of_its_own() {
    let server = TestServer::on_loopback().await;
    let Ok(link) = GrpcLink::new(&server.url(), &Trust::System, None, DEADLINE) else {
        panic!("a link")
    };
    let token = JoinToken::parse(&format!("ekj1..{SECRET}")).unwrap();
    link.enroll(&applicant(&token)).await.unwrap_err();
    assert!(server.brain.lock().unwrap().calls.is_empty());
}

#[tokio::test]
async fn a_wrong_token_is_refused_at_once() {
    let server = TestServer::on_loopback().await;
    let link = trusting(&server).await;
    let token = JoinToken::parse("ekj1..d3Jvbmc").unwrap();
    let error = link.enroll(&applicant(&token)).await.unwrap_err();
    assert!(matches!(error, LinkError::Denied(_)), "{error}");
    assert_eq!(server.brain.lock().unwrap().calls, ["enroll"]);
}

#[tokio::test]
async fn the_credential_goes_with_every_call_and_can_be_replaced() {
    let server = TestServer::on_loopback().await;
    let link = trusting(&server).await;
    let facts = Facts::default();
    let error = link.poll(question(&facts, false)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server does not accept this node: the credential is not valid"
    );
    link.renew(&Secret::new("first-credential")).unwrap();
    server.brain.lock().unwrap().renewal = "second".into();
    let answer = link.poll(question(&facts, false)).await.unwrap();
    assert!(answer.want_facts);
    let credential = answer.credential.unwrap();
    assert_eq!(credential.reveal(), "second");
    link.poll(question(&facts, true)).await.unwrap_err();
    link.renew(&credential).unwrap();
    let answer = link.poll(question(&facts, true)).await.unwrap();
    assert!(!answer.want_facts, "the digests agree");
    assert_eq!(answer.decision.act, Act::Idle);
}

#[tokio::test]
async fn the_list_of_packages_and_leave_ahead_cross_the_wire() {
    let server = TestServer::on_loopback().await;
    let link = trusting(&server).await;
    link.renew(&Secret::new("first-credential")).unwrap();
    let packages = "{\"repo\":[]}";
    let facts = Facts {
        packages_digest: Some(Sha256::digest(packages).into()),
        ..Facts::default()
    };
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    server.brain.lock().unwrap().grant = Some(pb::Grant {
        target_digest: "d".into(),
        windows: vec![pb::Window {
            start: at(10),
            end: at(20),
        }],
        expires: at(15),
    });
    let asked = link.poll(question(&facts, true)).await.unwrap();
    assert!(asked.want_packages && !asked.want_facts);
    let told = Question {
        packages: Some(packages),
        ..question(&facts, false)
    };
    let answer = link.poll(told).await.unwrap();
    assert!(!answer.want_packages);
    assert_eq!(answer.now.unwrap().timestamp(), 1_800_000_000);
    let grant = answer.decision.grant.unwrap();
    assert_eq!(grant.target_digest, "d");
    assert_eq!(grant.windows[0].start.timestamp(), 10);
    assert_eq!(grant.expires.timestamp(), 15);
}

/// A wish for an image with everything that can be said of one, as it is told and as it is understood.
fn wish_for_an_image() -> (pb::Image, ImageWish) {
    let sha256 = Digest256::of(b"1.1");
    let told = pb::Image {
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
        again: true,
    };
    let understood = ImageWish {
        os_id: told.os_id.clone(),
        name: told.name.clone(),
        profile_name: told.profile_name.clone(),
        image_id: told.image_id.clone(),
        architecture: told.architecture.clone(),
        url: told.url.clone(),
        sha256,
        signatures: told.signatures.clone(),
        rules: ImageRules {
            download_bytes_per_second: 1 << 40,
            max_bytes: 1 << 50,
            attempts: 0,
        },
        again: true,
    };
    (told, understood)
}

#[tokio::test]
async fn a_wish_for_an_image_and_what_is_known_of_images_cross_the_wire() {
    let server = TestServer::on_loopback().await;
    let link = trusting(&server).await;
    link.renew(&Secret::new("first-credential")).unwrap();
    let (told, understood) = wish_for_an_image();
    server.brain.lock().unwrap().target = Some(pb::Target {
        digest: "d".into(),
        wish: Some(pb::target::Wish::Image(told)),
    });
    let file = Digest256::of(b"1.0.5");
    let facts = Facts {
        bad_images: vec![BadImage {
            file,
            image_id: "1.0.5".into(),
            why: "it hung".into(),
            at: DateTime::UNIX_EPOCH,
        }],
        slots: vec![SlotFact {
            name: "root-b".into(),
            state: "bad".into(),
            image_id: "1.0.5".into(),
        }],
        ..Facts::default()
    };

    let answer = link.poll(question(&facts, true)).await.unwrap();

    assert!(!answer.want_facts, "the digests agree");
    let Act::Fetch(target) = answer.decision.act else {
        panic!("{:?}", answer.decision)
    };
    assert_eq!(target.wish, Wish::Image(understood));
    let brain = server.brain.lock().unwrap();
    let heard = brain.facts.as_ref().unwrap();
    let bad = &heard.bad_images[0];
    assert_eq!(bad.sha256, file.to_string());
    assert_eq!((&*bad.image_id, &*bad.why), ("1.0.5", "it hung"));
    let slot = &heard.slots[0];
    assert_eq!((&*slot.name, &*slot.state), ("root-b", "bad"));
    assert_eq!(slot.image_id, "1.0.5");
}

#[tokio::test]
async fn the_images_before_and_after_cross_the_wire() {
    let server = TestServer::on_loopback().await;
    let link = trusting(&server).await;
    link.renew(&Secret::new("first-credential")).unwrap();
    let wish = Wish::Image(wish_for_an_image().1);
    let digest = "d".to_owned();
    let mut entry = Entry::new(Uuid::from_u128(1), Target { digest, wish });
    let plan = Plan {
        image: Some(ImageChange {
            profile_name: "edge".into(),
            before: "1.0".into(),
            wanted: "1.1".into(),
        }),
        ..Plan::default()
    };
    let finished = News::Finished {
        results: Vec::new(),
        booted: Some("1.1".into()),
    };
    for (sequence, news) in (1..).zip([News::Downloading(plan), finished]) {
        entry.events.push(Event {
            sequence,
            at: DateTime::UNIX_EPOCH,
            boot_id: "boot-1".into(),
            news,
            account: None,
        });
    }

    assert_eq!(link.report(&entry).await.unwrap(), 2);

    let brain = server.brain.lock().unwrap();
    let events = brain.told.values().next().unwrap();
    let Some(pb::event::News::Downloading(downloading)) = &events[0].news else {
        panic!("{events:?}")
    };
    let plan = downloading.plan.as_ref().unwrap();
    let change = plan.image.as_ref().unwrap();
    assert_eq!(change.profile_name, "edge");
    assert_eq!((&*change.before, &*change.wanted), ("1.0", "1.1"));
    let Some(pb::event::News::Finished(finished)) = &events[1].news else {
        panic!("{events:?}")
    };
    assert_eq!(finished.booted_image_id, "1.1");
}

#[tokio::test]
async fn a_server_that_is_busy_is_asked_again() {
    let server = TestServer::on_loopback().await;
    let link = trusting(&server).await;
    link.renew(&Secret::new("first-credential")).unwrap();
    server.brain.lock().unwrap().unavailable = 1;
    link.poll(question(&Facts::default(), false)).await.unwrap();
    assert_eq!(server.brain.lock().unwrap().calls, ["poll", "poll"]);
}

#[tokio::test]
async fn a_server_that_says_when_to_ask_again_is_not_asked_before() {
    let server = TestServer::on_loopback().await;
    let link = trusting(&server).await;
    link.renew(&Secret::new("first-credential")).unwrap();
    {
        let mut brain = server.brain.lock().unwrap();
        brain.unavailable = 1;
        brain.pushback = Some("90000");
    }
    let facts = Facts::default();
    let error = link.poll(question(&facts, false)).await.unwrap_err();
    let LinkError::Busy { again, why } = error else {
        panic!("{error}")
    };
    assert_eq!(again, Duration::from_secs(90));
    assert_eq!(why, "not just now");
    assert_eq!(server.brain.lock().unwrap().calls, ["poll"]);
}

#[tokio::test]
async fn how_a_poll_may_be_held_crosses_the_wire_and_it_has_time_of_its_own() {
    let server = TestServer::on_loopback().await;
    let trust = Trust::Ca(server.ca_pem.clone());
    // No call that is not held would come back in time.
    let link = GrpcLink::new(&server.url(), &trust, None, Duration::ZERO).unwrap();
    link.renew(&Secret::new("first-credential")).unwrap();
    server.brain.lock().unwrap().terms = (u64::MAX, 300_000, 40_000);
    let facts = Facts::default();
    let held = Question {
        tag: 7,
        hold: Duration::from_millis(2_500),
        ..question(&facts, false)
    };
    let answer = link.poll(held).await.unwrap();
    assert_eq!(server.brain.lock().unwrap().holds, [(7, 2_500)]);
    assert_eq!(answer.tag, u64::MAX);
    assert_eq!(answer.hold, Duration::from_mins(5));
    assert_eq!(answer.spread, Duration::from_secs(40));
}

#[tokio::test]
async fn a_held_poll_that_breaks_off_is_not_made_again_by_itself() {
    let server = TestServer::on_loopback().await;
    let link = trusting(&server).await;
    link.renew(&Secret::new("first-credential")).unwrap();
    server.brain.lock().unwrap().unavailable = 1;
    let facts = Facts::default();
    let held = Question {
        hold: Duration::from_mins(5),
        ..question(&facts, false)
    };
    let error = link.poll(held).await.unwrap_err();
    assert!(matches!(error, LinkError::Unavailable(_)), "{error}");
    assert_eq!(server.brain.lock().unwrap().calls, ["poll"]);
}

#[tokio::test]
async fn a_server_that_never_answers_is_not_waited_for_longer_than_the_deadline() {
    let server = TestServer::on_loopback().await;
    let token = JoinToken::parse(&server.token()).unwrap();
    let trust = settled(&server.url(), &token).await.unwrap();
    let short = Duration::from_millis(200);
    let link = GrpcLink::new(&server.url(), &trust, None, short).unwrap();
    server.brain.lock().unwrap().mute = true;
    let facts = Facts::default();
    let call = link.poll(question(&facts, false));
    let error = tokio::time::timeout(DEADLINE, call)
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, LinkError::Unavailable(_)), "{error}");
}

#[tokio::test]
async fn where_nobody_listens_there_is_an_error_and_no_wait() {
    let server = TestServer::on_loopback().await;
    let host = SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let other = TestServer::start(host).await;
    let trust = Trust::Ca(server.ca_pem.clone());
    // A port that was free a moment ago and is not listened to.
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    drop(listener);
    let link = linked(&url, &trust);
    let error = link
        .poll(question(&Facts::default(), false))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    let token = JoinToken::parse(&other.token()).unwrap();
    settled(&url, &token).await.unwrap_err();
}

#[tokio::test]
async fn a_probe_learns_the_servers_time_and_leaves_nothing_behind() {
    let server = TestServer::on_loopback().await;
    let link = trusting(&server).await;
    let error = link.probe().await.unwrap_err();
    assert!(matches!(error, LinkError::Denied(_)), "{error}");
    link.renew(&Secret::new("first-credential")).unwrap();
    let now = link.probe().await.unwrap().unwrap();
    assert_eq!(now.timestamp(), 1_800_000_000);
    let brain = server.brain.lock().unwrap();
    assert_eq!(brain.calls, ["report", "report"]);
    assert!(brain.told.values().all(Vec::is_empty));
}

#[tokio::test]
async fn why_the_node_waits_crosses_the_wire() {
    let server = TestServer::on_loopback().await;
    let link = trusting(&server).await;
    link.renew(&Secret::new("first-credential")).unwrap();
    let facts = Facts::default();
    let waiting = Question {
        waiting: "ada is logged in",
        ..question(&facts, false)
    };
    link.poll(waiting).await.unwrap();
    assert_eq!(server.brain.lock().unwrap().waiting, "ada is logged in");
}
