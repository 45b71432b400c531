//! Hosts and instances: their details and changes.

use serde_json::{Value, json};

use crate::TestCli;

fn host() -> Value {
    json!({
        "resourceId": "host-00000001", "name": "edge-01", "currentState": "HOST_STATE_ONBOARDED",
        "metadata": [{"key": "rack", "value": "7"}, {"key": "tier", "value": "gold"}],
        "inheritedMetadata": [{"key": "country", "value": "de"}],
        "instance": {"resourceId": "inst-00000001"},
    })
}

fn instance() -> Value {
    json!({
        "resourceId": "inst-00000001", "host": {"resourceId": "host-00000001", "name": "edge-01"},
        "runtimePackages": "{\"repo\":[{\"name\":\"libc6\",\"version\":\"2.36-9\",\"architecture\":\"amd64\"},\
                            {\"name\":\"apt\",\"version\":\"2.6.1\",\"architecture\":\"amd64\"}]}",
    })
}

async fn cli_with_host() -> TestCli {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001", instance());
    cli
}

#[tokio::test]
async fn a_host_is_shown_with_the_conditions_of_its_instance() {
    let cli = TestCli::new().await;
    let mut host = host();
    host["instance"]["conditions"] = json!([{
        "type": "other_updaters", "since": "2026-03-01T10:00:00Z",
        "message": "unattended-upgrades installs updates by itself",
    }]);
    cli.fake_server.answer("GET compute/hosts/host-00000001", host);
    let text = cli.run("evenkeel host get host-00000001").await;
    let table = "Conditions:\n\
        TYPE            SINCE                 MESSAGE\n\
        other_updaters  2026-03-01T10:00:00Z  unattended-upgrades installs updates by itself\n";
    assert!(text.contains(table), "{text}");
}

#[tokio::test]
async fn a_host_is_shown_with_its_hardware() {
    let cli = TestCli::new().await;
    let mut full = host();
    for (name, value) in [
        ("productName", json!("PowerEdge R650")),
        ("cpuModel", json!("Xeon Gold 6338")),
        ("cpuArchitecture", json!("x86_64")),
        ("cpuCores", json!(32)),
        ("memoryBytes", json!("274877906944")),
        ("biosVendor", json!("Dell Inc.")),
        ("biosVersion", json!("1.6.5")),
        ("provider", json!({"resourceId": "provider-00000001", "name": "racks"})),
        (
            "hostNics",
            json!([{
                "deviceName": "eth0", "macAddr": "aa:bb:cc:dd:ee:ff",
                "linkState": {"type": "NETWORK_INTERFACE_LINK_STATE_UP"},
                "ipaddresses": [{"address": "192.0.2.7/24"}, {"address": "2001:db8::7/64"}],
            }]),
        ),
        (
            "hostStorages",
            json!([{"deviceName": "sda", "capacityBytes": "480103981056", "model": "PM893", "serial": "S1"}]),
        ),
    ] {
        full[name] = value;
    }
    cli.fake_server.answer("GET compute/hosts/host-00000001", full);
    insta::assert_snapshot!(cli.run("evenkeel host get host-00000001").await, @r"
    id         host-00000001
    name       edge-01
    hostname   -
    site       -
    state      onboarded
    desired    unspecified
    status     -
    since      -
    uuid       -
    serial     -
    provider   racks
    instance   inst-00000001
    os         -
    policy     -
    update     -
    available  -
    lists      unknown
    security   unknown
    held back  unknown
    reboot     unknown
    product    PowerEdge R650
    processor  Xeon Gold 6338, x86_64, 32 cores
    memory     256.0 GiB
    firmware   Dell Inc. 1.6.5
    created    -

    Labels:
    KEY      VALUE  SOURCE
    rack     7      own
    tier     gold   own
    country  de     inherited

    Network:
    DEVICE  ADDRESS            LINK  IP
    eth0    aa:bb:cc:dd:ee:ff  up    192.0.2.7/24, 2001:db8::7/64

    Disks:
    DEVICE  SIZE       MODEL  SERIAL
    sda     447.1 GiB  PM893  S1
    ");
}

#[tokio::test]
async fn a_host_is_created_with_labels() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("POST compute/hosts", host());
    cli.run("evenkeel host create edge-01 --site site-00000001 --label rack=7 --label tier=gold")
        .await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"POST compute/hosts {"name":"edge-01","siteId":"site-00000001","metadata":[{"key":"rack","value":"7"},{"key":"tier","value":"gold"}]}"#);
}

