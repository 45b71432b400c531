use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;

use super::testing::{Reply, Request, TestServer, Then};
use super::*;
use crate::place::Place;

const SOON: Duration = Duration::from_secs(20);

const PATIENCE: Patience = Patience {
    idle: SOON,
    span: SOON,
    least: 0,
};

fn plain() -> WebSettings {
    WebSettings {
        plain_http: true,
        ..WebSettings::default()
    }
}

fn web(settings: WebSettings) -> Web {
    Web::new(settings, None, no_floor()).expect("settings that are right")
}

fn no_floor() -> Arc<Floor> {
    Arc::new(Floor::none())
}

fn url(text: &str) -> Url {
    Url::parse(text).expect("an address")
}

async fn open(web: &Web, address: &str) -> Result<Opened, Trouble> {
    let asked = Asked::default();
    web.open(&url(address), &asked, SOON, DateTime::UNIX_EPOCH)
        .await
}

/// Why nothing was fetched, for good.
async fn refusal(web: &Web, address: &str) -> String {
    match open(web, address).await {
        Err(Trouble::Final(failure)) => {
            assert_eq!(failure.kind, FailureKind::Download);
            failure.reason
        }
        Err(Trouble::Later { why, .. }) => panic!("it may be tried again: {why}"),
        Ok(_) => panic!("it was opened"),
    }
}

/// All that comes.
async fn body(web: &Web, address: &str) -> Vec<u8> {
    let Ok(Opened::Line { mut line, from, .. }) = open(web, address).await else {
        panic!("nothing was opened");
    };
    assert_eq!(from, 0);
    let mut all = Vec::new();
    loop {
        let until = tokio::time::Instant::now() + SOON;
        match line.more(until, &PATIENCE).await {
            Heard::Bytes(bytes) => all.extend_from_slice(&bytes),
            Heard::End => return all,
            Heard::Nothing => {}
            Heard::Broken(why) => panic!("{why}"),
        }
    }
}

/// Sends on from `/n` to `/n-1`; `/0` is a file.
fn steps(request: &Request) -> Reply {
    let step: u32 = request.path()[1..].parse().expect("a number");
    match step {
        0 => Reply::whole(b"image", "\"a\""),
        step => {
            let to = format!("location: /{}", step - 1);
            Reply::status("302 Found", &[&to])
        }
    }
}

#[tokio::test]
async fn a_server_may_send_the_agent_on_five_times_and_no_further() {
    let server = TestServer::start(|_, request| steps(request));
    let web = web(plain());
    assert_eq!(body(&web, &server.url("/5")).await, b"image");
    assert_eq!(server.requests().len(), 6);

    let why = refusal(&web, &server.url("/6")).await;
    assert!(why.contains("more than 5 times"), "{why}");
}

#[tokio::test]
async fn a_server_sends_the_agent_on_only_to_hosts_that_are_named() {
    let other = TestServer::start(|_, _| Reply::whole(b"image", "\"a\""));
    let to = format!("location: {}", other.url("/there?signature=secret"));
    let first = TestServer::start(move |_, _| Reply::status("307 Temporary Redirect", &[&to]));

    let why = refusal(&web(plain()), &first.url("/here")).await;
    assert!(why.contains("not among image.web.hosts"), "{why}");
    assert!(!why.contains("secret"), "{why}");
    assert_eq!(other.requests().len(), 0, "it was not even asked");

    let named = web(WebSettings {
        hosts: vec!["127.0.0.1".to_owned()],
        ..plain()
    });
    assert_eq!(body(&named, &first.url("/here")).await, b"image");
    assert_eq!(other.requests()[0].path(), "/there?signature=secret");
}

