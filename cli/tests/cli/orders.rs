//! Orders: update nodes now, or skip their open windows.

use serde_json::{Value, json};

use crate::{TestCli, render_failure};

fn host(nth: u32, name: &str, site: &str) -> Value {
    json!({
        "resourceId": format!("host-0000000{nth}"), "name": name, "siteId": site,
        "instance": {"resourceId": format!("inst-0000000{nth}")},
    })
}

fn order(nth: u32, kind: &str) -> Value {
    json!({
        "instanceId": format!("inst-0000000{nth}"), "kind": kind, "since": "2026-03-01T12:00:00Z",
        "until": "2026-03-01T12:30:00Z", "reason": "ticket 7", "by": "alice",
    })
}

async fn cli_with_hosts() -> TestCli {
    let cli = TestCli::new().await;
    let hosts = json!({
        "hosts": [
            host(1, "edge-01", "site-00000001"), host(2, "edge-02", "site-00000001"), host(3, "core-01", ""),
            {"resourceId": "host-00000004", "name": "edge-04", "siteId": "site-00000001"},
        ],
        "totalElements": 4, "hasNext": false,
    });
    cli.fake_server.answer("GET compute/hosts", hosts);
    for nth in 1..=3 {
        let path = format!("PUT compute/instances/inst-0000000{nth}/order");
        cli.fake_server.answer(&path, order(nth, "now"));
    }
    cli
}

fn sent_orders(cli: &TestCli) -> Vec<String> {
    let requests = cli.fake_server.requests();
    let written = requests.lines().filter(|line| line.starts_with("PUT"));
    written.map(str::to_owned).collect()
}

#[tokio::test]
async fn named_nodes_receive_one_order_each() {
    let cli = cli_with_hosts().await;
    cli.fake_server.answer("GET compute/hosts/host-00000002", host(2, "edge-02", ""));
    let line = "evenkeel update now inst-00000001 host-00000002 inst-00000002 --reason \"ticket 7\" --for 30m";
    insta::assert_snapshot!(cli.run(line).await, @r"
    NODE           INSTANCE       RESULT
    inst-00000001  inst-00000001  may update until 2026-03-01T12:30:00Z
    host-00000002  inst-00000002  may update until 2026-03-01T12:30:00Z
    ");
    insta::assert_snapshot!(sent_orders(&cli).join("\n"), @r#"
    PUT compute/instances/inst-00000001/order {"kind":"now","seconds":1800,"reason":"ticket 7"}
    PUT compute/instances/inst-00000002/order {"kind":"now","seconds":1800,"reason":"ticket 7"}
    "#);
}

#[tokio::test]
async fn an_unknown_name_stops_the_command_before_any_order() {
    let cli = cli_with_hosts().await;
    cli.fake_server.answer(
        "GET compute/instances",
        json!({"instances": [], "totalElements": 0, "hasNext": false}),
    );
    cli.fail("evenkeel update now inst-00000001 unknown --reason r").await;
    assert_eq!(sent_orders(&cli), Vec::<String>::new());
}

#[tokio::test]
async fn several_unnamed_nodes_need_a_confirmation() {
    let mut cli = cli_with_hosts().await;
    let line = "evenkeel update now --all --reason r";
    insta::assert_snapshot!(cli.fail(line).await, @r"
    this affects 3 nodes (edge-01, edge-02, core-01)
    hint: add --yes to confirm
    ");
    cli.interactive = true;
    for answer in ["", "n\n", "whatever\n"] {
        let failure = cli.answer(line, answer).await.expect_err("no yes");
        assert_eq!(render_failure(&failure), "nothing was done\nhint: none");
    }
    assert_eq!(sent_orders(&cli), Vec::<String>::new());
    let (text, _) = cli.answer(line, "y\n").await.expect("a yes");
    assert!(text.starts_with("update 3 nodes (edge-01, edge-02, core-01) now? [y/N] "), "{text}");
    assert_eq!(sent_orders(&cli).len(), 3);
    cli.interactive = false;
    cli.run(&format!("{line} --yes")).await;
    assert_eq!(sent_orders(&cli).len(), 6);
}

#[tokio::test]
async fn nodes_are_selected_by_site_and_filter() {
    let cli = cli_with_hosts().await;
    let one = |nth: u32, name: &str, site: &str| json!({"hosts": [host(nth, name, site)], "totalElements": 1, "hasNext": false});
    cli.fake_server
        .answer(
            "GET compute/hosts?filter=name = core",
            one(3, "core-01", ""),
        )
        .answer(
            "GET compute/hosts?filter=(name = 02 OR note = x) AND site.resourceId == \"site-00000001\"",
            one(2, "edge-02", "site-00000001"),
        )
        .answer(
            "GET compute/hosts?filter=(name = core) AND site.resourceId == \"site-00000001\"",
            json!({"hosts": [], "totalElements": 0, "hasNext": false}),
        );
    cli.fake_server.answer(
        "GET sites",
        json!({"sites": [{"resourceId": "site-00000001", "name": "Mitte"}], "totalElements": 1, "hasNext": false}),
    );
    for (which, ids) in [
        ("--site Mitte --yes", "inst-00000001\ninst-00000002\n"),
        ("--site Mitte --filter \"name = 02 OR note = x\"", "inst-00000002\n"),
        ("--filter \"name = core\"", "inst-00000003\n"),
    ] {
        let line = format!("evenkeel update now {which} --reason r -q");
        assert_eq!(cli.run(&line).await, ids, "{which}");
    }
    let message =
        cli.fail("evenkeel update now --site Mitte --filter \"name = core\" --reason r").await;
    assert!(message.starts_with("no node matches\n"), "{message}");
}

#[tokio::test]
async fn a_failed_order_does_not_stop_the_others() {
    let cli = cli_with_hosts().await;
    cli.fake_server
        .answer_with(
            "PUT compute/instances/inst-00000004/order",
            400,
            json!({"code": "FailedPrecondition", "message": "the instance is not trusted"}),
        )
        .answer("PUT compute/instances/inst-00000005/order", order(5, "cancel"));
    let line = "evenkeel update cancel inst-00000004 inst-00000005 --reason r --output json";
    let line = format!("{line} --server {}", cli.server);
    let failure = cli.bare(&line, "").await.expect_err("one order failed");
    insta::assert_snapshot!(render_failure(&failure), @r"
    the order failed for 1 of 2 nodes
    hint: the output shows the error of each node; fix it and repeat the command for these nodes
    ");
    assert_eq!(sent_orders(&cli).len(), 2);
}

#[tokio::test]
async fn a_forbidden_order_stops_at_the_first_node() {
    let cli = cli_with_hosts().await;
    cli.fake_server.answer_with(
        "PUT compute/instances/inst-00000006/order",
        403,
        json!({"message": "Forbidden"}),
    );
    let line = "evenkeel update cancel inst-00000006 inst-00000001 --reason r";
    let message = cli.fail(line).await;
    assert!(message.starts_with("Forbidden\n"), "{message}");
    assert_eq!(sent_orders(&cli).len(), 1);
}

#[tokio::test]
async fn a_cancelled_node_is_reported() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("PUT compute/instances/inst-00000001/order", order(1, "cancel"));
    let text = cli.run("evenkeel update cancel inst-00000001 --reason r").await;
    assert!(text.contains("skips the open windows"), "{text}");
}