#[tokio::test]
async fn labels_that_are_not_named_stay() {
    let cli = cli_with_host().await;
    cli.fake_server.answer("PATCH compute/hosts/host-00000001", host());
    cli.run("evenkeel host set host-00000001 --label tier=silver --no-label rack").await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    GET compute/hosts/host-00000001
    PATCH compute/hosts/host-00000001 {"metadata":[{"key":"tier","value":"silver"}]}
    "#);
}

#[tokio::test]
async fn a_host_is_registered_onboarded_and_invalidated() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("POST compute/hosts/register", host())
        .answer("PATCH compute/hosts/host-00000001/onboard", json!({}))
        .answer("PUT compute/hosts/host-00000001/invalidate", json!({}))
        .answer("PUT compute/hosts/host-00000001/invalidate?note=stolen & sold", json!({}));
    cli.run("evenkeel host register edge-01 --serial ABC12345 --no-onboard --user-lvm-size 20 -q")
        .await;
    let mut output = String::new();
    for line in [
        "evenkeel host onboard host-00000001",
        "evenkeel host invalidate host-00000001",
        "evenkeel host invalidate host-00000001 --note \"stolen & sold\"",
    ] {
        output.push_str(&cli.run(line).await);
    }
    insta::assert_snapshot!(output, @r"
    host host-00000001 approved for onboarding
    host host-00000001 invalidated
    host host-00000001 invalidated
    ");
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    POST compute/hosts/register {"name":"edge-01","serialNumber":"ABC12345","uuid":"","siteId":"","autoOnboard":false,"enableVpro":false,"userLvmSize":20}
    PATCH compute/hosts/host-00000001/onboard {}
    PUT compute/hosts/host-00000001/invalidate
    PUT compute/hosts/host-00000001/invalidate?note=stolen & sold
    "#);
    let message = cli.fail("evenkeel host onboard host-00000009").await;
    assert!(message.starts_with("there is no host `host-00000009`\n"), "{message}");
}

#[tokio::test]
async fn deleting_a_host_with_its_instance_prints_one_document() {
    let cli = cli_with_host().await;
    cli.fake_server
        .answer("DELETE compute/instances/inst-00000001", json!({}))
        .answer("DELETE compute/hosts/host-00000001", json!({}));
    let line = "evenkeel host delete host-00000001 --with-instance";
    let json = cli.run(&format!("{line} -o json")).await;
    let json: Value = serde_json::from_str(&json).expect("one document");
    assert_eq!(json, json!({"resourceId": "host-00000001", "result": "deleted"}));
    let yaml = cli.run(&format!("{line} -o yaml")).await;
    assert_eq!(yaml.matches("resourceId").count(), 1, "{yaml}");
    assert_eq!(cli.run(&format!("{line} -q")).await, "inst-00000001\nhost-00000001\n");
}

