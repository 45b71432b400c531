use evenkeel_fetch::StallLimits;

use super::testing::{AfterBody, TestFileServer, TestReply, TestRequest};
use super::*;

mod authorities;
mod client_certificate;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

const LIMITS: StallLimits =
    StallLimits { idle_timeout: TEST_TIMEOUT, rate_window: TEST_TIMEOUT, min_bytes: 0 };

fn plain_http_settings() -> WebSettings {
    WebSettings { plain_http: true, ..WebSettings::default() }
}

fn client(settings: WebSettings) -> WebClient {
    WebClient::new(settings, None, no_floor(), None).expect("valid settings")
}

fn no_floor() -> Arc<TimeFloor> {
    Arc::new(TimeFloor::unset())
}

fn parse_url(text: &str) -> Url {
    Url::parse(text).expect("an address")
}

async fn open(web: &WebClient, address: &str) -> Result<OpenedFile, DownloadError> {
    let requested = RangeRequest::default();
    web.open(&parse_url(address), &requested, TEST_TIMEOUT, DateTime::UNIX_EPOCH).await
}

/// Why a download failed permanently.
async fn refusal(web: &WebClient, address: &str) -> String {
    match open(web, address).await {
        Err(DownloadError::Permanent(failure)) => {
            assert_eq!(failure.kind, FailureKind::Download);
            failure.reason
        }
        Err(DownloadError::Transient { reason, .. }) => panic!("it may be tried again: {reason}"),
        Ok(_) => panic!("it was opened"),
    }
}

/// Reads the whole body.
async fn read_body(web: &WebClient, address: &str) -> Vec<u8> {
    let Ok(OpenedFile::Body { mut body, from, .. }) = open(web, address).await else {
        panic!("nothing was opened");
    };
    assert_eq!(from, 0);
    let mut all = Vec::new();
    loop {
        let until = tokio::time::Instant::now() + TEST_TIMEOUT;
        match body.next_event(until, &LIMITS).await {
            BodyEvent::Bytes(bytes) => all.extend_from_slice(&bytes),
            BodyEvent::End => return all,
            BodyEvent::Idle => {}
            BodyEvent::Broken(reason) => panic!("{reason}"),
        }
    }
}

/// Redirects from `/n` to `/n-1`; `/0` is a file.
fn redirect_chain(request: &TestRequest) -> TestReply {
    let step: u32 = request.path()[1..].parse().expect("a number");
    match step {
        0 => TestReply::whole_file(b"image", "\"a\""),
        step => {
            let to = format!("location: /{}", step - 1);
            TestReply::status("302 Found", &[&to])
        }
    }
}

#[tokio::test]
async fn at_most_five_redirects_are_followed() {
    let server = TestFileServer::start(|_, request| redirect_chain(request));
    let web = client(plain_http_settings());
    assert_eq!(read_body(&web, &server.url("/5")).await, b"image");
    assert_eq!(server.requests().len(), 6);

    let reason = refusal(&web, &server.url("/6")).await;
    assert!(reason.contains("more than 5 times"), "{reason}");
}

#[tokio::test]
async fn a_redirect_leads_only_to_listed_hosts() {
    let other = TestFileServer::start(|_, _| TestReply::whole_file(b"image", "\"a\""));
    let to = format!("location: {}", other.url("/there?signature=secret"));
    let first =
        TestFileServer::start(move |_, _| TestReply::status("307 Temporary Redirect", &[&to]));

    let reason = refusal(&client(plain_http_settings()), &first.url("/here")).await;
    assert!(reason.contains("not listed in image.web.hosts"), "{reason}");
    assert!(!reason.contains("secret"), "{reason}");
    assert_eq!(other.requests().len(), 0, "the other server got no request");

    let listed =
        client(WebSettings { hosts: vec!["127.0.0.1".to_owned()], ..plain_http_settings() });
    assert_eq!(read_body(&listed, &first.url("/here")).await, b"image");
    assert_eq!(other.requests()[0].path(), "/there?signature=secret");
}

