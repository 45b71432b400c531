//! The link through a proxy: TLS from end to end inside a tunnel.

use std::time::Duration;

use evenkeel_kit::Secret;
use evenkeel_update_agent::facts::Facts;
use evenkeel_update_agent::link::{
    GrpcLink, JoinToken, LinkError, PollQuery, Proxy, ServerLink, Trust,
};

use crate::support::proxy::TestProxy;
use crate::support::server::TestServer;

const CALL_TIMEOUT: Duration = Duration::from_secs(20);
const TUNNEL_OPENED: &str = "200 Connection established";

fn proxy_settings(proxy: &TestProxy, direct: &[&str]) -> Proxy {
    let direct: Vec<_> = direct.iter().map(|&host| host.to_owned()).collect();
    Proxy::parse(&format!("http://keel:p%40ss@{}", proxy.address), &direct).unwrap()
}

async fn poll(server: &TestServer, trust: &Trust, proxy: &Proxy) -> Result<(), LinkError> {
    let link = GrpcLink::new(&server.url(), trust, Some(proxy), CALL_TIMEOUT).unwrap();
    link.set_credential(&Secret::new("first-credential")).unwrap();
    let facts = Facts::default();
    let query = PollQuery {
        facts: &facts,
        send_facts: true,
        packages: None,
        attempt: None,
        waiting_reason: "",
        decision_tag: 0,
        max_hold: Duration::ZERO,
    };
    link.poll(query).await.map(|_| ())
}

#[tokio::test]
async fn the_server_is_reached_and_checked_through_the_tunnel() {
    let server = TestServer::start_on_loopback().await;
    let tunnel = TestProxy::answering(TUNNEL_OPENED).await;
    let proxy = proxy_settings(&tunnel, &[]);
    let token = JoinToken::parse(&server.token()).unwrap();
    let trust = Trust::resolve(&server.url(), &token, None, Some(&proxy)).await.unwrap();
    poll(&server, &trust, &proxy).await.unwrap();

    let requests = tunnel.requests();
    assert_eq!(requests.len(), 2, "one tunnel to read the CA, one for the call");
    let to = server.address;
    let request = format!(
        "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: Basic a2VlbDpwQHNz\r\n\r\n"
    );
    assert_eq!(requests, [request.clone(), request]);
}

#[tokio::test]
async fn a_tunnel_to_another_server_is_rejected() {
    let server = TestServer::start_on_loopback().await;
    let other = TestServer::start_on_loopback().await;
    let tunnel = TestProxy::answering(TUNNEL_OPENED).await;
    let trust = Trust::Ca(other.ca_pem.clone());
    let error = poll(&server, &trust, &proxy_settings(&tunnel, &[])).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("invalid peer certificate"), "{text}");
    assert!(server.state.lock().unwrap().calls.is_empty());
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_with_its_reason() {
    let server = TestServer::start_on_loopback().await;
    let trust = Trust::Ca(server.ca_pem.clone());
    for (answer, reason) in [
        ("403 Forbidden", "403 Forbidden"),
        ("407 Proxy Authentication Required", "does not accept the user or the password"),
    ] {
        let tunnel = TestProxy::answering(answer).await;
        let error = poll(&server, &trust, &proxy_settings(&tunnel, &[])).await.unwrap_err();
        assert!(matches!(error, LinkError::Unavailable(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains(reason), "{text}");
        assert!(text.contains(&tunnel.address.to_string()), "{text}");
        assert!(!text.contains("p@ss") && !text.contains("keel:"), "{text}");
    }
}

#[tokio::test]
async fn a_direct_host_is_not_reached_through_the_proxy() {
    let server = TestServer::start_on_loopback().await;
    let tunnel = TestProxy::answering(TUNNEL_OPENED).await;
    let trust = Trust::Ca(server.ca_pem.clone());
    let with_port = server.address.to_string();
    for direct in ["127.0.0.1", "127.0.0.0/8", with_port.as_str(), "*"] {
        let proxy = proxy_settings(&tunnel, &[direct]);
        poll(&server, &trust, &proxy).await.unwrap();
        assert!(tunnel.requests().is_empty(), "{direct}");
    }
    poll(&server, &trust, &proxy_settings(&tunnel, &["127.0.0.1:1"])).await.unwrap();
    assert_eq!(tunnel.requests().len(), 1);
}
