//! The real link: gRPC over TLS on the loopback interface.

mod images;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::Secret;
use evenkeel_proto::agent as pb;
use evenkeel_update_agent::facts::Facts;
use evenkeel_update_agent::identity::Identity;
use evenkeel_update_agent::link::{
    Applicant, GrpcLink, JoinToken, LinkError, PollQuery, ServerLink, TimeFloor, Trust, TrustError,
};
use evenkeel_update_agent::model::Action;
use evenkeel_update_agent::node::CertificateRequests;
use evenkeel_update_agent::os::{BootedImage, OsRelease};
use evenkeel_update_agent::paths::AgentPaths;
use rcgen::SanType;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::support::server::{TOKEN_SECRET, TestServer};

const CALL_TIMEOUT: Duration = Duration::from_secs(20);

fn applicant(token: &JoinToken) -> Applicant {
    Applicant {
        token: token.text.clone(),
        identity: Identity {
            uuid: Uuid::from_u128(7),
            serial_number: "S1".into(),
            host_name: "edge-1".into(),
        },
        os_release: OsRelease { id: "debian".into(), ..OsRelease::default() },
        architecture: "amd64".into(),
        requests: CertificateRequests::default(),
        booted_image: Some(BootedImage { profile_name: "edge".into(), image_id: "1.0".into() }),
    }
}

pub fn poll_query(facts: &Facts, send_facts: bool) -> PollQuery<'_> {
    PollQuery {
        facts,
        send_facts,
        packages: None,
        attempt: None,
        waiting_reason: "",
        decision_tag: 0,
        max_hold: Duration::ZERO,
    }
}

pub async fn trusted_link(server: &TestServer) -> GrpcLink {
    let token = JoinToken::parse(&server.token()).unwrap();
    let trust = resolve_trust(&server.url(), &token).await.unwrap();
    open_link(&server.url(), &trust)
}

/// Resolves which CA verifies a server that is reached without a proxy.
async fn resolve_trust(url: &str, token: &JoinToken) -> Result<Trust, TrustError> {
    Trust::resolve(url, token, None, None).await
}

fn open_link(url: &str, trust: &Trust) -> GrpcLink {
    GrpcLink::new(url, trust, None, CALL_TIMEOUT).unwrap()
}

#[tokio::test]
async fn a_node_enrols_with_the_authority_that_its_token_names() {
    let server = TestServer::start_on_loopback().await;
    let token = JoinToken::parse(&server.token()).unwrap();
    let trust = resolve_trust(&server.url(), &token).await.unwrap();
    let Trust::Ca(pem) = &trust else { panic!("a CA") };
    assert_eq!(lines(pem), lines(&server.ca_pem));
    let link = open_link(&server.url(), &trust);

    let enrolled = link.enroll(&applicant(&token)).await.unwrap();

    assert_eq!(enrolled.host_id, "host-0a1b2c3d");
    assert_eq!(enrolled.credential.unwrap().reveal(), "first-credential");
    let state = server.state.lock().unwrap();
    let request = state.enroll_request.as_ref().unwrap();
    assert_eq!(request.join_token, server.token());
    let image = request.booted_image.as_ref().unwrap();
    assert_eq!((&*image.profile_name, &*image.image_id), ("edge", "1.0"));
    let identity = request.identity.as_ref().unwrap();
    assert_eq!(identity.uuid, "00000000-0000-0000-0000-000000000007");
}

fn lines(pem: &str) -> Vec<&str> {
    pem.lines().map(str::trim).collect()
}

#[tokio::test]
async fn a_server_of_another_authority_is_rejected() {
    let server = TestServer::start_on_loopback().await;
    let other = TestServer::start_on_loopback().await;
    let token = JoinToken::parse(&other.token()).unwrap();

    let error = resolve_trust(&server.url(), &token).await.unwrap_err();
    let text = evenkeel_kit::chain(&error).to_string();
    assert!(text.contains("UnknownIssuer"), "{text}");

    let trust = Trust::Ca(other.ca_pem.clone());
    let link = open_link(&server.url(), &trust);
    let error = link.enroll(&applicant(&token)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("invalid peer certificate"), "{text}");
    assert!(server.state.lock().unwrap().calls.is_empty());
}

