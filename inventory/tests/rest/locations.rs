//! Regions, sites, and the hosts at a site.

use evenkeel_test_support::redact;
use serde_json::{Value, json};

use crate::test_server::TestServer;

async fn create(server: &TestServer, list: &str, body: Value) -> String {
    let created = server.post(list, body).await;
    created["resourceId"].as_str().expect("an id").to_owned()
}

fn labels(pairs: &[(&str, &str)]) -> Value {
    let item = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
    pairs.iter().map(item).collect()
}

/// Regions nested in each other, outermost first.
async fn create_nested_regions(server: &TestServer, depth: usize) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    for n in 0..depth {
        let parent = ids.last().cloned().unwrap_or_default();
        let body = json!({"name": format!("r{n}"), "parentId": parent});
        ids.push(create(server, "regions", body).await);
    }
    ids
}

#[tokio::test]
async fn labels_are_inherited_and_the_nearest_wins() {
    let server = TestServer::new().await;
    let land = json!({"name": "land", "metadata": labels(&[("country", "de"), ("zone", "a")])});
    let land = create(&server, "regions", land).await;
    let city = labels(&[("zone", "b"), ("city", "ulm")]);
    let city = json!({"name": "city", "parentId": land, "metadata": city});
    let city = create(&server, "regions", city).await;
    let site =
        json!({"name": "hall", "regionId": city, "metadata": labels(&[("city", "neu-ulm")])});
    let site = create(&server, "sites", site).await;
    let host = json!({"serialNumber": "ABC12345", "siteId": site});
    let host = create(&server, "compute/hosts/register", host).await;

    insta::assert_json_snapshot!(redact(&json!([
        server.get(&format!("regions/{land}")).await,
        server.get(&format!("regions/{city}")).await,
        server.get(&format!("sites/{site}")).await,
    ])));
    let host = server.get(&format!("compute/hosts/{host}")).await;
    let inherited = labels(&[("city", "neu-ulm"), ("zone", "b"), ("country", "de")]);
    assert_eq!(host["inheritedMetadata"], inherited);
}

#[tokio::test]
async fn sites_are_counted_in_all_regions_above_them_on_request() {
    let server = TestServer::new().await;
    let ids = create_nested_regions(&server, 3).await;
    for region in [&ids[2], &ids[2], &ids[0]] {
        create(&server, "sites", json!({"regionId": region})).await;
    }
    let totals = |answer: &Value| {
        let regions = answer["regions"].as_array().expect("regions").iter();
        let total = |region: &Value| {
            let name = region["name"].as_str().expect("a name").to_owned();
            (name, region["totalSites"].as_i64().expect("a number"))
        };
        let mut totals: Vec<_> = regions.map(total).collect();
        totals.sort();
        totals.into_iter().map(|(_, total)| total).collect::<Vec<_>>()
    };
    let counted = server.get("regions?showTotalSites=true").await;
    assert_eq!(totals(&counted), [3, 2, 2]);
    assert_eq!(totals(&server.get("regions").await), [0, 0, 0]);
}

#[tokio::test]
async fn regions_nest_five_deep_and_never_in_a_cycle() {
    let server = TestServer::new().await;
    let ids = create_nested_regions(&server, 5).await;
    let single = create(&server, "regions", json!({"name": "single"})).await;
    let before = server.get("regions").await;
    let patch = |region: &str| format!("PATCH regions/{region}");
    for (what, parent) in [
        ("POST regions".to_owned(), &ids[4]),
        (patch(&ids[0]), &ids[4]),
        (patch(&ids[1]), &ids[1]),
        (patch(&ids[0]), &single),
    ] {
        let body = Some(json!({"parentId": parent}));
        server.expect_problem(&what, body, 400, json!({"field": "parentId"})).await;
    }
    assert_eq!(server.get("regions").await, before);
    let moved = server.expect_ok(&patch(&single), Some(json!({"parentId": ids[3]}))).await;
    assert_eq!(moved["parentRegion"]["name"], "r3");
}

