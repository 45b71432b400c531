//! The catalogue of operating systems and the files of it, as far as the executable has a part in it.

use std::net::TcpStream;

use crate::house::House;

/// The configuration of a registry that is a folder with nothing in it.
pub fn registry(house: &House) -> String {
    let folder = house.path("catalogue");
    format!(
        "[os_resource_manager.registries.release]\naddress = 'oci:{}'\n",
        folder.display()
    )
}

#[test]
fn files_are_served_over_tls_to_who_proves_who_it_is() {
    let house = House::new();
    let config = house.file("evenkeeld.toml", &registry(&house));
    let house = house.with("EVENKEELD_FILES__LISTEN", "127.0.0.1:0");
    let mut server = house.start(&["all", "--config", &config]);
    server.wait_until_ready();
    let ca = house.data_dir().join("ca/ca.pem");

    let shaken = server.shake_hands_with("files", b"http/1.1", &ca, "localhost");
    let (protocol, chain) = shaken.unwrap();
    assert_eq!(protocol.as_deref(), Some(b"http/1.1".as_slice()));
    let digest = evenkeel_auth::ca::chain_digest(&ca).unwrap();
    assert_eq!(evenkeel_auth::ca::ca_digest(&chain[1]), digest);
    let in_http_2 = server.shake_hands_with("files", b"h2", &ca, "localhost");
    assert!(in_http_2.is_err(), "large files travel alone");

    let path = format!("/files/sha256/{}", "0".repeat(64));
    let (status, answer) = server.get_file(&ca, &path, None);
    assert_eq!(status, 401, "{answer}");
    assert!(
        answer.to_lowercase().contains("www-authenticate: bearer"),
        "{answer}"
    );
    let token = house.operator_token();
    let (status, answer) = server.get_file(&ca, &path, Some(&token));
    assert_eq!(status, 404, "{answer}");
    let (_, metrics) = server.get("admin", "/metrics", None);
    for outcome in ["refused", "not_there"] {
        let line = format!("evenkeel_files_requests_total{{outcome=\"{outcome}\"}} 1");
        assert!(metrics.contains(&line), "{metrics}");
    }

    let silent = TcpStream::connect(server.address("files")).unwrap();
    let log = server.stop();
    assert!(!log.contains("did not stop in time"), "{log}");
    drop(silent);
    assert!(house.data_dir().join("files/sha256").is_dir());
}

#[test]
fn nobody_keeps_a_connection_for_ever() {
    let house = House::new();
    let config = house.file("evenkeeld.toml", &registry(&house));
    let house = house
        .with("EVENKEELD_FILES__LISTEN", "127.0.0.1:0")
        .with("EVENKEELD_FILES__HEAD_WITHIN", "1h")
        .with("EVENKEELD_FILES__LONGEST", "1s");
    let mut server = house.start(&["all", "--config", &config]);
    server.wait_until_ready();
    let ca = house.data_dir().join("ca/ca.pem");
    assert!(server.is_hung_up_on_by("files", b"http/1.1", &ca));
    server.stop();
}

#[test]
fn without_a_registry_nothing_is_asked_and_nothing_listens() {
    let house = House::new();
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    assert_eq!(server.listeners(), ["admin", "rest", "southbound"]);
    server.stop();
    assert!(!house.data_dir().join("files").exists());

    let house = house.with("EVENKEELD_FILES__LISTEN", "127.0.0.1:0");
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    assert_eq!(server.listeners(), ["admin", "rest", "southbound"]);
    let log = server.stop();
    assert!(
        log.contains("files.listen is set, but there is no registry"),
        "{log}"
    );
}

#[test]
fn a_registry_that_cannot_be_used_is_refused_before_anything_is_begun() {
    let house = House::new();
    house.file("password", "open sesame\n");
    for (more, why) in [
        ("address = 'http://registry.example'", "plain_http"),
        ("address = 'registry.example'", "address"),
        (
            "address = 'https://registry.example'\ntrust = 'require'",
            "trust",
        ),
        (
            "address = 'https://registry.example'\nusername = 'reader'\npassword_file = '/no/such/file'",
            "/no/such/file",
        ),
        (
            "address = 'https://registry.example'\ncolour = 'blue'",
            "colour",
        ),
    ] {
        let text = format!("[os_resource_manager.registries.release]\n{more}\n");
        let file = house.file("evenkeeld.toml", &text);
        let said = house.start(&["all", "--config", &file]).fails();
        assert!(said.contains(why) && said.contains("release"), "{said}");
    }
    let default = "[os_resource_manager.default]\nregistry = 'other'\nrevision = 'main'\n";
    let text = format!("{}{default}", registry(&house));
    let file = house.file("evenkeeld.toml", &text);
    let said = house.start(&["all", "--config", &file]).fails();
    assert!(
        said.contains("default.registry") && said.contains("other"),
        "{said}"
    );
}

#[test]
fn a_folder_of_files_that_another_process_has_is_named() {
    let house = House::new();
    let config = house.file("evenkeeld.toml", &registry(&house));
    let folder = house.path("shared");
    let house = house
        .with("EVENKEELD_FILES__LISTEN", "127.0.0.1:0")
        .with("EVENKEELD_FILES__DIR", &folder.to_string_lossy());
    let mut first = house.start(&["all", "--config", &config]);
    first.wait_until_ready();
    let other = House::new();
    let config = other.file("evenkeeld.toml", &registry(&other));
    let said = other
        .with("EVENKEELD_FILES__LISTEN", "127.0.0.1:0")
        .with("EVENKEELD_FILES__DIR", &folder.to_string_lossy())
        .start(&["all", "--config", &config])
        .fails();
    assert!(said.contains("another process has the folder"), "{said}");
    assert!(said.contains("files.dir"), "{said}");
    first.stop();
}
