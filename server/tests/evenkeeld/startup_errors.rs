//! Startup errors and their messages.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::chown;

use evenkeel_auth::CertificateAuthority;
use evenkeel_kit::{Clock, SystemClock};

use crate::files::registry;
use crate::test_server::{TestServer, sql};

#[test]
fn a_port_in_use_is_named_with_its_setting() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for (setting, variable) in [
        ("rest.listen", "EVENKEELD_REST__LISTEN"),
        ("southbound.listen", "EVENKEELD_SOUTHBOUND__LISTEN"),
        ("admin.listen", "EVENKEELD_ADMIN__LISTEN"),
        ("files.listen", "EVENKEELD_FILES__LISTEN"),
    ] {
        let harness = TestServer::new();
        let config = harness.write_file("evenkeeld.toml", &registry(&harness));
        let with = harness.with_env(variable, &address);
        let stderr = with.start(&["all", "--config", &config]).expect_failure();
        assert!(stderr.contains(&format!("cannot listen on {address}")), "{stderr}");
        assert!(stderr.contains(setting) && stderr.contains(variable), "{stderr}");
        assert!(stderr.contains("Address already in use"), "{stderr}");
    }
}

#[test]
fn without_postgres_the_missing_package_is_named() {
    let harness = TestServer::new().with_env("EVENKEELD_DATABASE__BINARIES", "/nowhere");
    let stderr = harness.start(&["all"]).expect_failure();
    assert!(stderr.contains("install the Debian package `postgresql`"), "{stderr}");
}

#[test]
fn a_postgres_folder_of_another_owner_is_reported_with_a_fix() {
    let harness = TestServer::new();
    let data = harness.data_dir().join("postgres/data");
    fs::create_dir_all(&data).unwrap();
    // Only root can change the owner of a directory; skip the test otherwise.
    let other_uid = if chown(&data, Some(12345), None).is_ok() {
        12345
    } else {
        return;
    };
    let stderr = harness.start(&["all"]).expect_failure();
    assert!(stderr.contains(&format!("belongs to the user id {other_uid}")), "{stderr}");
    assert!(stderr.contains("chown -R"), "{stderr}");
}

#[test]
fn a_data_directory_of_another_user_is_rejected() {
    let harness = TestServer::new();
    fs::create_dir_all(harness.data_dir()).unwrap();
    if chown(harness.data_dir(), Some(12345), None).is_err() {
        return; // Only root can change the owner of a directory.
    }
    let stderr = harness.start(&["all"]).expect_failure();
    assert!(stderr.contains("belongs to the user id 12345, but evenkeeld runs as"), "{stderr}");
}

#[test]
fn a_second_server_on_the_same_data_names_the_first() {
    let harness = TestServer::new();
    let first = harness.start_and_wait(&["all"]);
    let stderr = harness.start(&["all"]).expect_failure();
    assert!(stderr.contains(&format!("process {} runs a Postgres there", first.pid())), "{stderr}");
    first.stop();
}

#[test]
fn an_unknown_setting_is_named() {
    let harness = TestServer::new();
    let file = harness.write_file("evenkeeld.toml", "[rest]\nlisten = '127.0.0.1:0'\nport = 80\n");
    let stderr = harness.start(&["all", "--config", &file]).expect_failure();
    assert!(stderr.contains(&format!("unknown setting rest.port in {file}")), "{stderr}");
    let stderr = harness.start(&["all", "--config", "/no/such/file.toml"]).expect_failure();
    assert!(stderr.contains("/no/such/file.toml"), "{stderr}");
}

#[test]
fn an_unknown_variable_is_named() {
    let with = TestServer::new().with_env("EVENKEELD_ADMIN__LISEN", "127.0.0.1:0");
    let stderr = with.start(&["check"]).expect_failure();
    let expected = "the configuration is invalid: unknown setting admin.lisen in the environment \
                    variable EVENKEELD_ADMIN__LISEN; did you mean listen?";
    assert!(stderr.contains(expected), "{stderr}");
}

