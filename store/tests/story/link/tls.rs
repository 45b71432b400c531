//! TLS to the database.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use evenkeel_pg::{Options, PrivatePostgres};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::*;

/// A Postgres that other machines reach over TLS only, with a password.
struct TlsPostgres {
    postgres: PrivatePostgres,
    port: u16,
    /// The certificate of its authority, and that of another one.
    ca: PathBuf,
    other_ca: PathBuf,
    /// Declared last, so that it is deleted after Postgres has stopped.
    folder: TempDir,
}

impl TlsPostgres {
    /// Its certificate names `localhost` only.
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let open_to_all = fs::Permissions::from_mode(0o711);
        fs::set_permissions(folder.path(), open_to_all).expect("changed");
        let home = folder.path().join("postgres");
        let (postgres, port) = start_on_a_port(&home).await;
        let (ca, other_ca) = (folder.path().join("ca.pem"), folder.path().join("other.pem"));
        let key = write_authority(&ca);
        write_authority(&other_ca);
        let server = Self { postgres, port, ca, other_ca, folder };
        server.accept_tls(&home.join("data"), &key).await;
        server
    }

    async fn accept_tls(&self, data: &Path, issuer: &Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().expect("a key");
        let name = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = name.signed_by(&key, issuer).expect("a certificate");
        let owner = fs::metadata(data).expect("the data");
        let logins = "local all all peer map=evenkeel\nhostssl all all 127.0.0.1/32 scram-sha-256\n\
                      hostssl all all ::1/128 scram-sha-256\n";
        for (name, text) in [
            ("server.crt", certificate.pem()),
            ("server.key", key.serialize_pem()),
            ("pg_hba.conf", logins.to_owned()),
        ] {
            let path = data.join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("changed");
            chown(&path, Some(owner.uid()), Some(owner.gid())).expect("changed");
        }
        self.execute("ALTER SYSTEM SET ssl = on").await;
        self.execute("SELECT pg_reload_conf()").await;
        self.set_password("first").await;
    }

    /// Runs a statement of the superuser.
    async fn execute(&self, sql: &str) {
        let url = format!("{}&port={}", self.postgres.admin_url(), self.port);
        connect(&url).await.execute_unprepared(sql).await.expect(sql);
    }

    async fn set_password(&self, password: &str) {
        self.execute(&format!("ALTER ROLE evenkeel PASSWORD '{password}'")).await;
    }

    fn url(&self, host: &str, mode: &str) -> String {
        format!("postgres://evenkeel:first@{host}:{}/evenkeel?sslmode={mode}", self.port)
    }
}

/// Starts a Postgres on a free port. Another program may take the port first.
async fn start_on_a_port(home: &Path) -> (PrivatePostgres, u16) {
    let mut last = None;
    for _ in 0..5 {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let options = Options::for_tests(home)
            .setting("listen_addresses", "localhost")
            .setting("port", port.to_string());
        match PrivatePostgres::start(options).await {
            Ok(postgres) => return (postgres, port),
            Err(error) => last = Some(error),
        }
    }
    panic!("{last:?}");
}

/// Creates an authority and writes its certificate.
fn write_authority(file: &Path) -> Issuer<'static, KeyPair> {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).expect("a certificate");
    fs::write(file, certificate.pem()).expect("written");
    Issuer::new(params, key)
}

/// The error of a connection, with its causes.
async fn refusal(url: &str) -> String {
    let refused = Store::connect(url, StoreOptions::default()).await;
    let error = refused.expect_err(url);
    assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
    evenkeel_kit::chain::chain(&error).to_string()
}

async fn is_encrypted(store: &Store) -> bool {
    let sql = "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    query_text(store, sql).await == "true"
}

#[tokio::test]
async fn the_database_is_reached_over_tls_and_its_certificate_is_verified() {
    let server = TlsPostgres::start().await;
    let reload = async || {
        let url = server.url("localhost", "require");
        Store::connect(&url, StoreOptions::default()).await.ok()
    };
    let store = until("Postgres has read its certificate", reload).await;
    assert!(is_encrypted(&store).await);
    store.migrate().await.expect("migrated");
    LogReader::open(&store).await.expect("a reader");
    for host in ["localhost", "127.0.0.1"] {
        // On this machine it may be tried without TLS, which this Postgres refuses.
        let refused = refusal(&server.url(host, "disable")).await;
        assert!(refused.contains("pg_hba.conf"), "{refused}");
        let store = connect(&server.url(host, "prefer")).await;
        assert!(is_encrypted(&store).await);
    }

    let verified = |host: &str, ca: &Path| {
        format!("{}&sslrootcert={}", server.url(host, "verify-full"), ca.display())
    };
    let store = connect(&verified("localhost", &server.ca)).await;
    assert!(is_encrypted(&store).await);
    for refused in [
        refusal(&server.url("localhost", "verify-full")).await,
        refusal(&verified("localhost", &server.other_ca)).await,
        refusal(&verified("127.0.0.1", &server.ca)).await,
    ] {
        assert!(refused.contains("certificate"), "{refused}");
    }
    let missing = verified("localhost", &server.folder.path().join("missing"));
    let refused = refusal(&missing).await;
    assert!(refused.contains("No such file"), "{refused}");
}

#[tokio::test]
async fn a_changed_password_is_read_from_its_file() {
    let server = TlsPostgres::start().await;
    let file = server.folder.path().join("password");
    fs::write(&file, "first\n").expect("written");
    let url = server.url("localhost", "require").replace(":first@", "@");
    let options = StoreOptions {
        password_file: Some(file.clone()),
        max_connections: 1,
        ..StoreOptions::default()
    };
    let connected = async || Store::connect(&url, options.clone()).await.ok();
    let store = until("Postgres has read its certificate", connected).await;
    store.ping().await.expect("it answers");
    server.set_password("second").await;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'evenkeel'";
    server.execute(cut).await;
    let refused = until("the connection is gone", async || store.fleet().await.err()).await;
    assert!(matches!(refused, StoreError::Unreachable(_)), "{refused:?}");
    fs::write(&file, "second\n").expect("written");
    until("the new password is used", async || store.fleet().await.ok()).await;
    fs::remove_file(&file).expect("removed");
    let missing = Store::connect(&url, options).await.expect_err("no password");
    let missing = evenkeel_kit::chain::chain(&missing).to_string();
    assert!(missing.contains("cannot read the password of the database"), "{missing}");
    assert!(!missing.contains("second"), "{missing}");
}