#[test]
fn what_began_with_tls_does_not_go_on_without_it() {
    let web = web(WebSettings {
        hosts: vec!["other.example".to_owned()],
        ..plain()
    });
    let first = url("https://keel.example/a/b");
    let next = |to: &str| web.next(&first, &first, to);
    for plain in ["http://keel.example/a", "http://other.example/a"] {
        let why = next(plain).unwrap_err().reason;
        assert!(why.contains("TLS"), "{why}");
    }
    assert_eq!(next("c").unwrap(), url("https://keel.example/a/c"));
    assert_eq!(
        next("//other.example:8443/").unwrap().as_str(),
        "https://other.example:8443/"
    );
    for bad in [
        "https://keel.example:1/",
        "https://evil.example/",
        "https://u:p@keel.example/",
        "ftp://keel.example/",
        "https://",
    ] {
        next(bad).expect_err(bad);
    }
}

#[test]
fn plain_http_needs_a_word_in_the_settings() {
    let strict = web(WebSettings::default());
    let why = strict
        .address("http://keel.example/a.raw")
        .unwrap_err()
        .reason;
    assert!(why.contains("plain_http"), "{why}");
    strict.address("https://keel.example/a.raw").unwrap();
    web(plain()).address("http://keel.example/a.raw").unwrap();
}

#[test]
fn an_address_without_a_server_is_one_of_the_release_service() {
    let service = |address: &str| {
        web(WebSettings {
            release_service: address.to_owned(),
            ..WebSettings::default()
        })
    };
    let keel = service("https://keel.example:8443/files");
    for (text, whole) in [
        (
            "1.2/a.raw.zst",
            "https://keel.example:8443/files/1.2/a.raw.zst",
        ),
        ("/a.raw?x=1", "https://keel.example:8443/a.raw?x=1"),
        ("https://other.example/a", "https://other.example/a"),
    ] {
        assert_eq!(keel.address(text).unwrap().as_str(), whole, "{text}");
    }
    for bad in [
        "//other.example/a",
        "\\\\other.example/a",
        "ftp://x/a",
        "https://u:secret@x/a",
        "https://[/a",
    ] {
        let why = keel.address(bad).unwrap_err().reason;
        assert!(!why.contains("secret"), "{why}");
    }
    let why = service("").address("a.raw").unwrap_err().reason;
    assert!(why.contains("release_service"), "{why}");

    for bad in ["keel.example", "http://keel.example", "ftp://x", "https://"] {
        let settings = WebSettings {
            release_service: bad.to_owned(),
            ..WebSettings::default()
        };
        let why = Web::new(settings, None, no_floor()).unwrap_err().reason;
        assert!(why.contains("https://HOST/PATH"), "{why}");
    }
}

#[test]
fn the_token_is_shown_to_the_servers_own_port_over_tls_and_to_nobody_else() {
    let web = web(WebSettings {
        home: "Keel.example:50002".to_owned(),
        ..plain()
    });
    let shown = |address: &str| web.token_for(&url(address)).is_some();
    assert!(!shown("https://keel.example:50002/a"), "there is none yet");
    web.renew(&Secret::new("secret"));
    assert!(shown("https://keel.example:50002/a"));
    for other in [
        "https://keel.example/a",
        "https://keel.example:8443/a",
        "http://keel.example:50002/a",
        "https://other.example:50002/a",
        "https://keel.example.evil.example:50002/a",
        "https://evil-keel.example:50002/a",
    ] {
        assert!(!shown(other), "{other}");
    }
    assert!(!format!("{web:?}").contains("secret"));
    web.renew(&Secret::new("no\ntoken"));
    assert!(!shown("https://keel.example:50002/a"));
}

#[test]
fn the_token_is_shown_to_a_release_service_on_the_servers_own_host_only() {
    let shown = |service: &str, home: &str, address: &str| {
        let web = web(WebSettings {
            release_service: service.to_owned(),
            home: home.to_owned(),
            ..plain()
        });
        web.renew(&Secret::new("secret"));
        web.token_for(&url(address)).is_some()
    };
    let (keel, home) = ("https://keel.example:8443/files", "keel.example:50002");
    assert!(shown(keel, home, "https://keel.example:8443/files/a"));
    assert!(shown(keel, home, "https://keel.example:50002/a"));
    assert!(!shown(keel, home, "https://keel.example/a"));
    let (v6, v6_home) = ("https://[fd00::1]:8443/files", "[fd00::1]:443");
    assert!(shown(v6, v6_home, "https://[fd00::1]:8443/a"));
    assert!(shown(v6, v6_home, "https://[fd00::1]/a"));

    let elsewhere = "https://files.example/";
    assert!(!shown(elsewhere, home, "https://files.example/a"));
    let plain = "http://keel.example:8080/";
    assert!(!shown(plain, home, "http://keel.example:8080/a"));
    assert!(
        !shown(keel, "", "https://keel.example:8443/files/a"),
        "a node that is not enrolled has no server"
    );
}

