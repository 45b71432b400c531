//! Nodes that authenticate with client certificates. The tests put the certificate of a connection
//! into each request, as the listener does.

use std::fmt::Write;
use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_auth::{ClientKey, NODE_CERTIFICATE_LIFETIME, NodeCertificate};
use evenkeel_kit::TestClock;
use evenkeel_maintenance_manager::{MaintenanceManager, Settings};
use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::{
    EnrollRequest, EnrollResponse, PollRequest, PollResponse, RenewRequest, RenewResponse,
};
use evenkeel_proto::maintmgr::PlatformUpdateStatusRequest;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::{hosts, instances};
use evenkeel_test_support::{certificate_request, decryption_certificate_request, node_key};
use futures_util::future::join;
use tonic::{Code, Request, Status};

use crate::fleet::sample;
use crate::large_messages::within_n_log_n;
use crate::long_poll::{wait_for_long_polls, with_timeout};
use crate::replicas::with_full_audit;
use crate::test_server::{
    TestNode, TestServer, begin_request, downloaded, downloading, enroll_request, facts,
    report_request, with_credential,
};

/// A server that accepts no credentials. The manager of its `server` does.
struct CertificateFixture {
    server: TestServer,
    manager: MaintenanceManager,
}

/// A node with its client certificate.
struct CertifiedNode {
    node: TestNode,
    /// Number of its key.
    key: u8,
    certificate: NodeCertificate,
}

fn with_certificate<T>(certificate: &NodeCertificate, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Arc::new(certificate.clone()));
    request
}

fn parse_certificate(der: &[u8]) -> NodeCertificate {
    NodeCertificate::parse(der).expect("a certificate of a node")
}

impl CertificateFixture {
    async fn new() -> Self {
        let server = TestServer::new().await;
        let manager = Self::new_manager(&server);
        server.follow(&manager).await;
        Self { server, manager }
    }

    fn new_manager(server: &TestServer) -> MaintenanceManager {
        let manager = MaintenanceManager::new(
            server.store.clone(),
            server.shared_clock(),
            Arc::clone(&server.authority),
            Arc::clone(&server.ca),
            with_full_audit(Settings::default()),
        );
        manager.expect("valid settings")
    }

    async fn send_enroll_request(&self, request: EnrollRequest) -> Result<EnrollResponse, Status> {
        self.manager.enroll(Request::new(request)).await.map(tonic::Response::into_inner)
    }

    /// Enrols a machine and reports its facts.
    async fn enroll(&self, machine: u128, key: u8) -> CertifiedNode {
        let token = self.server.join_token(false, true).await;
        let answer = self.send_enroll_request(enroll_request(&token, machine, key)).await;
        let answer = answer.expect("enrolled");
        assert_eq!(answer.credential, "");
        let certificate = parse_certificate(&answer.certificate);
        let node = CertifiedNode { node: TestNode::from_enrolment(answer), key, certificate };
        let request = PollRequest { facts: Some(facts()), ..PollRequest::default() };
        self.send_poll(&node.certificate, request).await.expect("facts");
        node
    }

    async fn send_poll(
        &self,
        certificate: &NodeCertificate,
        request: PollRequest,
    ) -> Result<PollResponse, Status> {
        self.manager.wait_until_caught_up().await;
        let answer = self.manager.poll(with_certificate(certificate, request)).await;
        answer.map(tonic::Response::into_inner)
    }

    /// Polls without changes.
    async fn poll(&self, node: &CertifiedNode) -> Result<PollResponse, Status> {
        let facts_digest = self.server.node_state(&node.node).await.facts_digest;
        let request = PollRequest { facts_digest, ..PollRequest::default() };
        self.send_poll(&node.certificate, request).await
    }

    async fn renew_with(
        &self,
        node: &CertifiedNode,
        request: RenewRequest,
    ) -> Result<RenewResponse, Status> {
        let answer = self.manager.renew(with_certificate(&node.certificate, request)).await;
        answer.map(tonic::Response::into_inner)
    }

    async fn renew(&self, node: &CertifiedNode) -> Result<RenewResponse, Status> {
        let request = RenewRequest {
            certificate_request: certificate_request(&node_key(node.key)),
            decryption_certificate_request: Vec::new(),
        };
        self.renew_with(node, request).await
    }

