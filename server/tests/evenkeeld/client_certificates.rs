//! Nodes authenticate with client certificates, over real TLS.

use std::time::Duration;

use evenkeel_auth::{CertificateAuthority, ClientKey};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{PollRequest, PollResponse, ReportRequest};
use evenkeel_test_support::{certificate_pem, certificate_request, node_key};
use rustls::pki_types::PrivateKeyDer;
use tonic::transport::{Channel, Identity};
use tonic::{Code, Status};
use uuid::Uuid;

use crate::files::registry;
use crate::nodes::{endpoint, endpoint_with, enroll_request, join_token, metric, tls_config};
use crate::test_server::{ServerProcess, TestServer, eventually};

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

    let path = format!("/v1/projects/default/compute/hosts/{}/invalidate", node.host);
    let (status, body) = server.send(
        "rest",
        &format!(
            "PUT {path} HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-length: 0\r\n\r\n",
            first.operator_token()
        ),
    );
    assert_eq!(status, 200, "{body}");

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