#[tokio::test]
async fn a_server_that_refuses_says_why_and_what_to_do() {
    let server = TestServer::start(|_, request| {
        let status = request.path()[1..].replace('_', " ");
        Reply::status(&status, &[])
    });
    let web = web(plain());
    for (status, word) in [
        ("404_Not_Found", "put it there"),
        ("403_Forbidden", "who may read it"),
        ("400_Bad_Request", "its log"),
    ] {
        let why = refusal(&web, &server.url(&format!("/{status}"))).await;
        assert!(why.contains(word) && why.contains(&status[..3]), "{why}");
    }
    let Err(Trouble::Later { why, after: None }) = open(&web, &server.url("/502_Bad")).await else {
        panic!("a server that is broken for now");
    };
    assert!(why.contains("502"), "{why}");
}

#[tokio::test]
async fn a_server_that_is_not_there_or_does_not_answer_may_be_later() {
    let web = web(plain());
    let gone = TestServer::start(|_, _| Reply::status("200 OK", &[]));
    let address = gone.url("/a");
    let port = gone.address;
    drop(gone);
    // Its thread lets go of the port when it looks.
    while std::net::TcpStream::connect(port).is_ok() {
        std::thread::yield_now();
    }
    let Err(Trouble::Later { why, after: None }) = open(&web, &address).await else {
        panic!("nobody listens");
    };
    assert!(why.contains("cannot be reached"), "{why}");

    let silent = TestServer::start(|_, _| Reply {
        head: String::new(),
        body: Vec::new(),
        then: Then::Stall,
    });
    let asked = Asked::default();
    let address = url(&silent.url("/a"));
    let short = Duration::from_millis(100);
    let opened = web.open(&address, &asked, short, DateTime::UNIX_EPOCH);
    let Err(Trouble::Later { why, after: None }) = opened.await else {
        panic!("it never answers");
    };
    assert!(why.contains("100 ms"), "{why}");
}

#[tokio::test]
async fn an_answer_without_an_end_to_its_head_is_none() {
    let line = b"x-noise: 0123456789012345678901234567890123456789\r\n".repeat(8);
    let server = TestServer::start(move |_, _| Reply {
        head: "HTTP/1.1 200 OK\r\n".to_owned() + &String::from_utf8_lossy(&line.repeat(400)),
        body: Vec::new(),
        then: Then::Close,
    });
    let Err(Trouble::Later { why, .. }) = open(&web(plain()), &server.url("/a")).await else {
        panic!("it was taken");
    };
    assert!(why.contains("broke"), "{why}");
}

#[tokio::test]
async fn the_size_is_asked_for_without_the_file() {
    let server = TestServer::start(|_, request| match request.path() {
        "/file" => Reply::whole(&[7; 1_000], "\"a\""),
        "/moved" => Reply::status("301 Moved Permanently", &["location: /file"]),
        "/busy" => Reply::status("503 Service Unavailable", &[]),
        "/get" => Reply::status("405 Method Not Allowed", &[]),
        _ => Reply::status("404 Not Found", &[]),
    });
    let web = web(plain());
    let size = async |path: &str| {
        let address = url(&server.url(path));
        web.size(&address, SOON, DateTime::UNIX_EPOCH).await
    };
    assert_eq!(size("/file").await.unwrap(), Some(1_000));
    assert_eq!(size("/moved").await.unwrap(), Some(1_000));
    assert_eq!(size("/busy").await.unwrap(), None);
    assert_eq!(size("/get").await.unwrap(), None);
    let why = size("/nowhere").await.unwrap_err().reason;
    assert!(why.contains("404"), "{why}");
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.method() == "HEAD"));
}