    /// Restores a database that does not know a node: its rows are gone, and the next node gets its
    /// ids.
    async fn restore_without(&self, node: &TestNode) {
        let tx = self.server.tx().await;
        instances::delete(&tx, node.instance).await.expect("deleted");
        hosts::delete(&tx, node.host).await.expect("deleted");
        tx.commit().await.expect("committed");
        let reset = ["host_numbers", "instance_numbers"]
            .map(|name| format!("PERFORM setval('{name}', last_value, false) FROM {name};"));
        let reset = format!("DO $$ BEGIN {} END $$", reset.concat());
        self.server.execute_sql(&reset).await;
        self.manager.wait_until_caught_up().await;
    }
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map(drop).expect_err("refused").code()
}

#[tokio::test]
async fn a_machine_whose_ids_were_assigned_to_another_one_is_refused() {
    let fixture = CertificateFixture::new().await;
    let old = fixture.enroll(1, 1).await;
    fixture.poll(&old).await.expect("answered");
    fixture.restore_without(&old.node).await;
    let new = fixture.enroll(2, 2).await;
    assert_eq!((new.node.host, new.node.instance), (old.node.host, old.node.instance));

    let policy = fixture.server.policy(&new.node, "demo-hello=1.1").await;
    let refused = fixture.poll(&old).await.expect_err("an unchanged poll");
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("enrolled again with another key"), "{refused}");
    let changed = PollRequest { facts: Some(facts()), ..PollRequest::default() };
    assert_eq!(code(fixture.send_poll(&old.certificate, changed).await), Code::PermissionDenied);
    let events = [(1, downloading()), (2, downloaded())];
    let report = with_certificate(&old.certificate, report_request(1, policy, &events));
    assert_eq!(code(fixture.manager.report(report).await), Code::PermissionDenied);
    let begin = begin_request(1, &policy.to_string(), 2);
    let begin = with_certificate(&old.certificate, begin);
    assert_eq!(code(fixture.manager.begin(begin).await), Code::PermissionDenied);
    assert_eq!(code(fixture.renew(&old).await), Code::PermissionDenied);
    assert!(fixture.server.runs(&new.node).await.is_empty());
    fixture.poll(&new).await.expect("the new machine is served");
}

/// A node whose certificate has expired renews it before it polls.
#[tokio::test]
async fn a_renewal_for_a_lost_host_keeps_its_id_from_being_assigned_again() {
    let fixture = CertificateFixture::new().await;
    let lost = fixture.enroll(1, 1).await;
    fixture.restore_without(&lost.node).await;
    assert_eq!(code(fixture.renew(&lost).await), Code::NotFound);
    let new = fixture.enroll(2, 2).await;
    assert!(new.node.host != lost.node.host && new.node.instance != lost.node.instance);
}

#[tokio::test]
async fn a_credential_of_an_earlier_enrolment_is_refused() {
    let fixture = CertificateFixture::new().await;
    let server = &fixture.server;
    let old = server.node().await;
    server.poll(&old).await;
    fixture.restore_without(&old).await;
    let registered = server.eim_node(9).await;
    assert_eq!(registered.host, old.host);
    let poll = PollRequest::default();
    let poll = server.manager.poll(with_credential(&old.credential, poll)).await;
    assert_eq!(code(poll), Code::PermissionDenied);
    let renewal = RenewRequest {
        certificate_request: certificate_request(&node_key(1)),
        decryption_certificate_request: Vec::new(),
    };
    let renewal = server.manager.renew(with_credential(&old.credential, renewal)).await;
    assert_eq!(code(renewal), Code::PermissionDenied);
    // The host now has EIM's agent, which has no key.
    let status = PlatformUpdateStatusRequest {
        host_guid: registered.guid.clone(),
        update_status: Some(sample(S::UpToDate)),
    };
    let status = with_credential(&old.credential, status);
    let status = server.manager.platform_update_status(status).await;
    assert_eq!(code(status), Code::PermissionDenied);
}

