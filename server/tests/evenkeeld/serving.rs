//! How the server starts, answers and stops.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::house::{House, eventually, is_alive, signal};

#[test]
fn the_first_start_makes_a_project_and_a_token_and_says_how_to_log_in() {
    let house = House::new();
    let mut server = house.start(&["all"]);
    server.wait_until_ready();

    let file = house.data_dir().join("operator-token");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let token = fs::read_to_string(&file).unwrap();
    let token = token.trim();
    assert_eq!(server.get("rest", "/v1/projects", Some(token)).0, 200);
    assert_eq!(server.get("rest", "/v1/projects", None).0, 401);
    assert_eq!(server.get("rest", "/v1/projects", Some("nonsense")).0, 401);

    let log = server.stop();
    assert!(log.contains("starting a private Postgres"), "{log}");
    assert!(
        log.contains("log in with: evenkeel login --server http://127.0.0.1:"),
        "{log}"
    );
    assert!(
        log.contains(&format!("--token-file {}", file.display())),
        "{log}"
    );
    assert!(!log.contains(token), "the token itself is in the log");
}

#[test]
fn a_stop_is_graceful_and_takes_the_private_postgres_along() {
    let house = House::new();
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let postgres = house.postmaster();
    assert!(is_alive(postgres));

    let log = server.stop();

    assert!(!is_alive(postgres), "Postgres is gone");
    assert!(log.contains("asked to stop"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn a_stop_does_not_wait_for_clients_that_say_nothing() {
    let house = House::new();
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let silent: Vec<TcpStream> = ["rest", "southbound", "admin"]
        .iter()
        .map(|listener| TcpStream::connect(server.address(listener)).unwrap())
        .collect();
    let mut idle = TcpStream::connect(server.address("admin")).unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    assert!(
        idle.read(&mut [0; 512]).unwrap() > 0,
        "answered and kept open"
    );
    let shaken = server
        .connect_securely(&house.data_dir().join("ca/ca.pem"), "localhost")
        .unwrap();

    let log = server.stop();

    assert!(!log.contains("did not stop in time"), "{log}");
    drop((silent, idle, shaken));
}

#[test]
fn a_stop_does_not_wait_for_a_client_that_does_not_read_its_list() {
    let house = House::new().with("EVENKEELD_STOP_WITHIN", "100ms");
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let (token, postgres) = (house.operator_token(), house.postmaster());
    let ask = |method: &str, protocol: &str, more: &str| {
        format!(
            "{method} /v1/projects/default/customConfigs {protocol}\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
             {more}"
        )
    };
    // Together they are longer than all that the kernel holds between server and client.
    let config = "ä".repeat(16_384);
    for n in 0..300 {
        let body = format!(r#"{{"name":"config-{n}","config":"{config}"}}"#);
        let more = format!(
            "content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (status, said) = server.send("rest", &ask("POST", "HTTP/1.0", &more));
        assert_eq!(status, 200, "{said}");
    }
    let mut client = TcpStream::connect(server.address("rest")).unwrap();
    let list = ask("GET", "HTTP/1.1", "\r\n");
    client.write_all(list.as_bytes()).unwrap();
    let mut head = [0; 12];
    client.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");

    signal(i32::try_from(server.pid()).unwrap(), "TERM");
    let log = server.fails();

    assert!(log.contains("some transactions are still open"), "{log}");
    assert!(!is_alive(postgres), "Postgres is gone");
    drop(client);
}

#[test]
fn a_killed_server_starts_again_with_what_it_had() {
    let house = House::new();
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let token = house.operator_token();
    server.kill();

    let mut server = house.start(&["all"]);
    server.wait_until_ready();

    assert_eq!(
        house.operator_token(),
        token,
        "there is no second first start"
    );
    assert_eq!(server.get("rest", "/v1/projects", Some(&token)).0, 200);
    let log = server.stop();
    assert!(!log.contains("the first start"), "{log}");
}

#[test]
fn the_admin_listener_tells_health_readiness_and_metrics() {
    let house = House::new();
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    assert_eq!(
        server.get("admin", "/livez", None),
        (200, "alive\n".to_owned())
    );
    assert_eq!(
        server.get("admin", "/readyz", None),
        (200, "ready\n".to_owned())
    );
    server.get("rest", "/v1/no/such/thing", None);
    let (status, metrics) = server.get("admin", "/metrics", None);
    assert_eq!(status, 200);
    assert!(
        metrics.contains("evenkeel_http_requests_total{"),
        "{metrics}"
    );
    assert!(
        !metrics.contains("no/such/thing"),
        "what a client chooses is no label: {metrics}"
    );
    for name in [
        "process_resident_memory_bytes ",
        "evenkeel_polls_total{",
        "evenkeel_view_age_seconds ",
        "evenkeel_log_lag_seconds ",
        "evenkeel_held_polls ",
        "evenkeel_overload_refused_total{",
        "evenkeel_poll_interval_seconds ",
    ] {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
    server.stop();
}

#[test]
fn agents_are_met_with_a_certificate_of_the_authority_and_http_2() {
    let house = House::new();
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let ca = house.data_dir().join("ca/ca.pem");

    let (protocol, chain) = server.shake_hands(&ca, "localhost").unwrap();

    assert_eq!(protocol.as_deref(), Some(b"h2".as_slice()));
    assert_eq!(
        chain.len(),
        2,
        "the authority's certificate is in the chain"
    );
    let digest = evenkeel_auth::ca::chain_digest(&ca).unwrap();
    assert_eq!(evenkeel_auth::ca::ca_digest(&chain[1]), digest);
    assert!(server.shake_hands(&ca, "elsewhere.example").is_err());
    server.stop();
}

#[test]
fn the_log_can_be_json() {
    let house = House::new().with("EVENKEELD_LOG__FORMAT", "json");
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let log = server.stop();
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("each line is JSON");
        assert!(
            line["message"].is_string() && line["level"].is_string(),
            "{line}"
        );
    }
    let said = house
        .with("EVENKEELD_DATABASE__BINARIES", "/x")
        .start(&["inventory"])
        .fails();
    let last = said.lines().last().unwrap();
    let last: serde_json::Value = serde_json::from_str(last).expect("also the last");
    assert_eq!(last["message"], "cannot go on");
}

#[tokio::test]
async fn a_database_that_goes_away_and_comes_back_is_waited_for() {
    let house = House::new();
    let postgres = house.postgres().await;
    let house = house.with("EVENKEELD_DATABASE__URL", &postgres.url());
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    postgres.stop().await;

    let (status, _) = server.get("admin", "/readyz", None);
    assert_eq!(status, 503);
    assert_eq!(server.get("admin", "/livez", None).0, 200);
    let token = house.operator_token();
    assert_eq!(server.get("rest", "/v1/projects", Some(&token)).0, 503);

    let postgres = house.postgres().await;
    eventually("it is ready again", || {
        server.get("admin", "/readyz", None).0 == 200
    });
    assert_eq!(server.get("rest", "/v1/projects", Some(&token)).0, 200);
    server.stop();
    postgres.stop().await;
}

#[test]
fn the_end_of_the_private_postgres_ends_the_server() {
    let house = House::new();
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    signal(house.postmaster(), "QUIT");
    let said = server.fails();
    assert!(said.contains("Postgres ended by itself"), "{said}");
}

#[test]
fn tokens_are_made_beside_a_running_server_and_without_one() {
    let house = House::new();
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let make = |role: &str| {
        let arguments = [
            "token",
            "operator",
            "--project",
            "default",
            "--role",
            role,
            "--ttl",
            "5m",
        ];
        house.start(&arguments).succeeds().trim().to_owned()
    };
    for token in [make("read"), make("write")] {
        assert_eq!(token.split('.').count(), 3, "{token}");
        assert_eq!(
            server.get("rest", "/v1/projects/default", Some(&token)).0,
            200
        );
    }
    let said = house
        .start(&["token", "operator", "--project", "unheard-of"])
        .fails();
    assert!(
        said.contains("cannot find the project \"unheard-of\""),
        "{said}"
    );
    server.stop();

    assert_eq!(
        make("write").split('.').count(),
        3,
        "the private Postgres was started for it"
    );
    let uuid = "01900000-0000-7000-8000-000000000001";
    house
        .start(&["token", "operator", "--project", uuid])
        .succeeds();
    house
        .start(&["token", "operator", "--role", "admin"])
        .succeeds();
    let said = house.start(&["token", "operator"]).fails();
    assert!(said.contains("--project"), "{said}");
}

#[test]
fn the_api_document_is_printed_without_touching_anything() {
    let house = House::new();
    let text = house.start(&["openapi"]).succeeds();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(
        document["openapi"].as_str().unwrap().starts_with("3.1"),
        "{}",
        document["openapi"]
    );
    assert!(!house.data_dir().exists());
}

#[test]
fn a_client_that_does_not_finish_its_request_is_cut_off() {
    let house = House::new()
        .with("EVENKEELD_REST__HEAD_WITHIN", "300ms")
        .with("EVENKEELD_REST__ANSWER_WITHIN", "300ms");
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let token = house.operator_token();
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
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        client.write_all(half.as_bytes()).unwrap();
        let mut said = Vec::new();
        client
            .read_to_end(&mut said)
            .expect("the server closes the connection");
        let said = String::from_utf8_lossy(&said);
        assert!(said.starts_with(answer), "{said}");
    }
    server.stop();
}
