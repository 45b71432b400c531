//! TLS of the REST API and of the admin listener.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::CertificateAuthority;
use evenkeel_kit::{Clock, SystemClock};

use crate::authentication::users;
use crate::test_server::{ServerProcess, TestServer, eventually};

const LISTENERS: [&str; 2] = ["rest", "admin"];

fn variable(listener: &str, setting: &str) -> String {
    format!("EVENKEELD_{}__{setting}", listener.to_uppercase())
}

/// An authority of the operator, and the files of its certificates.
struct OperatorCa<'a> {
    harness: &'a TestServer,
    ca: CertificateAuthority,
}

impl<'a> OperatorCa<'a> {
    fn new(harness: &'a TestServer) -> Self {
        let ca = CertificateAuthority::open(&harness.path("operator-ca"), long_ago()).unwrap();
        Self { harness, ca }
    }

    /// Writes a certificate for `localhost` that is issued at a time; returns the paths of the chain
    /// and of the key.
    fn write(&self, issued_at: DateTime<Utc>) -> (String, String) {
        let issued = self.ca.issue_server(&["localhost".to_owned()], issued_at).unwrap();
        let key = self.harness.write_private_file("key.pem", issued.key_pem.reveal());
        (self.harness.write_private_file("chain.pem", &issued.chain_pem), key)
    }
}

/// A server certificate of this time has expired.
fn long_ago() -> DateTime<Utc> {
    SystemClock.now() - TimeDelta::days(100)
}

fn with_files(harness: &TestServer, listener: &str, (chain, key): &(String, String)) -> TestServer {
    harness
        .with_env(&variable(listener, "CERTIFICATE"), chain)
        .with_env(&variable(listener, "KEY"), key)
}

fn metrics(server: &ServerProcess) -> String {
    server.get("admin", "/metrics", None).1
}

