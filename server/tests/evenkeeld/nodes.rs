//! Helpers of tests with nodes.

use std::fs;

use evenkeel_proto::agent::{EnrollRequest, Identity, OsRelease};
use evenkeel_test_support::{certificate_request, node_key};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use uuid::Uuid;

use crate::test_server::{ServerProcess, TestServer};

/// TLS settings of a client that trusts the authority of the server.
pub fn tls_config(harness: &TestServer) -> ClientTlsConfig {
    let ca = fs::read(harness.data_dir().join("ca/ca.pem")).unwrap();
    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name("localhost")
}

pub fn endpoint(harness: &TestServer, server: &ServerProcess) -> Endpoint {
    endpoint_with(server, tls_config(harness))
}

pub fn endpoint_with(server: &ServerProcess, tls: ClientTlsConfig) -> Endpoint {
    let address = format!("https://{}", server.address("southbound"));
    Endpoint::from_shared(address).unwrap().tls_config(tls).unwrap()
}

pub fn join_token(harness: &TestServer, server: &ServerProcess) -> String {
    let (status, body) = server.send(
        "rest",
        &format!(
            "POST /v1/projects/default/join-tokens HTTP/1.0\r\nhost: localhost\r\n\
             authorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}",
            harness.operator_token()
        ),
    );
    assert_eq!(status, 200, "{body}");
    let created: serde_json::Value = serde_json::from_str(&body).unwrap();
    created["token"].as_str().unwrap().to_owned()
}

/// The enrolment request of a machine whose UUID and key follow from its number.
pub fn enroll_request(join_token: &str, number: u8) -> EnrollRequest {
    EnrollRequest {
        join_token: join_token.to_owned(),
        identity: Some(Identity {
            uuid: Uuid::from_u128(u128::from(number)).to_string(),
            host_name: format!("node-{number}"),
            ..Identity::default()
        }),
        os_release: Some(OsRelease {
            id: "debian".to_owned(),
            version_id: "12".to_owned(),
            pretty_name: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            version_codename: "bookworm".to_owned(),
        }),
        architecture: "amd64".to_owned(),
        agent_version: "1".to_owned(),
        booted_image: None,
        certificate_request: certificate_request(&node_key(number)),
        decryption_certificate_request: Vec::new(),
    }
}

/// Returns the value of a metric of a server.
pub fn metric(server: &ServerProcess, name: &str) -> f64 {
    let (_, metrics) = server.get("admin", "/metrics", None);
    let line = metrics.lines().find(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(' '))
    });
    let line = line.unwrap_or_else(|| panic!("no {name} in {metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
