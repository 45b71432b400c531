//! Client certificates of a node: the real link and the real files, with a server that issues, expires and refuses them.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::Secret;
use evenkeel_update_agent::facts::Facts;
use evenkeel_update_agent::identity::Identity;
use evenkeel_update_agent::journal::JournalEntry;
use evenkeel_update_agent::link::{
    Applicant, GrpcLink, JoinToken, LinkError, PollQuery, Proxy, ServerLink, Trust,
};
use evenkeel_update_agent::model::{ModuleParts, UpdateTarget};
use evenkeel_update_agent::node::NodeCertificates;
use evenkeel_update_agent::os::OsRelease;
use evenkeel_update_agent::paths::AgentPaths;
use tokio::sync::OnceCell;
use tonic::Code;
use uuid::Uuid;

use crate::link::poll_query;
use crate::support::proxy::TestProxy;
use crate::support::server::TestServer;

const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// A key for decryption that all machines of the tests share, because creating one is slow.
async fn shared_decryption_key() -> &'static [u8] {
    static KEY: OnceCell<Vec<u8>> = OnceCell::const_new();
    let create = async || {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
        NodeCertificates::none(&paths).requests().await.unwrap();
        fs::read(paths.decryption_key()).unwrap()
    };
    KEY.get_or_init(create).await
}

/// A machine with a state directory.
struct Machine {
    _folder: tempfile::TempDir,
    paths: AgentPaths,
}

impl Machine {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
        fs::write(paths.decryption_key(), shared_decryption_key().await).unwrap();
        Self { _folder: folder, paths }
    }

    /// A machine that is enrolled with a server that accepts certificates only.
    async fn enrolled(server: &TestServer) -> Self {
        server.state.lock().unwrap().credential.clear();
        let machine = Self::new().await;
        let token = JoinToken::parse(&server.token()).unwrap();
        let certificates = NodeCertificates::none(&machine.paths);
        let applicant = Applicant {
            token: token.text,
            identity: Identity {
                uuid: Uuid::from_u128(7),
                serial_number: String::new(),
                host_name: "edge-1".into(),
            },
            os_release: OsRelease::default(),
            architecture: "amd64".into(),
            requests: certificates.requests().await.unwrap(),
            booted_image: None,
        };
        let enrolled = open_link(server, None).enroll(&applicant).await.unwrap();
        assert!(enrolled.credential.is_none());
        certificates.store(&enrolled.certificates).unwrap();
        machine
    }

    /// The link of a newly started agent.
    fn link(&self, server: &TestServer) -> GrpcLink {
        self.link_through(server, None)
    }

    fn link_through(&self, server: &TestServer, proxy: Option<&Proxy>) -> GrpcLink {
        let certificates = Arc::new(NodeCertificates::load(&self.paths).unwrap());
        open_link(server, proxy).with_certificates(certificates).unwrap()
    }
}

fn open_link(server: &TestServer, proxy: Option<&Proxy>) -> GrpcLink {
    let trust = Trust::Ca(server.ca_pem.clone());
    GrpcLink::new(&server.url(), &trust, proxy, CALL_TIMEOUT).unwrap()
}

async fn poll(link: &GrpcLink) -> Result<(), LinkError> {
    link.poll(poll_query(&Facts::default(), false)).await.map(drop)
}

/// The certificate of the enrolment expires. Its renewal fails with this status, if one is given.
fn expire(server: &TestServer, renewal_refusal: Option<Code>) {
    let mut state = server.state.lock().unwrap();
    state.expired = 1;
    state.renewal_refusal = renewal_refusal;
}

/// The calls since the enrolment, and for each the position of its certificate among the issued ones.
fn calls(server: &TestServer) -> Vec<(&'static str, Option<usize>)> {
    let state = server.state.lock().unwrap();
    let position = |shown: &Vec<u8>| state.issued.iter().position(|issued| issued == shown);
    let calls = state.calls.iter().zip(&state.shown);
    calls.skip(1).map(|(call, shown)| (*call, shown.as_ref().and_then(position))).collect()
}

#[tokio::test]
async fn enrolment_stores_certificates_and_every_call_shows_one() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    assert!(machine.paths.certificate().exists());
    assert!(machine.paths.decryption_certificate().exists());
    let link = machine.link(&server);
    poll(&link).await.unwrap();
    link.probe().await.unwrap();
    assert_eq!(calls(&server), [("poll", Some(0)), ("report", Some(0))]);
}