#[tokio::test]
async fn an_expired_certificate_is_accepted_only_for_its_renewal() {
    let fixture = CertificateFixture::new().await;
    let mut node = fixture.enroll(1, 1).await;
    fixture.server.clock.advance(NODE_CERTIFICATE_LIFETIME);
    let refused = fixture.poll(&node).await.expect_err("expired");
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("the certificate expired at"), "{refused}");
    let report = report_request(1, evenkeel_domain::id::PolicyId::nth(1), &[]);
    let report = with_certificate(&node.certificate, report);
    assert_eq!(code(fixture.manager.report(report).await), Code::Unauthenticated);

    // A node that was off for a year.
    fixture.server.clock.advance(TimeDelta::days(365));
    let renewed = fixture.renew(&node).await.expect("renewed");
    assert!(renewed.decryption_certificate.is_empty());
    let renewed = parse_certificate(&renewed.certificate);
    assert_eq!((&renewed.host, &renewed.key), (&node.certificate.host, &node.certificate.key));
    assert_eq!(renewed.issued_at, fixture.server.now());
    node.certificate = renewed;
    fixture.poll(&node).await.expect("answered");
}

#[tokio::test]
async fn a_process_with_a_wrong_clock_issues_certificates_by_the_clock_of_the_database() {
    let fixture = CertificateFixture::new().await;
    let node = fixture.enroll(1, 1).await;
    let server = &fixture.server;
    for offset in [TimeDelta::hours(-23), TimeDelta::days(20)] {
        let manager = MaintenanceManager::new(
            server.store.clone(),
            Arc::new(TestClock::new(server.now() + offset)),
            Arc::clone(&server.authority),
            Arc::clone(&server.ca),
            Settings::default(),
        );
        let request = RenewRequest {
            certificate_request: certificate_request(&node_key(1)),
            decryption_certificate_request: Vec::new(),
        };
        let renewed = manager
            .expect("valid settings")
            .renew(with_certificate(&node.certificate, request))
            .await
            .expect("renewed");
        let renewed = parse_certificate(&renewed.into_inner().certificate);
        assert_eq!(renewed.issued_at, server.now(), "{offset}");
    }
}

/// Otherwise all nodes that renew at a server with a wrong clock would have to enrol again.
#[tokio::test]
async fn a_certificate_of_a_server_whose_clock_was_ahead_is_accepted_only_for_its_renewal() {
    let fixture = CertificateFixture::new().await;
    let server = &fixture.server;
    let mut node = fixture.enroll(1, 1).await;
    let key = ClientKey::from_request(&certificate_request(&node_key(1))).expect("a request");
    let (project, host) = (server.tenant.uuid(), node.node.host.to_string());
    let next_year = server.now() + TimeDelta::days(365);
    let issued = server.ca.issue_client_certificate((project, &host), &key, next_year);
    node.certificate = parse_certificate(&issued.expect("a certificate"));
    let refused = fixture.poll(&node).await.expect_err("not yet valid");
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("the certificate is not valid before"), "{refused}");

    let renewed = fixture.renew(&node).await.expect("renewed");
    node.certificate = parse_certificate(&renewed.certificate);
    fixture.poll(&node).await.expect("answered");
}

#[tokio::test]
async fn a_certificate_is_renewed_only_for_the_same_key_and_a_trusted_host() {
    let fixture = CertificateFixture::new().await;
    let node = fixture.enroll(1, 1).await;
    let request = |number| RenewRequest {
        certificate_request: certificate_request(&node_key(number)),
        decryption_certificate_request: Vec::new(),
    };
    let refused = fixture.renew_with(&node, request(2)).await.expect_err("another key");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("certificate_request: "), "{refused}");
    assert_eq!(
        code(fixture.renew_with(&node, RenewRequest::default()).await),
        Code::InvalidArgument
    );
    fixture.renew(&node).await.expect("renewed");

    fixture.server.invalidate(node.node.instance).await;
    assert_eq!(code(fixture.renew(&node).await), Code::PermissionDenied);
    let gone = fixture.enroll(2, 2).await;
    let tx = fixture.server.tx().await;
    instances::delete(&tx, gone.node.instance).await.expect("deleted");
    hosts::delete(&tx, gone.node.host).await.expect("deleted");
    tx.commit().await.expect("committed");
    assert_eq!(code(fixture.renew(&gone).await), Code::NotFound);
}

