//! Error messages and hints.

use std::net::TcpListener;
use std::sync::Arc;

use clap::Parser;
use evenkeel_cli::args::Cli;
use evenkeel_kit::Secret;
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection};
use serde_json::json;

use crate::{TestCli, render_failure};

#[tokio::test]
async fn a_rejected_token_suggests_a_login() {
    let mut cli = TestCli::new().await;
    cli.token = Some(Secret::new("old"));
    insta::assert_snapshot!(cli.fail("evenkeel host list").await, @r"
    the token has expired
    hint: the token of the variable EVENKEEL_TOKEN was used, not that of `evenkeel login`: unset the variable, or set it to a valid token
    ");
    cli.token = None;
    insta::assert_snapshot!(cli.fail("evenkeel host list").await, @r"
    the token has expired
    hint: log in with `evenkeel login` or `evenkeel login --token-file FILE`; on the server, `evenkeeld token operator` creates a token
    ");
}

#[tokio::test]
async fn an_unreachable_server_is_named() {
    let cli = TestCli::new().await;
    let line = "evenkeel host list --server http://127.0.0.1:1 --retry-for 0s";
    let failure = cli.bare(line, "").await.expect_err("connection refused");
    insta::assert_snapshot!(render_failure(&failure), @r"
    cannot reach the server at http://127.0.0.1:1
    hint: check that the server is running and that the address is right: `evenkeel context show` prints it, `--server URL` overrides it
    ");
}

/// Answers one connection with a handshake. Returns the port.
fn serve_handshake(certificate: &Certificate, key: &KeyPair) -> u16 {
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a certificate and its key");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut connection = ServerConnection::new(Arc::new(config)).expect("a connection");
        // The client refuses the certificate.
        connection.complete_io(&mut stream).ok();
    });
    port
}

/// As `openssl req -x509` makes it by default: it is trusted with `--ca`, and TLS refuses it.
#[tokio::test]
async fn a_server_with_the_certificate_of_a_ca_is_explained() {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    for (is_ca, hint) in [
        (IsCa::Ca(BasicConstraints::Unconstrained), "basicConstraints=critical,CA:FALSE"),
        (IsCa::ExplicitNoCa, "check that the server is running"),
    ] {
        params.is_ca = is_ca;
        let certificate = params.self_signed(&key).expect("a certificate");
        let port = serve_handshake(&certificate, &key);
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, certificate.pem()).expect("written");
        let line = format!(
            "evenkeel host list --server https://127.0.0.1:{port} --ca {} --retry-for 0s",
            file.display()
        );
        let failure = TestCli::new().await.bare(&line, "").await.expect_err("no server");
        let text = render_failure(&failure);
        assert!(text.contains(hint), "{text}");
    }
}

#[tokio::test]
async fn reads_are_retried_while_the_server_starts() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer_with(
            "GET compute/hosts",
            503,
            json!({"code": "Unavailable", "message": "starting"}),
        )
        .answer("GET compute/hosts", json!({"hosts": [], "totalElements": 0, "hasNext": false}));
    let line = format!("evenkeel host list --server {} --retry-for 5s", cli.server);
    let (text, _) = cli.bare(&line, "").await.expect("the second time");
    assert_eq!(text, "no hosts\n");
}

#[tokio::test]
async fn create_requests_are_never_retried() {
    let cli = TestCli::new().await;
    cli.fake_server.answer_with(
        "POST join-tokens",
        503,
        json!({"code": "Unavailable", "message": "starting"}),
    );
    let line = format!("evenkeel join-token create --server {} --retry-for 5s", cli.server);
    let failure = cli.bare(&line, "").await.expect_err("it is not tried again");
    assert_eq!(failure.to_string(), "starting");
    assert_eq!(cli.fake_server.requests().lines().count(), 1);
}

#[tokio::test]
async fn the_message_and_the_field_of_the_server_are_printed() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer_with(
            "DELETE os-update-policies/osupdatepolicy-00000001",
            400,
            json!({
                "code": "FailedPrecondition", "message": "the policy is assigned to inst-00000001",
            }),
        )
        .answer_with(
            "POST compute/hosts/register",
            400,
            json!({
                "code": "InvalidArgument", "message": "uuid: not a UUID", "field": "uuid",
            }),
        )
        .answer_with("GET os-update-policies", 403, json!({"message": "Forbidden"}));
    let in_use = cli.fail("evenkeel policy delete osupdatepolicy-00000001").await;
    assert_eq!(
        in_use,
        "the policy is assigned to inst-00000001\n\
         hint: remove its assignments first: `evenkeel assignment list` lists them, \
         `evenkeel assignment clear TARGET` removes one"
    );
    let bad = cli.fail("evenkeel host register --uuid x").await;
    assert_eq!(bad, "uuid: not a UUID\nhint: check `uuid`");
    let foreign = cli.fail("evenkeel policy list").await;
    assert!(foreign.contains("`evenkeel project list` lists your projects"), "{foreign}");
}