#[tokio::test]
async fn a_node_that_was_off_for_months_renews_its_expired_certificate() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    expire(&server, None);
    let link = machine.link(&server);
    poll(&link).await.unwrap();
    poll(&link).await.unwrap();
    // The next start of the agent uses the stored certificate.
    poll(&machine.link(&server)).await.unwrap();
    let renewed = [("poll", Some(0)), ("renew", Some(0)), ("poll", Some(1))];
    let all: Vec<_> = renewed.into_iter().chain([("poll", Some(1)); 2]).collect();
    assert_eq!(calls(&server), all);
}

#[tokio::test]
async fn a_long_poll_renews_an_expired_certificate() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    let link = machine.link(&server);
    poll(&link).await.unwrap();
    expire(&server, None);
    let facts = Facts::default();
    let held = PollQuery { max_hold: Duration::from_secs(3), ..poll_query(&facts, false) };
    link.poll(held).await.unwrap();
    let expected = [("poll", Some(0)), ("poll", Some(0)), ("renew", Some(0)), ("poll", Some(1))];
    assert_eq!(calls(&server), expected);
}

#[tokio::test]
async fn a_certificate_is_renewed_when_the_server_requests_it() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    let key = fs::read(machine.paths.key()).unwrap();
    server.state.lock().unwrap().aged = 1;
    let link = machine.link(&server);
    poll(&link).await.unwrap();
    // The new connection shows the new certificate, so the server stops asking.
    poll(&link).await.unwrap();
    poll(&link).await.unwrap();
    let expected = [("poll", Some(0)), ("renew", Some(0)), ("poll", Some(1)), ("poll", Some(1))];
    assert_eq!(calls(&server), expected);
    assert_eq!(fs::read(machine.paths.key()).unwrap(), key);
}

/// The agent drops a poll when it has other work.
#[tokio::test]
async fn a_new_credential_survives_a_poll_that_is_dropped_during_a_renewal() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    let link = machine.link(&server);
    {
        let mut state = server.state.lock().unwrap();
        state.renewal = "second-credential".into();
        (state.aged, state.muted_call) = (1, Some("renew"));
    }
    let is_renewing = async {
        while !server.state.lock().unwrap().calls.contains(&"renew") {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        polled = poll(&link) => panic!("{polled:?}"),
        () = is_renewing => {}
    }

    server.state.lock().unwrap().muted_call = None;
    let answer = link.poll(poll_query(&Facts::default(), false)).await.unwrap();
    let credential = answer.credential.expect("the credential of the first answer");
    assert_eq!(credential.reveal(), "second-credential");
    assert!(link.poll(poll_query(&Facts::default(), false)).await.unwrap().credential.is_none());
}

#[tokio::test]
async fn a_node_without_a_key_for_decryption_gets_one_at_the_next_renewal() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    fs::remove_file(machine.paths.decryption_key()).unwrap();
    fs::remove_file(machine.paths.decryption_certificate()).unwrap();
    server.state.lock().unwrap().aged = 1;
    poll(&machine.link(&server)).await.unwrap();
    assert!(machine.paths.decryption_key().exists());
    assert!(machine.paths.decryption_certificate().exists());
    let state = server.state.lock().unwrap();
    assert!(!state.renew_request.as_ref().unwrap().decryption_certificate_request.is_empty());
}

#[tokio::test]
async fn a_failed_renewal_does_not_stop_polls_and_is_not_tried_at_each_poll() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    for code in [Code::Unavailable, Code::PermissionDenied] {
        {
            let mut state = server.state.lock().unwrap();
            state.calls.truncate(1);
            state.shown.truncate(1);
            state.aged = 1;
            state.renewal_refusal = Some(code);
        }
        let link = machine.link(&server);
        for _ in 0..3 {
            poll(&link).await.unwrap();
        }
        let names: Vec<_> = calls(&server).into_iter().map(|(call, _)| call).collect();
        assert_eq!(names, ["poll", "renew", "poll", "poll"], "{code}");
    }
}

#[tokio::test]
async fn a_refused_renewal_has_advice_and_is_tried_again_at_the_next_poll() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    let link = machine.link(&server);
    for code in [Code::PermissionDenied, Code::NotFound, Code::Unauthenticated] {
        expire(&server, Some(code));
        let error = poll(&link).await.unwrap_err();
        assert!(matches!(error, LinkError::Denied(_)), "{code}: {error}");
        assert_eq!(
            error.to_string(),
            "the server does not accept this node: the certificate expired 60 days ago, and it is not renewed: \
             the host is not trusted; enrol this machine again with a join token"
        );
    }
    // The operator trusts the host again.
    server.state.lock().unwrap().renewal_refusal = None;
    poll(&link).await.unwrap();
    assert_eq!(calls(&server).last(), Some(&("poll", Some(1))));
}

