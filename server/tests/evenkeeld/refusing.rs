//! What the server refuses, and what it says then.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::chown;

use crate::files::registry;
use crate::house::{House, sql};

#[test]
fn a_taken_port_is_named_with_the_setting_that_chooses_another() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (setting, variable) in [
        ("rest.listen", "EVENKEELD_REST__LISTEN"),
        ("southbound.listen", "EVENKEELD_SOUTHBOUND__LISTEN"),
        ("admin.listen", "EVENKEELD_ADMIN__LISTEN"),
        ("files.listen", "EVENKEELD_FILES__LISTEN"),
    ] {
        let house = House::new();
        let config = house.file("evenkeeld.toml", &registry(&house));
        let with = house.with(variable, &address);
        let said = with.start(&["all", "--config", &config]).fails();
        assert!(
            said.contains(&format!("cannot listen on {address}")),
            "{said}"
        );
        assert!(said.contains(setting) && said.contains(variable), "{said}");
        assert!(said.contains("Address already in use"), "{said}");
    }
}

#[test]
fn without_postgres_the_package_is_named() {
    let house = House::new().with("EVENKEELD_DATABASE__BINARIES", "/nowhere");
    let said = house.start(&["all"]).fails();
    assert!(
        said.contains("install the Debian package `postgresql`"),
        "{said}"
    );
}

#[test]
fn a_postgres_folder_of_the_wrong_owner_is_named_with_how_to_mend_it() {
    let house = House::new();
    let data = house.data_dir().join("postgres/data");
    fs::create_dir_all(&data).unwrap();
    // Only root can give a folder away; whoever is not root lacks a Postgres of root's folder.
    let stranger = if chown(&data, Some(12345), None).is_ok() {
        12345
    } else {
        return;
    };
    let said = house.start(&["all"]).fails();
    assert!(
        said.contains(&format!("belongs to the user id {stranger}")),
        "{said}"
    );
    assert!(said.contains("chown -R"), "{said}");
}

#[test]
fn a_data_directory_of_somebody_else_is_refused() {
    let house = House::new();
    fs::create_dir_all(house.data_dir()).unwrap();
    if chown(house.data_dir(), Some(12345), None).is_err() {
        return; // Only root can give a folder away.
    }
    let said = house.start(&["all"]).fails();
    assert!(
        said.contains("belongs to the user id 12345, but evenkeeld runs as"),
        "{said}"
    );
}

#[test]
fn a_second_server_on_the_same_data_is_told_who_the_first_is() {
    let house = House::new();
    let mut first = house.start(&["all"]);
    first.wait_until_ready();
    let said = house.start(&["all"]).fails();
    assert!(
        said.contains(&format!("process {} keeps a Postgres there", first.pid())),
        "{said}"
    );
    first.stop();
}

#[test]
fn an_unknown_setting_is_named() {
    let house = House::new();
    let file = house.file(
        "evenkeeld.toml",
        "[rest]\nlisten = '127.0.0.1:0'\nport = 80\n",
    );
    let said = house.start(&["all", "--config", &file]).fails();
    assert!(
        said.contains("unknown field") && said.contains("port"),
        "{said}"
    );
    let said = house
        .start(&["all", "--config", "/no/such/file.toml"])
        .fails();
    assert!(said.contains("/no/such/file.toml"), "{said}");
}

#[test]
fn a_wrong_log_level_is_refused() {
    let said = House::new()
        .with("EVENKEELD_LOG__LEVEL", "a=b=c")
        .start(&["all"])
        .fails();
    assert!(said.contains("the log level is not understood"), "{said}");
}

#[tokio::test]
async fn a_role_that_row_level_security_does_not_bind_is_refused_with_the_commands_to_mend_it() {
    let house = House::new();
    let postgres = house.postgres().await;
    let superuser = house.with("EVENKEELD_DATABASE__URL", &postgres.admin_url());
    let said = superuser.start(&["all"]).fails();
    assert!(
        said.contains("ALTER ROLE \"postgres\" NOSUPERUSER NOBYPASSRLS"),
        "{said}"
    );

    sql(&postgres.admin_url(), "ALTER ROLE evenkeel BYPASSRLS");
    let house = superuser.with("EVENKEELD_DATABASE__URL", &postgres.url());
    for command in ["all", "inventory", "maintenance-manager", "migrate"] {
        let said = house.start(&[command]).fails();
        assert!(
            said.contains("ALTER ROLE \"evenkeel\" NOSUPERUSER NOBYPASSRLS"),
            "{said}"
        );
    }
    sql(&postgres.admin_url(), "ALTER ROLE evenkeel NOBYPASSRLS");
    assert!(house.start(&["migrate"]).succeeds().is_empty(), "mended");
    postgres.stop().await;
}

#[tokio::test]
async fn single_services_need_a_schema_that_was_brought_up_to_date() {
    let house = House::new();
    let postgres = house.postgres().await;
    let house = house.with("EVENKEELD_DATABASE__URL", &postgres.url());
    for service in ["inventory", "maintenance-manager", "os-resource-manager"] {
        let said = house.start(&[service]).fails();
        assert!(said.contains("run `evenkeeld migrate` first"), "{said}");
    }
    house.start(&["migrate"]).succeeds();
    house.start(&["migrate"]).succeeds();

    let mut inventory = house.start(&["inventory"]);
    inventory.wait_until_ready();
    let mut manager = house.start(&["maintenance-manager"]);
    manager.wait_until_ready();
    let config = house.file("evenkeeld.toml", &registry(&house));
    let systems = house.with("EVENKEELD_FILES__LISTEN", "127.0.0.1:0");
    let mut systems = systems.start(&["os-resource-manager", "--config", &config]);
    systems.wait_until_ready();

    assert_eq!(inventory.listeners(), ["admin", "rest"]);
    assert_eq!(manager.listeners(), ["admin", "southbound"]);
    assert_eq!(systems.listeners(), ["admin", "files"]);
    systems.stop();
    inventory.stop();
    manager.stop();
    postgres.stop().await;
}

#[tokio::test]
async fn a_schema_that_is_newer_than_the_program_is_refused() {
    let house = House::new();
    let postgres = house.postgres().await;
    let house = house.with("EVENKEELD_DATABASE__URL", &postgres.url());
    house.start(&["migrate"]).succeeds();
    let step = "INSERT INTO seaql_migrations (version, applied_at) VALUES ('m9999_the_future', 0)";
    sql(&postgres.url(), step);
    for command in ["all", "inventory", "migrate"] {
        let said = house.start(&[command]).fails();
        assert!(
            said.contains("newer than this program") && said.contains("m9999_the_future"),
            "{said}"
        );
    }
    postgres.stop().await;
}

#[test]
fn a_single_service_without_a_database_says_what_to_set() {
    let said = House::new().start(&["inventory"]).fails();
    assert!(
        said.contains("set database.url, or EVENKEELD_DATABASE__URL"),
        "{said}"
    );
}

#[test]
fn a_database_that_is_not_there_is_a_clear_error() {
    let url = "postgres:///evenkeel?host=/nowhere&user=evenkeel";
    let said = House::new()
        .with("EVENKEELD_DATABASE__URL", url)
        .start(&["all"])
        .fails();
    assert!(said.contains("cannot connect to the database"), "{said}");
}

#[test]
fn a_key_file_that_is_spoilt_is_named() {
    let house = House::new();
    fs::create_dir_all(house.data_dir().join("keys")).unwrap();
    house.file("data/keys/signing.pem", "not a key");
    let said = house
        .start(&["token", "operator", "--role", "admin"])
        .fails();
    assert!(said.contains("signing.pem is not usable"), "{said}");
}
