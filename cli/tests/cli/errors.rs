//! What a person is told when something does not work.

use clap::Parser;
use evenkeel_cli::args::Cli;
use evenkeel_kit::Secret;
use serde_json::json;

use crate::{Desk, told};

#[tokio::test]
async fn a_token_that_is_not_taken_asks_for_a_login() {
    let mut desk = Desk::new().await;
    desk.token = Some(Secret::new("old"));
    insta::assert_snapshot!(desk.fail("evenkeel host list").await, @r"
    the token has expired
    hint: log in again: `evenkeel login --username NAME`, or with a token: `evenkeel login --token-file FILE`; on the server, `evenkeeld token operator` makes one
    ");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let desk = Desk::new().await;
    let line = "evenkeel host list --server http://127.0.0.1:1 --retry-for 0s";
    let failure = desk.bare(line, "").await.expect_err("nobody listens there");
    insta::assert_snapshot!(told(&failure), @r"
    cannot reach the server at http://127.0.0.1:1
    hint: is the server running, and is the address right? `evenkeel context show` prints it, `--server URL` overrides it
    ");
}

#[tokio::test]
async fn reading_is_tried_again_while_the_server_starts() {
    let desk = Desk::new().await;
    desk.double
        .answer_with(
            "GET compute/hosts",
            503,
            json!({"code": "Unavailable", "message": "starting"}),
        )
        .answer(
            "GET compute/hosts",
            json!({"hosts": [], "totalElements": 0, "hasNext": false}),
        );
    let line = format!("evenkeel host list --server {} --retry-for 5s", desk.server);
    let (text, _) = desk.bare(&line, "").await.expect("the second time");
    assert_eq!(text, "no hosts\n");
}

#[tokio::test]
async fn making_is_never_tried_again() {
    let desk = Desk::new().await;
    desk.double.answer_with(
        "POST join-tokens",
        503,
        json!({"code": "Unavailable", "message": "starting"}),
    );
    let line = format!(
        "evenkeel join-token create --server {} --retry-for 5s",
        desk.server
    );
    let failure = desk
        .bare(&line, "")
        .await
        .expect_err("it is not tried again");
    assert_eq!(failure.to_string(), "starting");
    assert_eq!(desk.double.asked().lines().count(), 1);
}

#[tokio::test]
async fn the_servers_words_and_its_field_are_passed_on() {
    let desk = Desk::new().await;
    desk.double
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
        .answer_with(
            "GET os-update-policies",
            403,
            json!({"message": "Forbidden"}),
        );
    let in_use = desk
        .fail("evenkeel policy delete osupdatepolicy-00000001")
        .await;
    assert_eq!(
        in_use,
        "the policy is assigned to inst-00000001\n\
         hint: take its assignments away first: `evenkeel assignment list` shows them, \
         `evenkeel assignment clear TARGET` takes one away"
    );
    let bad = desk.fail("evenkeel host register --uuid x").await;
    assert_eq!(bad, "uuid: not a UUID\nhint: look at `uuid`");
    let foreign = desk.fail("evenkeel policy list").await;
    assert!(
        foreign.contains("`evenkeel project list` shows your projects"),
        "{foreign}"
    );
}

#[tokio::test]
async fn what_is_no_evenkeel_server_is_told_so() {
    let desk = Desk::new().await;
    desk.double.answer("GET compute/hosts", json!("hello"));
    let told = desk.fail("evenkeel host list").await;
    assert!(told.contains("is it an Evenkeel server?"), "{told}");
    let address = desk
        .bare("evenkeel host list --server ftp://x", "")
        .await
        .expect_err("no address");
    assert_eq!(
        address.to_string(),
        "`ftp://x` is not the address of a server"
    );
}

/// Lines that make no sense.
const SENSELESS: &[&str] = &[
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
    "evenkeel login --realm http://127.0.0.1:1",
];

#[test]
fn lines_that_make_no_sense_are_refused_before_anything_is_asked() {
    for line in SENSELESS {
        assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
    }
}

#[test]
fn a_file_needs_no_further_option() {
    for line in [
        "evenkeel os create -f os.yaml",
        "evenkeel policy create -f policy.yaml",
    ] {
        assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
    }
}

#[test]
fn the_help_of_a_pause_says_what_ends_it_and_what_it_does_not_touch() {
    for (line, expected) in [
        (
            "evenkeel pause --help",
            "`evenkeel resume` takes the pause back",
        ),
        ("evenkeel resume --help", "`evenkeel assignment resume`"),
        (
            "evenkeel assignment set --help",
            "set [OPTIONS] <TARGET> [POLICY]",
        ),
    ] {
        let help = Cli::try_parse_from(line.split(' ')).expect_err("help");
        assert!(help.to_string().contains(expected), "{line}: {help}");
    }
}

#[test]
fn the_command_line_contradicts_itself_nowhere() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}