#[test]
fn a_redirect_from_https_to_http_is_refused() {
    let web =
        client(WebSettings { hosts: vec!["other.example".to_owned()], ..plain_http_settings() });
    let first = parse_url("https://keel.example/a/b");
    let next = |to: &str| web.redirect_target(&first, &first, to);
    for plain in ["http://keel.example/a", "http://other.example/a"] {
        let reason = next(plain).unwrap_err().reason;
        assert!(reason.contains("TLS"), "{reason}");
    }
    assert_eq!(next("c").unwrap(), parse_url("https://keel.example/a/c"));
    assert_eq!(next("//other.example:8443/").unwrap().as_str(), "https://other.example:8443/");
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
fn plain_http_must_be_enabled_in_the_settings() {
    let strict = client(WebSettings::default());
    let reason = strict.resolve_address("http://keel.example/a.raw").unwrap_err().reason;
    assert!(reason.contains("plain_http"), "{reason}");
    strict.resolve_address("https://keel.example/a.raw").unwrap();
    client(plain_http_settings()).resolve_address("http://keel.example/a.raw").unwrap();
}

#[test]
fn a_relative_address_belongs_to_the_release_service() {
    let service = |address: &str| {
        client(WebSettings { release_service: address.to_owned(), ..WebSettings::default() })
    };
    let keel = service("https://keel.example:8443/files");
    for (text, expected) in [
        ("1.2/a.raw.zst", "https://keel.example:8443/files/1.2/a.raw.zst"),
        ("/a.raw?x=1", "https://keel.example:8443/a.raw?x=1"),
        ("https://other.example/a", "https://other.example/a"),
    ] {
        assert_eq!(keel.resolve_address(text).unwrap().as_str(), expected, "{text}");
    }
    for bad in [
        "//other.example/a",
        "\\\\other.example/a",
        "ftp://x/a",
        "https://u:secret@x/a",
        "https://[/a",
    ] {
        let reason = keel.resolve_address(bad).unwrap_err().reason;
        assert!(!reason.contains("secret"), "{reason}");
    }
    let reason = service("").resolve_address("a.raw").unwrap_err().reason;
    assert!(reason.contains("release_service"), "{reason}");

    for bad in ["keel.example", "http://keel.example", "ftp://x", "https://"] {
        let settings = WebSettings { release_service: bad.to_owned(), ..WebSettings::default() };
        let reason = WebClient::new(settings, None, no_floor(), None).unwrap_err().reason;
        assert!(reason.contains("https://HOST/PATH"), "{reason}");
    }
}

#[test]
fn the_token_is_sent_only_to_the_servers_own_port_over_tls() {
    let web = client(WebSettings {
        own_server: "Keel.example:50002".to_owned(),
        ..plain_http_settings()
    });
    let is_sent = |address: &str| web.token_for(&parse_url(address)).is_some();
    assert!(!is_sent("https://keel.example:50002/a"), "there is none yet");
    web.set_credential(&Secret::new("secret"));
    assert!(is_sent("https://keel.example:50002/a"));
    for other in [
        "https://keel.example/a",
        "https://keel.example:8443/a",
        "http://keel.example:50002/a",
        "https://other.example:50002/a",
        "https://keel.example.evil.example:50002/a",
        "https://evil-keel.example:50002/a",
    ] {
        assert!(!is_sent(other), "{other}");
    }
    assert!(!format!("{web:?}").contains("secret"));
    web.set_credential(&Secret::new("no\ntoken"));
    assert!(!is_sent("https://keel.example:50002/a"));
}

#[test]
fn the_token_is_sent_to_a_release_service_only_on_the_servers_own_host() {
    let is_sent = |service: &str, home: &str, address: &str| {
        let web = client(WebSettings {
            release_service: service.to_owned(),
            own_server: home.to_owned(),
            ..plain_http_settings()
        });
        web.set_credential(&Secret::new("secret"));
        web.token_for(&parse_url(address)).is_some()
    };
    let (keel, home) = ("https://keel.example:8443/files", "keel.example:50002");
    assert!(is_sent(keel, home, "https://keel.example:8443/files/a"));
    assert!(is_sent(keel, home, "https://keel.example:50002/a"));
    assert!(!is_sent(keel, home, "https://keel.example/a"));
    let (v6, v6_home) = ("https://[fd00::1]:8443/files", "[fd00::1]:443");
    assert!(is_sent(v6, v6_home, "https://[fd00::1]:8443/a"));
    assert!(is_sent(v6, v6_home, "https://[fd00::1]/a"));

    let elsewhere = "https://files.example/";
    assert!(!is_sent(elsewhere, home, "https://files.example/a"));
    let plain = "http://keel.example:8080/";
    assert!(!is_sent(plain, home, "http://keel.example:8080/a"));
    assert!(
        !is_sent(keel, "", "https://keel.example:8443/files/a"),
        "a node that is not enrolled has no server"
    );
}

#[tokio::test]
async fn a_refusal_contains_the_status_and_a_remedy() {
    let server = TestFileServer::start(|_, request| {
        let status = request.path()[1..].replace('_', " ");
        TestReply::status(&status, &[])
    });
    let web = client(plain_http_settings());
    for (status, expected) in [
        ("404_Not_Found", "put it there"),
        ("403_Forbidden", "who may read it"),
        ("400_Bad_Request", "its log"),
    ] {
        let reason = refusal(&web, &server.url(&format!("/{status}"))).await;
        assert!(reason.contains(expected) && reason.contains(&status[..3]), "{reason}");
    }
    let Err(DownloadError::Transient { reason, retry_after: None }) =
        open(&web, &server.url("/502_Bad")).await
    else {
        panic!("a server that is broken for now");
    };
    assert!(reason.contains("502"), "{reason}");
}

#[tokio::test]
async fn an_unreachable_or_silent_server_is_a_transient_error() {
    let web = client(plain_http_settings());
    let stopped = TestFileServer::start(|_, _| TestReply::status("200 OK", &[]));
    let address = stopped.url("/a");
    let port = stopped.address;
    drop(stopped);
    // Its thread releases the port after it woke up.
    while std::net::TcpStream::connect(port).is_ok() {
        std::thread::yield_now();
    }
    let Err(DownloadError::Transient { reason, retry_after: None }) = open(&web, &address).await
    else {
        panic!("no server listens");
    };
    assert!(reason.contains("cannot be reached"), "{reason}");

    let silent = TestFileServer::start(|_, _| TestReply {
        head: String::new(),
        body: Vec::new(),
        after_body: AfterBody::Stall,
    });
    let requested = RangeRequest::default();
    let address = parse_url(&silent.url("/a"));
    let short = Duration::from_millis(100);
    let opened = web.open(&address, &requested, short, DateTime::UNIX_EPOCH);
    let Err(DownloadError::Transient { reason, retry_after: None }) = opened.await else {
        panic!("it never answers");
    };
    assert!(reason.contains("100 ms"), "{reason}");
}

#[tokio::test]
async fn a_response_with_an_endless_head_is_an_error() {
    let line = b"x-noise: 0123456789012345678901234567890123456789\r\n".repeat(8);
    let server = TestFileServer::start(move |_, _| TestReply {
        head: "HTTP/1.1 200 OK\r\n".to_owned() + &String::from_utf8_lossy(&line.repeat(400)),
        body: Vec::new(),
        after_body: AfterBody::Close,
    });
    let Err(DownloadError::Transient { reason, .. }) =
        open(&client(plain_http_settings()), &server.url("/a")).await
    else {
        panic!("the response was accepted");
    };
    assert!(reason.contains("broke"), "{reason}");
}

#[tokio::test]
async fn the_size_is_requested_without_the_file() {
    let server = TestFileServer::start(|_, request| match request.path() {
        "/file" => TestReply::whole_file(&[7; 1_000], "\"a\""),
        "/moved" => TestReply::status("301 Moved Permanently", &["location: /file"]),
        "/busy" => TestReply::status("503 Service Unavailable", &[]),
        "/get" => TestReply::status("405 Method Not Allowed", &[]),
        _ => TestReply::status("404 Not Found", &[]),
    });
    let web = client(plain_http_settings());
    let size = async |path: &str| {
        let address = parse_url(&server.url(path));
        web.query_size(&address, TEST_TIMEOUT, DateTime::UNIX_EPOCH).await
    };
    assert_eq!(size("/file").await.unwrap(), Some(1_000));
    assert_eq!(size("/moved").await.unwrap(), Some(1_000));
    assert_eq!(size("/busy").await.unwrap(), None);
    assert_eq!(size("/get").await.unwrap(), None);
    let reason = size("/nowhere").await.unwrap_err().reason;
    assert!(reason.contains("404"), "{reason}");
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.method() == "HEAD"));
}

#[test]
fn secrets_in_addresses_are_not_shown() {
    assert_eq!(redact_address("https://u:p@x/a@b?c#d"), "https://x/a@b");
    assert_eq!(redact_address("a.raw#x"), "a.raw");
    assert_eq!(redact_address(&"é".repeat(300)), "é".repeat(200));
}
