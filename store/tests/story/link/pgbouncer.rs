//! A real `PgBouncer` in front of a Postgres.

use std::fs::{self, File, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tokio::net::{TcpSocket, TcpStream};

use super::proxies::{proxied_url, socket_of};
use super::until;

/// The program. Users other than root do not have its folder on their path.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A running `PgBouncer`. It is killed when this value is dropped.
pub struct PgBouncer {
    address: SocketAddr,
    process: Child,
    folder: TempDir,
    /// It never listens. It keeps other programs from the port until `PgBouncer` has it.
    _reserved_port: TcpSocket,
}

impl PgBouncer {
    /// Starts it in front of the Postgres of a database.
    pub async fn start(direct: &str, pool_mode: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // It runs as the user of Postgres.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("permissions");
        let reserved_port = reserve_port();
        let address = reserved_port.local_addr().expect("an address");
        let process = spawn(&folder, direct, &settings(direct, address, pool_mode));
        let pooler = Self { address, process, folder, _reserved_port: reserved_port };
        until("PgBouncer listens", async || TcpStream::connect(address).await.ok()).await;
        pooler
    }

    /// The URL of the same database through the pooler.
    pub fn url(&self, direct: &str) -> String {
        proxied_url(direct, self.address)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Binds a free port. A program that sets `SO_REUSEADDR`, as `PgBouncer` does, can listen on it.
fn reserve_port() -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option of sockets");
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    socket
}

fn settings(direct: &str, address: SocketAddr, pool_mode: &str) -> String {
    let socket = socket_of(direct);
    let host = socket.parent().expect("a folder").display();
    let (ip, port) = (address.ip(), address.port());
    format!(
        "[databases]\n* = host={host} user=evenkeel\n[pgbouncer]\nlisten_addr = {ip}\nlisten_port = {port}\n\
         unix_socket_dir =\nauth_type = any\npool_mode = {pool_mode}\ndefault_pool_size = 50\n"
    )
}

#[expect(clippy::disallowed_methods, reason = "PgBouncer is another program")]
fn spawn(folder: &TempDir, direct: &str, settings: &str) -> Child {
    let configuration = folder.path().join("pgbouncer.ini");
    fs::write(&configuration, settings).expect("a configuration");
    let log = File::create(folder.path().join("log")).expect("a log");
    // Postgres admits its own user and root, and PgBouncer does not run as root.
    let socket = fs::metadata(socket_of(direct)).expect("a socket");
    let process = Command::new(PROGRAM)
        .arg(&configuration)
        .uid(socket.uid())
        .gid(socket.gid())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    process.expect("PgBouncer starts; `make tools` installs the Debian package pgbouncer")
}
