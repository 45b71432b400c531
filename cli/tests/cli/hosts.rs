//! What people say of hosts and what runs on them, and what these are made of.

use serde_json::{Value, json};

use crate::Desk;

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

async fn desk() -> Desk {
    let desk = Desk::new().await;
    desk.double
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001", instance());
    desk
}

#[tokio::test]
async fn a_host_is_shown_with_what_it_is_made_of() {
    let desk = Desk::new().await;
    let mut whole = host();
    for (name, value) in [
        ("productName", json!("PowerEdge R650")),
        ("cpuModel", json!("Xeon Gold 6338")),
        ("cpuArchitecture", json!("x86_64")),
        ("cpuCores", json!(32)),
        ("memoryBytes", json!("274877906944")),
        ("biosVendor", json!("Dell Inc.")),
        ("biosVersion", json!("1.6.5")),
        (
            "provider",
            json!({"resourceId": "provider-00000001", "name": "racks"}),
        ),
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
        whole[name] = value;
    }
    desk.double.answer("GET compute/hosts/host-00000001", whole);
    insta::assert_snapshot!(desk.run("evenkeel host get host-00000001").await, @r"
    id         host-00000001
    name       edge-01
    hostname   -
    site       -
    state      onboarded
    wanted     unspecified
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
    product    PowerEdge R650
    processor  Xeon Gold 6338, x86_64, 32 cores
    memory     256.0 GiB
    firmware   Dell Inc. 1.6.5
    created    -

    Labels:
    KEY      VALUE  FROM
    rack     7      itself
    tier     gold   itself
    country  de     above

    Network:
    DEVICE  ADDRESS            LINK  IP
    eth0    aa:bb:cc:dd:ee:ff  up    192.0.2.7/24, 2001:db8::7/64

    Disks:
    DEVICE  SIZE       MODEL  SERIAL
    sda     447.1 GiB  PM893  S1
    ");
}

#[tokio::test]
async fn a_host_is_made_with_labels() {
    let desk = Desk::new().await;
    desk.double.answer("POST compute/hosts", host());
    desk.run("evenkeel host create edge-01 --site site-00000001 --label rack=7 --label tier=gold")
        .await;
    insta::assert_snapshot!(desk.double.asked(), @r#"POST compute/hosts {"name":"edge-01","siteId":"site-00000001","metadata":[{"key":"rack","value":"7"},{"key":"tier","value":"gold"}]}"#);
}

#[tokio::test]
async fn labels_that_are_not_named_stay() {
    let desk = desk().await;
    desk.double
        .answer("PATCH compute/hosts/host-00000001", host());
    desk.run("evenkeel host set host-00000001 --label tier=silver --no-label rack")
        .await;
    insta::assert_snapshot!(desk.double.asked(), @r#"
    GET compute/hosts/host-00000001
    PATCH compute/hosts/host-00000001 {"metadata":[{"key":"tier","value":"silver"}]}
    "#);
}

#[tokio::test]
async fn a_machine_is_announced_onboarded_and_trusted_no_more() {
    let desk = Desk::new().await;
    desk.double
        .answer("POST compute/hosts/register", host())
        .answer("PATCH compute/hosts/host-00000001/onboard", json!({}))
        .answer("PUT compute/hosts/host-00000001/invalidate", json!({}))
        .answer(
            "PUT compute/hosts/host-00000001/invalidate?note=stolen & sold",
            json!({}),
        );
    desk.run("evenkeel host register edge-01 --serial ABC12345 --no-onboard --user-lvm-size 20 -q")
        .await;
    let mut told = String::new();
    for line in [
        "evenkeel host onboard host-00000001",
        "evenkeel host invalidate host-00000001",
        "evenkeel host invalidate host-00000001 --note \"stolen & sold\"",
    ] {
        told.push_str(&desk.run(line).await);
    }
    insta::assert_snapshot!(told, @r"
    host host-00000001 may be onboarded
    host host-00000001 invalidated
    host host-00000001 invalidated
    ");
    insta::assert_snapshot!(desk.double.asked(), @r#"
    POST compute/hosts/register {"name":"edge-01","serialNumber":"ABC12345","uuid":"","siteId":"","autoOnboard":false,"enableVpro":false,"userLvmSize":20}
    PATCH compute/hosts/host-00000001/onboard {}
    PUT compute/hosts/host-00000001/invalidate
    PUT compute/hosts/host-00000001/invalidate?note=stolen & sold
    "#);
    let told = desk.fail("evenkeel host onboard host-00000009").await;
    assert!(
        told.starts_with("there is no host `host-00000009`\n"),
        "{told}"
    );
}

#[tokio::test]
async fn a_program_reads_one_document_of_a_host_that_goes_with_its_instance() {
    let desk = desk().await;
    desk.double
        .answer("DELETE compute/instances/inst-00000001", json!({}))
        .answer("DELETE compute/hosts/host-00000001", json!({}));
    let line = "evenkeel host delete host-00000001 --with-instance";
    let json = desk.run(&format!("{line} -o json")).await;
    let json: Value = serde_json::from_str(&json).expect("one document");
    assert_eq!(
        json,
        json!({"resourceId": "host-00000001", "result": "deleted"})
    );
    let yaml = desk.run(&format!("{line} -o yaml")).await;
    assert_eq!(yaml.matches("resourceId").count(), 1, "{yaml}");
    assert_eq!(
        desk.run(&format!("{line} -q")).await,
        "inst-00000001\nhost-00000001\n"
    );
}

#[tokio::test]
async fn the_packages_of_a_host_are_listed() {
    let desk = desk().await;
    insta::assert_snapshot!(desk.run("evenkeel host packages host-00000001").await, @r"
    PACKAGE  VERSION  ARCHITECTURE
    apt      2.6.1    amd64
    libc6    2.36-9   amd64
    ");
    assert_eq!(
        desk.run("evenkeel host packages host-00000001 --name libc -q")
            .await,
        "libc6\n"
    );
    let silent = Desk::new().await;
    silent
        .double
        .answer("GET compute/hosts/host-00000001", host())
        .answer(
            "GET compute/instances/inst-00000001",
            json!({"resourceId": "inst-00000001"}),
        );
    assert_eq!(
        silent.run("evenkeel host packages host-00000001").await,
        "the host has not told its packages\n"
    );
    let none = silent
        .run("evenkeel host packages host-00000001 -o json")
        .await;
    assert_eq!(none, "[]\n");
}

#[tokio::test]
async fn the_updates_of_a_host_are_listed() {
    let desk = desk().await;
    desk.double.answer(
        "GET compute/instances/inst-00000001/decision",
        json!({"availableUpdates": [
            {"name": "curl", "architecture": "amd64", "installed": "8.4", "available": "8.5"},
            {"name": "linux-image-amd64", "architecture": "amd64", "installed": "6.1.1", "available": "6.1.2",
             "leftOut": true},
        ]}),
    );
    insta::assert_snapshot!(desk.run("evenkeel host updates host-00000001").await, @r"
    PACKAGE            ARCHITECTURE  INSTALLED  AVAILABLE  POLICY
    curl               amd64         8.4        8.5        -
    linux-image-amd64  amd64         6.1.1      6.1.2      leaves it out
    ");
}

#[tokio::test]
async fn the_update_of_an_image_is_a_name() {
    let desk = Desk::new().await;
    let mut image = instance();
    image["osUpdateAvailable"] = json!("edge 3.0.2");
    desk.double
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001", image)
        .answer(
            "GET compute/instances/inst-00000001/decision",
            json!({"availableUpdates": []}),
        );
    let line = "evenkeel host updates host-00000001";
    assert_eq!(desk.run(line).await, "the image edge 3.0.2\n");
    assert_eq!(desk.run(&format!("{line} -q")).await, "edge 3.0.2\n");
    let json = desk.run(&format!("{line} -o json")).await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json, json!([{"image": "edge 3.0.2"}]));
}

#[tokio::test]
async fn hosts_are_counted() {
    let desk = Desk::new().await;
    desk.double
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
    insta::assert_snapshot!(desk.run("evenkeel host summary").await, @r"
    hosts          20
    running        15
    with an error  2
    at no site     3
    ");
    assert_eq!(desk.run("evenkeel host summary -q").await, "20\n");
    let told = desk
        .fail("evenkeel host summary --filter \"nam = x\"")
        .await;
    assert!(
        told.starts_with("--filter: there is no field `nam` of hosts\nnam = x\n^\n"),
        "{told}"
    );
}

#[tokio::test]
async fn an_instance_is_made_changed_and_trusted_no_more() {
    let desk = Desk::new().await;
    let none = |key: &str| json!({key: [], "totalElements": 0, "hasNext": false});
    let one = |key: &str, item: Value| json!({key: [item], "totalElements": 1, "hasNext": false});
    desk.double
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
    desk.run(
        "evenkeel instance create --host host-00000001 --os os-00000001 --account alice \
         --custom-config customconfig-00000001",
    )
    .await;
    desk.run("evenkeel instance set inst-00000001 --name one --os os-00000002 --no-policy")
        .await;
    desk.run("evenkeel instance set inst-00000001 --policy osupdatepolicy-00000001")
        .await;
    assert_eq!(
        desk.run("evenkeel instance invalidate inst-00000001").await,
        "instance inst-00000001 invalidated\n"
    );
    let told = desk
        .fail("evenkeel instance create --host host-00000001 --os os-00000001 --custom-config none")
        .await;
    assert!(
        told.starts_with("there is no custom configuration `none`\n"),
        "{told}"
    );
    insta::assert_snapshot!(desk.double.asked(), @r#"
    GET localAccounts?filter=username == "alice"
    POST compute/instances {"kind":"INSTANCE_KIND_METAL","name":"","hostID":"host-00000001","osID":"os-00000001","localAccountID":"localaccount-00000001","customConfigID":["customconfig-00000001"],"securityFeature":"SECURITY_FEATURE_NONE"}
    PATCH compute/instances/inst-00000001 {"name":"one","osID":"os-00000002","osUpdatePolicyID":""}
    PATCH compute/instances/inst-00000001 {"osUpdatePolicyID":"osupdatepolicy-00000001"}
    PUT compute/instances/inst-00000001/invalidate
    GET customConfigs?filter=name == "none"
    "#);
}

#[tokio::test]
async fn what_can_be_changed_of_an_operating_system_is_changed() {
    let desk = Desk::new().await;
    desk.double.answer(
        "PATCH compute/os/os-00000001",
        json!({"resourceId": "os-00000001", "architecture": "arm64", "metadata": "{\"channel\":\"stable\"}"}),
    );
    let text = desk
        .run("evenkeel os set os-00000001 --architecture arm64 --metadata {}")
        .await;
    assert!(text.contains("architecture   arm64\n"), "{text}");
    assert!(
        text.contains("metadata       {\"channel\":\"stable\"}\n"),
        "{text}"
    );
    assert_eq!(
        desk.double.asked(),
        r#"PATCH compute/os/os-00000001 {"architecture":"arm64","metadata":"{}"}"#
    );
}