#[test]
fn a_configuration_is_checked_without_side_effects() {
    let harness = TestServer::new();
    assert_eq!(harness.start(&["check"]).expect_success(), "the configuration is valid\n");
    assert!(!harness.data_dir().exists());
    let users = harness.write_file(
        "users.toml",
        "[[users]]\nname = 'alice'\npassword_hash = 'x'\nroles = ['default_im-r']\n",
    );
    let ca = harness.write_file("smtp-ca.pem", "no certificate\n");
    let text = format!(
        "[database]\nurl = 'postgres://evenkeel:hush@db.example/evenkeel'\n\
         password_file = '/no/such/password'\n\
         [auth.login]\nusers = {users:?}\n[southbound]\nkey = '/no/such/key'\n\
         [[auth.issuers]]\nissuer = 'https://login.example'\njwks = '/no/such/jwks'\n\
         [maintenance_manager.smtp]\nhost = 'mail.example'\nfrom = 'evenkeel@example.org'\n\
         password_file = '/no/such/smtp'\nca = {ca:?}\n\
         [os_resource_manager]\nparallel = 0\n\
         [os_resource_manager.registries.release]\naddress = 'https://r.example'\nkeys = ['/no/such.pub']\n"
    );
    let file = harness.write_file("evenkeeld.toml", &text);
    let stderr = harness.start(&["check", "--config", &file]).expect_failure();
    let no_pem = format!("maintenance_manager.smtp.ca: {ca} contains no certificate in PEM");
    let faults = [
        "database.url: the database URL names another machine, and its sslmode permits",
        "database.password_file: cannot read /no/such/password",
        "auth.login.users: user \"alice\": \"default_im-r\" is not a role",
        "auth.issuers: https://login.example: ",
        "set both southbound.certificate and southbound.key",
        "maintenance_manager.smtp.password_file: set smtp.user as well: ",
        "maintenance_manager.smtp.password_file: cannot read /no/such/smtp",
        no_pem.as_str(),
        "os_resource_manager.parallel: ",
        "os_resource_manager.registries.release.keys: cannot read /no/such.pub",
    ];
    for fault in faults {
        assert!(stderr.contains(&format!("evenkeeld: {fault}")), "{fault}: {stderr}");
    }
    let warnings = [
        "auth.login.users: all users of this machine can read the password hashes in ",
        "https://login.example: auth.issuers.audience is not set",
    ];
    for warning in warnings {
        assert!(stderr.contains(&format!("evenkeeld: warning: {warning}")), "{warning}: {stderr}");
    }
    assert_eq!(stderr.lines().count(), faults.len() + warnings.len(), "{stderr}");
    assert!(!stderr.contains("hush"), "{stderr}");
    assert!(!harness.data_dir().exists());
}

#[test]
fn settings_of_notifications_and_traces_without_effect_are_refused() {
    let harness = TestServer::new();
    let empty = harness.write_file("password", "\n");
    let login = format!(
        "[maintenance_manager.smtp]\nhost = 'mail.example'\nfrom = 'a@b.example'\n\
         user = 'u'\npassword_file = {empty:?}\n"
    );
    for (text, expected) in [
        (login.as_str(), "maintenance_manager.smtp.password_file: "),
        (
            "[maintenance_manager.smtp]\nhost = 'mail.example:25'\nfrom = 'a@b.example'\n",
            "maintenance_manager.smtp.host: must be the name or the address",
        ),
        (
            "[maintenance_manager.notifications]\nattempt_timeout = '31s'\n",
            "maintenance_manager.notifications.attempt_timeout must be from 100 ms to 30 s",
        ),
        (
            "[tracing]\nheaders_file = '/no/such/headers'\n",
            "tracing.headers_file: set tracing.otlp_endpoint as well",
        ),
    ] {
        let file = harness.write_file("evenkeeld.toml", text);
        let stderr = harness.start(&["check", "--config", &file]).expect_failure();
        assert!(stderr.contains(expected), "{expected}: {stderr}");
        assert_eq!(count_faults(&stderr), 1, "{stderr}");
    }
}

