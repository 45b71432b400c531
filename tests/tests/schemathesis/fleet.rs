//! Something of everything, so that the answers that are held against the document are not all empty.

use std::time::Duration;

use evenkeel_simulator::line;
use evenkeel_tests::history::{Desk, Replicas, machine_time};
use reqwest::Method;
use serde_json::{Value, json};

use crate::machine::{Machine, serial, uuid};

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKWgaT7WKT07Pm5NEz0UAXEHyTLR9J6ABq8E6K/IaAwI alice@desk";

/// A registry that is away: a sync can be asked for, and is told to have failed. Without any, nobody may ask, and who is
/// not let in is all that is heard of that operation.
pub const REGISTRY: &str = "[os_resource_manager]\nat_start = false\n\
    [os_resource_manager.default]\nregistry = \"release\"\nrevision = \"1.0.0\"\n\
    [os_resource_manager.registries.release]\naddress = \"oci:/nonexistent/registry\"\ntrust = \"off\"\n";

/// Where things are.
struct Places {
    region: String,
    site: String,
}

/// Makes something of everything that the API has, and lets a machine join and update.
pub async fn furnish(replicas: &Replicas, desk: &Desk) {
    let places = places(desk).await;
    let policy = policies(desk, &places).await;
    let host = machine(replicas, desk, &places).await;
    instance(desk, &places, &policy).await;
    plans(desk, &places, &host).await;
}

async fn put(desk: &Desk, path: &str, body: &Value) {
    let answer = desk.ask(0, Method::PUT, path, Some(body)).await;
    answer.unwrap_or_else(|trouble| panic!("PUT {path} {body}: {trouble:?}"));
}

async fn places(desk: &Desk) -> Places {
    let labels = json!([{ "key": "country", "value": "de" }]);
    let outer = json!({ "name": "emea", "metadata": labels });
    let outer = desk.make("/regions", &outer).await;
    let region = json!({ "name": "germany", "parentId": outer, "metadata": labels });
    let region = desk.make("/regions", &region).await;
    let site =
        json!({ "name": "bonn", "regionId": region, "siteLat": 507_374_000, "metadata": labels });
    let site = desk.make("/sites", &site).await;
    Places { region, site }
}

/// Returns the policy of the region, which is one for packages.
async fn policies(desk: &Desk, places: &Places) -> String {
    let image = json!({
        "name": "edge 3.0", "osType": "OS_TYPE_IMMUTABLE", "profileName": "edge", "imageId": "3.0",
        "imageUrl": "files/edge.raw", "sha256": "a".repeat(64),
    });
    let image = desk.make("/compute/os", &image).await;
    let newest =
        json!({ "name": "newest", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image });
    desk.make("/os-update-policies", &newest).await;
    let tools = json!({ "name": "tools", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "curl" });
    let tools = desk.make("/os-update-policies", &tools).await;
    let assigned = json!({ "osUpdatePolicyId": tools, "maxConcurrent": 5, "stopAfterFailures": 2 });
    put(desk, &format!("/assignments/{}", places.region), &assigned).await;
    tools
}

/// A machine joins and updates in a window. Returns its host.
async fn machine(replicas: &Replicas, desk: &Desk, places: &Places) -> String {
    let announced = json!({
        "name": "edge-01", "uuid": uuid(1), "serialNumber": serial(1), "siteId": places.site, "autoOnboard": true,
    });
    let host = desk.make("/compute/hosts/register", &announced).await;
    let nothing = json!({});
    let token = desk.ask(0, Method::POST, "/join-tokens", Some(&nothing));
    let token = token.await.expect("a join token");
    let token = token["token"].as_str().expect("a token");
    let channel = line::server(&replicas.southbound()[0], &replicas.ca()).expect("a line");
    let mut machine = Machine::join(channel, 1, token).await;
    machine.poll(false).await;
    open_window(desk, &places.site).await;
    let target = machine.window().await;
    machine.update(&target).await;
    host
}

/// A window that is open for a day. A schedule begins in the future, and a busy machine may be too late for the next second.
async fn open_window(desk: &Desk, site: &str) {
    for ahead in [2, 4, 8] {
        let start = machine_time().timestamp() + ahead;
        let window = json!({
            "name": "open", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": start,
            "endSeconds": start + 86_400, "targetSiteId": site,
        });
        let path = "/schedules/single";
        if desk.ask(0, Method::POST, path, Some(&window)).await.is_ok() {
            while machine_time().timestamp() < start {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            return;
        }
    }
    panic!("no window can be opened");
}

/// An instance that nothing runs on yet, with all that one can have.
async fn instance(desk: &Desk, places: &Places, policy: &str) {
    let provider =
        json!({ "providerKind": "PROVIDER_KIND_BAREMETAL", "name": "racks", "apiEndpoint": "" });
    desk.make("/providers", &provider).await;
    let config = json!({ "name": "setup", "config": "#cloud-config\npackages: [jq]\n" });
    let config = desk.make("/customConfigs", &config).await;
    let account = json!({ "username": "alice", "sshKey": KEY });
    let account = desk.make("/localAccounts", &account).await;
    let os = json!({
        "name": "Ubuntu 24.04", "osType": "OS_TYPE_MUTABLE", "profileName": "ubuntu-24.04", "sha256": "0".repeat(64),
    });
    let os = desk.make("/compute/os", &os).await;
    let host = json!({
        "name": "edge-02", "uuid": uuid(2), "siteId": places.site, "metadata": [{ "key": "rack", "value": "7" }],
    });
    let host = desk.make("/compute/hosts", &host).await;
    let instance = json!({
        "name": "edge-02", "hostID": host, "osID": os, "localAccountID": account, "customConfigID": [config],
        "osUpdatePolicyID": policy, "kind": "INSTANCE_KIND_METAL",
    });
    desk.make("/compute/instances", &instance).await;
}

async fn plans(desk: &Desk, places: &Places, host: &str) {
    let once = json!({
        "name": "once", "scheduleStatus": "SCHEDULE_STATUS_SHIPPING", "targetHostId": host,
        "startSeconds": machine_time().timestamp() + 86_400,
    });
    desk.make("/schedules/single", &once).await;
    let sundays = json!({
        "name": "sundays", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "durationSeconds": 7_200, "cronMinutes": "0",
        "cronHours": "2", "cronDayMonth": "*", "cronMonth": "*", "cronDayWeek": "0", "targetRegionId": places.region,
    });
    desk.make("/schedules/repeated", &sundays).await;
    let why = json!({ "reason": "the roof leaks" });
    put(desk, &format!("/pauses/{}", places.site), &why).await;
    let host = desk.get(&format!("/compute/hosts/{host}")).await;
    let instance = host["instance"]["resourceId"]
        .as_str()
        .expect("an instance");
    let order = json!({ "kind": "cancel", "reason": "not today" });
    put(
        desk,
        &format!("/compute/instances/{instance}/order"),
        &order,
    )
    .await;
}