/// The machine has no clock, or its battery is dead.
#[tokio::test]
async fn a_clock_behind_the_certificate_is_explained_at_the_enrolment() {
    let server = TestServer::start_with_future_certificate().await;
    let token = JoinToken::parse(&server.token()).unwrap();
    let text = resolve_trust(&server.url(), &token).await.unwrap_err().to_string();
    assert!(text.contains("this machine's clock is behind"), "{text}");
    assert!(text.contains("NTP"), "{text}");

    // With the authority in a file, the call finds out.
    let link = open_link(&server.url(), &Trust::Ca(server.ca_pem.clone()));
    let error = link.enroll(&applicant(&token)).await.unwrap_err();
    assert!(error.to_string().contains("this machine's clock is behind"), "{error}");
    assert!(server.state.lock().unwrap().calls.is_empty());
}

/// The clock may be lost before the first poll.
#[tokio::test]
async fn an_enrolment_sets_the_time_floor() {
    let server = TestServer::start_on_loopback().await;
    let token = JoinToken::parse(&server.token()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
    // Of an earlier server.
    std::fs::write(paths.last_contact(), "2090-01-01T00:00:00Z\n").unwrap();
    let trust = Trust::Ca(server.ca_pem.clone());
    let floor = Arc::new(TimeFloor::for_enrolment(&paths));
    assert_eq!(floor.last_contact(), None);
    let link = GrpcLink::with_floor(floor, &server.url(), &trust, None, CALL_TIMEOUT).unwrap();
    let enrolled = link.enroll(&applicant(&token)).await.unwrap();
    assert!(enrolled.server_time.is_some());
    assert_eq!(TimeFloor::load(&paths).last_contact(), enrolled.server_time);
}

#[tokio::test]
async fn an_address_without_a_server_or_without_tls_is_explained() {
    let server = TestServer::start_on_loopback().await;
    let token = JoinToken::parse(&server.token()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let answer_without_tls = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        stream
    };
    let (error, _stream) = tokio::join!(resolve_trust(&url, &token), answer_without_tls);
    let expected =
        format!("cannot reach {url}: it does not speak TLS. Nodes connect to southbound.listen");
    let text = error.unwrap_err().to_string();
    assert!(text.starts_with(&expected), "{text}");

    drop(listener);
    let text = resolve_trust(&url, &token).await.unwrap_err().to_string();
    assert!(text.starts_with(&format!("cannot reach {url}: connection refused. Is ")), "{text}");
}

#[tokio::test]
async fn a_certificate_for_another_host_is_rejected() {
    let name = SanType::DnsName("keel.example".try_into().unwrap());
    let server = TestServer::start(name).await;
    let token = JoinToken::parse(&server.token()).unwrap();
    let error = resolve_trust(&server.url(), &token).await.unwrap_err();
    let text = evenkeel_kit::chain(&error).to_string();
    assert!(text.contains("southbound.server_names"), "{text}");
    assert!(text.contains("keel.example"), "{text}");
}

#[tokio::test]
async fn a_ca_file_takes_precedence_over_the_token() {
    let server = TestServer::start_on_loopback().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, &server.ca_pem).unwrap();
    let token = JoinToken::parse(&format!("ekj1..{TOKEN_SECRET}")).unwrap();
    let trust = Trust::resolve(&server.url(), &token, Some(&file), None).await.unwrap();
    let link = open_link(&server.url(), &trust);
    link.enroll(&applicant(&token)).await.unwrap();
}

#[tokio::test]
async fn the_system_roots_do_not_verify_a_private_server() {
    let server = TestServer::start_on_loopback().await;
    let Ok(link) = GrpcLink::new(&server.url(), &Trust::System, None, CALL_TIMEOUT) else {
        panic!("a link")
    };
    let token = JoinToken::parse(&format!("ekj1..{TOKEN_SECRET}")).unwrap();
    link.enroll(&applicant(&token)).await.unwrap_err();
    assert!(server.state.lock().unwrap().calls.is_empty());
}

