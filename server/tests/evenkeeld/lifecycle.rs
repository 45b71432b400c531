//! How the server starts, responds and stops.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::test_server::{TestServer, eventually, is_alive, signal, sql};

#[test]
fn the_first_start_creates_a_project_and_a_token_and_logs_how_to_log_in() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);

    let file = harness.data_dir().join("operator-token");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let token = fs::read_to_string(&file).unwrap();
    let token = token.trim();
    assert_eq!(server.get("rest", "/v1/projects", Some(token)).0, 200);
    assert_eq!(server.get("rest", "/v1/projects", None).0, 401);
    assert_eq!(server.get("rest", "/v1/projects", Some("nonsense")).0, 401);

    let log = server.stop();
    assert!(log.contains("starting a private Postgres"), "{log}");
    assert!(log.contains("log in with: evenkeel login --server http://127.0.0.1:"), "{log}");
    assert!(log.contains(&format!("--token-file {}", file.display())), "{log}");
    assert!(!log.contains(token), "the token itself is in the log");
}

#[test]
fn the_service_manager_is_notified_of_the_start_and_of_the_stop() {
    let harness = TestServer::new();
    let path = harness.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_mins(2))).unwrap();
    let receive = || {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).expect("a notification");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let harness = harness.with_env("NOTIFY_SOCKET", &path.to_string_lossy());
    let server = harness.start_and_wait(&["all"]);

    assert_eq!(receive(), "STATUS=opening the database\n");
    assert_eq!(receive(), "STATUS=migrating the database schema\n");
    let login = format!("evenkeel login --server http://{}", server.address("rest"));
    assert_eq!(receive(), format!("READY=1\nSTATUS=ready; log in with: {login}\n"));

    server.stop();
    assert_eq!(receive(), "STOPPING=1\nSTATUS=stopping\n");
}

