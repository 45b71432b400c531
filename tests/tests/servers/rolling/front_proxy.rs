//! HAProxy or nginx in front of three replicas, with the configurations of `deploy/ha`.
//!
//! Only addresses, ports and paths of the configurations are replaced.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use evenkeel_test_support::ServerProcess;
use evenkeel_tests::architecture::tree;
use evenkeel_tests::history::Replicas;
use evenkeel_tests::run_program;
use tempfile::TempDir;
use tokio::net::TcpSocket;
use tokio::process::{Child, Command};

use crate::hanging::test_server::until;

/// The programs of the Debian packages. `/usr/sbin` is not on the path of every user.
const HAPROXY: &str = "/usr/sbin/haproxy";
const NGINX: &str = "/usr/sbin/nginx";

/// A listener of the replicas, and its ports in the shipped configurations.
struct ShippedListener {
    name: &'static str,
    proxy_port: u16,
    replica_port: u16,
}

const LISTENERS: [ShippedListener; 3] = [
    ShippedListener { name: "southbound", proxy_port: 50_002, replica_port: 50_002 },
    ShippedListener { name: "rest", proxy_port: 443, replica_port: 8_443 },
    ShippedListener { name: "files", proxy_port: 50_003, replica_port: 50_003 },
];

/// The replicas in the shipped configurations: their names for HAProxy, and their addresses.
const SHIPPED_REPLICAS: [(&str, &str); 3] =
    [("one", "192.0.2.11"), ("two", "192.0.2.12"), ("three", "192.0.2.13")];

/// Column of the state of a server in HAProxy's `show stat`.
const STATUS_COLUMN: usize = 17;

/// A running proxy. It is killed when this value is dropped.
#[derive(Debug)]
pub struct FrontProxy {
    addresses: [SocketAddr; 3],
    /// HAProxy's socket for commands. nginx has none.
    admin_socket: Option<PathBuf>,
    folder: TempDir,
    _process: Child,
    /// They never listen. They keep other programs from the ports of the proxy until it has them.
    _reserved_ports: [TcpSocket; 3],
}

impl FrontProxy {
    /// Starts HAProxy, and waits until it sends new connections to each replica.
    ///
    /// # Panics
    /// HAProxy refuses a configuration, or does not start.
    pub async fn start_haproxy(replicas: &mut Replicas) -> Self {
        let shipped = tree::root().join("deploy/ha/haproxy.cfg");
        let path = shipped.to_string_lossy();
        run_program(Path::new(HAPROXY), &["-c", "-f", &path]).await;
        let (folder, reserved_ports) = (temporary_folder(), LISTENERS.map(|_| reserve_port()));
        let addresses = reserved_ports.each_ref().map(local_address);
        let socket = folder.path().join("admin.sock");
        let mut changes = vec![
            ("log /dev/log local0".to_owned(), "log stdout format raw local0".to_owned()),
            ("    user haproxy\n    group haproxy\n".to_owned(), String::new()),
            ("/run/haproxy/admin.sock".to_owned(), socket.to_string_lossy().into_owned()),
            // The limit of open files may be lower here.
            ("maxconn 50000".to_owned(), "maxconn 1500".to_owned()),
        ];
        for (listener, address) in LISTENERS.iter().zip(addresses) {
            changes.push((format!("bind :{}\n", listener.proxy_port), format!("bind {address}\n")));
        }
        for (server, (_, host)) in replicas.servers().iter().zip(SHIPPED_REPLICAS) {
            let admin = server.address("admin");
            let (_, port) = admin.rsplit_once(':').expect("an address with a port");
            let check = format!("{host}:50002 check port ");
            let replica_check = format!("{} check port ", server.address("southbound"));
            changes.push((format!("{check}9464"), format!("{replica_check}{port}")));
            // The southbound listener is replaced already, together with its check.
            changes.extend(replica_addresses(server, host).into_iter().skip(1));
        }
        let config = write_configuration(&shipped, folder.path(), &changes);
        run_program(Path::new(HAPROXY), &["-c", "-f", &config]).await;
        let process = start(HAPROXY, &["-db", "-f", &config], folder.path());
        let proxy = Self {
            addresses,
            admin_socket: Some(socket),
            folder,
            _process: process,
            _reserved_ports: reserved_ports,
        };
        proxy.wait_until_replicas_are_up().await;
        proxy
    }