#[tokio::test]
async fn a_wrong_join_token_is_refused_at_once() {
    let server = TestServer::start_on_loopback().await;
    let link = trusted_link(&server).await;
    let token = JoinToken::parse("ekj1..d3Jvbmc").unwrap();
    let error = link.enroll(&applicant(&token)).await.unwrap_err();
    assert!(matches!(error, LinkError::Denied(_)), "{error}");
    assert_eq!(server.state.lock().unwrap().calls, ["enroll"]);
}

#[tokio::test]
async fn the_credential_is_sent_with_every_call_and_can_be_replaced() {
    let server = TestServer::start_on_loopback().await;
    let link = trusted_link(&server).await;
    let facts = Facts::default();
    let error = link.poll(poll_query(&facts, false)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server does not accept this node: the credential is not valid"
    );
    link.set_credential(&Secret::new("first-credential")).unwrap();
    server.state.lock().unwrap().renewal = "second".into();
    let answer = link.poll(poll_query(&facts, false)).await.unwrap();
    assert!(answer.want_facts);
    let credential = answer.credential.unwrap();
    assert_eq!(credential.reveal(), "second");
    link.poll(poll_query(&facts, true)).await.unwrap_err();
    link.set_credential(&credential).unwrap();
    let answer = link.poll(poll_query(&facts, true)).await.unwrap();
    assert!(!answer.want_facts, "the digests agree");
    assert_eq!(answer.decision.action, Action::Idle);
}

#[tokio::test]
async fn the_package_list_and_the_offline_grant_cross_the_wire() {
    let server = TestServer::start_on_loopback().await;
    let link = trusted_link(&server).await;
    link.set_credential(&Secret::new("first-credential")).unwrap();
    let packages = "{\"repo\":[]}";
    let facts =
        Facts { packages_digest: Some(Sha256::digest(packages).into()), ..Facts::default() };
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    server.state.lock().unwrap().grant = Some(pb::OfflineGrant {
        target_digest: "d".into(),
        windows: vec![pb::Window { start: at(10), end: at(20) }],
        expires_at: at(15),
    });
    let first_answer = link.poll(poll_query(&facts, true)).await.unwrap();
    assert!(first_answer.want_packages && !first_answer.want_facts);
    let query = PollQuery { packages: Some(packages), ..poll_query(&facts, false) };
    let answer = link.poll(query).await.unwrap();
    assert!(!answer.want_packages);
    assert_eq!(answer.server_time.unwrap().timestamp(), 1_800_000_000);
    let grant = answer.decision.offline_grant.unwrap();
    assert_eq!(grant.target_digest, "d");
    assert_eq!(grant.windows[0].start.timestamp(), 10);
    assert_eq!(grant.expires.timestamp(), 15);
}

#[tokio::test]
async fn a_busy_server_is_called_again() {
    let server = TestServer::start_on_loopback().await;
    let link = trusted_link(&server).await;
    link.set_credential(&Secret::new("first-credential")).unwrap();
    server.state.lock().unwrap().unavailable_calls = 1;
    link.poll(poll_query(&Facts::default(), false)).await.unwrap();
    assert_eq!(server.state.lock().unwrap().calls, ["poll", "poll"]);
}

#[tokio::test]
async fn a_server_with_a_retry_time_is_not_called_before_it() {
    let server = TestServer::start_on_loopback().await;
    let link = trusted_link(&server).await;
    link.set_credential(&Secret::new("first-credential")).unwrap();
    {
        let mut state = server.state.lock().unwrap();
        state.unavailable_calls = 1;
        state.pushback = Some("90000");
    }
    let facts = Facts::default();
    let error = link.poll(poll_query(&facts, false)).await.unwrap_err();
    let LinkError::Busy { retry_after: again, message: why } = error else { panic!("{error}") };
    assert_eq!(again, Duration::from_secs(90));
    assert_eq!(why, "not just now");
    assert_eq!(server.state.lock().unwrap().calls, ["poll"]);
}