#[tokio::test]
async fn an_overloaded_server_is_no_refusal_of_the_renewal() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    expire(&server, Some(Code::ResourceExhausted));
    let error = poll(&machine.link(&server)).await.unwrap_err();
    assert!(matches!(error, LinkError::Unavailable(_)), "{error}");
}

#[tokio::test]
async fn a_probe_does_not_renew_an_expired_certificate() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    expire(&server, None);
    let error = machine.link(&server).probe().await.unwrap_err();
    assert!(matches!(error, LinkError::Unauthenticated(_)), "{error}");
    assert_eq!(calls(&server), [("report", Some(0))]);
}

#[tokio::test]
async fn the_certificate_goes_to_the_server_and_not_to_the_proxy() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    let tunnel = TestProxy::answering("200 Connection established").await;
    let proxy = Proxy::parse(&format!("http://{}", tunnel.address), &[]).unwrap();
    poll(&machine.link_through(&server, Some(&proxy))).await.unwrap();
    assert_eq!(calls(&server), [("poll", Some(0))]);
    let to = server.address;
    assert_eq!(tunnel.requests(), [format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n")]);
}

#[tokio::test]
async fn a_bearer_token_is_enough_for_a_server_that_permits_it() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::new().await;
    server.state.lock().unwrap().calls.push("enroll");
    server.state.lock().unwrap().shown.push(None);
    let link = machine.link(&server);
    link.set_credential(&Secret::new("another")).unwrap();
    let error = poll(&link).await.unwrap_err();
    assert!(matches!(error, LinkError::Unauthenticated(_)), "{error}");
    link.set_credential(&Secret::new("first-credential")).unwrap();
    poll(&link).await.unwrap();
    assert_eq!(calls(&server), [("poll", None), ("poll", None)], "there is nothing to renew");
}

#[tokio::test]
async fn a_node_that_was_off_for_months_renews_its_expired_credential() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    {
        let mut state = server.state.lock().unwrap();
        state.is_behind_proxy = true;
        state.expired_credential = "first".into();
        state.credential = "second".into();
    }
    let facts = Facts::default();
    let link = machine.link(&server);
    link.set_credential(&Secret::new("first")).unwrap();
    let answer = link.poll(poll_query(&facts, false)).await.unwrap();
    assert_eq!(answer.credential.unwrap().reveal(), "second", "the agent stores it");
    let answer = link.poll(poll_query(&facts, false)).await.unwrap();
    assert!(answer.credential.is_none());
    let expected = ["poll", "renew", "poll", "poll"].map(|call| (call, None));
    assert_eq!(calls(&server), expected);
    let state = server.state.lock().unwrap();
    assert!(!state.renew_request.as_ref().unwrap().certificate_request.is_empty());
}

#[tokio::test]
async fn a_long_poll_and_a_report_renew_an_expired_credential() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    let link = machine.link(&server);
    let facts = Facts::default();
    {
        let mut state = server.state.lock().unwrap();
        state.is_behind_proxy = true;
        state.expired_credential = "first".into();
        state.credential = "second".into();
    }
    link.set_credential(&Secret::new("first")).unwrap();
    let held = PollQuery { max_hold: Duration::from_secs(3), ..poll_query(&facts, false) };
    let answer = link.poll(held).await.unwrap();
    assert_eq!(answer.credential.unwrap().reveal(), "second");

    server.state.lock().unwrap().expired_credential = "second".into();
    server.state.lock().unwrap().credential = "third".into();
    let target = UpdateTarget { digest: "d".into(), spec: ModuleParts::default() };
    let entry = JournalEntry::new(Uuid::from_u128(1), target);
    link.report(&entry).await.unwrap();
    // The agent stores it with the next poll.
    let answer = link.poll(poll_query(&facts, false)).await.unwrap();
    assert_eq!(answer.credential.unwrap().reveal(), "third");
    let expected = ["poll", "renew", "poll", "report", "renew", "report", "poll"];
    assert_eq!(calls(&server), expected.map(|call| (call, None)));
}

/// The host was invalidated, or another machine is enrolled as it.
#[tokio::test]
async fn a_refused_renewal_of_a_credential_has_advice() {
    let server = TestServer::start_on_loopback().await;
    let machine = Machine::enrolled(&server).await;
    {
        let mut state = server.state.lock().unwrap();
        state.is_behind_proxy = true;
        state.expired_credential = "first".into();
        state.credential = "second".into();
        state.renewal_refusal = Some(Code::PermissionDenied);
    }
    let link = machine.link(&server);
    link.set_credential(&Secret::new("first")).unwrap();
    let error = poll(&link).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server does not accept this node: the credential is not valid, and it is not renewed: \
         the host is not trusted; enrol this machine again with a join token"
    );
}