#[test]
fn the_check_names_each_bad_server_name_and_each_bad_file_of_the_listener_for_nodes() {
    let harness = TestServer::new();
    let key = harness.write_file("key.pem", "no key\n");
    let text = format!(
        "[southbound]\ncertificate = '/no/such/chain'\nkey = {key:?}\nca = '/no/such/ca'\n\
         server_names = ['https://updates.example', 'updates.example', 'up dates']\n\
         [maintenance_manager]\nhousekeeping_schedule = '5 * * * *'\n"
    );
    let file = harness.write_file("evenkeeld.toml", &text);
    let stderr = harness.start(&["check", "--config", &file]).expect_failure();
    let faults = [
        "southbound.server_names: \"https://updates.example\" is",
        "southbound.server_names: \"up dates\" is",
        "southbound.certificate: cannot read /no/such/chain",
        "southbound.key: ",
        "southbound.ca: cannot read /no/such/ca",
        "maintenance_manager.housekeeping_schedule is invalid: `5 * * * *` is not a schedule",
    ];
    for fault in faults {
        assert!(stderr.contains(&format!("evenkeeld: {fault}")), "{fault}: {stderr}");
    }
    assert_eq!(count_faults(&stderr), faults.len(), "{stderr}");
    assert!(stderr.contains("warning: southbound.key: all users of this machine can read"));
}

#[test]
fn the_check_reads_certificates_of_the_database_and_of_the_listener_for_nodes() {
    let harness = TestServer::new();
    let now = SystemClock.now();
    let ca = CertificateAuthority::open(&harness.path("other-ca"), now).unwrap();
    let issued = ca.issue_server(&["updates.example".to_owned()], now).unwrap();
    let chain = harness.write_file("chain.pem", &issued.chain_pem);
    let key = harness.write_private_file("key.pem", issued.key_pem.reveal());
    let check = |root: &str, name: &str| {
        let text = format!(
            "[database]\nurl = 'postgres://db.example/evenkeel?sslmode=verify-full&sslrootcert={root}'\n\
             [southbound]\ncertificate = {chain:?}\nkey = {key:?}\nserver_names = [{name:?}]\n"
        );
        let file = harness.write_file("evenkeeld.toml", &text);
        harness.start(&["check", "--config", &file])
    };
    assert_eq!(check(&chain, "updates.example").expect_success(), "the configuration is valid\n");
    let valid = format!("{chain}&sslcert={chain}&sslkey={key}");
    assert_eq!(check(&valid, "updates.example").expect_success(), "the configuration is valid\n");
    let empty = harness.write_file("empty.pem", "no certificate\n");
    let corrupt = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let corrupt = harness.write_file("corrupt.pem", corrupt);
    let without_key = format!("{chain}&sslcert={chain}");
    let without_pem_key = format!("{chain}&sslcert={chain}&sslkey={chain}");
    for (root, name, expected) in [
        (
            "/no/such/ca.pem",
            "updates.example",
            "database.url: sslrootcert: cannot read /no/such/ca.pem",
        ),
        (empty.as_str(), "updates.example", "empty.pem contains no certificate"),
        (corrupt.as_str(), "updates.example", "corrupt.pem contains an invalid certificate"),
        (without_key.as_str(), "updates.example", "set both sslcert and sslkey"),
        (without_pem_key.as_str(), "updates.example", "database.url: sslcert: "),
        (
            chain.as_str(),
            "other.example",
            "chain.pem is not valid for other.example in southbound.server_names",
        ),
        (
            chain.as_str(),
            "https://updates.example",
            "southbound.server_names: \"https://updates.example\" is",
        ),
    ] {
        let stderr = check(root, name).expect_failure();
        assert!(stderr.contains(expected), "{expected}: {stderr}");
        assert_eq!(count_faults(&stderr), 1, "{stderr}");
    }
}

/// Lines without the warnings.
fn count_faults(stderr: &str) -> usize {
    stderr.lines().filter(|line| !line.starts_with("evenkeeld: warning: ")).count()
}

