//! The wire through a proxy: TLS from end to end inside a tunnel.

use std::time::Duration;

use evenkeel_kit::Secret;
use evenkeel_update_agent::facts::Facts;
use evenkeel_update_agent::link::{GrpcLink, JoinToken, Link, LinkError, Proxy, Question, Trust};

use crate::support::proxy::TestProxy;
use crate::support::server::TestServer;

const DEADLINE: Duration = Duration::from_secs(20);
const YES: &str = "200 Connection established";

fn proxy_at(proxy: &TestProxy, direct: &[&str]) -> Proxy {
    let direct: Vec<_> = direct.iter().map(|&host| host.to_owned()).collect();
    Proxy::parse(&format!("http://keel:p%40ss@{}", proxy.address), &direct).unwrap()
}

async fn poll(server: &TestServer, trust: &Trust, proxy: &Proxy) -> Result<(), LinkError> {
    let link = GrpcLink::new(&server.url(), trust, Some(proxy), DEADLINE).unwrap();
    link.renew(&Secret::new("first-credential")).unwrap();
    let facts = Facts::default();
    let question = Question {
        facts: &facts,
        whole: true,
        packages: None,
        attempt: None,
        waiting: "",
        tag: 0,
        hold: Duration::ZERO,
    };
    link.poll(question).await.map(|_| ())
}

#[tokio::test]
async fn the_server_is_reached_and_checked_through_the_tunnel() {
    let server = TestServer::on_loopback().await;
    let tunnel = TestProxy::that_says(YES).await;
    let proxy = proxy_at(&tunnel, &[]);
    let token = JoinToken::parse(&server.token()).unwrap();
    let trust = Trust::settle(&server.url(), &token, None, Some(&proxy))
        .await
        .unwrap();
    poll(&server, &trust, &proxy).await.unwrap();

    let asked = tunnel.asked();
    assert_eq!(asked.len(), 2, "for the authority, and for the call");
    let to = server.address;
    let request = format!(
        "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: Basic a2VlbDpwQHNz\r\n\r\n"
    );
    assert_eq!(asked, [request.clone(), request]);
}

#[tokio::test]
async fn a_tunnel_to_another_server_is_not_spoken_into() {
    let server = TestServer::on_loopback().await;
    let other = TestServer::on_loopback().await;
    let tunnel = TestProxy::that_says(YES).await;
    let trust = Trust::Ca(other.ca_pem.clone());
    let error = poll(&server, &trust, &proxy_at(&tunnel, &[]))
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("invalid peer certificate"), "{text}");
    assert!(server.brain.lock().unwrap().calls.is_empty());
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_with_its_reason() {
    let server = TestServer::on_loopback().await;
    let trust = Trust::Ca(server.ca_pem.clone());
    for (answer, reason) in [
        ("403 Forbidden", "403 Forbidden"),
        (
            "407 Proxy Authentication Required",
            "another user or password",
        ),
    ] {
        let tunnel = TestProxy::that_says(answer).await;
        let error = poll(&server, &trust, &proxy_at(&tunnel, &[]))
            .await
            .unwrap_err();
        assert!(matches!(error, LinkError::Unavailable(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains(reason), "{text}");
        assert!(text.contains(&tunnel.address.to_string()), "{text}");
        assert!(!text.contains("p@ss") && !text.contains("keel:"), "{text}");
    }
}

#[tokio::test]
async fn what_is_direct_is_not_reached_through_the_proxy() {
    let server = TestServer::on_loopback().await;
    let tunnel = TestProxy::that_says(YES).await;
    let trust = Trust::Ca(server.ca_pem.clone());
    let proxy = proxy_at(&tunnel, &["127.0.0.1"]);
    poll(&server, &trust, &proxy).await.unwrap();
    assert!(tunnel.asked().is_empty());
}