#[tokio::test]
async fn the_largest_request_for_a_renewal_is_refused() {
    let fixture = CertificateFixture::new().await;
    let node = fixture.enroll(1, 1).await;
    let valid = certificate_request(&node_key(node.key));
    let long = || vec![0x30; 8 << 20];
    let with_rest = [valid.clone(), long()].concat();
    for (client, decryption) in [(long(), long()), (valid, long()), (with_rest, Vec::new())] {
        let request = RenewRequest {
            certificate_request: client,
            decryption_certificate_request: decryption,
        };
        let refused = within_n_log_n(0, 2, fixture.renew_with(&node, request)).await;
        assert_eq!(code(refused), Code::InvalidArgument);
    }
    fixture.renew(&node).await.expect("a new certificate");
}

#[tokio::test]
async fn a_poll_requests_the_renewal_of_a_certificate_that_is_older_than_a_day() {
    let fixture = CertificateFixture::new().await;
    let mut node = fixture.enroll(1, 1).await;
    let answer = fixture.poll(&node).await.expect("answered");
    assert!(!answer.renew_certificate && answer.credential.is_empty());
    fixture.server.clock.advance(TimeDelta::hours(25));
    // Not cached, and then cached.
    for _ in 0..2 {
        let answer = fixture.poll(&node).await.expect("answered");
        assert!(answer.renew_certificate && answer.credential.is_empty());
    }
    let renewed = fixture.renew(&node).await.expect("renewed");
    node.certificate = parse_certificate(&renewed.certificate);
    assert!(!fixture.poll(&node).await.expect("answered").renew_certificate);
}

#[tokio::test]
async fn a_long_poll_with_an_old_certificate_lasts_its_time_and_requests_the_renewal() {
    let fixture = CertificateFixture::new().await;
    let node = fixture.enroll(1, 1).await;
    fixture.server.clock.advance(TimeDelta::hours(25));
    let previous = fixture.poll(&node).await.expect("answered");
    assert!(previous.renew_certificate);
    let request = PollRequest {
        facts_digest: fixture.server.node_state(&node.node).await.facts_digest,
        decision_tag: previous.decision_tag,
        long_poll_millis: 300,
        ..PollRequest::default()
    };
    let poll = with_timeout(fixture.send_poll(&node.certificate, request));
    let (answer, ()) = join(poll, wait_for_long_polls(&fixture.manager, 1)).await;
    let answer = answer.expect("answered");
    assert_eq!(answer.decision_tag, previous.decision_tag);
    assert!(answer.renew_certificate);
}

#[tokio::test]
async fn a_node_of_ours_without_a_certificate_is_only_enrolled() {
    let fixture = CertificateFixture::new().await;
    let with_credential_only = fixture.server.node().await;
    let credential = with_credential_only.credential.as_str();
    let manager = &fixture.manager;
    let policy = evenkeel_domain::id::PolicyId::nth(1);
    let poll = manager.poll(with_credential(credential, PollRequest::default())).await;
    let begin = manager.begin(with_credential(credential, begin_request(1, "", 0))).await;
    let report = manager.report(with_credential(credential, report_request(1, policy, &[]))).await;
    let renewal = manager.renew(Request::new(RenewRequest::default())).await;
    let refusals = [
        poll.map(drop).expect_err("a poll"),
        begin.map(drop).expect_err("a begin"),
        report.map(drop).expect_err("a report"),
        renewal.map(drop).expect_err("a renewal"),
    ];
    for refused in refusals {
        assert_eq!(refused.code(), Code::Unauthenticated);
        let message = refused.message();
        assert!(message.contains("no client certificate"), "{message}");
        assert!(message.contains("maintenance_manager.bearer_credentials"), "{message}");
    }
    // EIM's agents use tokens.
    let eim = fixture.server.eim_node(9).await;
    let status = sample(S::UpToDate);
    fixture.server.send_status_to(manager, &eim.guid, status).await.expect("answered");
}