#[tokio::test]
async fn the_online_check_reads_the_schema_and_the_clock() {
    let harness = TestServer::new();
    let postgres = harness.start_postgres().await;
    let with = harness.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    let stderr = with.start(&["check", "--online"]).expect_failure();
    assert!(stderr.contains("database schema: the database is empty: the first"), "{stderr}");
    with.start(&["migrate"]).expect_success();
    let text = with.start(&["check", "--online"]).expect_success();
    for line in ["database: it can be reached", "database schema: current (", "clock: "] {
        assert!(text.lines().any(|shown| shown.starts_with(line)), "{line}: {text}");
    }
    assert!(text.ends_with("the configuration is valid\n"), "{text}");
    postgres.stop().await;
    let stderr = with.start(&["check", "--online"]).expect_failure();
    assert!(stderr.contains("evenkeeld: database: "), "{stderr}");
}

#[tokio::test]
async fn a_missing_database_is_reported_once() {
    let harness = TestServer::new();
    let postgres = harness.start_postgres().await;
    let url = postgres.url().replace("/evenkeel?", "/absent?");
    assert_ne!(url, postgres.url());
    let with = harness.with_env("EVENKEELD_DATABASE__URL", &url);
    let stderr = with.start(&["migrate"]).expect_failure();
    let sentence = "database \"absent\" does not exist";
    assert_eq!(stderr.matches(sentence).count(), 1, "{stderr}");
    postgres.stop().await;
}

#[test]
fn a_wrong_log_level_is_refused() {
    let stderr = TestServer::new()
        .with_env("EVENKEELD_LOG__LEVEL", "a=b=c")
        .start(&["all"])
        .expect_failure();
    assert!(stderr.contains("the log level is not understood"), "{stderr}");
}

#[test]
fn a_schedule_that_is_not_understood_is_refused_before_a_database_is_started() {
    let harness = TestServer::new();
    let config = harness.write_file("evenkeeld.toml", &registry(&harness));
    for (setting, variable) in [
        ("housekeeping_schedule", "EVENKEELD_MAINTENANCE_MANAGER__HOUSEKEEPING_SCHEDULE"),
        ("sync_schedule", "EVENKEELD_OS_RESOURCE_MANAGER__SYNC_SCHEDULE"),
    ] {
        let harness = harness.with_env(variable, "now and then");
        let stderr = harness.start(&["all", "--config", &config]).expect_failure();
        assert!(stderr.contains(setting), "{stderr}");
        assert!(stderr.contains("`now and then` is not a schedule"), "{stderr}");
        assert!(!harness.data_dir().join("postgres").exists());
    }
}

#[test]
fn a_database_url_is_refused_without_being_printed() {
    for (url, reason) in [
        ("postgres://u:HUSH@127.0.0.1:bad/x", "the database URL cannot be parsed"),
        ("postgres://u:HU/HUSH@127.0.0.1/x", "the database URL cannot be parsed"),
        ("postgres://u@127.0.0.1/x?passwrod=HUSH", "the database URL has an unknown parameter"),
        ("postgres://u:HUSH@db.example/x", "permits a connection without TLS"),
        ("postgres://u:HUSH@db.example/x?sslmode=prefer", "database.allow_unencrypted = true"),
        ("postgres://u:HUSH@localhost,db.example/x", "permits a connection without TLS"),
    ] {
        let harness = TestServer::new().with_env("EVENKEELD_DATABASE__URL", url);
        for command in ["migrate", "all"] {
            let stderr = harness.start(&[command]).expect_failure();
            assert!(stderr.contains(reason), "{url}: {stderr}");
            assert!(!stderr.contains("HUSH"), "{stderr}");
        }
    }
}

#[tokio::test]
async fn a_role_that_bypasses_row_level_security_is_rejected_with_commands_to_fix_it() {
    let harness = TestServer::new();
    let postgres = harness.start_postgres().await;
    let superuser = harness.with_env("EVENKEELD_DATABASE__URL", &postgres.admin_url());
    let stderr = superuser.start(&["all"]).expect_failure();
    assert!(stderr.contains("ALTER ROLE \"postgres\" NOSUPERUSER NOBYPASSRLS"), "{stderr}");

    sql(&postgres.admin_url(), "ALTER ROLE evenkeel BYPASSRLS");
    let harness = superuser.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    for command in ["all", "inventory", "maintenance-manager", "migrate"] {
        let stderr = harness.start(&[command]).expect_failure();
        assert!(stderr.contains("ALTER ROLE \"evenkeel\" NOSUPERUSER NOBYPASSRLS"), "{stderr}");
    }
    sql(&postgres.admin_url(), "ALTER ROLE evenkeel NOBYPASSRLS");
    assert!(harness.start(&["migrate"]).expect_success().is_empty(), "fixed");
    postgres.stop().await;
}