#[tokio::test]
async fn a_location_with_children_cannot_be_deleted() {
    let server = TestServer::new().await;
    let ids = create_nested_regions(&server, 2).await;
    let site = create(&server, "sites", json!({"regionId": ids[1]})).await;
    let host = json!({"serialNumber": "ABC12345", "siteId": site});
    let host = create(&server, "compute/hosts/register", host).await;
    let steps = [
        format!("DELETE compute/hosts/{host}"),
        format!("DELETE sites/{site}"),
        format!("DELETE regions/{}", ids[1]),
        format!("DELETE regions/{}", ids[0]),
    ];
    for used in &steps[1..] {
        server.expect_problem(used, None, 400, json!({"code": "FailedPrecondition"})).await;
    }
    for step in &steps {
        assert_eq!(server.expect_ok(step, None).await, json!({}), "{step}");
        server.expect_problem(step, None, 404, json!({})).await;
    }
}

#[tokio::test]
async fn a_patch_changes_the_named_fields_and_a_put_all_fields() {
    let server = TestServer::new().await;
    let region = create(&server, "regions", json!({"name": "south"})).await;
    let all = json!({
        "name": "ulm", "regionId": region, "siteLat": 483_000_000, "siteLng": 99_000_000,
        "metadata": labels(&[("a", "1")]),
    });
    let site = create(&server, "sites", all).await;
    let shape =
        |site: &Value| json!([site["name"], site["regionId"], site["siteLat"], site["metadata"]]);
    let label = labels(&[("a", "1")]);
    for (what, body, expected) in [
        ("PATCH", json!({"name": "neu-ulm"}), json!(["neu-ulm", region, 483_000_000, label])),
        ("PATCH", json!({"siteLat": 0, "siteID": "x"}), json!(["neu-ulm", region, 0, label])),
        ("PATCH ?fieldMask=metadata", json!({"name": "no"}), json!(["neu-ulm", region, 0, []])),
        ("PATCH ?fieldMask=name, siteLat", json!({"siteLat": 5}), json!(["", region, 5, []])),
        ("PATCH", json!({"regionId": null}), json!(["", "", 5, []])),
        ("PATCH", json!({"regionId": region}), json!(["", region, 5, []])),
        ("PUT", json!({"name": "ulm"}), json!(["ulm", "", 0, []])),
    ] {
        let (method, query) = what.split_once(' ').unwrap_or((what, ""));
        let query = query.replace(' ', "%20");
        let path = format!("{method} regions/*/sites/{site}{query}");
        let answer = server.expect_ok(&path, Some(body)).await;
        assert_eq!(shape(&answer), expected, "{what}");
        let read = server.get(&format!("sites/{site}")).await;
        assert_eq!(read, answer, "{what}");
    }
    let (what, expected) = (format!("PATCH sites/{site}"), json!({"field": "colour"}));
    server.expect_problem(&what, Some(json!({"colour": 1})), 400, expected).await;
}