/// The value of the metric of a certificate that expires.
fn expiry(metrics: &str, certificate: &str) -> i64 {
    let name =
        format!("evenkeel_certificate_expiry_timestamp_seconds{{certificate=\"{certificate}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().unwrap()
}

#[test]
fn both_listeners_use_certificates_of_the_servers_own_authority() {
    let harness = TestServer::new();
    let users = users(&harness);
    let mut harness = harness
        .with_env("EVENKEELD_AUTH__LOGIN__USERS", &users)
        .with_env("EVENKEELD_SOUTHBOUND__SERVER_NAMES", "[\"updates.example\"]")
        .with_env("EVENKEELD_REST__SERVER_NAMES", "[\"api.example\"]");
    for listener in LISTENERS {
        harness = harness.with_env(&variable(listener, "TLS"), "true");
    }
    let server = harness.start_and_wait(&["all"]);
    let ca = harness.data_dir().join("ca/ca.pem");

    let token = harness.operator_token();
    let get = |path: &str| server.get_over_tls("rest", &ca, path, Some(&token));
    let (status, answer) = get("/v1/projects");
    assert_eq!(status, 200, "{answer}");
    assert_eq!(server.get_over_tls("rest", &ca, "/v1/projects", None).0, 401);
    let (_, discovery) = get("/realms/master/.well-known/openid-configuration");
    assert!(discovery.contains("\"issuer\":\"https://localhost/realms/master\""), "{discovery}");

    let handshake = |name: &str| server.handshake_with("rest", b"http/1.1", &ca, name);
    for name in ["localhost", "updates.example", "api.example"] {
        assert_eq!(handshake(name).unwrap().0.as_deref(), Some(&b"http/1.1"[..]), "{name}");
    }
    let wrong_name = handshake("other.example").unwrap_err().to_string();
    assert!(wrong_name.contains("not valid for name"), "{wrong_name}");
    assert!(server.handshake_with("rest", b"h2", &ca, "localhost").is_err(), "only HTTP/1.1");
    OperatorCa::new(&harness);
    let other = harness.path("operator-ca/ca.pem");
    let unknown = server.handshake_with("rest", b"http/1.1", &other, "localhost").unwrap_err();
    // Both authorities have the same name, so the client finds out by the signature.
    assert!(unknown.to_string().contains("BadSignature"), "{unknown}");

    let (status, metrics) = server.get_over_tls("admin", &ca, "/metrics", None);
    assert_eq!(status, 200, "{metrics}");
    let now = SystemClock.now().timestamp();
    for certificate in ["rest", "admin", "southbound", "ca"] {
        assert!(expiry(&metrics, certificate) > now, "{certificate}");
    }
    for file in ["rest", "admin", "southbound", "users"] {
        for outcome in ["ok", "failed"] {
            let counter = format!("{{file=\"{file}\",outcome=\"{outcome}\"}} 0");
            assert!(metrics.contains(&counter), "{counter}: {metrics}");
        }
    }

    let printed = harness.start(&["ca"]).expect_success();
    assert_eq!(printed, std::fs::read_to_string(&ca).unwrap());

    let log = server.stop();
    // Root prints the certificate of a server that runs as another user. Only root can test this.
    if std::os::unix::fs::chown(harness.data_dir(), Some(65_534), None).is_ok() {
        assert_eq!(harness.start(&["ca"]).expect_success(), printed);
    }
    assert!(!log.contains("did not stop in time"), "{log}");
    let login = format!("--ca {} --project", ca.display());
    assert!(log.contains("evenkeel login --server https://127.0.0.1:"), "{log}");
    assert!(log.contains(&login), "{log}");
}

#[test]
fn the_authority_is_not_printed_and_not_created_before_the_first_start() {
    let harness = TestServer::new();
    let stderr = harness.start(&["ca"]).expect_failure();
    assert!(stderr.contains("ca.pem, which the first start of a server creates"), "{stderr}");
    assert!(!harness.data_dir().exists());
}

#[test]
fn a_client_without_tls_or_without_a_handshake_is_disconnected() {
    let harness = TestServer::new()
        .with_env("EVENKEELD_REST__TLS", "true")
        .with_env("EVENKEELD_REST__HEADER_TIMEOUT", "1s");
    let server = harness.start_and_wait(&["all"]);
    for request in ["GET /v1/projects HTTP/1.1\r\nhost: localhost\r\n\r\n", ""] {
        let mut client = TcpStream::connect(server.address("rest")).unwrap();
        client.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        match client.read_to_end(&mut answer) {
            // The server may close the connection before it has read the request.
            Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => panic!("{error}"),
            _ => {}
        }
        assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    }
    let ca = harness.data_dir().join("ca/ca.pem");
    assert!(server.is_closed_by("rest", b"http/1.1", &ca), "the header is incomplete");
    server.stop();
}

#[test]
fn a_new_certificate_is_used_without_a_restart_and_a_bad_one_changes_nothing() {
    let harness = TestServer::new();
    let operator = OperatorCa::new(&harness);
    let files = operator.write(SystemClock.now());
    let server = with_files(&harness, "rest", &files).start_and_wait(&["all"]);
    let ca = harness.path("operator-ca/ca.pem");
    let current = || {
        let (_, chain) = server.handshake_with("rest", b"http/1.1", &ca, "localhost").unwrap();
        chain[0].clone()
    };
    let first = current();
    assert!(expiry(&metrics(&server), "rest") > SystemClock.now().timestamp());

    harness.write_private_file("key.pem", "no key");
    let failed = "evenkeel_file_reloads_total{file=\"rest\",outcome=\"failed\"} 0";
    eventually("the bad key is counted", || !metrics(&server).contains(failed));
    assert_eq!(current(), first);

    operator.write(SystemClock.now() + TimeDelta::minutes(1));
    eventually("the new certificate is used", || current() != first);
    let log = server.stop();
    assert!(log.contains("the listener keeps the old one"), "{log}");
    assert!(log.contains("the key is not PEM"), "{log}");
}

#[test]
fn an_expired_certificate_is_named_by_the_log_the_check_and_the_metric() {
    let harness = TestServer::new();
    let operator = OperatorCa::new(&harness);
    let files = operator.write(long_ago());
    let harness = with_files(&harness, "rest", &files);
    let stderr = harness.start(&["check"]).expect_failure();
    assert!(stderr.contains(&format!("rest.certificate: {}: it expired at ", files.0)), "{stderr}");

    let server = harness.start_and_wait(&["all"]);
    let ca = harness.path("operator-ca/ca.pem");
    let refused = server.handshake_with("rest", b"http/1.1", &ca, "localhost").unwrap_err();
    assert!(refused.to_string().contains("expired"), "{refused}");
    assert!(expiry(&metrics(&server), "rest") < SystemClock.now().timestamp());
    let log = server.stop();
    assert!(log.contains("is not valid, so clients refuse it: it expired at"), "{log}");
}

#[test]
fn a_listener_that_other_machines_reach_needs_tls_or_an_explicit_setting() {
    let harness = TestServer::new();
    let mut plain = TestServer::new();
    for listener in LISTENERS {
        let exposed = harness.with_env(&variable(listener, "LISTEN"), "0.0.0.0:0");
        for command in ["all", "check"] {
            let stderr = exposed.start(&[command]).expect_failure();
            let expected = format!("other machines can reach {listener}.listen (0.0.0.0:0)");
            assert!(stderr.contains(&expected), "{stderr}");
            for advice in ["tls = true", "certificate", "tls = false"] {
                assert!(stderr.contains(&format!("{listener}.{advice}")), "{advice}: {stderr}");
            }
        }
        plain = plain
            .with_env(&variable(listener, "LISTEN"), "0.0.0.0:0")
            .with_env(&variable(listener, "TLS"), "false");
    }
    assert!(!harness.data_dir().exists(), "nothing was created");

    let server = plain.start_and_wait(&["all"]);
    assert_eq!(server.get("admin", "/livez", None).0, 200);
    assert_eq!(server.get("rest", "/v1/projects", Some(&plain.operator_token())).0, 200);
    let log = server.stop();
    assert!(log.contains("evenkeel login --server http://localhost:"), "{log}");
}

#[test]
fn the_check_finds_a_key_of_another_certificate_and_a_key_that_everyone_can_read() {
    let harness = TestServer::new();
    let operator = OperatorCa::new(&harness);
    let now = SystemClock.now();
    let (chain, key) = operator.write(now);
    let other = operator.ca.issue_server(&["localhost".to_owned()], now).unwrap();
    let open_key = harness.write_file("open.pem", other.key_pem.reveal());
    let check = |listener: &str, chain: &str, key: &str| {
        with_files(&harness, listener, &(chain.to_owned(), key.to_owned())).start(&["check"])
    };
    for listener in LISTENERS {
        let valid = check(listener, &chain, &key).expect_success();
        assert_eq!(valid, "the configuration is valid\n");
        let stderr = check(listener, &chain, &open_key).expect_failure();
        let warning = format!(
            "evenkeeld: warning: {listener}.key: all users of this machine can read {open_key}"
        );
        assert!(stderr.contains(&warning), "{stderr}");
        let fault = format!("evenkeeld: {listener}.certificate: {chain} and {open_key} are not");
        assert!(stderr.contains(&fault), "{stderr}");
        assert!(stderr.contains("the key does not fit the certificate"), "{stderr}");
        let stderr = check(listener, &chain, "/no/such/key").expect_failure();
        assert!(stderr.contains(&format!("{listener}.key: cannot read /no/such/key")), "{stderr}");
        let names = harness.with_env(&variable(listener, "SERVER_NAMES"), "[\"other.example\"]");
        let names = with_files(&names, listener, &(chain.clone(), key.clone()));
        let stderr = names.start(&["check"]).expect_failure();
        let fault = format!("is not valid for other.example in {listener}.server_names");
        assert!(stderr.contains(&fault), "{stderr}");
        let without = harness.with_env(&variable(listener, "KEY"), &key);
        let stderr = without.start(&["check"]).expect_failure();
        assert!(stderr.contains(&format!("set both {listener}.certificate and")), "{stderr}");
    }
}

#[test]
fn the_check_finds_a_certificate_authority_that_is_not_usable() {
    let harness = TestServer::new();
    let folder = harness.data_dir().join("ca");
    let past = SystemClock.now() - TimeDelta::days(21 * 365);
    CertificateAuthority::open(&folder, past).unwrap();
    let stderr = harness.start(&["check"]).expect_failure();
    assert!(stderr.contains("auth.ca: ") && stderr.contains("it expired at"), "{stderr}");
    std::fs::remove_file(folder.join("ca-key.pem")).unwrap();
    let stderr = harness.start(&["check"]).expect_failure();
    assert!(stderr.contains("its key is missing"), "{stderr}");
}