#[tokio::test]
async fn a_node_whose_credential_names_no_key_must_enrol_again() {
    let fixture = CertificateFixture::new().await;
    let node = fixture.server.node().await;
    let of_earlier_release = fixture.server.host_token(node.host);
    let poll = with_credential(&of_earlier_release, PollRequest::default());
    let refused = fixture.server.manager.poll(poll).await.expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("evenkeel-agent enroll"), "{refused}");
}

#[tokio::test]
async fn a_cached_answer_is_sent_only_to_the_key_that_it_was_created_for() {
    let fixture = CertificateFixture::new().await;
    let node = fixture.enroll(1, 1).await;
    fixture.poll(&node).await.expect("evaluated");
    fixture.poll(&node).await.expect("cached");
    assert_eq!(fixture.manager.cache_sizes().nodes, 1);
    let other = fixture.enroll(2, 2).await;
    let forged =
        NodeCertificate { host: node.certificate.host.clone(), ..other.certificate.clone() };
    let same_host = TestNode { credential: String::new(), ..node.node };
    let impostor = CertifiedNode { node: same_host, key: 2, certificate: forged };
    assert_eq!(code(fixture.poll(&impostor).await), Code::PermissionDenied);
    fixture.poll(&node).await.expect("its own answer");
}

#[tokio::test]
async fn a_decryption_certificate_is_issued_on_request_and_stored() {
    let fixture = CertificateFixture::new().await;
    let token = fixture.server.join_token(false, true).await;
    let request = EnrollRequest {
        decryption_certificate_request: decryption_certificate_request(),
        ..enroll_request(&token, 1, 1)
    };
    let answer = fixture.send_enroll_request(request).await.expect("enrolled");
    fixture.expect_stored(&answer.decryption_certificate).await;
    let certificate = parse_certificate(&answer.certificate);
    let node = CertifiedNode { node: TestNode::from_enrolment(answer), key: 1, certificate };
    let renewal = RenewRequest {
        certificate_request: certificate_request(&node_key(1)),
        decryption_certificate_request: decryption_certificate_request(),
    };
    let renewed = fixture.renew_with(&node, renewal).await.expect("renewed");
    fixture.expect_stored(&renewed.decryption_certificate).await;
    // It never authenticates.
    assert!(NodeCertificate::parse(&renewed.decryption_certificate).is_err());
}

#[tokio::test]
async fn a_machine_must_prove_that_it_has_its_keys() {
    let fixture = CertificateFixture::new().await;
    let token = fixture.server.join_token(false, true).await;
    let good = enroll_request(&token, 1, 1);
    let mut forged = good.certificate_request.clone();
    *forged.last_mut().expect("bytes") ^= 1;
    let mut forged_decryption = decryption_certificate_request();
    *forged_decryption.last_mut().expect("bytes") ^= 1;
    for (request, field) in [
        (EnrollRequest { certificate_request: forged, ..good.clone() }, "certificate_request"),
        (EnrollRequest { certificate_request: Vec::new(), ..good.clone() }, "certificate_request"),
        (
            EnrollRequest { decryption_certificate_request: forged_decryption, ..good.clone() },
            "decryption_certificate_request",
        ),
    ] {
        let refused = fixture.send_enroll_request(request).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with(&format!("{field}: ")), "{refused}");
    }
    let first = fixture.send_enroll_request(good.clone()).await.expect("enrolled");
    let again = fixture.send_enroll_request(good).await.expect("its answer was lost");
    let (first, again) =
        (parse_certificate(&first.certificate), parse_certificate(&again.certificate));
    assert_eq!((first.host, first.key), (again.host, again.key));
}

impl CertificateFixture {
    /// Expects a stored decryption certificate of the only host.
    async fn expect_stored(&self, certificate: &[u8]) {
        let mut hex = String::new();
        for byte in certificate {
            write!(hex, "{byte:02x}").expect("a text");
        }
        let check = format!(
            "DO $$ BEGIN IF (SELECT encode(decryption_certificate, 'hex') FROM hosts) \
             IS DISTINCT FROM '{hex}' THEN RAISE 'another certificate is stored'; END IF; END $$"
        );
        self.server.execute_sql(&check).await;
    }
}