#[tokio::test]
async fn a_host_is_moved_and_renamed() {
    let server = TestServer::new().await;
    let site = create(&server, "sites", json!({"name": "ulm"})).await;
    let host = json!({"serialNumber": "ABC12345", "name": "edge-01"});
    let host = server.post("compute/hosts/register", host).await;
    assert_eq!(host["site"], Value::Null);
    let id = host["resourceId"].as_str().expect("an id");
    let shape = |host: &Value| json!([host["name"], host["siteId"], host["site"]["name"]]);
    for (what, body, expected) in [
        ("PATCH", json!({"siteId": site}), json!(["edge-01", site, "ulm"])),
        ("PATCH", json!({"name": "edge-01", "cpuCores": 4}), json!(["edge-01", site, "ulm"])),
        ("PATCH", json!({"siteId": ""}), json!(["edge-01", "", null])),
        ("PUT", json!({"name": "edge-01", "siteId": site}), json!(["edge-01", site, "ulm"])),
        ("PUT", json!({"name": "edge-01"}), json!(["edge-01", "", null])),
        ("PATCH", json!({"name": "edge-02"}), json!(["edge-02", "", null])),
    ] {
        let answer = server.expect_ok(&format!("{what} compute/hosts/{id}"), Some(body)).await;
        assert_eq!(shape(&answer), expected, "{what}");
        assert_eq!(answer["serialNumber"], "ABC12345");
    }
    for (body, field) in [
        (json!({"metadata": labels(&[("A", "1")])}), "metadata"),
        (json!({"siteId": "region-00000001"}), "siteId"),
        (json!({"name": "a;b"}), "name"),
        (json!({"colour": "red"}), "colour"),
    ] {
        let (what, expected) = (format!("PATCH compute/hosts/{id}"), json!({"field": field}));
        server.expect_problem(&what, Some(body), 400, expected).await;
    }
    let body = Some(json!({"siteId": "site-00000000"}));
    server
        .expect_problem(&format!("PATCH compute/hosts/{id}"), body, 400, json!({"field": "siteId"}))
        .await;
}

/// A query parameter with a percent-encoded value.
fn encode_parameter(name: &str, value: &str) -> String {
    let letters: Vec<String> = value.bytes().map(|b| format!("%{b:02X}")).collect();
    format!("{name}={}", letters.concat())
}

/// Creates three nested regions, and sites in two of them and without a region.
async fn create_locations(server: &TestServer) -> [String; 3] {
    let south = create(server, "regions", json!({"name": "south"})).await;
    let swabia = json!({"name": "swabia", "parentId": south});
    let swabia = create(server, "regions", swabia).await;
    let city = json!({"name": "Ulm city", "parentId": swabia});
    let city = create(server, "regions", city).await;
    for (name, region) in [("ulm hall", swabia.as_str()), ("NEU-ULM", ""), ("bonn", south.as_str())]
    {
        create(server, "sites", json!({"name": name, "regionId": region})).await;
    }
    [south, swabia, city]
}

