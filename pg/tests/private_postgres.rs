//! A private Postgres with the real binaries: starts, stops, and recovery after a kill.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test checks the outcome with the system's own programs, and fails when it cannot"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_pg::{Error, Options, PrivatePostgres};
use tempfile::TempDir;

/// A folder that the user of Postgres can enter, even if the tests run as root.
fn open_folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    dir
}

fn fast_options(dir: &Path) -> Options {
    Options::for_tests(dir.join("pg"))
}

fn try_sql(url: &str, statement: &str) -> Result<String, String> {
    let mut versions: Vec<PathBuf> =
        fs::read_dir("/usr/lib/postgresql").unwrap().map(|entry| entry.unwrap().path()).collect();
    versions.sort();
    let psql = versions.last().unwrap().join("bin/psql");
    let output = Command::new(psql)
        .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", url, "-c", statement])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn sql(url: &str, statement: &str) -> String {
    try_sql(url, statement).expect("the statement works")
}

/// Another process that runs a Postgres.
struct OtherProcess {
    process: Child,
    url: String,
}

impl OtherProcess {
    fn start(dir: &Path) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_private-postgres"))
            .arg(dir.join("pg"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut url).unwrap();
        let url = url.trim().to_owned();
        assert!(url.starts_with("postgres:"), "the other process has started: {url}");
        Self { process, url }
    }