#[test]
fn a_stop_is_graceful_and_stops_the_private_postgres() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    let postgres = harness.postmaster_pid();
    assert!(is_alive(postgres));

    let log = server.stop();

    assert!(!is_alive(postgres), "Postgres has stopped");
    assert!(log.contains("asked to stop"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn a_stop_does_not_wait_for_silent_clients() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    let silent: Vec<TcpStream> = ["rest", "southbound", "admin"]
        .iter()
        .map(|listener| TcpStream::connect(server.address(listener)).unwrap())
        .collect();
    let mut idle = TcpStream::connect(server.address("admin")).unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert!(idle.read(&mut [0; 512]).unwrap() > 0, "answered and still open");
    let shaken = server.connect_tls(&harness.data_dir().join("ca/ca.pem"), "localhost").unwrap();

    let log = server.stop();

    assert!(!log.contains("did not stop in time"), "{log}");
    drop((silent, idle, shaken));
}

#[test]
fn a_stop_does_not_wait_for_a_client_that_does_not_read_its_list() {
    let harness = TestServer::new().with_env("EVENKEELD_SHUTDOWN_TIMEOUT", "100ms");
    let server = harness.start_and_wait(&["all"]);
    let (token, postgres) = (harness.operator_token(), harness.postmaster_pid());
    let build_request = |method: &str, protocol: &str, more: &str| {
        format!(
            "{method} /v1/projects/default/customConfigs {protocol}\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
             {more}"
        )
    };
    // Together they exceed all socket buffers between server and client.
    let config = "ä".repeat(16_384);
    for n in 0..300 {
        let body = format!(r#"{{"name":"config-{n}","config":"{config}"}}"#);
        let more = format!(
            "content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (status, answer) = server.send("rest", &build_request("POST", "HTTP/1.0", &more));
        assert_eq!(status, 200, "{answer}");
    }
    let mut client = TcpStream::connect(server.address("rest")).unwrap();
    let list = build_request("GET", "HTTP/1.1", "\r\n");
    client.write_all(list.as_bytes()).unwrap();
    let mut head = [0; 12];
    client.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");

    signal(i32::try_from(server.pid()).unwrap(), "TERM");
    let log = server.expect_failure();

    assert!(log.contains("some tasks did not stop in time"), "{log}");
    assert!(!is_alive(postgres), "Postgres has stopped");
    drop(client);
}

#[test]
fn a_killed_server_restarts_with_its_data() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    let token = harness.operator_token();
    server.kill();

    let server = harness.start_and_wait(&["all"]);

    assert_eq!(harness.operator_token(), token, "the second start is not a first start");
    assert_eq!(server.get("rest", "/v1/projects", Some(&token)).0, 200);
    let log = server.stop();
    assert!(!log.contains("the first start"), "{log}");
}

#[test]
fn the_admin_listener_serves_health_readiness_and_metrics() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    assert_eq!(server.get("admin", "/livez", None), (200, "alive\n".to_owned()));
    assert_eq!(server.get("admin", "/readyz", None), (200, "ready\n".to_owned()));
    server.get("rest", "/v1/no/such/thing", None);
    let (status, metrics) = server.get("admin", "/metrics", None);
    assert!(metrics.contains("# TYPE process_cpu_seconds_total counter"), "{metrics}");
    assert_eq!(status, 200);
    assert!(metrics.contains("evenkeel_http_requests_total{"), "{metrics}");
    assert!(
        !metrics.contains("no/such/thing"),
        "label values must not come from clients: {metrics}"
    );
    for name in [
        "process_resident_memory_bytes ",
        "evenkeel_poll_requests_total{",
        "evenkeel_answer_cache_age_seconds ",
        "evenkeel_log_lag_seconds ",
        "evenkeel_long_poll_open ",
        "evenkeel_overload_refused_total{",
        "evenkeel_poll_interval_seconds ",
    ] {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
    server.stop();
}

#[test]
fn agents_get_a_certificate_of_the_authority_and_http_2() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    let ca = harness.data_dir().join("ca/ca.pem");

    let (protocol, chain) = server.handshake(&ca, "localhost").unwrap();

    assert_eq!(protocol.as_deref(), Some(b"h2".as_slice()));
    assert_eq!(chain.len(), 2, "the authority's certificate is in the chain");
    let digest = evenkeel_auth::ca::chain_digest(&ca).unwrap();
    assert_eq!(evenkeel_auth::ca::ca_digest(&chain[1]), digest);
    assert!(server.handshake(&ca, "elsewhere.example").is_err());
    server.stop();
}

#[test]
fn the_log_can_be_json() {
    let harness = TestServer::new().with_env("EVENKEELD_LOG__FORMAT", "json");
    let server = harness.start_and_wait(&["all"]);
    let log = server.stop();
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("each line is JSON");
        assert!(line["message"].is_string() && line["level"].is_string(), "{line}");
    }
    let stderr = harness
        .with_env("EVENKEELD_DATABASE__BINARIES", "/x")
        .start(&["inventory"])
        .expect_failure();
    let last = stderr.lines().last().unwrap();
    let last: serde_json::Value = serde_json::from_str(last).expect("also the last");
    assert_eq!(last["message"], "evenkeeld failed");
}

#[tokio::test]
async fn a_database_outage_is_survived() {
    let harness = TestServer::new();
    let postgres = harness.start_postgres().await;
    let harness = harness.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    let server = harness.start_and_wait(&["all"]);
    postgres.stop().await;

    let (status, _) = server.get("admin", "/readyz", None);
    assert_eq!(status, 503);
    assert_eq!(server.get("admin", "/livez", None).0, 200);
    let token = harness.operator_token();
    assert_eq!(server.get("rest", "/v1/projects", Some(&token)).0, 503);

    let postgres = harness.start_postgres().await;
    eventually("it is ready again", || server.get("admin", "/readyz", None).0 == 200);
    assert_eq!(server.get("rest", "/v1/projects", Some(&token)).0, 200);
    server.stop();
    postgres.stop().await;
}

