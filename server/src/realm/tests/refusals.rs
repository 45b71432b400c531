//! Tests of requests that the token endpoint refuses.

use super::*;

#[tokio::test]
async fn a_login_without_a_database_is_refused_as_unavailable() {
    let fixture = RealmFixture::new().await;
    fixture.store.close().await;
    let (status, headers, answer) = fixture.post_token_request(login("alice", PASSWORD)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    assert_eq!(answer["error"], "temporarily_unavailable");
    assert_eq!(headers["retry-after"], "1");
}

#[tokio::test]
async fn a_rejected_request_has_its_error_code() {
    let fixture = RealmFixture::new().await;
    let long = "x".repeat(20_000);
    for (sent, error) in [
        (login("alice", "wrong"), "invalid_grant"),
        (login("bob", PASSWORD), "invalid_grant"),
        (login("", PASSWORD), "invalid_request"),
        (login("alice", ""), "invalid_request"),
        (form(&[("grant_type", "password")]), "invalid_request"),
        (form(&[("grant_type", "refresh_token")]), "invalid_request"),
        (form(&[("grant_type", "client_credentials")]), "unsupported_grant_type"),
        (form(&[]), "invalid_request"),
        (login("alice", &long), "invalid_request"),
        (refresh(&long[..200], "x"), "invalid_request"),
    ] {
        let what = sent.form.chars().take(80).collect::<String>();
        assert_eq!(fixture.expect_error(sent).await, error, "{what}");
    }
    let nameless = FormRequest { headers: Vec::new(), ..login("alice", PASSWORD) };
    assert_eq!(fixture.expect_error(nameless).await, "invalid_request");
}

#[tokio::test]
async fn too_many_failures_must_wait() {
    let fixture = RealmFixture::new().await;
    for _ in 0..5 {
        let error = fixture.expect_error(login("alice", "wrong")).await;
        assert_eq!(error, "invalid_grant");
    }
    // Even with the correct password.
    let (status, headers, answer) = fixture.post_token_request(login("alice", PASSWORD)).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{answer}");
    // The user is not locked out elsewhere.
    let elsewhere = FormRequest { peer: "192.0.2.2:4000", ..login("alice", PASSWORD) };
    let (status, _, answer) = fixture.post_token_request(elsewhere).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(headers["retry-after"], "1");
    fixture.advance(TimeDelta::seconds(1));
    fixture.log_in().await;
    let error = fixture.expect_error(login("alice", "wrong")).await;
    assert_eq!(error, "invalid_grant", "the count restarts");
}

#[tokio::test]
async fn forwarded_headers_are_trusted_only_from_proxies() {
    let by_proxy = |client: &'static str| FormRequest {
        peer: PROXY,
        headers: vec![
            ("host", "updates.example"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-for", client),
        ],
        ..login("alice", PASSWORD)
    };
    let fixture = RealmFixture::new().await;
    let (_, _, answer) = fixture.post_token_request(by_proxy("192.0.2.7")).await;
    let endpoint = fixture.decode_refresh_token(&answer).endpoint;
    assert_eq!(endpoint, "https://updates.example/realms/master");
    let direct = FormRequest { peer: "192.0.2.1:4000", ..by_proxy("192.0.2.7") };
    let (_, _, answer) = fixture.post_token_request(direct).await;
    let endpoint = fixture.decode_refresh_token(&answer).endpoint;
    assert_eq!(endpoint, "http://updates.example/realms/master");

    // A client of the proxy does not delay the others. An address that the client itself sends
    // comes before the one that the proxy adds.
    for n in 0..20 {
        let sent = FormRequest {
            form: login(&format!("user {n}"), "wrong").form,
            ..by_proxy("203.0.113.9, 192.0.2.8")
        };
        assert_eq!(fixture.expect_error(sent).await, "invalid_grant");
    }
    let (status, ..) = fixture.post_token_request(by_proxy("203.0.113.10, 192.0.2.8")).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let (status, ..) = fixture.post_token_request(by_proxy("192.0.2.9")).await;
    assert_eq!(status, StatusCode::OK);
}
