//! The archive for reports of errors.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

use evenkeel_auth::CertificateAuthority;
use evenkeel_kit::{Clock, SystemClock};

use crate::test_server::TestServer;

/// Unpacks an archive and returns the text of all of its files.
fn unpack(archive: &Path) -> String {
    let output = Command::new("tar").arg("-xzOf").arg(archive).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A configuration with a secret in each setting and file that can hold one.
fn settings_with_secrets(harness: &TestServer) -> String {
    let users = harness.write_file(
        "users.toml",
        "[[users]]\nname = 'hush-user'\npassword_hash = 'hush-hash'\nroles = ['evenkeel-admin']\n",
    );
    let password = harness.write_file("password", "hush-registry-password\n");
    let token = harness.write_file("token", "hush-registry-token\n");
    let key = harness.write_file("key.pem", "hush-key\n");
    let jwks = harness.write_file("jwks.json", "{\"keys\":[],\"note\":\"hush-jwks\"}");
    let headers = harness.write_file("headers", "Authorization: Bearer hush-bearer\n");
    let proxy = "http://hush-proxy-user:hush-proxy@proxy.example:3128";
    let text = format!(
        "[rest]\ncors_origins = ['https://hush-origin.example']\n\
         [southbound]\nserver_names = ['hush-name.example']\nkey = {key:?}\ncertificate = '/hush-chain'\n\
         [auth.login]\nusers = {users:?}\nurl = 'https://hush-login.example'\n\
         [auth.tokens]\nissuer = 'urn:hush-issuer'\n\
         [[auth.issuers]]\nissuer = 'https://hush-provider.example'\naudience = 'hush-audience'\n\
         jwks = {jwks:?}\nroles = 'hush-claim'\nnode_claim = 'hush-node'\n\
         [os_resource_manager.registries.release]\naddress = 'https://hush-registry.example'\n\
         username = 'hush-registry-user'\npassword_file = {password:?}\nproxy = '{proxy}'\n\
         allow_hosts = ['hush-host.example']\nfiles_url = 'https://hush-files.example'\n\
         [os_resource_manager.registries.other]\naddress = 'https://hush-other.example'\n\
         token_file = {token:?}\n\
         [tracing]\notlp_endpoint = 'https://hush-collector.example'\nheaders_file = {headers:?}\n"
    );
    harness.write_file("evenkeeld.toml", &text)
}

#[test]
fn the_archive_describes_a_running_server_and_has_no_secret() {
    let harness = TestServer::new();
    let server = harness.start_and_wait(&["all"]);
    let log =
        harness.write_file("log", "the token is hush-registry-token\nsecond line\nhush-bearer\n");
    let config = settings_with_secrets(&harness);
    let archive = harness.path("bundle.tar.gz");
    let admin = server.address("admin").to_string();
    let output = archive.display().to_string();
    let arguments = [
        "support-bundle",
        "--config",
        &config,
        "--output",
        &output,
        "--log",
        &log,
        "--admin",
        &admin,
    ];
    harness.start(&arguments).expect_success();
    let text = unpack(&archive);
    for part in [
        concat!("evenkeeld ", env!("CARGO_PKG_VERSION")),
        "\"max_connections\": 32",
        "\"users\": \"[set]\"",
        "the token is [secret]\nsecond line",
        "ready\n",
        "alive\n",
        "evenkeel_build_info",
        "\"table\": \"hosts\"",
        "\"clock_offset_ms\"",
        "\"stored_runs\": 0",
        "database schema: current",
        "processors: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The settings name no secret; the check names only files and issuers, which are not secret.
    for secret in [
        "hush-hash",
        "hush-registry-password",
        "hush-registry-token",
        "hush-key",
        "hush-bearer",
        "hush-jwks",
        "hush-proxy",
        "hush-registry-user",
        "hush-claim",
        "hush-node",
        "hush-audience",
    ] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    let token = harness.operator_token();
    assert!(!text.contains(&token), "{text}");
    for key in ["keys/signing.pem", "keys/operators/signing.pem", "ca/ca-key.pem"] {
        let pem = fs::read_to_string(harness.data_dir().join(key)).unwrap();
        for line in pem.lines().filter(|line| !line.starts_with("-----")) {
            assert!(!text.contains(line), "{key}: {text}");
        }
    }
    let again = harness.start(&arguments).expect_failure();
    assert!(again.contains("cannot create"), "{again}");
    server.stop();
}

#[test]
fn the_archive_has_the_metrics_of_a_listener_with_tls() {
    let harness = TestServer::new();
    let now = SystemClock.now();
    let ca = CertificateAuthority::open(&harness.path("operator-ca"), now).unwrap();
    let issued = ca.issue_server(&["updates.example".to_owned()], now).unwrap();
    let chain = harness.write_private_file("chain.pem", &issued.chain_pem);
    let key = harness.write_private_file("key.pem", issued.key_pem.reveal());
    let own = harness.with_env("EVENKEELD_ADMIN__TLS", "true");
    let files = harness
        .with_env("EVENKEELD_ADMIN__CERTIFICATE", &chain)
        .with_env("EVENKEELD_ADMIN__KEY", &key);
    for (name, harness) in [("own", own), ("files", files)] {
        let server = harness.start_and_wait(&["all"]);
        let admin = server.address("admin").to_string();
        let archive = harness.path(&format!("{name}.tar.gz"));
        let output = archive.display().to_string();
        let arguments = ["support-bundle", "--output", &output, "--no-log", "--admin", &admin];
        harness.start(&arguments).expect_success();
        let text = unpack(&archive);
        assert!(text.contains("ready\n") && text.contains("evenkeel_build_info"), "{name}: {text}");
        server.stop();
    }
}

#[test]
fn an_archive_without_a_database_has_the_reason_and_no_password() {
    let harness = TestServer::new();
    let password = harness.write_file("database.password", "hush-file\n");
    let harness = harness
        .with_env("EVENKEELD_DATABASE__URL", "postgres://hush-user:hush-url@127.0.0.1:1/evenkeel")
        .with_env(
            "EVENKEELD_DATABASE__MIGRATION_URL",
            "postgres://hush-owner:hush-own@127.0.0.1:1/x",
        )
        .with_env("EVENKEELD_DATABASE__PASSWORD_FILE", &password);
    let output = harness.path("bundle.tar.gz").display().to_string();
    let arguments = ["support-bundle", "--output", &output, "--no-log", "--admin", "127.0.0.1:1"];
    harness.start(&arguments).expect_success();
    let text = unpack(&harness.path("bundle.tar.gz"));
    assert!(text.contains("not available: cannot reach 127.0.0.1:1"), "{text}");
    assert!(text.contains("not available: cannot connect to the database"), "{text}");
    assert!(text.contains("fault: database: "), "{text}");
    assert!(!text.contains("hush"), "{text}");
}

/// Mounts a disk of 64 KiB in memory on a folder, runs a program, and lists the files on the disk.
const RUN_ON_SMALL_DISK: &str = "folder=$1; shift; \
     mount -t tmpfs -o size=64k tmpfs \"$folder\" || exit; \
     \"$@\"; status=$?; ls -A \"$folder\"; exit $status";

/// A command that runs the program in its further arguments while a full disk can be reached at
/// `folder`. No other process sees the disk, and it ends with the program.
fn small_disk_command(folder: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--mount", "--propagation", "private", "--"]);
    command.args(["sh", "-c", RUN_ON_SMALL_DISK, "sh"]);
    command.arg(folder);
    command
}

/// Whether this machine allows to mount a disk. If not, prints why, or fails if such tests are
/// required.
fn can_mount(folder: &Path) -> bool {
    let output = small_disk_command(folder).arg("true").output().unwrap();
    if output.status.success() {
        return true;
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let is_required = std::env::var_os("EVENKEEL_REQUIRE_OS_TESTS").is_some();
    assert!(!is_required, "tests with a full disk are required: {why}");
    let written = writeln!(io::stderr(), "skipped a test with a full disk: {why}");
    written.expect("a line on standard error");
    false
}

/// Text that does not become much shorter by compression.
fn random_text(length: usize) -> String {
    let (mut text, mut state) = (String::new(), 1_u64);
    while text.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        writeln!(text, "{state:016x}").unwrap();
    }
    text
}

#[test]
fn an_archive_that_does_not_fit_on_its_disk_is_an_error_and_leaves_no_file() {
    let harness = TestServer::new();
    let disk = harness.path("disk");
    fs::create_dir(&disk).unwrap();
    if !can_mount(&disk) {
        return;
    }
    let log = harness.write_file("log", &random_text(400 << 10));
    let archive = disk.join("bundle.tar.gz");
    let mut command = small_disk_command(&disk);
    command.arg(env!("CARGO_BIN_EXE_evenkeeld")).args(["support-bundle", "--log", &log]);
    command.args(["--admin", "127.0.0.1:1", "--output"]).arg(&archive);
    command.arg("--data-dir").arg(harness.data_dir());
    let ended = command
        .env("EVENKEELD_DATABASE__URL", "postgres://user@127.0.0.1:1/evenkeel")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&ended.stdout);
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{printed}{stderr}");
    let expected = format!(
        "cannot write {}; free space on its disk, or use another disk with --output: No space left",
        archive.display()
    );
    assert!(stderr.contains(&expected), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert_eq!(printed, "", "neither a message of success nor a file on the disk");
}
