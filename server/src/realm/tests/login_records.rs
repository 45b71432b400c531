//! Tests of logins in the change log.

use evenkeel_store::changes::{self, ChangeFilter, RecordedChange};

use super::*;

/// Kind, actor, reason and address of each record of a login, oldest first.
async fn records(store: &Store) -> Vec<[String; 4]> {
    list(store).await.iter().map(summary).collect()
}

fn summary(change: &RecordedChange) -> [String; 4] {
    let reason = change.after.as_ref().and_then(|row| row["reason"].as_str());
    [
        change.kind.clone(),
        change.actor.clone().unwrap_or_default(),
        reason.unwrap_or_default().to_owned(),
        change.client_address.clone().unwrap_or_default(),
    ]
}

async fn list(store: &Store) -> Vec<RecordedChange> {
    // Changes outside of projects are those of the nil UUID.
    let tenant = "00000000-0000-0000-0000-000000000000".parse().unwrap();
    let tx = store.snapshot(tenant).await.unwrap();
    let mut found = changes::list(&tx, &ChangeFilter::default(), None, 100).await.unwrap();
    found.retain(|change| change.kind.starts_with("login"));
    found.reverse();
    found
}

/// Waits for a number of records, which are written after the responses.
async fn wait_for_records(store: &Store, count: usize) -> Vec<[String; 4]> {
    let waiting = async {
        loop {
            let found = records(store).await;
            if found.len() >= count {
                return found;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_mins(1), waiting).await.unwrap()
}

#[tokio::test]
async fn each_login_is_recorded_with_its_address_and_refreshes_are_not() {
    let fixture = RealmFixture::new().await;
    let token = fixture.log_in().await;
    let (status, ..) = fixture.post_token_request(refresh("system-client", &token)).await;
    assert_eq!(status, StatusCode::OK);
    let mut by_proxy = login("alice", PASSWORD);
    by_proxy.peer = PROXY;
    by_proxy.headers.push(("x-forwarded-for", "203.0.113.9, 198.51.100.4"));
    let (status, ..) = fixture.post_token_request(by_proxy).await;
    assert_eq!(status, StatusCode::OK);
    let login_from = |address: &str| ["login", "alice", "", address].map(str::to_owned);
    let expected = [login_from("192.0.2.1"), login_from("198.51.100.4")];
    assert_eq!(records(&fixture.store).await, expected);
    let found = list(&fixture.store).await;
    assert_eq!(found[0].after, Some(json!({"name": "alice"})));
}

#[tokio::test]
async fn a_refused_login_is_recorded_with_its_reason_and_without_unknown_names() {
    let fixture = RealmFixture::new().await;
    add_stored_user(&fixture, "bob", "open barley!").await;
    let tx = fixture.store.fleet().await.unwrap();
    users::set_disabled(&tx, "bob", true, tx.database_time()).await.unwrap();
    tx.commit().await.unwrap();
    // Sent as the name by mistake.
    let secret = "correct horse battery";
    for (n, (name, password)) in
        [("alice", "wrong"), ("bob", "open barley!"), (secret, "x"), ("a\0b", "x")]
            .into_iter()
            .enumerate()
    {
        assert_eq!(fixture.expect_error(login(name, password)).await, "invalid_grant");
        wait_for_records(&fixture.store, n + 1).await;
    }
    let failure = |actor: &str, reason: &str| {
        ["login_failure", actor, reason, "192.0.2.1"].map(str::to_owned)
    };
    let expected = [
        failure("alice", "wrong-password"),
        failure("bob", "disabled-user"),
        failure("(unknown user)", "unknown-user"),
        failure("(unknown user)", "unknown-user"),
    ];
    assert_eq!(records(&fixture.store).await, expected);
    let all = format!("{:?}", list(&fixture.store).await);
    assert!(!all.contains(secret), "{all}");
}

#[tokio::test]
async fn a_login_that_must_wait_is_recorded_as_such() {
    let fixture = RealmFixture::new().await;
    // More failures of an address must wait.
    for n in 0..20 {
        let error = fixture.expect_error(login(&format!("nobody-{n}"), "wrong")).await;
        assert_eq!(error, "invalid_grant");
    }
    wait_for_records(&fixture.store, 20).await;
    let (status, ..) = fixture.post_token_request(login("alice", PASSWORD)).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let found = wait_for_records(&fixture.store, 21).await;
    let expected = ["login_failure", "alice", "too-many-attempts", "192.0.2.1"];
    assert_eq!(found.last(), Some(&expected.map(str::to_owned)));
}
