//! Nodes authenticate with client certificates, over real TLS.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::{CertificateAuthority, ClientKey, NODE_CERTIFICATE_LIFETIME, NodeCertificate};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{
    PollRequest, PollResponse, RenewRequest, RenewResponse, ReportRequest,
};
use evenkeel_test_support::{certificate_pem, certificate_request, node_key};
use rustls::HandshakeKind;
use rustls::pki_types::PrivateKeyDer;
use tonic::transport::{Channel, Identity};
use tonic::{Code, Status};
use uuid::Uuid;

use crate::files::registry;
use crate::nodes::{endpoint, endpoint_with, enroll_request, join_token, metric, tls_config};
use crate::test_server::{FileClient, ServerProcess, TestServer, eventually};

/// Maximum time until a cached answer of an invalidated host is no longer sent.
const INVALIDATION_TIMEOUT: Duration = Duration::from_mins(1);

/// A node of the project `default` with its client certificate.
struct Node {
    number: u8,
    host: String,
    certificate: Vec<u8>,
}

impl Node {
    async fn enroll(harness: &TestServer, server: &ServerProcess, number: u8) -> Self {
        let channel = endpoint(harness, server).connect().await.unwrap();
        let request = enroll_request(&join_token(harness, server), number);
        let enrolled = AgentServiceClient::new(channel).enroll(request).await.unwrap();
        let enrolled = enrolled.into_inner();
        Self { number, host: enrolled.host_id, certificate: enrolled.certificate }
    }

    /// A new connection with the certificate of the node.
    async fn connect(
        &self,
        harness: &TestServer,
        server: &ServerProcess,
    ) -> AgentServiceClient<Channel> {
        connect_with(harness, server, &self.certificate, self.number).await.unwrap()
    }
}

async fn connect_with(
    harness: &TestServer,
    server: &ServerProcess,
    certificate: &[u8],
    number: u8,
) -> Result<AgentServiceClient<Channel>, tonic::transport::Error> {
    let key = node_key(number).serialize_pem();
    let identity = Identity::from_pem(certificate_pem(certificate), key);
    let channel = endpoint_with(server, tls_config(harness).identity(identity)).connect().await?;
    Ok(AgentServiceClient::new(channel))
}

async fn poll(client: &mut AgentServiceClient<Channel>) -> Result<PollResponse, Status> {
    let request = PollRequest { facts_digest: vec![0; 32], ..PollRequest::default() };
    client.poll(request).await.map(tonic::Response::into_inner)
}

/// Another certificate of the server's authority for a node, as if it had been issued at a time.
fn issue_certificate(harness: &TestServer, node: &Node, at: DateTime<Utc>) -> Vec<u8> {
    let folder = harness.data_dir().join("ca");
    let authority = CertificateAuthority::open(&folder, SystemClock.now()).unwrap();
    let key = ClientKey::from_request(&certificate_request(&node_key(node.number))).unwrap();
    let project = NodeCertificate::parse(&node.certificate).unwrap().project;
    authority.issue_client_certificate((project, &node.host), &key, at).unwrap()
}

/// Renews the certificate of a connection for the key of a node.
async fn renew(
    client: &mut AgentServiceClient<Channel>,
    number: u8,
) -> Result<RenewResponse, Status> {
    let request = RenewRequest {
        certificate_request: certificate_request(&node_key(number)),
        decryption_certificate_request: Vec::new(),
    };
    client.renew(request).await.map(tonic::Response::into_inner)
}