#[tokio::test]
async fn single_services_need_a_migrated_schema() {
    let harness = TestServer::new();
    let postgres = harness.start_postgres().await;
    let harness = harness.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    for service in ["inventory", "maintenance-manager", "os-resource-manager"] {
        let stderr = harness.start(&[service]).expect_failure();
        assert!(stderr.contains("run `evenkeeld migrate` first"), "{stderr}");
    }
    harness.start(&["migrate"]).expect_success();
    harness.start(&["migrate"]).expect_success();

    let inventory = harness.start_and_wait(&["inventory"]);
    let manager = harness.start_and_wait(&["maintenance-manager"]);
    let config = harness.write_file("evenkeeld.toml", &registry(&harness));
    let systems = harness.with_env("EVENKEELD_FILES__LISTEN", "127.0.0.1:0");
    let systems = systems.start_and_wait(&["os-resource-manager", "--config", &config]);

    assert_eq!(inventory.listeners(), ["admin", "rest"]);
    assert_eq!(manager.listeners(), ["admin", "southbound"]);
    assert_eq!(systems.listeners(), ["admin", "files"]);
    systems.stop();
    inventory.stop();
    manager.stop();
    postgres.stop().await;
}

#[tokio::test]
async fn a_dry_run_prints_the_missing_steps_and_changes_nothing() {
    let harness = TestServer::new();
    let postgres = harness.start_postgres().await;
    let harness = harness.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    for _ in 0..2 {
        let steps = harness.start(&["migrate", "--dry-run"]).expect_success();
        assert!(steps.contains("20261129_000001_baseline"), "{steps}");
    }
    harness.start(&["migrate"]).expect_success();
    let steps = harness.start(&["migrate", "--dry-run"]).expect_success();
    assert_eq!(steps.trim(), "the database schema is up to date");
    postgres.stop().await;
}

#[test]
fn a_single_service_without_a_database_names_the_setting() {
    let stderr = TestServer::new().start(&["inventory"]).expect_failure();
    assert!(stderr.contains("set database.url, or EVENKEELD_DATABASE__URL"), "{stderr}");
}

#[test]
fn an_unreachable_database_is_a_clear_error() {
    let url = "postgres:///evenkeel?host=/nowhere&user=evenkeel";
    let stderr =
        TestServer::new().with_env("EVENKEELD_DATABASE__URL", url).start(&["all"]).expect_failure();
    assert!(stderr.contains("cannot connect to the database"), "{stderr}");
}

#[test]
fn a_corrupt_key_file_is_named() {
    let harness = TestServer::new();
    fs::create_dir_all(harness.data_dir().join("keys")).unwrap();
    harness.write_file("data/keys/signing.pem", "not a key");
    let stderr = harness.start(&["token", "operator", "--role", "admin"]).expect_failure();
    assert!(stderr.contains("signing.pem is not usable"), "{stderr}");
}

#[test]
fn commands_with_the_wrong_data_directory_create_nothing() {
    let harness = TestServer::new();
    let data_dir = harness.data_dir();
    let keys = format!("no keys of a server in {}", data_dir.join("keys").display());
    let postgres =
        format!("there is no private Postgres in {}", data_dir.join("postgres").display());
    for (command, message) in [
        (&["token", "operator", "--role", "admin"][..], &keys),
        (&["token", "operator", "--project", "default"], &keys),
        (&["migrate"], &postgres),
    ] {
        let stderr = harness.start(command).expect_failure();
        assert!(stderr.contains(message), "{command:?}: {stderr}");
        assert!(stderr.contains("--data-dir"), "{command:?}: {stderr}");
        assert!(!data_dir.exists(), "{command:?}");
    }
}