#[test]
fn the_end_of_the_private_postgres_ends_the_server() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    signal(harness.postmaster_pid(), "QUIT");
    let stderr = server.expect_failure();
    assert!(stderr.contains("the private Postgres ended unexpectedly"), "{stderr}");
}

#[test]
fn tokens_are_created_with_and_without_a_running_server() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    let make = |role: &str| {
        let arguments =
            ["token", "operator", "--project", "default", "--role", role, "--ttl", "5m"];
        harness.start(&arguments).expect_success().trim().to_owned()
    };
    for token in [make("read"), make("write")] {
        assert_eq!(token.split('.').count(), 3, "{token}");
        assert_eq!(server.get("rest", "/v1/projects/default", Some(&token)).0, 200);
    }
    let stderr = harness.start(&["token", "operator", "--project", "unheard-of"]).expect_failure();
    assert!(stderr.contains("cannot find the project \"unheard-of\""), "{stderr}");
    server.stop();

    assert_eq!(
        make("write").split('.').count(),
        3,
        "a private Postgres was started for the command"
    );
    let uuid = "01900000-0000-7000-8000-000000000001";
    harness.start(&["token", "operator", "--project", uuid]).expect_success();
    harness.start(&["token", "operator", "--role", "admin"]).expect_success();
    let stderr = harness.start(&["token", "operator"]).expect_failure();
    assert!(stderr.contains("--project"), "{stderr}");
}

#[test]
fn the_openapi_document_is_printed_without_side_effects() {
    let harness = TestServer::new();
    let text = harness.start(&["openapi"]).expect_success();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    assert!(!harness.data_dir().exists());
}

#[test]
fn an_unfinished_request_is_cut_off() {
    let harness = TestServer::new()
        .with_env("EVENKEELD_REST__HEADER_TIMEOUT", "300ms")
        .with_env("EVENKEELD_REST__REQUEST_TIMEOUT", "300ms");
    let server = harness.start_and_wait(&["all"]);
    let token = harness.operator_token();
    let half_a_head = "GET /v1/projects HTTP/1.1\r\nhost: x\r\n".to_owned();
    let half_a_body = format!(
        "POST /v1/projects/default/compute/hosts/register HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{\"name\":"
    );
    let cases = [
        (String::new(), ""),
        ("PRI * HTTP/2.0\r\n".to_owned(), ""),
        (half_a_head, ""),
        (half_a_body, "HTTP/1.1 503"),
    ];
    for (half, answer) in cases {
        let mut client = TcpStream::connect(server.address("rest")).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(half.as_bytes()).unwrap();
        let mut response = Vec::new();
        client.read_to_end(&mut response).expect("the server closes the connection");
        let response = String::from_utf8_lossy(&response);
        assert!(response.starts_with(answer), "{response}");
    }
    server.stop();
}

#[tokio::test]
async fn a_server_with_a_read_only_database_is_not_ready_until_it_can_write() {
    let harness = TestServer::new();
    let postgres = harness.start_postgres().await;
    let harness = harness.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    let server = harness.start_and_wait(&["all"]);
    let token = harness.operator_token();
    let list = "/v1/projects/default/compute/hosts";
    assert_eq!(server.get("rest", list, Some(&token)).0, 200);

    let admin = postgres.admin_url();
    sql(&admin, "ALTER SYSTEM SET default_transaction_read_only = on");
    sql(&admin, "SELECT pg_reload_conf()");
    eventually("it is not ready", || server.get("admin", "/readyz", None).0 == 503);
    let (_, why) = server.get("admin", "/readyz", None);
    assert!(why.contains("read-only"), "{why}");
    let (status, problem) = server.get("rest", list, Some(&token));
    assert_eq!(status, 503, "{problem}");

    sql(&admin, "ALTER SYSTEM RESET default_transaction_read_only");
    sql(&admin, "SELECT pg_reload_conf()");
    eventually("it is ready", || server.get("admin", "/readyz", None).0 == 200);
    assert_eq!(server.get("rest", list, Some(&token)).0, 200);
    server.stop();
    postgres.stop().await;
}
