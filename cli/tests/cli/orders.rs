//! Updates outside of the plan, or not in it.

use serde_json::{Value, json};

use crate::{Desk, told};

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

async fn desk() -> Desk {
    let desk = Desk::new().await;
    let hosts = json!({
        "hosts": [
            host(1, "edge-01", "site-00000001"), host(2, "edge-02", "site-00000001"), host(3, "core-01", ""),
            {"resourceId": "host-00000004", "name": "edge-04", "siteId": "site-00000001"},
        ],
        "totalElements": 4, "hasNext": false,
    });
    desk.double.answer("GET compute/hosts", hosts);
    for nth in 1..=3 {
        let path = format!("PUT compute/instances/inst-0000000{nth}/order");
        desk.double.answer(&path, order(nth, "now"));
    }
    desk
}

fn written(desk: &Desk) -> Vec<String> {
    let asked = desk.double.asked();
    let written = asked.lines().filter(|line| line.starts_with("PUT"));
    written.map(str::to_owned).collect()
}

#[tokio::test]
async fn named_nodes_are_ordered_to_update_once_each() {
    let desk = desk().await;
    desk.double
        .answer("GET compute/hosts/host-00000002", host(2, "edge-02", ""));
    let line = "evenkeel update now inst-00000001 host-00000002 inst-00000002 --reason \"ticket 7\" --for 30m";
    insta::assert_snapshot!(desk.run(line).await, @r"
    NODE           INSTANCE       RESULT
    inst-00000001  inst-00000001  may update until 2026-03-01T12:30:00Z
    host-00000002  inst-00000002  may update until 2026-03-01T12:30:00Z
    ");
    insta::assert_snapshot!(written(&desk).join("\n"), @r#"
    PUT compute/instances/inst-00000001/order {"kind":"now","seconds":1800,"reason":"ticket 7"}
    PUT compute/instances/inst-00000002/order {"kind":"now","seconds":1800,"reason":"ticket 7"}
    "#);
}

#[tokio::test]
async fn a_name_that_means_nothing_stops_all_before_anything_is_done() {
    let desk = desk().await;
    desk.double.answer(
        "GET compute/instances",
        json!({"instances": [], "totalElements": 0, "hasNext": false}),
    );
    desk.fail("evenkeel update now inst-00000001 nobody --reason r")
        .await;
    assert_eq!(written(&desk), Vec::<String>::new());
}

#[tokio::test]
async fn several_nodes_that_were_not_named_need_a_yes() {
    let mut desk = desk().await;
    let line = "evenkeel update now --all --reason r";
    insta::assert_snapshot!(desk.fail(line).await, @r"
    this is for 3 nodes (edge-01, edge-02, core-01)
    hint: add --yes if that is what you want
    ");
    desk.interactive = true;
    for answer in ["", "n\n", "whatever\n"] {
        let failure = desk.answer(line, answer).await.expect_err("no yes");
        assert_eq!(told(&failure), "nothing was done\nhint: none");
    }
    assert_eq!(written(&desk), Vec::<String>::new());
    let (text, _) = desk.answer(line, "y\n").await.expect("a yes");
    assert!(
        text.starts_with("let 3 nodes (edge-01, edge-02, core-01) update now? [y/N] "),
        "{text}"
    );
    assert_eq!(written(&desk).len(), 3);
    desk.interactive = false;
    desk.run(&format!("{line} --yes")).await;
    assert_eq!(written(&desk).len(), 6);
}

#[tokio::test]
async fn nodes_are_chosen_by_their_site_and_a_filter() {
    let desk = desk().await;
    let one = |nth: u32, name: &str, site: &str| json!({"hosts": [host(nth, name, site)], "totalElements": 1, "hasNext": false});
    desk.double
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
    desk.double.answer(
        "GET sites",
        json!({"sites": [{"resourceId": "site-00000001", "name": "Mitte"}], "totalElements": 1, "hasNext": false}),
    );
    for (which, ids) in [
        ("--site Mitte --yes", "inst-00000001\ninst-00000002\n"),
        (
            "--site Mitte --filter \"name = 02 OR note = x\"",
            "inst-00000002\n",
        ),
        ("--filter \"name = core\"", "inst-00000003\n"),
    ] {
        let line = format!("evenkeel update now {which} --reason r -q");
        assert_eq!(desk.run(&line).await, ids, "{which}");
    }
    let told = desk
        .fail("evenkeel update now --site Mitte --filter \"name = core\" --reason r")
        .await;
    assert!(told.starts_with("no node fits\n"), "{told}");
}

#[tokio::test]
async fn a_node_that_does_not_take_an_order_keeps_it_from_no_other() {
    let desk = desk().await;
    desk.double
        .answer_with(
            "PUT compute/instances/inst-00000004/order",
            400,
            json!({"code": "FailedPrecondition", "message": "the instance is not trusted"}),
        )
        .answer(
            "PUT compute/instances/inst-00000005/order",
            order(5, "cancel"),
        );
    let line = "evenkeel update cancel inst-00000004 inst-00000005 --reason r --output json";
    let line = format!("{line} --server {}", desk.server);
    let failure = desk.bare(&line, "").await.expect_err("one was not taken");
    insta::assert_snapshot!(told(&failure), @r"
    1 of 2 nodes did not take the order
    hint: the answer says why, node by node; name those again once that is mended
    ");
    assert_eq!(written(&desk).len(), 2);
}

#[tokio::test]
async fn an_order_that_nobody_may_give_is_given_up_at_the_first_node() {
    let desk = desk().await;
    desk.double.answer_with(
        "PUT compute/instances/inst-00000006/order",
        403,
        json!({"message": "Forbidden"}),
    );
    let line = "evenkeel update cancel inst-00000006 inst-00000001 --reason r";
    let told = desk.fail(line).await;
    assert!(told.starts_with("Forbidden\n"), "{told}");
    assert_eq!(written(&desk).len(), 1);
}

#[tokio::test]
async fn a_cancelled_node_says_so() {
    let desk = Desk::new().await;
    desk.double.answer(
        "PUT compute/instances/inst-00000001/order",
        order(1, "cancel"),
    );
    let text = desk
        .run("evenkeel update cancel inst-00000001 --reason r")
        .await;
    assert!(text.contains("not in the windows that are open"), "{text}");
}
