//! Connections whose peer does not authenticate, and proxies in front of the listener for nodes.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;

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

#[test]
fn a_trusted_proxy_must_name_the_client() {
    let trusted = "EVENKEELD_SOUTHBOUND__TRUSTED_PROXIES";
    let harness = TestServer::new().with_env(trusted, r#"["127.0.0.1"]"#);
    let server = harness.start_and_wait(&["all"]);
    let ca = harness.data_dir().join("ca/ca.pem");
    let connect = |first: &[u8]| {
        server.connect_tls_after(first, ("southbound", b"h2"), &ca, "localhost").is_ok()
    };
    let header = |rest: &[u8]| [PROXY_SIGNATURE, rest].concat();
    let client = b"\x21\x11\0\x0c\xc0\0\x02\x07\xc6\x33\x64\x01\x1f\x90\xc3\x52";
    assert!(connect(&header(client)));
    assert!(connect(&header(b"\x20\0\0\0")), "a check of the proxy itself");
    assert!(!connect(b""), "no header");
    assert!(!connect(b"PROXY TCP4 192.0.2.7 198.51.100.1 8080 50002\r\n"), "version 1");
    server.stop();

    let harness = harness.with_env(trusted, r#"["192.0.2.1"]"#);
    let server = harness.start_and_wait(&["all"]);
    let connect = |first: &[u8]| {
        server.connect_tls_after(first, ("southbound", b"h2"), &ca, "localhost").is_ok()
    };
    assert!(connect(b""));
    assert!(!connect(&header(client)), "a header of another address is not read");
    server.stop();
}
