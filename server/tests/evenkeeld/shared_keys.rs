//! Servers on one database have the same keys.

use std::fs;
use std::path::Path;

use evenkeel_pg::PrivatePostgres;

use crate::test_server::TestServer;

/// A server with its own data directory, on a database that other servers use, too.
fn server_on(postgres: &PrivatePostgres) -> TestServer {
    TestServer::new().with_env("EVENKEELD_DATABASE__URL", &postgres.url())
}

fn copy_folder(name: &str, from: &TestServer, to: &TestServer) {
    let (from, to) = (from.data_dir().join(name), to.data_dir().join(name));
    fs::remove_dir_all(&to).ok();
    fs::create_dir_all(&to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_dir() {
            continue;
        }
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Copies the signing keys of both purposes.
fn copy_keys(from: &TestServer, to: &TestServer) {
    copy_folder("keys", from, to);
    copy_folder("keys/operators", from, to);
}

/// Starts a service that must refuse to start. The message names the folder.
fn expect_refusal(server: &TestServer, what: &str, folder: &Path) {
    let stderr = server.start(&["inventory"]).expect_failure();
    assert!(stderr.contains(&format!("have {what} (fingerprint ")), "{stderr}");
    let named = format!("which {} (auth.", folder.display());
    assert!(stderr.contains(&named) && stderr.contains("evenkeeld accept-keys"), "{stderr}");
}

#[tokio::test]
async fn a_server_with_other_keys_does_not_start() {
    let first = TestServer::new();
    let postgres = first.start_postgres().await;
    let first = first.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    first.start_and_wait(&["all"]).stop();

    let other = server_on(&postgres);
    let (keys, ca) = (other.data_dir().join("keys"), other.data_dir().join("ca"));
    expect_refusal(&other, "other signing keys", &keys);
    assert!(!keys.exists() && !ca.exists(), "it creates no keys");
    copy_folder("keys", &first, &other);
    expect_refusal(&other, "other signing keys", &keys.join("operators"));
    assert!(!keys.join("operators").exists(), "it creates no keys");
    copy_keys(&first, &other);
    expect_refusal(&other, "another certificate authority", &ca);
    assert!(!ca.exists(), "it creates no authority");
    copy_folder("ca", &first, &other);
    other.start_and_wait(&["inventory"]).stop();
    postgres.stop().await;
}

#[tokio::test]
async fn a_rotated_key_is_accepted_while_the_old_one_is_kept() {
    let first = TestServer::new();
    let postgres = first.start_postgres().await;
    let first = first.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    first.start_and_wait(&["all"]).stop();
    let other = server_on(&postgres);
    copy_keys(&first, &other);
    copy_folder("ca", &first, &other);

    let keys = first.data_dir().join("keys");
    fs::rename(keys.join("signing.pem"), keys.join("2026.pem")).unwrap();
    first.start_and_wait(&["inventory"]).stop();
    // The copy has only the old key.
    expect_refusal(&other, "other signing keys", &other.data_dir().join("keys"));
    copy_keys(&first, &other);
    other.start_and_wait(&["inventory"]).stop();
    // When the tokens of the old key have expired, the key can be removed.
    fs::remove_file(keys.join("2026.pem")).unwrap();
    first.start_and_wait(&["inventory"]).stop();
    postgres.stop().await;
}

#[tokio::test]
async fn lost_keys_are_replaced_only_by_an_explicit_command() {
    let first = TestServer::new();
    let postgres = first.start_postgres().await;
    let first = first.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    first.start_and_wait(&["all"]).stop();
    let keys = first.data_dir().join("keys");
    fs::remove_dir_all(&keys).unwrap();
    fs::remove_dir_all(first.data_dir().join("ca")).unwrap();
    expect_refusal(&first, "other signing keys", &keys);
    first.start(&["accept-keys"]).expect_success();
    first.start_and_wait(&["inventory"]).stop();
    postgres.stop().await;
}