/// An authority, and a server for 127.0.0.1 for which it vouches.
fn authority() -> (String, ServerConfig) {
    authority_with(|_| ())
}

/// The same, with something else in the certificate of the server.
fn authority_with(change: impl FnOnce(&mut CertificateParams)) -> (String, ServerConfig) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let ca = CertifiedIssuer::self_signed(params, key).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into())];
    change(&mut params);
    let certificate = params.signed_by(&key, &ca).expect("a certificate");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::from(key))
        .expect("a certificate with its key");
    (ca.pem(), config)
}

#[tokio::test]
async fn the_authority_that_is_named_vouches_and_the_token_goes_home() {
    let folder = tempfile::tempdir().unwrap();
    let (pem, config) = authority();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, pem).unwrap();
    let server = TestServer::start_with_tls(config, |_, _| Reply::whole(b"image", "\"a\""));
    let web = web(WebSettings {
        roots: vec![file],
        home: server.address.to_string(),
        ..WebSettings::default()
    });
    web.renew(&Secret::new("token"));
    let address = format!("https://{}/a", server.address);
    assert_eq!(body(&web, &address).await, b"image");
    let requests = server.requests();
    assert_eq!(requests[0].header("authorization"), Some("Bearer token"));
    assert_eq!(
        requests[0].header("host"),
        Some(&*server.address.to_string())
    );
}

#[tokio::test]
async fn a_clock_that_starts_in_the_past_hinders_no_download_after_a_contact() {
    let folder = tempfile::tempdir().unwrap();
    // Valid in 2101 only: to such a server each clock of today is one that starts in the past.
    let (pem, config) = authority_with(|params| {
        params.not_before = date_time_ymd(2101, 1, 1);
        params.not_after = date_time_ymd(2102, 1, 1);
    });
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, pem).unwrap();
    let server = TestServer::start_with_tls(config, |_, _| Reply::whole(b"image", "\"a\""));
    let address = format!("https://{}/a", server.address);
    let above = |floor: Arc<Floor>| {
        let settings = WebSettings {
            roots: vec![file.clone()],
            ..WebSettings::default()
        };
        Web::new(settings, None, floor).expect("settings that are right")
    };
    let Err(Trouble::Later { why, .. }) = open(&above(no_floor()), &address).await else {
        panic!("it was spoken to before its certificate is valid");
    };
    assert!(why.contains("cannot be reached"), "{why}");

    let place = Place::new("/", Some(folder.path().to_owned()));
    std::fs::write(folder.path().join("last-contact"), "2101-06-01T00:00:00Z\n").unwrap();
    let floor = Arc::new(Floor::open(&place));
    assert_eq!(body(&above(floor), &address).await, b"image");
}

#[tokio::test]
async fn a_server_for_which_another_authority_vouches_is_not_spoken_to() {
    let folder = tempfile::tempdir().unwrap();
    let (_, config) = authority();
    let (other, _) = authority();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, other).unwrap();
    let server = TestServer::start_with_tls(config, |_, _| Reply::whole(b"image", "\"a\""));
    let web = web(WebSettings {
        roots: vec![file],
        ..WebSettings::default()
    });
    let address = format!("https://{}/a", server.address);
    let Err(Trouble::Later { why, .. }) = open(&web, &address).await else {
        panic!("it was spoken to");
    };
    assert!(why.contains("cannot be reached"), "{why}");
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn a_file_of_authorities_that_is_none_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("roots.pem");
    for content in [None, Some("hello")] {
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        let settings = WebSettings {
            roots: vec![file.clone()],
            ..WebSettings::default()
        };
        let why = Web::new(settings, None, no_floor()).unwrap_err().reason;
        assert!(why.contains("roots.pem"), "{why}");
    }
}

#[test]
fn what_may_be_a_secret_is_not_shown() {
    assert_eq!(shown("https://u:p@x/a@b?c#d"), "https://x/a@b");
    assert_eq!(shown("a.raw#x"), "a.raw");
    assert_eq!(shown(&"é".repeat(300)), "é".repeat(200));
}