    /// Starts nginx.
    ///
    /// # Panics
    /// nginx refuses the configuration, or does not start.
    pub async fn start_nginx(replicas: &mut Replicas) -> Self {
        let shipped = tree::root().join("deploy/ha/nginx.conf");
        let (folder, reserved_ports) = (temporary_folder(), LISTENERS.map(|_| reserve_port()));
        let addresses = reserved_ports.each_ref().map(local_address);
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let mut changes = vec![
            ("user www-data;\n".to_owned(), String::new()),
            ("/run/nginx.pid".to_owned(), path("nginx.pid")),
            ("/var/log/nginx/error.log".to_owned(), path("error.log")),
            ("worker_rlimit_nofile 100000;\n".to_owned(), String::new()),
            ("worker_connections 50000".to_owned(), "worker_connections 4000".to_owned()),
        ];
        for (listener, address) in LISTENERS.iter().zip(addresses) {
            let port = listener.proxy_port;
            changes.push((format!("listen {port} "), format!("listen {address} ")));
        }
        for (server, (_, host)) in replicas.servers().iter().zip(SHIPPED_REPLICAS) {
            changes.extend(replica_addresses(server, host));
        }
        let config = write_configuration(&shipped, folder.path(), &changes);
        run_program(Path::new(NGINX), &["-t", "-c", &config]).await;
        // One process, which ends when it is killed.
        let how = "daemon off; master_process off;";
        let process = start(NGINX, &["-c", &config, "-g", how], folder.path());
        let proxy = Self {
            addresses,
            admin_socket: None,
            folder,
            _process: process,
            _reserved_ports: reserved_ports,
        };
        until("nginx accepts connections", async || {
            proxy.addresses.iter().all(|address| TcpStream::connect(address).is_ok()).then_some(())
        })
        .await;
        proxy
    }

    /// The address of a listener: `southbound`, `rest` or `files`.
    ///
    /// # Panics
    /// There is no such listener.
    pub fn address(&self, listener: &str) -> String {
        let number = LISTENERS.iter().position(|shipped| shipped.name == listener);
        self.addresses[number.expect("a listener")].to_string()
    }

    /// Waits until HAProxy sends new connections to each replica. nginx has no such state: it tries a
    /// replica again after a second.
    pub async fn wait_until_replicas_are_up(&self) {
        until("HAProxy sees that each replica is ready", async || {
            SHIPPED_REPLICAS.iter().all(|(name, _)| self.is_up(name)).then_some(())
        })
        .await;
    }

    fn is_up(&self, server: &str) -> bool {
        let Some(socket) = &self.admin_socket else {
            return true;
        };
        let show = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(socket)?;
            stream.write_all(b"show stat\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text).map(|_| text)
        };
        let text = show().unwrap_or_default();
        let prefix = format!("nodes,{server},");
        let line = text.lines().find(|line| line.starts_with(&prefix));
        line.and_then(|line| line.split(',').nth(STATUS_COLUMN)) == Some("UP")
    }

    /// The log of the proxy.
    pub fn log(&self) -> String {
        ["log", "error.log"]
            .map(|name| fs::read_to_string(self.folder.path().join(name)).unwrap_or_default())
            .concat()
    }
}

/// The shipped address of each listener of a replica, and the address of the listener here.
fn replica_addresses(server: &ServerProcess, host: &str) -> Vec<(String, String)> {
    let change = |listener: &ShippedListener| {
        (format!("{host}:{}", listener.replica_port), server.address(listener.name))
    };
    LISTENERS.iter().map(change).collect()
}

/// Writes a shipped configuration with these replacements. Each must occur. Returns its path.
fn write_configuration(shipped: &Path, folder: &Path, changes: &[(String, String)]) -> String {
    let mut text = fs::read_to_string(shipped).expect("a shipped configuration");
    for (from, to) in changes {
        assert!(text.contains(from), "{} has no {from:?}", shipped.display());
        text = text.replace(from, to);
    }
    let path = folder.join("configuration");
    fs::write(&path, text).expect("a configuration");
    path.to_string_lossy().into_owned()
}

fn temporary_folder() -> TempDir {
    tempfile::Builder::new().prefix("evenkeel-proxy.").tempdir().expect("a temporary folder")
}

/// Binds a free port. A program that sets `SO_REUSEADDR`, as the proxies do, can listen on it.
fn reserve_port() -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option of sockets");
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    socket
}

fn local_address(socket: &TcpSocket) -> SocketAddr {
    socket.local_addr().expect("an address")
}

#[expect(clippy::disallowed_methods, reason = "the proxies are other programs")]
fn start(program: &str, arguments: &[&str], folder: &Path) -> Child {
    let log = File::create(folder.join("log")).expect("a log");
    let process = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .kill_on_drop(true)
        .spawn();
    process.unwrap_or_else(|error| panic!("{program}: {error}; `make tools` installs it"))
}
