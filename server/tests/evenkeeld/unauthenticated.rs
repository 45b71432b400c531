//! Connections whose peer does not authenticate, and proxies in front of the listeners.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::files::registry;
use crate::overload::{self, Node};
use crate::test_server::{TestServer, eventually};

const PROXY_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Waits until the server closes a connection.
fn expect_end(mut connection: TcpStream) {
    match connection.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_closed_for_a_node_when_all_slots_are_taken() {
    let harness = overload::harness()
        .with_env("EVENKEELD_SOUTHBOUND__HANDSHAKE_TIMEOUT", "1h")
        .with_env("EVENKEELD_SOUTHBOUND__MAX_CONNECTIONS", "2");
    let server = harness.start_and_wait(&["all"]);
    let mut first = Node::enroll(&harness, &server, 1).await;
    first.poll().await.unwrap();
    let silent = TcpStream::connect(server.address("southbound")).unwrap();
    silent.set_read_timeout(None).unwrap();

    let mut second = Node::enroll(&harness, &server, 2).await;
    second.poll().await.unwrap();
    expect_end(silent);
    first.poll().await.unwrap();
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_one_address_count_only_until_they_are_authenticated() {
    let harness =
        overload::harness().with_env("EVENKEELD_SOUTHBOUND__MAX_UNAUTHENTICATED_PER_ADDRESS", "1");
    let server = harness.start_and_wait(&["all"]);
    let mut nodes = Vec::new();
    for number in 1..=3 {
        let mut node = Node::enroll(&harness, &server, number).await;
        node.poll().await.unwrap();
        nodes.push(node);
    }
    for node in &mut nodes {
        node.poll().await.unwrap();
    }
    server.stop();
}

#[test]
fn a_new_connection_replaces_the_oldest_unauthenticated_one_of_its_address() {
    let harness = TestServer::new()
        .with_env("EVENKEELD_SOUTHBOUND__HANDSHAKE_TIMEOUT", "1h")
        .with_env("EVENKEELD_SOUTHBOUND__AUTHENTICATION_TIMEOUT", "1h")
        .with_env("EVENKEELD_SOUTHBOUND__MAX_UNAUTHENTICATED_PER_ADDRESS", "1");
    let server = harness.start_and_wait(&["all"]);
    let ca = harness.data_dir().join("ca/ca.pem");
    let connect = || server.connect_tls(&ca, "localhost");
    let (_session, oldest) = connect().unwrap();
    eventually("the oldest connection is replaced", || connect().is_ok());
    expect_end(oldest);
    server.stop();
}

/// Listeners behind a proxy, and the protocol of their clients.
const PROXIED_LISTENERS: [(&str, &[u8]); 2] = [("southbound", b"h2"), ("files", b"http/1.1")];

/// The configuration of a server that trusts a proxy in front of its listeners.
fn behind_proxy(proxy: &str) -> (TestServer, String) {
    let harness = TestServer::new();
    let config = harness.write_file("evenkeeld.toml", &registry(&harness));
    let proxies = format!("[\"{proxy}\"]");
    let harness = harness
        .with_env("EVENKEELD_FILES__LISTEN", "127.0.0.1:0")
        .with_env("EVENKEELD_SOUTHBOUND__TRUSTED_PROXIES", &proxies)
        .with_env("EVENKEELD_FILES__TRUSTED_PROXIES", &proxies);
    (harness, config)
}

/// The header of a proxy for a client with this IPv4 address.
fn proxy_header(client: [u8; 4]) -> Vec<u8> {
    let addresses = [client, [198, 51, 100, 1]].concat();
    let ports = b"\x1f\x90\xc3\x52";
    [PROXY_SIGNATURE, b"\x21\x11\0\x0c", &addresses[..], ports].concat()
}

/// Whether the server has not closed a connection.
fn is_open(mut connection: &TcpStream) -> bool {
    connection.set_nonblocking(true).unwrap();
    let end = loop {
        match connection.read(&mut [0; 4096]) {
            Ok(0) => break None,
            Ok(_) => {}
            Err(error) => break Some(error.kind()),
        }
    };
    connection.set_nonblocking(false).unwrap();
    end == Some(ErrorKind::WouldBlock)
}

#[test]
fn a_trusted_proxy_must_name_the_client() {
    let client = proxy_header([192, 0, 2, 7]);
    for (proxy, is_trusted) in [("127.0.0.1", true), ("192.0.2.1", false)] {
        let (harness, config) = behind_proxy(proxy);
        let server = harness.start_and_wait(&["all", "--config", &config]);
        let ca = harness.data_dir().join("ca/ca.pem");
        for listener in PROXIED_LISTENERS {
            let connect =
                |first: &[u8]| server.connect_tls_after(first, listener, &ca, "localhost").is_ok();
            assert_eq!(connect(&client), is_trusted, "another address sends no header");
            assert_eq!(connect(b""), !is_trusted, "no header");
            let check = [PROXY_SIGNATURE, b"\x20\0\0\0"].concat();
            assert_eq!(connect(&check), is_trusted, "a check of the proxy itself");
            assert!(!connect(b"PROXY TCP4 192.0.2.7 198.51.100.1 8080 50002\r\n"), "version 1");
        }
        server.stop();
    }
}

#[test]
fn a_change_over_a_trusted_proxy_has_the_address_of_the_client() {
    let harness = TestServer::new().with_env("EVENKEELD_REST__TRUSTED_PROXIES", "[\"127.0.0.1\"]");
    let server = harness.start_and_wait(&["all"]);
    let token = harness.operator_token();
    let send = |line: &str, body: &str| {
        let mut connection = TcpStream::connect(server.address("rest")).unwrap();
        connection.write_all(&proxy_header([192, 0, 2, 7])).unwrap();
        let request = format!(
            "{line} HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    };
    let changed = send("PUT /v1/projects/default/pauses/project", "{\"reason\":\"audit\"}");
    assert!(changed.contains(" 200 OK"), "{changed}");
    let list = send("GET /v1/projects/default/changes?kind=pause", "");
    assert!(list.contains("\"clientAddress\":\"192.0.2.7\""), "{list}");
    server.stop();
}

#[test]
fn the_clients_of_one_proxy_have_limits_of_their_own() {
    let (harness, config) = behind_proxy("127.0.0.1");
    let harness = harness
        .with_env("EVENKEELD_SOUTHBOUND__HANDSHAKE_TIMEOUT", "1h")
        .with_env("EVENKEELD_SOUTHBOUND__AUTHENTICATION_TIMEOUT", "1h")
        .with_env("EVENKEELD_SOUTHBOUND__MAX_UNAUTHENTICATED_PER_ADDRESS", "1")
        .with_env("EVENKEELD_FILES__HANDSHAKE_TIMEOUT", "1h")
        .with_env("EVENKEELD_FILES__HEADER_TIMEOUT", "1h")
        .with_env("EVENKEELD_FILES__MAX_UNAUTHENTICATED_PER_ADDRESS", "1");
    let server = harness.start_and_wait(&["all", "--config", &config]);
    let ca = harness.data_dir().join("ca/ca.pem");
    for listener in PROXIED_LISTENERS {
        let connect = |client: [u8; 4]| {
            server.connect_tls_after(&proxy_header(client), listener, &ca, "localhost")
        };
        let (_session, first) = connect([192, 0, 2, 7]).unwrap();
        let (_session, second) = connect([192, 0, 2, 8]).unwrap();
        assert!(is_open(&first) && is_open(&second), "{listener:?}");
        eventually("the oldest connection of the client is replaced", || {
            connect([192, 0, 2, 7]).is_ok()
        });
        expect_end(first);
        assert!(is_open(&second), "{listener:?}: the other client keeps its connection");
    }
    server.stop();
}