#[tokio::test]
async fn a_missing_role_is_named() {
    let cli = TestCli::new().await;
    let message = "you may read in project default, not write; x_im-rw is missing";
    let kind = "urn:evenkeel:problem:missing-role";
    cli.fake_server.answer_with("POST regions", 403, json!({"message": message, "type": kind}));
    let hint =
        "use another login or token that has this role, or ask an administrator for the role";
    let expected = format!("{message}\nhint: {hint}");
    assert_eq!(cli.fail("evenkeel region create emea").await, expected);
}

#[tokio::test]
async fn a_server_that_is_not_evenkeel_is_reported() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET compute/hosts", json!("hello"));
    let message = cli.fail("evenkeel host list").await;
    assert!(message.contains("Is it an Evenkeel server?"), "{message}");
    let address =
        cli.bare("evenkeel host list --server ftp://x", "").await.expect_err("no address");
    assert_eq!(address.to_string(), "`ftp://x` is not a server address");
}

/// Invalid command lines.
const INVALID_LINES: &[&str] = &[
    "evenkeel",
    "evenkeel host get",
    "evenkeel host register new",
    "evenkeel policy create p",
    "evenkeel policy create p --latest --package jq",
    "evenkeel instance set-policy edge-01",
    "evenkeel instance set-policy edge-01 p --none",
    "evenkeel schedule create s --start soon --host h",
    "evenkeel schedule create s --start now --end +1h --duration 1h --host h",
    "evenkeel os create immutable --type immutable",
    "evenkeel os create -f os.yaml --architecture arm64",
    "evenkeel os create -f os.yaml --profile p",
    "evenkeel os create -f os.yaml --image-version 1",
    "evenkeel os create -f os.yaml --image-url http://127.0.0.1/i",
    "evenkeel os create -f os.yaml --sha256 0",
    "evenkeel os create -f os.yaml --description d",
    "evenkeel policy create -f policy.yaml --description d",
    "evenkeel host register new --uuid u --wait-for-onboarding",
    "evenkeel host list --retry-for 500000000000years",
    "evenkeel run watch r --timeout 500000000000years",
    "evenkeel run watch r --interval 500000000000years",
    "evenkeel policy create -f policy.yaml --allow-downgrade",
    "evenkeel policy create -f policy.yaml --offline-days 1",
    "evenkeel policy create -f policy.yaml --exclude linux-*",
    "evenkeel policy create p --target-os edge --suite bookworm",
    "evenkeel policy create p --latest --reboot soon",
    "evenkeel policy create p --latest --download-rate fast",
    "evenkeel site create s --latitude 1",
    "evenkeel site create s --latitude 91 --longitude 1",
    "evenkeel host set edge-01",
    "evenkeel host set edge-01 --site s --no-site",
    "evenkeel schedule create s --start now",
    "evenkeel schedule create s --start now --host h --site s",
    "evenkeel schedule create s --host h --duration 1h",
    "evenkeel schedule create s --hours 2 --host h",
    "evenkeel schedule create s --hours 2 --start now --duration 1h --host h",
    "evenkeel schedule create s --hours 2 --cron * --duration 1h --host h",
    "evenkeel schedule create s --cron * --duration 1h --host h",
    "evenkeel schedule create s --start now --time-zone Europe/Berlin --host h",
    "evenkeel assignment set project",
    "evenkeel assignment set project p --max-concurrent 0",
    "evenkeel assignment set project p --stop-after-failures -1",
    "evenkeel assignment set project p --no-limits --max-concurrent 1",
    "evenkeel assignment set project p --no-limits --stop-after-failures none",
    "evenkeel assignment resume",
    "evenkeel pause",
    "evenkeel pause --site s --policy p --reason r",
    "evenkeel resume --site s --policy p",
    "evenkeel update now --reason r",
    "evenkeel update now edge-01",
    "evenkeel update now --filter= --reason r --yes",
    "evenkeel update now edge-01 --all --reason r",
    "evenkeel update now --all --site s --reason r",
    "evenkeel update now edge-01 --reason r --for 25h",
    "evenkeel update cancel edge-01 --reason r --for 1h",
    "evenkeel project settings set",
    "evenkeel project settings set --retention-days soon",
    "evenkeel run watch",
    "evenkeel run watch osupdaterun-00000001 --host h",
    "evenkeel host list --output xml",
    "evenkeel host list --limit 0",
    "evenkeel host list --site s --region r",
    "evenkeel host set edge-01 --label country",
    "evenkeel host invalidate",
    "evenkeel join-token list --filter name=x",
    "evenkeel region set emea",
    "evenkeel region set emea --parent x --no-parent",
    "evenkeel site set mitte --latitude 1",
    "evenkeel site set mitte --region r --no-region",
    "evenkeel instance set edge-01",
    "evenkeel instance set edge-01 --policy p --no-policy",
    "evenkeel os set debian",
    "evenkeel schedule set nightly",
    "evenkeel schedule set nightly --end +1h --no-end",
    "evenkeel schedule set nightly --start now --cron *",
    "evenkeel account create alice",
    "evenkeel account create alice --ssh-key k --ssh-key-file f",
    "evenkeel custom-config create setup",
    "evenkeel location find x --sites --regions",
    "evenkeel login --username alice --token good",
    "evenkeel login --password-file f",
    "evenkeel token revoke",
    "evenkeel token revoke ID --subject alice",
    "evenkeel token revoke ID --force",
    "evenkeel token revoke ID --issuer https://login.example",
    "evenkeel login --realm http://127.0.0.1:1",
    "evenkeel audit --fleet --project-uuid 11111111-2222-3333-4444-555555555555",
    "evenkeel audit show 1a-2 --fleet --project-uuid 11111111-2222-3333-4444-555555555555",
    "evenkeel token create ci --expires 366d",
    "evenkeel token create ci --expires 0s",
    "evenkeel join-token create --expires 366d",
    "evenkeel notification-target create chat --event run-failed",
    "evenkeel notification-target create chat --url u --email e --event run-failed",
    "evenkeel notification-target create --file f --url u",
    "evenkeel notification-target create --file f --event run-failed",
    "evenkeel user roles alice",
    "evenkeel user roles alice --role viewer@lab --none",
];