#[tokio::test]
async fn the_packages_of_a_host_are_listed() {
    let cli = cli_with_host().await;
    insta::assert_snapshot!(cli.run("evenkeel host packages host-00000001").await, @r"
    PACKAGE  VERSION  ARCHITECTURE
    apt      2.6.1    amd64
    libc6    2.36-9   amd64
    ");
    assert_eq!(cli.run("evenkeel host packages host-00000001 --name libc -q").await, "libc6\n");
    let silent = TestCli::new().await;
    silent
        .fake_server
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001", json!({"resourceId": "inst-00000001"}));
    assert_eq!(
        silent.run("evenkeel host packages host-00000001").await,
        "the host has not reported its packages\n"
    );
    let none = silent.run("evenkeel host packages host-00000001 -o json").await;
    assert_eq!(none, "[]\n");
}

#[tokio::test]
async fn the_updates_of_a_host_are_listed() {
    let cli = cli_with_host().await;
    cli.fake_server.answer(
        "GET compute/instances/inst-00000001/decision",
        json!({"availableUpdates": [
            {"name": "curl", "architecture": "amd64", "installed": "8.4", "available": "8.5"},
            {"name": "linux-image-amd64", "architecture": "amd64", "installed": "6.1.1", "available": "6.1.2",
             "security": false, "excluded": true},
        ]}),
    );
    insta::assert_snapshot!(cli.run("evenkeel host updates host-00000001").await, @r"
    PACKAGE            ARCHITECTURE  INSTALLED  AVAILABLE  SUITE  SECURITY  NOT INSTALLED
    curl               amd64         8.4        8.5        -      unknown   -
    linux-image-amd64  amd64         6.1.1      6.1.2      -      -         policy: excluded
    ");
    let security = cli.run("evenkeel host updates host-00000001 --security -q").await;
    assert_eq!(security, "curl\n", "an agent of EIM reports no suites");
}

#[tokio::test]
async fn a_host_is_shown_with_its_last_contact_its_agent_and_its_boot() {
    let cli = TestCli::new().await;
    let mut full = host();
    for (name, value) in [
        ("hostStatus", json!("Running")),
        ("lastContact", json!("2026-03-01T11:59:52Z")),
        ("agentVersion", json!("0.1.0")),
        ("bootTime", json!("2026-02-14T03:12:41Z")),
        ("productVendor", json!("Dell Inc.")),
        ("productName", json!("PowerEdge R650")),
    ] {
        full[name] = value;
    }
    cli.fake_server.answer("GET compute/hosts/host-00000001", full);
    let text = cli.run("evenkeel host get host-00000001").await;
    let node = "last contact  2026-03-01T11:59:52Z\n\
                agent         0.1.0\n\
                booted        2026-02-14T03:12:41Z\n";
    assert!(text.contains(node), "{text}");
    assert!(text.contains("product       Dell Inc. PowerEdge R650\n"), "{text}");
}

#[tokio::test]
async fn a_host_without_security_updates_may_have_other_updates() {
    let cli = cli_with_host().await;
    let curl =
        json!({"name": "curl", "architecture": "amd64", "suites": ["bookworm"], "security": false});
    let decision = "GET compute/instances/inst-00000001/decision";
    cli.fake_server.answer(decision, json!({"availableUpdates": [curl]}));
    let text = cli.run("evenkeel host updates host-00000001 --security").await;
    assert_eq!(text, "no security updates available\n");
}

/// An instance with package lists that were fetched two hours before the tests.
fn instance_with_held_back_packages() -> Value {
    let mut full = instance();
    full["packageListsRefreshedAt"] = json!("2026-03-01T10:00:00Z");
    full["heldBackPackages"] = json!([
        {"name": "openssl", "architecture": "amd64", "installed": "3.0.16", "available": "3.0.17",
         "cause": "pinned", "suites": ["bookworm-security", "oldstable-security"],
         "origins": ["Debian-Security"], "security": true},
        {"name": "tzdata", "architecture": "all", "installed": "2025a", "available": "2025b", "cause": "hold",
         "security": null},
    ]);
    full
}

#[tokio::test]
async fn security_updates_and_held_back_ones_are_listed_with_their_cause() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001", instance_with_held_back_packages())
        .answer(
            "GET compute/instances/inst-00000001/decision",
            json!({"availableUpdates": [
                {"name": "curl", "architecture": "amd64", "installed": "8.4", "available": "8.5",
                 "suites": ["bookworm"], "security": false, "tooYoung": true},
                {"name": "sudo", "architecture": "amd64", "installed": "1.9.1", "available": "1.9.2",
                 "suites": ["bookworm-security"], "security": true},
            ]}),
        );
    insta::assert_snapshot!(cli.run("evenkeel host updates host-00000001").await, @r"
    PACKAGE  ARCHITECTURE  INSTALLED  AVAILABLE  SUITE              SECURITY  NOT INSTALLED
    curl     amd64         8.4        8.5        bookworm           -         policy: too young
    sudo     amd64         1.9.1      1.9.2      bookworm-security  yes       -
    openssl  amd64         3.0.16     3.0.17     bookworm-security  yes       pinned
    tzdata   all           2025a      2025b      -                  unknown   hold
    ");
    let security = cli.run("evenkeel host updates host-00000001 --security -q").await;
    assert_eq!(security, "sudo\nopenssl\ntzdata\n");
    let json = cli.run("evenkeel host updates host-00000001 --security -o json").await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json[0]["security"], true);
    assert_eq!(
        (&json[1]["heldBack"], &json[1]["origins"][0]),
        (&json!("pinned"), &json!("Debian-Security"))
    );
    assert_eq!(json[2]["security"], Value::Null);
}

#[tokio::test]
async fn unknown_updates_are_an_error_and_no_empty_list() {
    let cli = TestCli::new().await;
    let mut stale = instance();
    stale["packageListsRefreshedAt"] = json!("2026-02-20T10:00:00Z");
    stale["packageListsError"] = json!("no route to host\u{1b}");
    cli.fake_server
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001", stale)
        .answer("GET compute/instances/inst-00000001/decision", json!({"availableUpdates": []}));
    for line in
        ["evenkeel host updates host-00000001", "evenkeel host updates host-00000001 -o json"]
    {
        let error = cli.fail(line).await;
        let why = "the available updates are unknown: the package lists were last fetched at 2026-02-20T10:00:00Z, ";
        assert!(error.starts_with(why), "{error}");
        assert!(error.contains("no route to host\n"), "{error}");
    }
}

#[tokio::test]
async fn a_cut_list_of_packages_is_marked_and_has_the_number_of_all() {
    let cli = TestCli::new().await;
    let mut full = instance_with_held_back_packages();
    full["heldBackUpdates"] = json!(1_200);
    let condition = |message: &str| json!({"type": "detail_cut", "message": message, "since": "2026-03-01T10:00:00Z"});
    full["conditions"] = json!([
        condition("the log of the update was cut"),
        condition("9000 packages could be updated; the first 3500 of them are kept"),
    ]);
    cli.fake_server
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001", full);
    cli.fake_server
        .answer("GET compute/instances/inst-00000001/decision", json!({"availableUpdates": []}));
    let text = cli.run("evenkeel host get host-00000001").await;
    assert!(text.contains("\nHeld back, the first ones:\n"), "{text}");
    assert!(text.contains("held back  1200\n"), "{text}");
    let text = cli.run("evenkeel host updates host-00000001").await;
    let notes: Vec<_> = text.lines().filter(|line| line.starts_with("note: ")).collect();
    assert_eq!(
        notes,
        [
            "note: not all available updates are listed: \
             9000 packages could be updated; the first 3500 of them are kept",
            "note: showing 2 of 1200 updates that are held back",
        ]
    );
}

#[tokio::test]
async fn a_host_is_shown_with_the_facts_of_its_node() {
    let cli = TestCli::new().await;
    let mut full = instance_with_held_back_packages();
    for (name, value) in [
        ("kernelRelease", json!("6.1.0-40-amd64")),
        ("packageListsError", json!("no route to host")),
        ("securityUpdates", json!(2)),
        ("heldBackUpdates", json!(2)),
        ("rebootRequired", json!(true)),
        ("rebootReasons", json!(["libc6 requires it"])),
        ("staleUnits", json!([{"name": "ssh.service", "files": ["/usr/sbin/sshd"]}])),
        (
            "foreignChange",
            json!({"changedAt": "2026-03-01T09:30:00Z", "count": 30, "packages": ["curl:amd64 8.4 -> 8.5"]}),
        ),
    ] {
        full[name] = value;
    }
    cli.fake_server
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001", full);
    let text = cli.run("evenkeel host get host-00000001").await;
    for lines in [
        "available  unknown\n\
         kernel     6.1.0-40-amd64\n\
         lists      2026-03-01T10:00:00Z: no route to host\n\
         security   2\n\
         held back  2\n\
         reboot     required\n",
        "A reboot is required because:\nREASON\nlibc6 requires it\n",
        "tzdata   all           2025a      2025b      -                  unknown   hold\n",
        "Services that run replaced files:\nSERVICE      FILES\nssh.service  /usr/sbin/sshd\n",
        "Packages that others changed last:\n\
         TIME                  CHANGE\n\
         2026-03-01T09:30:00Z  curl:amd64 8.4 -> 8.5\n\
         2026-03-01T09:30:00Z  and 29 more\n",
    ] {
        assert!(text.contains(lines), "{text}");
    }
    let instance = cli.run("evenkeel instance get inst-00000001").await;
    assert!(instance.contains("reboot     required\n"), "{instance}");
}

#[tokio::test]
async fn the_update_of_an_image_is_a_name() {
    let cli = TestCli::new().await;
    let mut image = instance();
    image["osUpdateAvailable"] = json!("edge 3.0.2");
    cli.fake_server
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001", image)
        .answer("GET compute/instances/inst-00000001/decision", json!({"availableUpdates": []}));
    let line = "evenkeel host updates host-00000001";
    assert_eq!(cli.run(line).await, "image edge 3.0.2\n");
    assert_eq!(cli.run(&format!("{line} -q")).await, "edge 3.0.2\n");
    let json = cli.run(&format!("{line} -o json")).await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json, json!([{"image": "edge 3.0.2"}]));
}

