//! Changes of users while they log in, and right before.

use evenkeel_inventory::{PasswordAttempt, PasswordCheck};

use super::*;

/// A change between the check of the password and the first token of the login.
#[tokio::test]
async fn a_login_that_runs_while_its_user_changes_gets_no_token_with_the_old_rights() {
    let fixture = RealmFixture::new().await;
    add_stored_user(&fixture, "bob", PASSWORD).await;
    let found = fixture.realm.find_user("bob").await.unwrap().expect("bob");
    let tx = fixture.store.fleet().await.unwrap();
    let viewer = Role::Read(Uuid::from_u128(7));
    users::set_roles(&tx, "bob", vec![viewer.to_string()], tx.database_time()).await.unwrap();
    let locked = found.clone().lock(&tx).await.unwrap().expect("bob");
    assert_eq!(resolve_roles(&tx, &locked).await.unwrap(), [viewer]);

    users::set_disabled(&tx, "bob", true, tx.database_time()).await.unwrap();
    assert_eq!(found.clone().lock(&tx).await.unwrap(), None, "disabled");
    users::set_disabled(&tx, "bob", false, tx.database_time()).await.unwrap();
    assert!(found.clone().lock(&tx).await.unwrap().is_some());
    let hash = Secret::new(evenkeel_auth::users::hash_password(&Secret::new("other")).unwrap());
    users::set_password(&tx, "bob", &hash, tx.database_time()).await.unwrap();
    assert_eq!(found.clone().lock(&tx).await.unwrap(), None, "another password");
    users::delete(&tx, "bob").await.unwrap();
    assert_eq!(found.lock(&tx).await.unwrap(), None, "deleted");
}

/// The check of the old password counts like a login.
#[tokio::test]
async fn wrong_old_passwords_count_as_failed_logins() {
    let fixture = RealmFixture::new().await;
    add_stored_user(&fixture, "bob", PASSWORD).await;
    let checker = fixture.realm.password_checker();
    let client = Some(IpAddr::from([192, 0, 2, 1]));
    let check = async |password: &str| {
        let (user, password) = ("bob".to_owned(), Secret::new(password));
        checker.check(PasswordAttempt { user, client, password }).await
    };
    assert_eq!(check(PASSWORD).await, Some(PasswordCheck::Correct));
    for _ in 0..5 {
        assert_eq!(check("guess").await, Some(PasswordCheck::Wrong));
    }
    let wait = PasswordCheck::TooManyAttempts(Duration::from_secs(1));
    assert_eq!(check(PASSWORD).await, Some(wait));
    let (status, ..) = fixture.post_token_request(login("bob", PASSWORD)).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "a login from the same address");
}
