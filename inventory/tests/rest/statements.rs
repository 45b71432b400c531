//! SQL statements per request. A read takes the same number however many resources a project has.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use evenkeel_domain::hardware::{Address, Hardware, Nic};
use evenkeel_kit::Clock;
use evenkeel_store::hardware;
use evenkeel_store::testing::counting_store;
use serde_json::{Value, json};

use crate::statuses::operations;
use crate::test_server::{
    Caller, ID_PLACEHOLDERS, SSH_KEY, TestServer, nightly, notification_target, os_body,
    resource_id, with_registries,
};

/// Ids by the part of a path that precedes them.
type Ids = Vec<(&'static str, String)>;

/// Requests in addition to every path of the document. They follow more relations than plain lists.
pub const EXTRA_REQUESTS: [&str; 12] = [
    "regions?showTotalSites=true",
    "sites?filter=region.name%3D%22region%22&orderBy=name",
    "compute/hosts?filter=site.region.name%3D%22region%22&orderBy=name%20desc&pageSize=100",
    "compute/hosts?filter=hostNics.ipaddresses.address%3D%2210.0.0.1%22&pageSize=100",
    "compute/hosts/summary?filter=has(instance)",
    "compute/hosts?showEffectivePolicy=true&pageSize=100",
    "compute/instances?showEffectivePolicy=true&pageSize=100",
    "compute/instances?filter=host.site.name%3D%22site%22&offset=1",
    "os-update-runs?orderBy=startTime%20desc&pageSize=100",
    "compute/schedules?hostId={host}",
    "compute/schedules?siteId={site}&pageSize=100",
    "schedules/repeated?unixEpoch=1772413200",
];

/// Most round trips to the database that the most frequent requests may take.
const MAX_ROUND_TRIPS: [(&str, u64); 6] = [
    ("/compute/hosts/{resourceId}", 3),
    ("/compute/instances/{resourceId}", 4),
    ("/os-update-runs/{resourceId}", 4),
    ("/compute/hosts?pageSize=100", 6),
    ("/compute/instances?pageSize=100", 6),
    ("/os-update-runs?pageSize=100", 6),
];

async fn create(server: &TestServer, list: &str, body: Value) -> String {
    resource_id(&server.post(list, body).await)
}

/// Creates a region, below the previous one unless that would be too deep, and a site in it.
async fn create_location(server: &TestServer, n: usize, outer: &str) -> [String; 2] {
    let outer = if n.is_multiple_of(5) { "" } else { outer };
    let labels = json!([{"key": format!("level-{n}"), "value": "a"}]);
    let region = json!({"name": format!("region {n}"), "parentId": outer, "metadata": labels});
    let region = create(server, "regions", region).await;
    let site = json!({"name": format!("site {n}"), "regionId": region});
    let site = create(server, "sites", site).await;
    [region, site]
}

/// Creates a host with known hardware.
async fn create_host(server: &TestServer, n: usize, site: &str) -> String {
    let uuid = format!("00000000-0000-4000-8000-{n:012}");
    let host = json!({"name": format!("edge {n}"), "uuid": uuid, "siteId": site});
    let host = create(server, "compute/hosts/register", host).await;
    let address = Address { address: "10.0.0.1/24".to_owned(), ..Address::default() };
    let nic = Nic { device_name: "eth0".to_owned(), ipaddresses: vec![address], ..Nic::default() };
    let hardware = Hardware { nics: vec![nic.clone(), nic], ..Hardware::default() };
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    let id = host.parse().expect("an id");
    hardware::store_if_changed(&tx, id, hardware, &[1; 32], server.clock.now())
        .await
        .expect("stored");
    tx.commit().await.expect("committed");
    host
}

/// Creates one of each resource that an instance refers to.
async fn create_instance_parts(server: &TestServer, n: usize) -> [String; 5] {
    let provider = json!({
        "providerKind": "PROVIDER_KIND_BAREMETAL", "name": format!("provider {n}"), "apiEndpoint": "x",
    });
    let provider = create(server, "providers", provider).await;
    let mut os = os_body(&format!("Edge {n}"));
    os["osType"] = json!("OS_TYPE_IMMUTABLE");
    let os = create(server, "compute/os", os).await;
    let policy = json!({"name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": os});
    let policy = create(server, "os-update-policies", policy).await;
    let config = json!({"name": format!("config-{n}"), "config": "#cloud-config"});
    let config = create(server, "customConfigs", config).await;
    let account = json!({"username": format!("user-{n}"), "sshKey": SSH_KEY});
    let account = create(server, "localAccounts", account).await;
    [provider, os, policy, config, account]
}

/// Creates two schedules: one for the host, one for the site or the region.
async fn create_schedules(
    server: &TestServer,
    n: usize,
    host: &str,
    location: [&str; 2],
) -> [String; 2] {
    let single = json!({
        "name": format!("night {n}"), "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "targetHostId": host,
        "startSeconds": server.seconds(3_600), "endSeconds": server.seconds(7_200),
    });
    let single = create(server, "schedules/single", single).await;
    let [region, site] = location;
    // Both kinds are among the first three, and the third and the sixtieth are of one kind.
    let repeated = if n % 3 == 1 {
        let mut of_region = nightly("");
        of_region["targetRegionId"] = json!(region);
        of_region
    } else {
        nightly(site)
    };
    let repeated = create(server, "schedules/repeated", repeated).await;
    [single, repeated]
}

/// Creates one resource of each kind; they refer to each other.
async fn create_one_of_each(server: &TestServer, n: usize, outer: &str) -> Ids {
    let [region, site] = create_location(server, n, outer).await;
    let host = create_host(server, n, &site).await;
    let [provider, os, policy, config, account] = create_instance_parts(server, n).await;
    let instance = json!({
        "hostID": host, "osID": os, "osUpdatePolicyID": policy, "localAccountID": account,
        "customConfigID": [config],
    });
    let instance = create(server, "compute/instances", instance).await;
    let [single, repeated] = create_schedules(server, n, &host, [&region, &site]).await;
    let token = json!({"name": format!("rack {n}")});
    let token = create(server, "join-tokens", token).await;
    let target = notification_target(&format!("chat {n}"));
    let target = create(server, "notification-targets", target).await;
    let run = server.create_run(&instance, &policy).await.to_string();
    let assignment = json!({"osUpdatePolicyId": policy, "maxConcurrent": 2});
    for (what, body) in [
        (format!("PUT assignments/{site}"), assignment),
        (format!("PUT pauses/{site}"), json!({"reason": "moving"})),
        (format!("PUT compute/instances/{instance}/order"), json!({"kind": "now"})),
    ] {
        server.expect_ok(&what, Some(body)).await;
    }
    vec![
        ("/compute/hosts/", host),
        ("/compute/instances/", instance),
        ("/compute/os/", os),
        ("/os-update-policies/", policy),
        ("/os-update-runs/", run),
        ("/schedules/single/", single),
        ("/schedules/repeated/", repeated),
        ("/regions/", region),
        ("/sites/", site.clone()),
        ("/assignments/", site.clone()),
        ("/pauses/", site),
        ("/join-tokens/", token),
        ("/providers/", provider),
        ("/customConfigs/", config),
        ("/localAccounts/", account),
        ("/notification-targets/", target),
        ("/changes/", server.newest_change().await),
    ]
}

/// Every read request of the document.
fn read_requests() -> Vec<String> {
    let mut requests = Vec::new();
    for (method, path, operation) in operations() {
        // Tokens of operators, users, and their changes are not resources of a project.
        let is_global = ["/v1/operator-tokens", "/v1/users", "/v1/changes"]
            .iter()
            .any(|one| path.starts_with(one));
        if method != "GET" || is_global {
            continue;
        }
        let parameters = operation["parameters"].as_array();
        let has = |name: &str| parameters.is_some_and(|all| all.iter().any(|p| p["name"] == name));
        if has("pageSize") {
            requests.push(format!("{path}?pageSize=100"));
        }
        let needed = if path.ends_with("/locations") {
            "?name=e&showSites=true&showRegions=true"
        } else {
            ""
        };
        requests.push(format!("{path}{needed}"));
    }
    let more = EXTRA_REQUESTS.map(|more| format!("/v1/projects/{{projectName}}/{more}"));
    requests.extend(more);
    requests
}

fn fill_ids(request: &str, ids: &[(&str, String)]) -> String {
    let id = |part: &str| {
        let entry = ids.iter().find(|(behind, _)| part.contains(behind));
        entry.map_or("", |(_, id)| id.as_str())
    };
    let filled = request
        .replace("{projectName}", "ours")
        .replace("{host}", id("/compute/hosts/"))
        .replace("{site}", id("/sites/"))
        .replace("{changeId}", id("/changes/"));
    ID_PLACEHOLDERS.iter().fold(filled, |path, placeholder| path.replace(placeholder, id(request)))
}

/// Statements that each request takes in a project with this many resources of each kind.
async fn count_statements(resources: usize) -> Vec<(String, u64)> {
    let mut server = TestServer::new().await;
    let (mut ids, mut outer) = (Ids::new(), String::new());
    for n in 0..resources {
        ids = create_one_of_each(&server, n, &outer).await;
        let region = ids.iter().find(|(behind, _)| *behind == "/regions/");
        outer = region.map(|(_, id)| id.clone()).unwrap_or_default();
    }
    let (store, sent) = counting_store(&server.store);
    server.use_store(store, with_registries());
    let mut costs = Vec::new();
    for request in read_requests() {
        let what = format!("GET {}", fill_ids(&request, &ids));
        let before = sent.statements.load(Ordering::Relaxed);
        let (status, answer) = server.client_of(Caller::Writer).request(&what, None).await;
        let cost = sent.statements.load(Ordering::Relaxed) - before;
        assert_eq!(status, StatusCode::OK, "{what}: {answer}");
        // The other lists are empty, or have no total (that of changes). An empty list would prove nothing.
        let without_total = ["/workload", "/telemetry/", "/notifications?", "/changes"];
        let has_total = !without_total.iter().any(|list| request.contains(list));
        if request.ends_with("?pageSize=100") && has_total {
            let total = answer["totalElements"].as_u64().unwrap_or_default();
            let all = usize::try_from(total).is_ok_and(|total| total >= resources);
            assert!(all, "{what}: {total}");
        }
        costs.push((request, cost));
    }
    costs
}

#[tokio::test]
async fn reading_takes_as_many_statements_with_sixty_resources_as_with_three() {
    let few = count_statements(3).await;
    let many = count_statements(60).await;
    let pairs = few.iter().zip(&many);
    // Complete lists of runs and of operating systems are read in chunks of 20 and of 10, so only
    // their pages are compared.
    let in_pieces = ["/os-update-runs", "/compute/os"];
    let is_in_pieces = |path: &str| in_pieces.iter().any(|list| path.ends_with(list));
    let grown: Vec<String> = pairs
        .filter(|(few, many)| few != many && !is_in_pieces(&few.0))
        .map(|(few, many)| format!("{}: {} from 3, {} from 60", few.0, few.1, many.1))
        .collect();
    assert!(grown.is_empty(), "{}", grown.join("\n"));
    assert!(few.len() > 60, "only {} requests were counted", few.len());
    for (path, max) in MAX_ROUND_TRIPS {
        let cost = few.iter().find(|(request, _)| request.ends_with(path));
        // BEGIN is not counted, and the response does not wait for the end of the transaction.
        let trips = cost.map(|(_, cost)| cost + 1);
        assert!(trips.is_some_and(|trips| trips <= max), "{path}: {trips:?}");
    }
    let mut table = String::new();
    for (request, cost) in few {
        writeln!(table, "{cost:>3} {request}").expect("a string");
    }
    insta::assert_snapshot!(table.trim_end());
}
