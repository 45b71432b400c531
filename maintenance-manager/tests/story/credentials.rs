//! Nodes that renew the bearer credential that they have because a proxy terminates TLS.

use chrono::TimeDelta;
use evenkeel_auth::{NODE_CERTIFICATE_LIFETIME, NodeCertificate};
use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::{PollRequest, RenewRequest, RenewResponse};
use evenkeel_store::{hosts, instances};
use evenkeel_test_support::{certificate_request, decryption_certificate_request, node_key};
use tonic::{Code, Request, Status};

use crate::test_server::{TestNode, TestServer, report_request, with_credential};

/// Renews with this credential and a request that the key of this number has signed.
async fn renew(server: &TestServer, credential: &str, key: u8) -> Result<RenewResponse, Status> {
    let request = RenewRequest {
        certificate_request: certificate_request(&node_key(key)),
        decryption_certificate_request: Vec::new(),
    };
    let answer = server.manager.renew(with_credential(credential, request)).await;
    answer.map(tonic::Response::into_inner)
}

async fn refusal(server: &TestServer, credential: &str, key: u8) -> Status {
    renew(server, credential, key).await.expect_err("refused")
}

#[tokio::test]
async fn a_node_that_was_off_for_a_year_renews_its_credential_with_its_key() {
    let server = TestServer::new().await;
    let node = server.node().await;
    server.clock.advance(TimeDelta::days(365));
    let poll = with_credential(&node.credential, PollRequest::default());
    let refused = server.manager.poll(poll).await.expect_err("expired");
    assert_eq!(refused.code(), Code::Unauthenticated);
    let report = report_request(1, evenkeel_domain::id::PolicyId::nth(1), &[]);
    let report = with_credential(&node.credential, report);
    let refused = server.manager.report(report).await.expect_err("expired");
    assert_eq!(refused.code(), Code::Unauthenticated);

    let renewed = renew(&server, &node.credential, 1).await.expect("renewed");
    let now = server.now();
    let caller = server.authority.verify(&renewed.credential, now).expect("a credential");
    assert_eq!(caller.subject, node.host.to_string());
    assert_eq!(caller.expires_at, now + TimeDelta::days(90));
    let certificate = NodeCertificate::parse(&renewed.certificate).expect("a certificate");
    assert_eq!(Some(&certificate.key), caller.node_key.as_ref());
    let node = TestNode { credential: renewed.credential, ..node };
    assert!(server.poll(&node).await.credential.is_empty());
}

#[tokio::test]
async fn a_credential_is_renewed_only_with_its_key() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let other = server.nth_node(2).await;
    server.clock.advance(NODE_CERTIFICATE_LIFETIME * 4);
    let refused = refusal(&server, &node.credential, 2).await;
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("certificate_request: "), "{refused}");
    let request = with_credential(&node.credential, RenewRequest::default());
    let refused = server.manager.renew(request).await.expect_err("no proof");
    assert_eq!(refused.code(), Code::InvalidArgument);

    // The key alone does not say which node has it.
    let request = RenewRequest {
        certificate_request: certificate_request(&node_key(1)),
        decryption_certificate_request: Vec::new(),
    };
    let refused = server.manager.renew(Request::new(request)).await.expect_err("no credential");
    assert_eq!(refused.code(), Code::Unauthenticated);
    let (claims, _) = node.credential.rsplit_once('.').expect("a token");
    let (_, signature) = other.credential.rsplit_once('.').expect("a token");
    let forged = format!("{claims}.{signature}");
    assert_eq!(refusal(&server, &forged, 1).await.code(), Code::Unauthenticated);
    let without_key = server.host_token(node.host);
    assert_eq!(refusal(&server, &without_key, 1).await.code(), Code::PermissionDenied);
    renew(&server, &node.credential, 1).await.expect("renewed");
}

#[tokio::test]
async fn the_credential_of_an_invalidated_or_deleted_host_is_not_renewed() {
    let server = TestServer::new().await;
    let node = server.node().await;
    server.invalidate(node.instance).await;
    let gone = server.nth_node(2).await;
    let tx = server.tx().await;
    instances::delete(&tx, gone.instance).await.expect("deleted");
    hosts::delete(&tx, gone.host).await.expect("deleted");
    tx.commit().await.expect("committed");
    for _ in 0..2 {
        let refused = refusal(&server, &node.credential, 1).await;
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains("was invalidated"), "{refused}");
        assert_eq!(refusal(&server, &gone.credential, 2).await.code(), Code::NotFound);
        server.clock.advance(TimeDelta::days(365));
    }
}

/// A proxy that has copied a credential and a request must not get the secrets of the node.
#[tokio::test]
async fn a_credential_does_not_replace_the_key_for_decryption() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let request = RenewRequest {
        certificate_request: certificate_request(&node_key(1)),
        decryption_certificate_request: decryption_certificate_request(),
    };
    let renewed = server.manager.renew(with_credential(&node.credential, request)).await;
    let renewed = renewed.expect("renewed").into_inner();
    assert!(renewed.decryption_certificate.is_empty());
    server
        .execute_sql(
            "DO $$ BEGIN IF EXISTS (SELECT FROM hosts WHERE decryption_certificate <> '') \
             THEN RAISE 'a certificate is stored'; END IF; END $$",
        )
        .await;
}
