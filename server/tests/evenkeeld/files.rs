//! The catalogue of operating systems and its files, as far as the executable is concerned.

use std::net::TcpStream;

use crate::test_server::TestServer;

/// Configuration of a registry that is an empty directory.
pub fn registry(harness: &TestServer) -> String {
    let folder = harness.path("catalogue");
    format!("[os_resource_manager.registries.release]\naddress = 'oci:{}'\n", folder.display())
}

#[test]
fn files_are_served_over_tls_to_authenticated_clients() {
    let harness = TestServer::new();
    let config = harness.write_file("evenkeeld.toml", &registry(&harness));
    let harness = harness.with_env("EVENKEELD_FILES__LISTEN", "127.0.0.1:0");
    let server = harness.start_and_wait(&["all", "--config", &config]);
    let ca = harness.data_dir().join("ca/ca.pem");

    let shaken = server.handshake_with("files", b"http/1.1", &ca, "localhost");
    let (protocol, chain) = shaken.unwrap();
    assert_eq!(protocol.as_deref(), Some(b"http/1.1".as_slice()));
    let digest = evenkeel_auth::ca::chain_digest(&ca).unwrap();
    assert_eq!(evenkeel_auth::ca::ca_digest(&chain[1]), digest);
    let in_http_2 = server.handshake_with("files", b"h2", &ca, "localhost");
    assert!(in_http_2.is_err(), "files are served over HTTP/1.1 only");

    let path = format!("/files/sha256/{}", "0".repeat(64));
    let (status, answer) = server.get_file(&ca, &path, None);
    assert_eq!(status, 401, "{answer}");
    assert!(answer.to_lowercase().contains("www-authenticate: bearer"), "{answer}");
    let token = harness.operator_token();
    let (status, answer) = server.get_file(&ca, &path, Some(&token));
    assert_eq!(status, 404, "{answer}");
    let (_, metrics) = server.get("admin", "/metrics", None);
    for outcome in ["refused", "not_found"] {
        let line = format!("evenkeel_files_requests_total{{outcome=\"{outcome}\"}} 1");
        assert!(metrics.contains(&line), "{metrics}");
    }

    let silent = TcpStream::connect(server.address("files")).unwrap();
    let log = server.stop();
    assert!(!log.contains("did not stop in time"), "{log}");
    drop(silent);
    assert!(harness.data_dir().join("files/sha256").is_dir());
}

#[test]
fn a_connection_for_files_has_a_maximum_age() {
    let harness = TestServer::new();
    let config = harness.write_file("evenkeeld.toml", &registry(&harness));
    let harness = harness
        .with_env("EVENKEELD_FILES__LISTEN", "127.0.0.1:0")
        .with_env("EVENKEELD_FILES__HEADER_TIMEOUT", "1h")
        .with_env("EVENKEELD_FILES__MAX_CONNECTION_AGE", "1s");
    let server = harness.start_and_wait(&["all", "--config", &config]);
    let ca = harness.data_dir().join("ca/ca.pem");
    assert!(server.is_closed_by("files", b"http/1.1", &ca));
    server.stop();
}

#[test]
fn without_a_registry_no_listener_for_files_is_opened() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    assert_eq!(server.listeners(), ["admin", "rest", "southbound"]);
    server.stop();
    assert!(!harness.data_dir().join("files").exists());

    let harness = harness.with_env("EVENKEELD_FILES__LISTEN", "127.0.0.1:0");
    let server = harness.start_and_wait(&["all"]);
    assert_eq!(server.listeners(), ["admin", "rest", "southbound"]);
    let log = server.stop();
    assert!(log.contains("files.listen is set, but there is no registry"), "{log}");
}

#[test]
fn a_fault_of_a_registry_is_found_by_the_check() {
    let harness = TestServer::new();
    for (more, why) in [
        ("address = 'http://registry.example'", "plain_http"),
        ("address = 'registry.example'", "address"),
        ("address = 'https://registry.example'\ntrust = 'require'", "trust"),
        (
            "address = 'https://registry.example'\nusername = 'reader'\npassword_file = '/no/such/file'",
            "/no/such/file",
        ),
        ("address = 'https://registry.example'\ncolour = 'blue'", "colour"),
    ] {
        let text = format!("[os_resource_manager.registries.release]\n{more}\n");
        let file = harness.write_file("evenkeeld.toml", &text);
        let stderr = harness.start(&["check", "--config", &file]).expect_failure();
        assert!(stderr.contains(why) && stderr.contains("release"), "{stderr}");
    }
    let default = "[os_resource_manager.default]\nregistry = 'other'\nrevision = 'main'\n";
    let text = format!("{}{default}", registry(&harness));
    let file = harness.write_file("evenkeeld.toml", &text);
    for command in ["all", "check"] {
        let stderr = harness.start(&[command, "--config", &file]).expect_failure();
        assert!(stderr.contains("default.registry") && stderr.contains("other"), "{stderr}");
    }
}

#[test]
fn a_wrong_role_and_a_missing_key_disable_only_their_user_and_their_registry() {
    let harness = TestServer::new();
    let users = "[[users]]\nname = 'alice'\npassword_hash = 'open sesame'\nroles = ['root']\n";
    let users = harness.write_file("users.toml", users);
    let text = format!("{}keys = ['/no/such.pub']\n", registry(&harness));
    let file = harness.write_file("evenkeeld.toml", &text);
    let server = harness
        .with_env("EVENKEELD_AUTH__LOGIN__USERS", &users)
        .start_and_wait(&["all", "--config", &file]);
    let log = server.stop();
    assert!(log.contains("user \"alice\": \"root\" is not a role"), "{log}");
    assert!(log.contains("os_resource_manager.registries.release.keys: cannot read"), "{log}");
    assert!(!log.contains("sesame"), "{log}");
}

#[test]
fn a_files_folder_of_another_process_is_named() {
    let harness = TestServer::new();
    let config = harness.write_file("evenkeeld.toml", &registry(&harness));
    let folder = harness.path("shared");
    let harness = harness
        .with_env("EVENKEELD_FILES__LISTEN", "127.0.0.1:0")
        .with_env("EVENKEELD_FILES__DIR", &folder.to_string_lossy());
    let first = harness.start_and_wait(&["all", "--config", &config]);
    let other = TestServer::new();
    let config = other.write_file("evenkeeld.toml", &registry(&other));
    let stderr = other
        .with_env("EVENKEELD_FILES__LISTEN", "127.0.0.1:0")
        .with_env("EVENKEELD_FILES__DIR", &folder.to_string_lossy())
        .start(&["all", "--config", &config])
        .expect_failure();
    assert!(stderr.contains("another process has the folder"), "{stderr}");
    assert!(stderr.contains("files.dir"), "{stderr}");
    first.stop();
}