fn invalidate(harness: &TestServer, server: &ServerProcess, host: &str) {
    let path = format!("/v1/projects/default/compute/hosts/{host}/invalidate");
    let (status, body) = server.send(
        "rest",
        &format!(
            "PUT {path} HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-length: 0\r\n\r\n",
            harness.operator_token()
        ),
    );
    assert_eq!(status, 200, "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_polls_with_its_certificate_and_not_without() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    let node = Node::enroll(&harness, &server, 1).await;
    let mut client = node.connect(&harness, &server).await;
    for _ in 0..2 {
        poll(&mut client).await.unwrap();
    }
    let plain = endpoint(&harness, &server).connect().await.unwrap();
    let refused = poll(&mut AgentServiceClient::new(plain)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("no client certificate"), "{refused}");
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_fails_the_handshake() {
    const HANDSHAKES_FAILED: &str = "evenkeel_handshakes_total{outcome=\"failed\"}";
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    let node = Node::enroll(&harness, &server, 1).await;
    assert!(metric(&server, HANDSHAKES_FAILED) < 1.0);
    let now = SystemClock.now();
    let other = CertificateAuthority::open(&harness.path("other-ca"), now).unwrap();
    let key = ClientKey::from_request(&certificate_request(&node_key(1))).unwrap();
    let project = Uuid::from_u128(1);
    let foreign = other.issue_client_certificate((project, &node.host), &key, now).unwrap();
    // The client learns of the refusal with its first call.
    let answer = match connect_with(&harness, &server, &foreign, 1).await {
        Ok(mut client) => poll(&mut client).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    answer.unwrap_err();
    eventually("the handshake has failed", || metric(&server, HANDSHAKES_FAILED) > 0.5);
    poll(&mut node.connect(&harness, &server).await).await.unwrap();
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_connection_of_a_node_replaces_its_oldest_one() {
    const OPEN: &str = "evenkeel_connections{listener=\"southbound\"}";
    const HANDSHAKES_OK: &str = "evenkeel_handshakes_total{outcome=\"ok\"}";
    let harness = TestServer::new().with_env("EVENKEELD_SOUTHBOUND__MAX_CONNECTIONS_PER_NODE", "1");
    let server = harness.start_and_wait(&["all"]);
    let node = Node::enroll(&harness, &server, 1).await;
    let other = Node::enroll(&harness, &server, 2).await;
    let mut of_other = other.connect(&harness, &server).await;
    let mut oldest = node.connect(&harness, &server).await;
    for client in [&mut of_other, &mut oldest] {
        poll(client).await.unwrap();
    }
    let mut newest = node.connect(&harness, &server).await;
    poll(&mut newest).await.unwrap();

    eventually("the oldest connection is closed", || metric(&server, OPEN) < 2.5);
    assert!((0.5..1.5).contains(&metric(&server, "evenkeel_connections_replaced_total")));
    let greeted = metric(&server, HANDSHAKES_OK);
    for client in [&mut of_other, &mut newest] {
        poll(client).await.unwrap();
    }
    assert!(metric(&server, HANDSHAKES_OK) <= greeted, "the others did not reconnect");
    drop(oldest);
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_files_with_its_certificate() {
    let harness = TestServer::new();
    let config = harness.write_file("evenkeeld.toml", &registry(&harness));
    let harness = harness.with_env("EVENKEELD_FILES__LISTEN", "127.0.0.1:0");
    let server = harness.start_and_wait(&["all", "--config", &config]);
    let node = Node::enroll(&harness, &server, 1).await;
    let ca = harness.data_dir().join("ca/ca.pem");
    let path = format!("/files/sha256/{}", "0".repeat(64));
    let key = PrivateKeyDer::try_from(node_key(1).serialize_der()).unwrap();
    let certificate = (node.certificate.clone().into(), key);
    let (status, answer) = server.get_file_with_certificate(&ca, &path, certificate);
    assert_eq!(status, 404, "the node is authenticated: {answer}");
    assert_eq!(server.get_file(&ca, &path, None).0, 401);
    server.stop();
}

/// A node that was off for a month. It cannot connect without its key, because the handshake proves
/// the key.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_is_renewed_over_the_connection_that_shows_it() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    let mut node = Node::enroll(&harness, &server, 1).await;
    let issued_at = SystemClock.now() - NODE_CERTIFICATE_LIFETIME - TimeDelta::days(1);
    let expired = issue_certificate(&harness, &node, issued_at);
    node.certificate.clone_from(&expired);
    let mut client = node.connect(&harness, &server).await;
    let refused = poll(&mut client).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("the certificate expired at"), "{refused}");

    let refused = renew(&mut client, 2).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "a request for another key: {refused}");
    node.certificate = renew(&mut client, 1).await.unwrap().certificate;
    let renewed = NodeCertificate::parse(&node.certificate).unwrap();
    assert_eq!(renewed.host, node.host);
    assert!(SystemClock.now() + TimeDelta::days(1) < renewed.expires_at, "{renewed:?}");
    poll(&mut node.connect(&harness, &server).await).await.unwrap();

    invalidate(&harness, &server, &node.host);
    let mut client = connect_with(&harness, &server, &expired, 1).await.unwrap();
    let refused = renew(&mut client, 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    server.stop();
}

/// A resumed session has the certificate of the handshake that began it. Each request compares the
/// certificate with its host again.
#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_session_of_an_invalidated_host_is_refused() {
    let harness = TestServer::new();
    let config = harness.write_file("evenkeeld.toml", &registry(&harness));
    let harness = harness.with_env("EVENKEELD_FILES__LISTEN", "127.0.0.1:0");
    let server = harness.start_and_wait(&["all", "--config", &config]);
    let node = Node::enroll(&harness, &server, 1).await;
    let key = PrivateKeyDer::try_from(node_key(1).serialize_der()).unwrap();
    let ca = harness.data_dir().join("ca/ca.pem");
    let client = FileClient::new(&ca, (node.certificate.clone().into(), key));
    let path = format!("/files/sha256/{}", "0".repeat(64));
    let expect = |status, handshake| {
        let ((answered, answer), kind) = client.get_file(&server, &path);
        assert_eq!((answered, kind), (status, Some(handshake)), "{answer}");
    };
    expect(404, HandshakeKind::Full);
    expect(404, HandshakeKind::Resumed);
    invalidate(&harness, &server, &node.host);
    expect(401, HandshakeKind::Resumed);
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalidated_host_is_refused_by_every_replica() {
    let first = TestServer::new();
    let postgres = first.start_postgres().await;
    let first = first.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    let server = first.start_and_wait(&["all"]);
    let folder = |name: &str| first.data_dir().join(name).to_string_lossy().into_owned();
    let second = TestServer::new()
        .with_env("EVENKEELD_DATABASE__URL", &postgres.url())
        .with_env("EVENKEELD_AUTH__KEYS", &folder("keys"))
        .with_env("EVENKEELD_AUTH__CA", &folder("ca"));
    let replica = second.start_and_wait(&["all"]);
    let node = Node::enroll(&first, &server, 1).await;
    let mut clients = [node.connect(&first, &server).await, node.connect(&first, &replica).await];
    for client in &mut clients {
        poll(client).await.unwrap();
    }

    invalidate(&first, &server, &node.host);

    for client in &mut clients {
        // A report is compared with the database, so it is refused at once.
        let report =
            ReportRequest { attempt_id: Uuid::nil().to_string(), ..ReportRequest::default() };
        let refused = client.report(report).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        let refused = async {
            loop {
                match poll(client).await {
                    // It was still answered, or the test polls too often.
                    Ok(_) => {}
                    Err(busy) if busy.code() == Code::ResourceExhausted => {}
                    Err(refused) => return refused,
                }
            }
        };
        let refused = tokio::time::timeout(INVALIDATION_TIMEOUT, refused).await.unwrap();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    }
    server.stop();
    replica.stop();
    postgres.stop().await;
}
