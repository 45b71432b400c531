//! Test harness: starts the executable with its own directory, and sends requests to it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_pg::{Options, PrivatePostgres};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, Stream, StreamOwned};

use crate::tls_client::{ClientCertificate, client_config, tls_session, tls_session_with};

/// Maximum duration of each step of a test.
const TEST_TIMEOUT: Duration = Duration::from_mins(2);

/// Directory and environment of a server.
pub struct TestServer {
    folder: Arc<tempfile::TempDir>,
    environment: BTreeMap<String, String>,
}

impl TestServer {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Postgres runs as another user when the tests run as root.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let environment = [
            ("EVENKEELD_REST__LISTEN", "127.0.0.1:0"),
            ("EVENKEELD_SOUTHBOUND__LISTEN", "127.0.0.1:0"),
            ("EVENKEELD_ADMIN__LISTEN", "127.0.0.1:0"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { folder: Arc::new(folder), environment: environment.into() }
    }

    /// The same harness with one more environment variable.
    pub fn with_env(&self, variable: &str, value: &str) -> Self {
        let mut environment = self.environment.clone();
        environment.insert(variable.to_owned(), value.to_owned());
        Self { folder: Arc::clone(&self.folder), environment }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    pub fn start(&self, arguments: &[&str]) -> ServerProcess {
        self.start_with_input(arguments, "")
    }

    /// Starts a server and waits until it is ready.
    pub fn start_and_wait(&self, arguments: &[&str]) -> ServerProcess {
        let mut server = self.start(arguments);
        server.wait_until_ready();
        server
    }

    /// Starts the executable with data on its standard input.
    pub fn start_with_input(&self, arguments: &[&str], input: &str) -> ServerProcess {
        let name = format!("ready-{}.json", arguments[0]);
        let ready_file = self.path(&name);
        fs::remove_file(&ready_file).ok();
        let mut process = Command::new(env!("CARGO_BIN_EXE_evenkeeld"))
            .args(arguments)
            .arg("--data-dir")
            .arg(self.data_dir())
            .arg("--ready-file")
            .arg(&ready_file)
            .env_clear()
            .envs(&self.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Standard input is closed after the data; the executable need not read it.
        let mut stdin = process.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).ok();
        drop(stdin);
        let stdout = spawn_reader(process.stdout.take().unwrap());
        let stderr = spawn_reader(process.stderr.take().unwrap());
        ServerProcess {
            process,
            output: Some((stdout, stderr)),
            ready_file,
            listening: BTreeMap::new(),
            _folder: Arc::clone(&self.folder),
        }
    }
}

impl TestServer {
    /// Starts a Postgres that belongs to the test, not to the server.
    pub async fn start_postgres(&self) -> PrivatePostgres {
        // Durable, because tests stop it at once and start it again with its data.
        let options = Options::new(self.path("postgres"));
        PrivatePostgres::start(options).await.unwrap()
    }

    /// Process ID of the private Postgres.
    pub fn postmaster_pid(&self) -> i32 {
        let file = self.data_dir().join("postgres/data/postmaster.pid");
        let text = fs::read_to_string(file).unwrap();
        text.lines().next().unwrap().parse().unwrap()
    }

    pub fn operator_token(&self) -> String {
        let text = fs::read_to_string(self.data_dir().join("operator-token")).unwrap();
        text.trim().to_owned()
    }

    /// Writes a file that only its owner can read. It replaces another file at once.
    pub fn write_private_file(&self, name: &str, text: &str) -> String {
        let temporary = self.write_file(&format!("{name}.new"), text);
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(temporary, self.path(name)).unwrap();
        self.path(name).to_string_lossy().into_owned()
    }

    pub fn write_file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    }
}

fn spawn_reader(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The running executable; killed on drop.
pub struct ServerProcess {
    process: Child,
    output: Option<(JoinHandle<String>, JoinHandle<String>)>,
    ready_file: PathBuf,
    listening: BTreeMap<String, SocketAddr>,
    _folder: Arc<tempfile::TempDir>,
}

impl ServerProcess {
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn wait_until_ready(&mut self) {
        let begun = Instant::now();
        while !self.ready_file.exists() {
            if let Some(status) = self.process.try_wait().unwrap() {
                panic!("it ended with {status}: {}", self.stderr());
            }
            assert!(begun.elapsed() < TEST_TIMEOUT, "it is not ready");
            std::thread::sleep(Duration::from_millis(10));
        }
        let text = fs::read(&self.ready_file).unwrap();
        self.listening = serde_json::from_slice(&text).unwrap();
    }

    pub fn listeners(&self) -> Vec<&str> {
        self.listening.keys().map(String::as_str).collect()
    }

    pub fn address(&self, listener: &str) -> SocketAddr {
        self.listening[listener]
    }

    /// Sends a GET request to a listener; returns the status and the body.
    pub fn get(&self, listener: &str, path: &str, token: Option<&str>) -> (u16, String) {
        let login =
            token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
        let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n{login}\r\n");
        self.send(listener, &request)
    }

    /// Sends a form to the REST listener; returns the status and the response.
    pub fn post_form(&self, path: &str, form: &str) -> (u16, serde_json::Value) {
        let length = form.len();
        let (status, body) = self.send(
            "rest",
            &format!(
                "POST {path} HTTP/1.0\r\nhost: localhost\r\ncontent-length: {length}\r\n\
                 content-type: application/x-www-form-urlencoded\r\n\r\n{form}"
            ),
        );
        (status, serde_json::from_str(&body).unwrap())
    }

    /// Sends a raw request to a listener; returns the status and the body.
    pub fn send(&self, listener: &str, request: &str) -> (u16, String) {
        let mut client = TcpStream::connect(self.address(listener)).unwrap();
        client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
        (status, body)
    }

    /// Performs a TLS handshake with the southbound listener; returns the negotiated protocol and
    /// the certificates.
    pub fn handshake(
        &self,
        ca: &Path,
        name: &str,
    ) -> std::io::Result<(Option<Vec<u8>>, Vec<CertificateDer<'static>>)> {
        self.handshake_with("southbound", b"h2", ca, name)
    }

    /// Performs a TLS handshake with any listener and protocol.
    pub fn handshake_with(
        &self,
        listener: &str,
        protocol: &[u8],
        ca: &Path,
        name: &str,
    ) -> std::io::Result<(Option<Vec<u8>>, Vec<CertificateDer<'static>>)> {
        let (session, _) = self.connect_tls_to(listener, protocol, ca, name)?;
        let chain = session.peer_certificates().unwrap_or_default();
        let chain = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        Ok((session.alpn_protocol().map(<[u8]>::to_vec), chain))
    }

    /// Opens a TLS connection to the southbound listener.
    pub fn connect_tls(
        &self,
        ca: &Path,
        name: &str,
    ) -> std::io::Result<(ClientConnection, TcpStream)> {
        self.connect_tls_to("southbound", b"h2", ca, name)
    }

    fn connect_tls_to(
        &self,
        listener: &str,
        protocol: &[u8],
        ca: &Path,
        name: &str,
    ) -> std::io::Result<(ClientConnection, TcpStream)> {
        self.connect_tls_after(b"", (listener, protocol), ca, name)
    }

    /// Opens a TLS connection that sends other bytes first.
    pub fn connect_tls_after(
        &self,
        first: &[u8],
        (listener, protocol): (&str, &[u8]),
        ca: &Path,
        name: &str,
    ) -> std::io::Result<(ClientConnection, TcpStream)> {
        let mut session = tls_session(protocol, ca, name);
        let client = self.perform_handshake(first, listener, &mut session)?;
        Ok((session, client))
    }

    fn perform_handshake(
        &self,
        first: &[u8],
        listener: &str,
        session: &mut ClientConnection,
    ) -> std::io::Result<TcpStream> {
        let mut client = TcpStream::connect(self.address(listener))?;
        client.set_read_timeout(Some(TEST_TIMEOUT))?;
        client.write_all(first)?;
        while session.is_handshaking() {
            session.complete_io(&mut client)?;
        }
        Ok(client)
    }

    /// Opens a connection to the southbound listener that sends only the first message of a
    /// handshake.
    pub fn begin_handshake(&self, ca: &Path, name: &str) -> std::io::Result<TcpStream> {
        let mut client = TcpStream::connect(self.address("southbound"))?;
        tls_session(b"h2", ca, name).write_tls(&mut client)?;
        Ok(client)
    }

    /// Returns whether a listener closes a connection whose request is incomplete.
    pub fn is_closed_by(&self, listener: &str, protocol: &[u8], ca: &Path) -> bool {
        let (session, client) = self.connect_tls_to(listener, protocol, ca, "localhost").unwrap();
        let mut client = StreamOwned::new(session, client);
        client.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        match client.read(&mut [0]) {
            Ok(count) => count == 0,
            // The connection ends without a TLS close_notify; an open connection gives a time-out.
            Err(error) => error.kind() == std::io::ErrorKind::UnexpectedEof,
        }
    }

    /// Sends a GET request over TLS to the listener for files; returns the status and the whole
    /// response.
    pub fn get_file(&self, ca: &Path, path: &str, token: Option<&str>) -> (u16, String) {
        self.get_over_tls("files", ca, path, token)
    }

    /// Sends a GET request over TLS to a listener; returns the status and the whole response.
    pub fn get_over_tls(
        &self,
        listener: &str,
        ca: &Path,
        path: &str,
        token: Option<&str>,
    ) -> (u16, String) {
        let login =
            token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
        let mut session = tls_session(b"http/1.1", ca, "localhost");
        self.send_over_tls(listener, &mut session, path, &login)
    }

    /// Sends a GET request with a client certificate to the listener for files.
    pub fn get_file_with_certificate(
        &self,
        ca: &Path,
        path: &str,
        certificate: ClientCertificate,
    ) -> (u16, String) {
        FileClient::new(ca, certificate).get_file(self, path).0
    }

    fn send_over_tls(
        &self,
        listener: &str,
        session: &mut ClientConnection,
        path: &str,
        login: &str,
    ) -> (u16, String) {
        let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n{login}\r\n");
        let mut client = self.perform_handshake(b"", listener, session).unwrap();
        let mut client = Stream::new(session, &mut client);
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        match client.read_to_end(&mut answer) {
            // HTTP/1.0: the response ends with the connection.
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => panic!("{error}"),
            _ => {}
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    /// Sends SIGTERM and expects a graceful stop; returns the log.
    pub fn stop(mut self) -> String {
        signal(i32::try_from(self.process.id()).unwrap(), "TERM");
        let status = self.wait();
        let (_, log) = self.output();
        assert!(status.success(), "it stopped with {status}: {log}");
        log
    }

    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Expects a failure; returns standard error.
    pub fn expect_failure(mut self) -> String {
        let status = self.wait();
        let (_, stderr) = self.output();
        assert!(!status.success(), "it should fail: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        stderr
    }

    /// Expects a failure that is the result of a check; returns standard output.
    pub fn expect_finding(mut self) -> String {
        let status = self.wait();
        let (printed, stderr) = self.output();
        assert_eq!(status.code(), Some(1), "{printed}{stderr}");
        printed
    }

    /// Expects success; returns standard output.
    pub fn expect_success(mut self) -> String {
        let status = self.wait();
        let (printed, stderr) = self.output();
        assert!(status.success(), "it ended with {status}: {stderr}");
        printed
    }

    fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            if begun.elapsed() > TEST_TIMEOUT {
                self.process.kill().unwrap();
                panic!("it does not end: {}", self.stderr());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn stderr(&mut self) -> String {
        self.process.wait().unwrap();
        self.output().1
    }

    fn output(&mut self) -> (String, String) {
        let (stdout, stderr) = self.output.take().unwrap();
        (stdout.join().unwrap(), stderr.join().unwrap())
    }
}

/// A client of the listener for files with a client certificate. It resumes its last TLS session.
pub struct FileClient(Arc<ClientConfig>);

impl FileClient {
    pub fn new(ca: &Path, certificate: ClientCertificate) -> Self {
        Self(client_config(b"http/1.1", ca, Some(certificate)))
    }

    /// Sends a GET request over a new connection; returns the status with the whole response, and
    /// whether the session was resumed.
    pub fn get_file(
        &self,
        server: &ServerProcess,
        path: &str,
    ) -> ((u16, String), Option<HandshakeKind>) {
        let mut session = tls_session_with(Arc::clone(&self.0), "localhost");
        let answer = server.send_over_tls("files", &mut session, path, "");
        (answer, session.handshake_kind())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

pub fn signal(pid: i32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

pub fn sql(url: &str, statement: &str) {
    let arguments = ["-X", "-q", "-v", "ON_ERROR_STOP=1", url, "-c", statement];
    run_postgres_program("psql", &arguments);
}

/// Runs a program of the newest Postgres, which must succeed.
pub fn run_postgres_program(name: &str, arguments: &[&str]) {
    let mut versions: Vec<PathBuf> =
        fs::read_dir("/usr/lib/postgresql").unwrap().map(|entry| entry.unwrap().path()).collect();
    versions.sort();
    let program = versions.last().unwrap().join("bin").join(name);
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