#[test]
fn invalid_lines_are_rejected_before_any_request() {
    for line in INVALID_LINES {
        assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
    }
}

#[test]
fn usage_errors_name_the_alternatives() {
    for (line, parts) in [
        (
            "notification-target create chat --event run-failed",
            ["--url <URL>", "--email <ADDRESS>"],
        ),
        ("user roles alice", ["--role <ROLE>", "--none"]),
        ("token create ci --expires 400d", ["--expires", "`400d` is not from 1s to 365d"]),
    ] {
        let args = ["evenkeel"].into_iter().chain(line.split(' '));
        let error = Cli::try_parse_from(args).expect_err("an invalid line").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{line}: {error}");
    }
}

#[test]
fn a_file_needs_no_further_option() {
    for line in [
        "evenkeel os create -f os.yaml",
        "evenkeel policy create -f policy.yaml",
        "evenkeel notification-target create -f target.yaml",
        "evenkeel user roles alice --role viewer@lab --role viewer@shop",
    ] {
        assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
    }
}

#[test]
fn the_help_names_related_commands_and_examples() {
    for (line, expected) in [
        ("evenkeel pause --help", "`evenkeel resume` ends the pause"),
        ("evenkeel resume --help", "`evenkeel assignment resume`"),
        ("evenkeel assignment set --help", "set [OPTIONS] <TARGET> [POLICY]"),
        ("evenkeel token revoke --help", "<ID|--subject <NAME>>"),
        ("evenkeel logout --help", "evenkeel logout --context lab"),
        ("evenkeel whoami --help", "evenkeel whoami -o json"),
        ("evenkeel audit show --help", "evenkeel audit show 2f1c-8a3 --fleet"),
        ("evenkeel notification test --help", "evenkeel notification test chat"),
        ("evenkeel notification list --help", "evenkeel notification list --state dead"),
        ("evenkeel project create --help", "--description \"Tills of all shops\""),
        ("evenkeel project delete --help", "evenkeel project delete lab --force --yes"),
    ] {
        let help = Cli::try_parse_from(line.split(' ')).expect_err("help");
        assert!(help.to_string().contains(expected), "{line}: {help}");
    }
}

#[test]
fn the_clap_definition_is_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}