/// The names in a list, in order.
fn names(list: &Value) -> Vec<String> {
    let items = list.as_array().expect("a list").iter();
    items.map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn locations_are_found_by_a_part_of_their_name_with_the_regions_above_them() {
    let server = TestServer::new().await;
    let [south, swabia, city] = create_locations(&server).await;
    let find = async |what: &str| server.get(&format!("locations?{what}")).await;

    let regions = find("name=ulm&showRegions=true&showSites=false").await;
    let node = |id: &str, parent: &str, name: &str| json!({"resourceId": id, "parentId": parent, "name": name, "type": "RESOURCE_KIND_REGION"});
    let chain = [
        node(&city, &swabia, "Ulm city"),
        node(&swabia, &south, "swabia"),
        node(&south, "", "south"),
    ];
    let expected = json!({"nodes": chain, "totalElements": 1, "outputElements": 1});
    assert_eq!(regions, expected);

    let sites = find("name=ULM&showSites=true").await;
    let of_sites = ["NEU-ULM", "ulm hall", "swabia", "south"];
    assert_eq!(names(&sites["nodes"]), of_sites);
    assert_eq!(sites["nodes"][0]["type"], "RESOURCE_KIND_SITE");
    assert_eq!(sites["nodes"][0]["parentId"], "");
    assert_eq!(sites["nodes"][1]["parentId"], swabia.as_str());
    assert_eq!((&sites["totalElements"], &sites["outputElements"]), (&json!(2), &json!(2)));

    let both = "showSites=true&showRegions=true";
    for (name, node_count, total) in [("ulm", 5, 3), ("u*m", 5, 3), ("*", 6, 6), ("%", 0, 0)] {
        let answer = find(&format!("{}&{both}", encode_parameter("name", name))).await;
        let nodes = answer["nodes"].as_array().map_or(0, Vec::len);
        assert_eq!((nodes, &answer["totalElements"]), (node_count, &json!(total)), "{name}");
    }
}

#[tokio::test]
async fn at_most_fifty_locations_of_a_kind_are_returned_and_all_are_counted() {
    let server = TestServer::new().await;
    for n in 0..52 {
        create(&server, "sites", json!({"name": format!("shop {n:02}")})).await;
    }
    let answer = server.get("locations?name=shop&showSites=true").await;
    let listed = names(&answer["nodes"]);
    assert_eq!((listed.len(), listed[49].as_str()), (50, "shop 49"));
    assert_eq!((&answer["totalElements"], &answer["outputElements"]), (&json!(52), &json!(50)));
}

#[tokio::test]
async fn a_location_search_needs_a_name_and_a_kind() {
    let server = TestServer::new().await;
    for (what, parameter) in [
        ("showSites=true", "name"),
        ("name=&showSites=true", "name"),
        ("name=%00&showSites=true", "name"),
        ("name=ulm", "showSites"),
        ("name=ulm&showSites=false&showRegions=false", "showSites"),
        ("name=ulm&showRegions=1", "showRegions"),
    ] {
        let expected = json!({"code": "InvalidArgument", "field": parameter});
        server.expect_problem(&format!("GET locations?{what}"), None, 400, expected).await;
    }
}

#[tokio::test]
async fn locations_are_filtered_by_their_region_and_ordered() {
    let server = TestServer::new().await;
    let [south, swabia, _] = create_locations(&server).await;
    let below = format!(
        "region.resource_id='{south}' OR region.parent_region.resource_id='{south}' \
         OR region.parent_region.parent_region.resource_id='{south}' \
         OR region.parent_region.parent_region.parent_region.resource_id='{south}'"
    );
    for (list, filter, expected) in [
        ("regions/*/sites", below, vec!["bonn", "ulm hall"]),
        ("sites", format!("region.resourceId=\"{swabia}\""), vec!["ulm hall"]),
        ("sites", "NOT has(region)".to_owned(), vec!["NEU-ULM"]),
        ("sites", "name=\"ulm\"".to_owned(), vec!["NEU-ULM", "ulm hall"]),
        ("regions", "NOT has(parent_region)".to_owned(), vec!["south"]),
        ("regions", format!("parentRegion.resourceId='{swabia}'"), vec!["Ulm city"]),
    ] {
        let what = format!("GET {list}?orderBy=name&{}", encode_parameter("filter", &filter));
        let answer = server.expect_ok(&what, None).await;
        let key = list.rsplit('/').next().expect("a name");
        let mut actual = names(&answer[key]);
        actual.sort();
        assert_eq!(actual, expected, "{filter}");
        assert_eq!(answer["totalElements"], expected.len(), "{filter}");
    }
    let by_id = encode_parameter("filter", &format!("resource_id='{south}'"));
    let counted = server.get(&format!("regions?showTotalSites=true&{by_id}")).await;
    assert_eq!(counted["regions"][0]["totalSites"], 2);
    let order = "site_resource_region%20desc,resource_id";
    let mut paged = Vec::new();
    for offset in 0..3 {
        let page = server.get(&format!("sites?orderBy={order}&pageSize=1&offset={offset}")).await;
        paged.extend(names(&page["sites"]));
    }
    assert_eq!(paged[2], "NEU-ULM", "no region comes last");
    assert_eq!(names(&server.get(&format!("sites?orderBy={order}")).await["sites"]), paged);
    let last = server.get("sites?orderBy=name%20desc&pageSize=1").await;
    assert_eq!(names(&last["sites"]), ["ulm hall"]);
    assert_eq!((&last["totalElements"], &last["hasNext"]), (&json!(3), &json!(true)));
}