#[tokio::test]
async fn hosts_are_counted() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer(
            "GET compute/hosts/summary",
            json!({"total": 20, "error": 2, "running": 15, "unallocated": 3}),
        )
        .answer_with(
            "GET compute/hosts/summary?filter=nam = x",
            400,
            json!({
                "code": "InvalidArgument", "message": "filter: at 0: there is no field `nam` of hosts; did you mean `name`?",
                "field": "filter", "position": 0, "hint": "name",
            }),
        );
    insta::assert_snapshot!(cli.run("evenkeel host summary").await, @r"
    hosts              20
    running, no error  15
    with an error      2
    without a site     3
    ");
    assert_eq!(cli.run("evenkeel host summary -q").await, "20\n");
    let message = cli.fail("evenkeel host summary --filter \"nam = x\"").await;
    assert!(
        message.starts_with("--filter: there is no field `nam` of hosts\nnam = x\n^\n"),
        "{message}"
    );
}

#[tokio::test]
async fn an_instance_is_created_changed_and_invalidated() {
    let cli = TestCli::new().await;
    let none = |key: &str| json!({key: [], "totalElements": 0, "hasNext": false});
    let one = |key: &str, item: Value| json!({key: [item], "totalElements": 1, "hasNext": false});
    cli.fake_server
        .answer("POST compute/instances", instance())
        .answer("PATCH compute/instances/inst-00000001", instance())
        .answer("PUT compute/instances/inst-00000001/invalidate", json!({}))
        .answer(
            "GET localAccounts",
            one(
                "localAccounts",
                json!({"resourceId": "localaccount-00000001", "username": "alice"}),
            ),
        )
        .answer("GET customConfigs", none("customConfigs"));
    cli.run(
        "evenkeel instance create --host host-00000001 --os os-00000001 --account alice \
         --custom-config customconfig-00000001",
    )
    .await;
    cli.run("evenkeel instance set inst-00000001 --name one --os os-00000002 --no-policy").await;
    cli.run("evenkeel instance set inst-00000001 --policy osupdatepolicy-00000001").await;
    assert_eq!(
        cli.run("evenkeel instance invalidate inst-00000001").await,
        "instance inst-00000001 invalidated\n"
    );
    let message = cli
        .fail("evenkeel instance create --host host-00000001 --os os-00000001 --custom-config none")
        .await;
    assert!(message.starts_with("there is no custom configuration `none`\n"), "{message}");
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    GET localAccounts?filter=username == "alice"
    POST compute/instances {"kind":"INSTANCE_KIND_METAL","name":"","hostID":"host-00000001","osID":"os-00000001","localAccountID":"localaccount-00000001","customConfigID":["customconfig-00000001"],"securityFeature":"SECURITY_FEATURE_NONE"}
    PATCH compute/instances/inst-00000001 {"name":"one","osID":"os-00000002","osUpdatePolicyID":""}
    PATCH compute/instances/inst-00000001 {"osUpdatePolicyID":"osupdatepolicy-00000001"}
    PUT compute/instances/inst-00000001/invalidate
    GET customConfigs?filter=name == "none"
    "#);
}