#[tokio::test]
async fn long_poll_options_cross_the_wire_and_extend_the_deadline() {
    let server = TestServer::start_on_loopback().await;
    let trust = Trust::Ca(server.ca_pem.clone());
    // A normal call would not return before this timeout.
    let link = GrpcLink::new(&server.url(), &trust, None, Duration::ZERO).unwrap();
    link.set_credential(&Secret::new("first-credential")).unwrap();
    server.state.lock().unwrap().long_poll_options = (u64::MAX, 300_000, 40_000);
    let facts = Facts::default();
    let query = PollQuery {
        decision_tag: 7,
        max_hold: Duration::from_millis(2_500),
        ..poll_query(&facts, false)
    };
    let answer = link.poll(query).await.unwrap();
    assert_eq!(server.state.lock().unwrap().long_polls, [(7, 2_500)]);
    assert_eq!(answer.decision_tag, u64::MAX);
    assert_eq!(answer.max_hold, Duration::from_mins(5));
    assert_eq!(answer.reconnect_spread, Duration::from_secs(40));
}

#[tokio::test]
async fn a_broken_long_poll_is_not_repeated_automatically() {
    let server = TestServer::start_on_loopback().await;
    let link = trusted_link(&server).await;
    link.set_credential(&Secret::new("first-credential")).unwrap();
    server.state.lock().unwrap().unavailable_calls = 1;
    let facts = Facts::default();
    let query = PollQuery { max_hold: Duration::from_mins(5), ..poll_query(&facts, false) };
    let error = link.poll(query).await.unwrap_err();
    assert!(matches!(error, LinkError::Unavailable(_)), "{error}");
    assert_eq!(server.state.lock().unwrap().calls, ["poll"]);
}

#[tokio::test]
async fn a_call_to_a_silent_server_ends_at_its_timeout() {
    let server = TestServer::start_on_loopback().await;
    let token = JoinToken::parse(&server.token()).unwrap();
    let trust = resolve_trust(&server.url(), &token).await.unwrap();
    let short = Duration::from_millis(200);
    let link = GrpcLink::new(&server.url(), &trust, None, short).unwrap();
    server.state.lock().unwrap().mute = true;
    let facts = Facts::default();
    let call = link.poll(poll_query(&facts, false));
    let error = tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Unavailable(_)), "{error}");
}

#[tokio::test]
async fn a_closed_port_is_an_error_at_once() {
    let server = TestServer::start_on_loopback().await;
    let host = SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let other = TestServer::start(host).await;
    let trust = Trust::Ca(server.ca_pem.clone());
    // A port on which no process listens any more.
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    drop(listener);
    let link = open_link(&url, &trust);
    let error = link.poll(poll_query(&Facts::default(), false)).await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    let token = JoinToken::parse(&other.token()).unwrap();
    resolve_trust(&url, &token).await.unwrap_err();
}

#[tokio::test]
async fn a_probe_reads_the_server_time_and_stores_nothing() {
    let server = TestServer::start_on_loopback().await;
    let link = trusted_link(&server).await;
    let error = link.probe().await.unwrap_err();
    assert!(matches!(error, LinkError::Unauthenticated(_)), "{error}");
    link.set_credential(&Secret::new("first-credential")).unwrap();
    let now = link.probe().await.unwrap().unwrap();
    assert_eq!(now.timestamp(), 1_800_000_000);
    let state = server.state.lock().unwrap();
    assert_eq!(state.calls, ["report", "report"]);
    assert!(state.reported_events.values().all(Vec::is_empty));
}

#[tokio::test]
async fn the_waiting_reason_crosses_the_wire() {
    let server = TestServer::start_on_loopback().await;
    let link = trusted_link(&server).await;
    link.set_credential(&Secret::new("first-credential")).unwrap();
    let facts = Facts::default();
    let waiting = PollQuery { waiting_reason: "ada is logged in", ..poll_query(&facts, false) };
    link.poll(waiting).await.unwrap();
    assert_eq!(server.state.lock().unwrap().waiting_reason, "ada is logged in");
}
