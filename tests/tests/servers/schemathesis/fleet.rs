//! Creates resources of every kind, so that the checked responses are not all empty.

use std::time::Duration;

use evenkeel_tests::history::{OperatorClient, Replicas, machine_time};
use reqwest::Method;
use serde_json::{Value, json};

use super::super::machine::{Machine, serial, uuid};

const SSH_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKWgaT7WKT07Pm5NEz0UAXEHyTLR9J6ABq8E6K/IaAwI alice@desk";

/// Settings with an unreachable registry: a sync can be requested, and fails. Without any registry, the
/// server would reject every request for a sync.
pub const REGISTRY_SETTINGS: &str = "[os_resource_manager]\nat_start = false\n\
    [os_resource_manager.default]\nregistry = \"release\"\nrevision = \"1.0.0\"\n\
    [os_resource_manager.registries.release]\naddress = \"oci:/nonexistent/registry\"\ntrust = \"off\"\n";

/// IDs of the locations.
struct Locations {
    region: String,
    site: String,
}

/// Creates a resource of every kind, and lets a machine join and update.
pub async fn seed(replicas: &Replicas, client: &OperatorClient) {
    let locations = create_locations(client).await;
    let policy = create_policies(client, &locations).await;
    let host = join_machine(replicas, client, &locations).await;
    create_instance(client, &locations, &policy).await;
    create_plans(client, &locations, &host).await;
}

async fn put_resource(client: &OperatorClient, path: &str, body: &Value) {
    let answer = client.send(0, Method::PUT, path, Some(body)).await;
    answer.unwrap_or_else(|error| panic!("PUT {path} {body}: {error:?}"));
}

async fn create_locations(client: &OperatorClient) -> Locations {
    let labels = json!([{ "key": "country", "value": "de" }]);
    let outer = json!({ "name": "emea", "metadata": labels });
    let outer = client.create("regions", &outer).await;
    let region = json!({ "name": "germany", "parentId": outer, "metadata": labels });
    let region = client.create("regions", &region).await;
    let site =
        json!({ "name": "bonn", "regionId": region, "siteLat": 507_374_000, "metadata": labels });
    let site = client.create("sites", &site).await;
    Locations { region, site }
}

/// Returns the policy of the region, which is a policy for packages.
async fn create_policies(client: &OperatorClient, locations: &Locations) -> String {
    let image = json!({
        "name": "edge 3.0", "osType": "OS_TYPE_IMMUTABLE", "profileName": "edge", "imageId": "3.0",
        "imageUrl": "files/edge.raw", "sha256": "a".repeat(64),
    });
    let image = client.create("compute/os", &image).await;
    let newest =
        json!({ "name": "newest", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image });
    client.create("os-update-policies", &newest).await;
    let tools = json!({ "name": "tools", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "curl" });
    let tools = client.create("os-update-policies", &tools).await;
    let assigned = json!({ "osUpdatePolicyId": tools, "maxConcurrent": 5, "stopAfterFailures": 2 });
    put_resource(client, &format!("assignments/{}", locations.region), &assigned).await;
    tools
}

/// A machine joins and updates in a window. Returns its host.
async fn join_machine(
    replicas: &Replicas,
    client: &OperatorClient,
    locations: &Locations,
) -> String {
    let announced = json!({
        "name": "edge-01", "uuid": uuid(1), "serialNumber": serial(1), "siteId": locations.site, "autoOnboard": true,
    });
    let host = client.create("compute/hosts/register", &announced).await;
    let nothing = json!({});
    let token = client.send(0, Method::POST, "join-tokens", Some(&nothing));
    let token = token.await.expect("a join token");
    let token = token["token"].as_str().expect("a token");
    let southbound = &replicas.southbound_addresses()[0];
    let mut machine = Machine::join(southbound, &replicas.ca_certificate(), 1, token).await;
    machine.poll(false).await;
    open_window(client, &locations.site).await;
    let target = machine.wait_for_window().await;
    machine.update(&target).await;
    host
}

/// Opens a window for a day. A schedule must start in the future, and a busy machine may be too late
/// for the next second.
async fn open_window(client: &OperatorClient, site: &str) {
    for ahead in [2, 4, 8] {
        let start = machine_time().timestamp() + ahead;
        let window = json!({
            "name": "open", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": start,
            "endSeconds": start + 86_400, "targetSiteId": site,
        });
        let path = "schedules/single";
        if client.send(0, Method::POST, path, Some(&window)).await.is_ok() {
            while machine_time().timestamp() < start {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            return;
        }
    }
    panic!("no window can be opened");
}

/// Creates an instance with all optional fields; no operating system runs on its host yet.
async fn create_instance(client: &OperatorClient, locations: &Locations, policy: &str) {
    let provider = json!({ "providerKind": "PROVIDER_KIND_BAREMETAL", "name": "racks", "apiEndpoint": "https://racks" });
    client.create("providers", &provider).await;
    let config = json!({ "name": "setup", "config": "#cloud-config\npackages: [jq]\n" });
    let config = client.create("customConfigs", &config).await;
    let account = json!({ "username": "alice", "sshKey": SSH_KEY });
    let account = client.create("localAccounts", &account).await;
    let os = json!({
        "name": "Ubuntu 24.04", "osType": "OS_TYPE_MUTABLE", "profileName": "ubuntu-24.04", "sha256": "0".repeat(64),
    });
    let os = client.create("compute/os", &os).await;
    let host = json!({
        "name": "edge-02", "uuid": uuid(2), "siteId": locations.site, "metadata": [{ "key": "rack", "value": "7" }],
    });
    let host = client.create("compute/hosts", &host).await;
    let instance = json!({
        "name": "edge-02", "hostID": host, "osID": os, "localAccountID": account, "customConfigID": [config],
        "osUpdatePolicyID": policy, "kind": "INSTANCE_KIND_METAL",
    });
    client.create("compute/instances", &instance).await;
}

async fn create_plans(client: &OperatorClient, locations: &Locations, host: &str) {
    let once = json!({
        "name": "once", "scheduleStatus": "SCHEDULE_STATUS_SHIPPING", "targetHostId": host,
        "startSeconds": machine_time().timestamp() + 86_400,
    });
    client.create("schedules/single", &once).await;
    let sundays = json!({
        "name": "sundays", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "durationSeconds": 7_200, "cronMinutes": "0",
        "cronHours": "2", "cronDayMonth": "*", "cronMonth": "*", "cronDayWeek": "0", "targetRegionId": locations.region,
    });
    client.create("schedules/repeated", &sundays).await;
    let why = json!({ "reason": "the roof leaks" });
    put_resource(client, &format!("pauses/{}", locations.site), &why).await;
    let host = client.get(&format!("compute/hosts/{host}")).await;
    let instance = host["instance"]["resourceId"].as_str().expect("an instance");
    let order = json!({ "kind": "cancel", "reason": "not today" });
    put_resource(client, &format!("compute/instances/{instance}/order"), &order).await;
}
