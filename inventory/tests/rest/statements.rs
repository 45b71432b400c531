//! Statements a request: however much a project holds, what is read of it takes the same number of them.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use evenkeel_domain::hardware::{Address, Hardware, Nic};
use evenkeel_inventory::{Inventory, router};
use evenkeel_kit::Clock;
use evenkeel_store::hardware;
use evenkeel_store::testing::counting;
use serde_json::{Value, json};

use crate::house::{House, KEY, NAMED, Who, id_of, nightly, os_body, with_registries};
use crate::statuses::operations;

/// Ids, by the part of a path that they stand behind.
type Ids = Vec<(&'static str, String)>;

/// What is asked beside every path of the document: what leads to more than a plain list does.
const MORE: [&str; 10] = [
    "regions?showTotalSites=true",
    "sites?filter=region.name%3D%22region%22&orderBy=name",
    "compute/hosts?filter=site.region.name%3D%22region%22&orderBy=name%20desc&pageSize=100",
    "compute/hosts?filter=hostNics.ipaddresses.address%3D%2210.0.0.1%22&pageSize=100",
    "compute/hosts/summary?filter=has(instance)",
    "compute/instances?filter=host.site.name%3D%22site%22&offset=1",
    "os-update-runs?orderBy=startTime%20desc&pageSize=100",
    "compute/schedules?hostId={host}",
    "compute/schedules?siteId={site}&pageSize=100",
    "schedules/repeated?unixEpoch=1772413200",
];

/// How often the database is asked at most for what is asked most often.
const FEW: [(&str, u64); 6] = [
    ("/compute/hosts/{resourceId}", 3),
    ("/compute/instances/{resourceId}", 4),
    ("/os-update-runs/{resourceId}", 4),
    ("/compute/hosts?pageSize=100", 6),
    ("/compute/instances?pageSize=100", 6),
    ("/os-update-runs?pageSize=100", 6),
];

async fn made(house: &House, list: &str, body: Value) -> String {
    id_of(&house.ok(&format!("POST {list}"), Some(body)).await)
}

/// One place more, in the one before unless that would be too deep; and what stands there.
async fn place(house: &House, n: usize, outer: &str) -> [String; 2] {
    let outer = if n.is_multiple_of(5) { "" } else { outer };
    let labels = json!([{"key": format!("level-{n}"), "value": "a"}]);
    let region = json!({"name": format!("region {n}"), "parentId": outer, "metadata": labels});
    let region = made(house, "regions", region).await;
    let site = json!({"name": format!("site {n}"), "regionId": region});
    let site = made(house, "sites", site).await;
    [region, site]
}

/// One machine more, which has said what it is made of.
async fn machine(house: &House, n: usize, site: &str) -> String {
    let uuid = format!("00000000-0000-4000-8000-{n:012}");
    let host = json!({"name": format!("edge {n}"), "uuid": uuid, "siteId": site});
    let host = made(house, "compute/hosts/register", host).await;
    let address = Address {
        address: "10.0.0.1/24".to_owned(),
        ..Address::default()
    };
    let nic = Nic {
        device_name: "eth0".to_owned(),
        ipaddresses: vec![address],
        ..Nic::default()
    };
    let said = Hardware {
        nics: vec![nic.clone(), nic],
        ..Hardware::default()
    };
    let tx = house.store.tenant(house.ours).await.expect("a transaction");
    let id = host.parse().expect("an id");
    hardware::keep(&tx, id, said, &[1; 32], house.clock.now())
        .await
        .expect("kept");
    tx.commit().await.expect("committed");
    host
}

/// One more of what an instance is made with.
async fn ingredients(house: &House, n: usize) -> [String; 5] {
    let provider = json!({
        "providerKind": "PROVIDER_KIND_BAREMETAL", "name": format!("provider {n}"), "apiEndpoint": "x",
    });
    let provider = made(house, "providers", provider).await;
    let mut os = os_body(&format!("Edge {n}"));
    os["osType"] = json!("OS_TYPE_IMMUTABLE");
    let os = made(house, "compute/os", os).await;
    let policy = json!({"name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": os});
    let policy = made(house, "os-update-policies", policy).await;
    let config = json!({"name": format!("config-{n}"), "config": "#cloud-config"});
    let config = made(house, "customConfigs", config).await;
    let account = json!({"username": format!("user-{n}"), "sshKey": KEY});
    let account = made(house, "localAccounts", account).await;
    [provider, os, policy, config, account]
}

/// Two schedules more: one for the host, the other for the place.
async fn schedules(house: &House, n: usize, host: &str, place: [&str; 2]) -> [String; 2] {
    let single = json!({
        "name": format!("night {n}"), "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "targetHostId": host,
        "startSeconds": house.seconds(3_600), "endSeconds": house.seconds(7_200),
    });
    let single = made(house, "schedules/single", single).await;
    let [region, site] = place;
    // Both are among the first three, and the third and the sixtieth are of a kind.
    let repeated = if n % 3 == 1 {
        let mut of_region = nightly("");
        of_region["targetRegionId"] = json!(region);
        of_region
    } else {
        nightly(site)
    };
    let repeated = made(house, "schedules/repeated", repeated).await;
    [single, repeated]
}

/// One thing of each kind more. Each leans on the others that are made with it.
async fn one_more(house: &House, n: usize, outer: &str) -> Ids {
    let [region, site] = place(house, n, outer).await;
    let host = machine(house, n, &site).await;
    let [provider, os, policy, config, account] = ingredients(house, n).await;
    let instance = json!({
        "hostID": host, "osID": os, "osUpdatePolicyID": policy, "localAccountID": account,
        "customConfigID": [config],
    });
    let instance = made(house, "compute/instances", instance).await;
    let [single, repeated] = schedules(house, n, &host, [&region, &site]).await;
    let token = json!({"name": format!("rack {n}")});
    let token = made(house, "join-tokens", token).await;
    let run = house.run_of(&instance, &policy).await.to_string();
    let assignment = json!({"osUpdatePolicyId": policy, "maxConcurrent": 2});
    for (what, body) in [
        (format!("PUT assignments/{site}"), assignment),
        (format!("PUT pauses/{site}"), json!({"reason": "moving"})),
        (
            format!("PUT compute/instances/{instance}/order"),
            json!({"kind": "now"}),
        ),
    ] {
        house.ok(&what, Some(body)).await;
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
    ]
}

/// Everything that is read of the API, as the document names it.
fn requests() -> Vec<String> {
    let mut requests = Vec::new();
    for (method, path, operation) in operations() {
        if method != "GET" {
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
    let more = MORE.map(|more| format!("/v1/projects/{{projectName}}/{more}"));
    requests.extend(more);
    requests
}

/// A request with the ids that it needs.
fn filled(request: &str, ids: &[(&str, String)]) -> String {
    let id = |part: &str| {
        let found = ids.iter().find(|(behind, _)| part.contains(behind));
        found.map_or("", |(_, id)| id.as_str())
    };
    let filled = request
        .replace("{projectName}", "ours")
        .replace("{host}", id("/compute/hosts/"))
        .replace("{site}", id("/sites/"));
    NAMED
        .iter()
        .fold(filled, |path, named| path.replace(named, id(request)))
}

/// How many statements each request takes where there are so many things of each kind.
async fn costs(things: usize) -> Vec<(String, u64)> {
    let mut house = House::new().await;
    let (mut ids, mut outer) = (Ids::new(), String::new());
    for n in 0..things {
        ids = one_more(&house, n, &outer).await;
        let region = ids.iter().find(|(behind, _)| *behind == "/regions/");
        outer = region.map(|(_, id)| id.clone()).unwrap_or_default();
    }
    let (store, sent) = counting(&house.store);
    house.router = router(Inventory {
        store,
        clock: Arc::new(house.clock.clone()),
        authority: Arc::clone(&house.authority),
        ca_digest: None,
        settings: with_registries(),
    });
    let mut costs = Vec::new();
    for request in requests() {
        let what = format!("GET {}", filled(&request, &ids));
        let before = sent.statements.load(Ordering::Relaxed);
        let (status, answer) = house.ask(Who::Writer, &what, None).await;
        let cost = sent.statements.load(Ordering::Relaxed) - before;
        assert_eq!(status, StatusCode::OK, "{what}: {answer}");
        // Else the number would say nothing.
        let is_empty = ["/workload", "/telemetry/"].map(|other| request.contains(other));
        if request.ends_with("?pageSize=100") && !is_empty.contains(&true) {
            let total = answer["totalElements"].as_u64().unwrap_or_default();
            let all = usize::try_from(total).is_ok_and(|total| total >= things);
            assert!(all, "{what}: {total}");
        }
        costs.push((request, cost));
    }
    costs
}

#[tokio::test]
async fn what_is_read_takes_as_many_statements_from_sixty_things_as_from_three() {
    let few = costs(3).await;
    let many = costs(60).await;
    let pairs = few.iter().zip(&many);
    // Whole lists of runs and of operating systems come in pieces of 20 and of 10; their pages are compared.
    let in_pieces = ["/os-update-runs", "/compute/os"];
    let is_in_pieces = |path: &str| in_pieces.iter().any(|list| path.ends_with(list));
    let grown: Vec<String> = pairs
        .filter(|(few, many)| few != many && !is_in_pieces(&few.0))
        .map(|(few, many)| format!("{}: {} from 3, {} from 60", few.0, few.1, many.1))
        .collect();
    assert!(grown.is_empty(), "{}", grown.join("\n"));
    assert!(few.len() > 60, "only {} requests were tried", few.len());
    for (path, most) in FEW {
        let cost = few.iter().find(|(request, _)| request.ends_with(path));
        // The begin of the transaction is not counted; nobody waits for its end.
        let trips = cost.map(|(_, cost)| cost + 1);
        assert!(
            trips.is_some_and(|trips| trips <= most),
            "{path}: {trips:?}"
        );
    }
    let mut table = String::new();
    for (request, cost) in few {
        writeln!(table, "{cost:>3} {request}").expect("a string");
    }
    insta::assert_snapshot!(table.trim_end());
}