    fn kill(mut self) -> String {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.url
    }
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

fn postmaster(dir: &Path) -> i32 {
    let text = fs::read_to_string(dir.join("pg/data/postmaster.pid")).unwrap();
    text.lines().next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_role_owns_its_database_and_is_bound_by_row_level_security() {
    let dir = open_folder();
    let postgres = PrivatePostgres::start(fast_options(dir.path())).await.unwrap();
    let url = postgres.url();

    let role = "SELECT rolname, rolsuper, rolbypassrls, rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = user";
    assert_eq!(sql(&url, role), "evenkeel|f|f|f|f");
    let owner =
        "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()";
    assert_eq!(sql(&url, owner), "evenkeel");
    sql(&url, "CREATE EXTENSION btree_gin");
    assert_eq!(sql(&url, "SHOW listen_addresses"), "");
    assert_eq!(sql(&postgres.admin_url(), "SELECT user"), "postgres");
    postgres.stop().await;
}

#[tokio::test]
async fn postgres_does_not_run_as_root_and_other_users_cannot_connect() {
    let dir = open_folder();
    let postgres = PrivatePostgres::start(fast_options(dir.path())).await.unwrap();

    let status = fs::read_to_string(format!("/proc/{}/status", postgres.pid())).unwrap();
    let uid = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    assert!(!uid.split_whitespace().skip(1).any(|id| id == "0"), "{uid}");
    let socket = fs::metadata(dir.path().join("pg/socket")).unwrap();
    assert_eq!(socket.permissions().mode() & 0o777, 0o700);
    let data = fs::metadata(dir.path().join("pg/data")).unwrap();
    assert_eq!(data.permissions().mode() & 0o777, 0o700);
    postgres.stop().await;
}

#[tokio::test]
async fn a_durable_postgres_flushes() {
    let dir = open_folder();
    let options = Options::new(dir.path().join("pg")).max_connections(17);
    let postgres = PrivatePostgres::start(options).await.unwrap();
    for (setting, value) in [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "on"),
        ("max_connections", "17"),
    ] {
        assert_eq!(sql(&postgres.url(), &format!("SHOW {setting}")), value, "{setting}");
    }
    postgres.stop().await;
}

#[tokio::test]
async fn data_survives_a_stop_and_a_start() {
    let dir = open_folder();
    let postgres = PrivatePostgres::start(fast_options(dir.path()).durable(true)).await.unwrap();
    let (url, pid) = (postgres.url(), postgres.pid());
    sql(&url, "CREATE TABLE kept AS SELECT 42 AS answer");
    postgres.stop().await;
    assert!(!is_alive(pid));

    let postgres = PrivatePostgres::start(fast_options(dir.path())).await.unwrap();

    assert_eq!(postgres.url(), url, "the address is stable");
    assert_eq!(sql(&url, "SELECT answer FROM kept"), "42");
    postgres.stop().await;
}

#[tokio::test]
async fn a_killed_owner_ends_its_postgres_and_committed_data_survives() {
    let dir = open_folder();
    let other = OtherProcess::start(dir.path());
    sql(&other.url, "CREATE TABLE kept AS SELECT 42 AS answer");
    let pid = postmaster(dir.path());
    let url = other.kill();

    let postgres = PrivatePostgres::start(fast_options(dir.path())).await.unwrap();

    assert!(!is_alive(pid), "the old one is gone before the new one starts");
    assert_eq!(postgres.url(), url, "the address is stable");
    assert_eq!(sql(&url, "SELECT answer FROM kept"), "42");
    postgres.stop().await;
}

#[tokio::test]
async fn files_of_a_killed_postgres_do_not_prevent_a_start() {
    let dir = open_folder();
    let postgres = PrivatePostgres::start(fast_options(dir.path())).await.unwrap();
    sql(&postgres.url(), "CREATE TABLE kept AS SELECT 42 AS answer");
    sql(&postgres.admin_url(), "CHECKPOINT");
    let pid = postgres.pid();
    Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    assert!(postgres.wait_for_end().await.is_some());
    drop(postgres);
    // The process id now belongs to an unrelated process: this one.
    let file = dir.path().join("pg/data/postmaster.pid");
    let stale = fs::read_to_string(&file).unwrap();
    fs::write(&file, stale.replace(&pid.to_string(), &std::process::id().to_string())).unwrap();

    let postgres = PrivatePostgres::start(fast_options(dir.path())).await.unwrap();

    assert_eq!(sql(&postgres.url(), "SELECT answer FROM kept"), "42");
    postgres.stop().await;
}

#[tokio::test]
async fn a_second_start_names_the_running_process() {
    let dir = open_folder();
    let other = OtherProcess::start(dir.path());

    let error = PrivatePostgres::start(fast_options(dir.path())).await.unwrap_err();

    let text = error.to_string();
    let holder = format!("process {} runs a Postgres there", other.process.id());
    assert!(text.contains(&holder), "{text}");
    assert_eq!(sql(&other.url, "SELECT 1"), "1", "the first goes on");
    let running = PrivatePostgres::find_running(&dir.path().join("pg")).unwrap();
    assert_eq!(running.as_ref(), Some(&other.url), "its URL is found");
    other.kill();
    let running = PrivatePostgres::find_running(&dir.path().join("pg")).unwrap();
    assert_eq!(running, None);
    let pid = postmaster(dir.path());
    eventually("Postgres ends after its owner", || !is_alive(pid));
}

#[tokio::test]
async fn dropping_the_handle_stops_postgres() {
    let dir = open_folder();
    let postgres = PrivatePostgres::start(fast_options(dir.path())).await.unwrap();
    let pid = postgres.pid();
    drop(postgres);
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn the_end_of_postgres_is_noticed() {
    let dir = open_folder();
    let postgres = PrivatePostgres::start(fast_options(dir.path())).await.unwrap();
    let ended = postgres.wait_for_end();
    Command::new("kill").args(["-QUIT", &postgres.pid().to_string()]).status().unwrap();
    assert!(ended.await.is_some());
}

#[tokio::test]
async fn an_unfinished_cluster_is_created_again() {
    let dir = open_folder();
    let unfinished = dir.path().join("pg/data.new/base");
    fs::create_dir_all(&unfinished).unwrap();
    fs::write(unfinished.join("1"), "half").unwrap();

    let postgres = PrivatePostgres::start(fast_options(dir.path())).await.unwrap();

    assert_eq!(sql(&postgres.url(), "SELECT 1"), "1");
    assert!(!dir.path().join("pg/data.new").exists());
    postgres.stop().await;
}

#[tokio::test]
async fn an_inaccessible_or_long_path_works() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let far = dir.path().join("far away").join("x".repeat(100));
    let options = Options::new(&far).durable(false);
    let postgres = PrivatePostgres::start(options.clone()).await.unwrap();
    let url = postgres.url();
    assert_eq!(sql(&url, "SELECT 1"), "1");
    let socket = url.split("host=").nth(1).unwrap().split('&').next().unwrap().to_owned();
    assert!(socket.starts_with("/tmp/evenkeel-"), "{socket}");
    postgres.stop().await;

    let postgres = PrivatePostgres::start(options).await.unwrap();

    assert_eq!(postgres.url(), url, "the address is stable");
    postgres.stop().await;
    fs::remove_dir_all(socket).unwrap();
}

#[tokio::test]
async fn a_data_directory_of_another_user_is_refused() {
    let dir = open_folder();
    let data = dir.path().join("pg/data");
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    if is_root {
        fs::create_dir_all(&data).unwrap(); // Belongs to root instead of the user of Postgres.
    } else {
        fs::create_dir_all(dir.path().join("pg")).unwrap();
        std::os::unix::fs::symlink("/etc", &data).unwrap();
        return; // Only root can create a folder of another user.
    }

    let error = PrivatePostgres::start(fast_options(dir.path())).await.unwrap_err();

    assert!(matches!(error, Error::WrongOwner { owner: 0, .. }), "{error}");
    assert!(error.to_string().contains("fix it with `chown -R "), "{error}");
}

#[tokio::test]
async fn a_rejected_setting_is_shown_with_the_log() {
    let dir = open_folder();
    let options = fast_options(dir.path()).setting("shared_buffers", "plenty");
    let error = PrivatePostgres::start(options).await.unwrap_err().to_string();
    assert!(error.contains("shared_buffers") && error.contains("plenty"), "{error}");
}

#[tokio::test]
async fn without_binaries_the_package_is_named() {
    let dir = open_folder();
    let options = fast_options(dir.path()).binaries_in(dir.path());
    let error = PrivatePostgres::start(options).await.unwrap_err().to_string();
    assert!(error.contains("install the Debian package `postgresql`"), "{error}");
}

#[tokio::test]
async fn a_throwaway_removes_itself_and_abandoned_ones() {
    let dir = open_folder();
    let left = dir.path().join("postgres-0000000000000000");
    fs::create_dir_all(left.join("data")).unwrap();

    let postgres = PrivatePostgres::throwaway_in(dir.path()).await.unwrap();

    assert!(!left.exists(), "removed");
    assert_eq!(sql(&postgres.url(), "SHOW fsync"), "off");
    sql(&postgres.url(), "CREATE DATABASE one_more");
    let second = PrivatePostgres::throwaway_in(dir.path()).await.unwrap();
    assert_eq!(sql(&postgres.url(), "SELECT 1"), "1", "a Postgres in use is not removed");
    second.stop().await;
    postgres.stop().await;
    let names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["lock"]);
}
