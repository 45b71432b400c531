//! Regions, sites, and hosts that stand there.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::house::House;

async fn made(house: &House, list: &str, body: Value) -> String {
    let made = house.ok(&format!("POST {list}"), Some(body)).await;
    made["resourceId"].as_str().expect("an id").to_owned()
}

fn labels(pairs: &[(&str, &str)]) -> Value {
    let item = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
    pairs.iter().map(item).collect()
}

/// Regions inside each other, the outermost first.
async fn nested(house: &House, depth: usize) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    for n in 0..depth {
        let parent = ids.last().cloned().unwrap_or_default();
        let body = json!({"name": format!("r{n}"), "parentId": parent});
        ids.push(made(house, "regions", body).await);
    }
    ids
}

#[tokio::test]
async fn labels_are_inherited_and_the_nearest_wins() {
    let house = House::new().await;
    let land = json!({"name": "land", "metadata": labels(&[("country", "de"), ("zone", "a")])});
    let land = made(&house, "regions", land).await;
    let city = labels(&[("zone", "b"), ("city", "ulm")]);
    let city = json!({"name": "city", "parentId": land, "metadata": city});
    let city = made(&house, "regions", city).await;
    let site =
        json!({"name": "hall", "regionId": city, "metadata": labels(&[("city", "neu-ulm")])});
    let site = made(&house, "sites", site).await;
    let host = json!({"serialNumber": "ABC12345", "siteId": site});
    let host = made(&house, "compute/hosts/register", host).await;

    let outer = house.ok(&format!("GET regions/{land}"), None).await;
    assert_eq!(outer["regionID"], land.as_str());
    assert_eq!(outer["parentRegion"]["resourceId"], "");
    assert_eq!(outer["inheritedMetadata"], json!([]));
    let inner = house.ok(&format!("GET regions/{city}"), None).await;
    assert_eq!(inner["parentId"], land.as_str());
    assert_eq!(inner["parentRegion"]["name"], "land");
    assert_eq!(inner["inheritedMetadata"], labels(&[("country", "de")]));
    let hall = house.ok(&format!("GET sites/{site}"), None).await;
    assert_eq!(hall["siteID"], site.as_str());
    assert_eq!(hall["region"]["name"], "city");
    assert_eq!(
        hall["inheritedMetadata"],
        labels(&[("zone", "b"), ("country", "de")])
    );
    let host = house.ok(&format!("GET compute/hosts/{host}"), None).await;
    assert_eq!(
        host["inheritedMetadata"],
        labels(&[("city", "neu-ulm"), ("zone", "b"), ("country", "de")])
    );
}

#[tokio::test]
async fn sites_are_counted_in_all_regions_above_them_if_that_is_asked_for() {
    let house = House::new().await;
    let ids = nested(&house, 3).await;
    for region in [&ids[2], &ids[2], &ids[0]] {
        made(&house, "sites", json!({"regionId": region})).await;
    }
    let totals = |answer: &Value| {
        let regions = answer["regions"].as_array().expect("regions").iter();
        let total = |region: &Value| {
            let name = region["name"].as_str().expect("a name").to_owned();
            (name, region["totalSites"].as_i64().expect("a number"))
        };
        let mut totals: Vec<_> = regions.map(total).collect();
        totals.sort();
        totals
            .into_iter()
            .map(|(_, total)| total)
            .collect::<Vec<_>>()
    };
    let counted = house.ok("GET regions?showTotalSites=true", None).await;
    assert_eq!(totals(&counted), [3, 2, 2]);
    assert_eq!(totals(&house.ok("GET regions", None).await), [0, 0, 0]);
}

#[tokio::test]
async fn regions_lie_in_each_other_five_deep_and_in_no_circle() {
    let house = House::new().await;
    let ids = nested(&house, 5).await;
    let single = made(&house, "regions", json!({"name": "single"})).await;
    let before = house.ok("GET regions", None).await;
    let patch = |region: &str| format!("PATCH regions/{region}");
    for (what, parent) in [
        ("POST regions".to_owned(), &ids[4]),
        (patch(&ids[0]), &ids[4]),
        (patch(&ids[1]), &ids[1]),
        (patch(&ids[0]), &single),
    ] {
        let body = Some(json!({"parentId": parent}));
        let (status, problem) = house.ours(&what, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
        assert_eq!(problem["field"], "parentId", "{what}: {problem}");
    }
    assert_eq!(house.ok("GET regions", None).await, before);
    let moved = house
        .ok(&patch(&single), Some(json!({"parentId": ids[3]})))
        .await;
    assert_eq!(moved["parentRegion"]["name"], "r3");
}

#[tokio::test]
async fn a_place_that_holds_something_cannot_be_deleted() {
    let house = House::new().await;
    let ids = nested(&house, 2).await;
    let site = made(&house, "sites", json!({"regionId": ids[1]})).await;
    let host = json!({"serialNumber": "ABC12345", "siteId": site});
    let host = made(&house, "compute/hosts/register", host).await;
    let steps = [
        format!("DELETE compute/hosts/{host}"),
        format!("DELETE sites/{site}"),
        format!("DELETE regions/{}", ids[1]),
        format!("DELETE regions/{}", ids[0]),
    ];
    for used in &steps[1..] {
        let (status, problem) = house.ours(used, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{used}: {problem}");
        assert_eq!(problem["code"], "FailedPrecondition", "{used}");
    }
    for step in &steps {
        assert_eq!(house.ok(step, None).await, json!({}), "{step}");
        let (status, problem) = house.ours(step, None).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{step}: {problem}");
    }
}

#[tokio::test]
async fn a_change_of_a_place_touches_what_it_names_and_a_replacement_everything() {
    let house = House::new().await;
    let region = made(&house, "regions", json!({"name": "south"})).await;
    let all = json!({
        "name": "ulm", "regionId": region, "siteLat": 483_000_000, "siteLng": 99_000_000,
        "metadata": labels(&[("a", "1")]),
    });
    let site = made(&house, "sites", all).await;
    let shape = |site: &Value| {
        json!([
            site["name"],
            site["regionId"],
            site["siteLat"],
            site["metadata"]
        ])
    };
    let one = labels(&[("a", "1")]);
    for (what, body, wanted) in [
        (
            "PATCH",
            json!({"name": "neu-ulm"}),
            json!(["neu-ulm", region, 483_000_000, one]),
        ),
        (
            "PATCH",
            json!({"siteLat": 0, "siteID": "x"}),
            json!(["neu-ulm", region, 0, one]),
        ),
        (
            "PATCH ?fieldMask=metadata",
            json!({"name": "no"}),
            json!(["neu-ulm", region, 0, []]),
        ),
        (
            "PATCH ?fieldMask=name, siteLat",
            json!({"siteLat": 5}),
            json!(["", region, 5, []]),
        ),
        ("PATCH", json!({"regionId": null}), json!(["", "", 5, []])),
        (
            "PATCH",
            json!({"regionId": region}),
            json!(["", region, 5, []]),
        ),
        ("PUT", json!({"name": "ulm"}), json!(["ulm", "", 0, []])),
    ] {
        let (method, query) = what.split_once(' ').unwrap_or((what, ""));
        let query = query.replace(' ', "%20");
        let path = format!("{method} regions/*/sites/{site}{query}");
        let answer = house.ok(&path, Some(body)).await;
        assert_eq!(shape(&answer), wanted, "{what}");
        let read = house.ok(&format!("GET sites/{site}"), None).await;
        assert_eq!(read, answer, "{what}");
    }
    let (status, problem) = house
        .ours(&format!("PATCH sites/{site}"), Some(json!({"colour": 1})))
        .await;
    assert_eq!(
        (status, &problem["field"]),
        (StatusCode::BAD_REQUEST, &json!("colour"))
    );
}

#[tokio::test]
async fn a_host_is_moved_and_renamed() {
    let house = House::new().await;
    let site = made(&house, "sites", json!({"name": "ulm"})).await;
    let host = json!({"serialNumber": "ABC12345", "name": "edge-01"});
    let host = house.ok("POST compute/hosts/register", Some(host)).await;
    assert_eq!(host["site"], Value::Null);
    let id = host["resourceId"].as_str().expect("an id");
    let shape = |host: &Value| json!([host["name"], host["siteId"], host["site"]["name"]]);
    for (what, body, wanted) in [
        (
            "PATCH",
            json!({"siteId": site}),
            json!(["edge-01", site, "ulm"]),
        ),
        (
            "PATCH",
            json!({"name": "edge-01", "cpuCores": 4}),
            json!(["edge-01", site, "ulm"]),
        ),
        ("PATCH", json!({"siteId": ""}), json!(["edge-01", "", null])),
        (
            "PUT",
            json!({"name": "edge-01", "siteId": site}),
            json!(["edge-01", site, "ulm"]),
        ),
        (
            "PUT",
            json!({"name": "edge-01"}),
            json!(["edge-01", "", null]),
        ),
        (
            "PATCH",
            json!({"name": "edge-02"}),
            json!(["edge-02", "", null]),
        ),
    ] {
        let answer = house
            .ok(&format!("{what} compute/hosts/{id}"), Some(body))
            .await;
        assert_eq!(shape(&answer), wanted, "{what}");
        assert_eq!(answer["serialNumber"], "ABC12345");
    }
    for (body, field) in [
        (json!({"metadata": labels(&[("A", "1")])}), "metadata"),
        (json!({"siteId": "region-00000001"}), "siteId"),
        (json!({"name": "a;b"}), "name"),
        (json!({"colour": "red"}), "colour"),
    ] {
        let (status, problem) = house
            .ours(&format!("PATCH compute/hosts/{id}"), Some(body))
            .await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        assert_eq!(problem["field"], field, "{problem}");
    }
    let body = Some(json!({"siteId": "site-00000000"}));
    let (status, problem) = house.ours(&format!("PATCH compute/hosts/{id}"), body).await;
    assert_eq!(
        (status, &problem["field"]),
        (StatusCode::BAD_REQUEST, &json!("siteId"))
    );
}

/// A query with a value that has any letters.
fn query(name: &str, value: &str) -> String {
    let letters: Vec<String> = value.bytes().map(|b| format!("%{b:02X}")).collect();
    format!("{name}={}", letters.concat())
}

/// Two regions in each other and another one, and sites in them and in none.
async fn furnished(house: &House) -> [String; 3] {
    let south = made(house, "regions", json!({"name": "south"})).await;
    let swabia = json!({"name": "swabia", "parentId": south});
    let swabia = made(house, "regions", swabia).await;
    let city = json!({"name": "Ulm city", "parentId": swabia});
    let city = made(house, "regions", city).await;
    for (name, region) in [
        ("ulm hall", swabia.as_str()),
        ("NEU-ULM", ""),
        ("bonn", south.as_str()),
    ] {
        made(house, "sites", json!({"name": name, "regionId": region})).await;
    }
    [south, swabia, city]
}

/// The names in a list, in its order.
fn names(list: &Value) -> Vec<String> {
    let items = list.as_array().expect("a list").iter();
    items
        .map(|item| item["name"].as_str().expect("a name").to_owned())
        .collect()
}

#[tokio::test]
async fn locations_are_found_by_a_part_of_their_name_with_the_way_to_them() {
    let house = House::new().await;
    let [south, swabia, city] = furnished(&house).await;
    let find = async |what: &str| house.ok(&format!("GET locations?{what}"), None).await;

    let regions = find("name=ulm&showRegions=true&showSites=false").await;
    let node = |id: &str, parent: &str, name: &str| json!({"resourceId": id, "parentId": parent, "name": name, "type": "RESOURCE_KIND_REGION"});
    let way = [
        node(&south, "", "south"),
        node(&swabia, &south, "swabia"),
        node(&city, &swabia, "Ulm city"),
    ];
    let wanted = json!({"nodes": way, "totalElements": 1, "outputElements": 1});
    assert_eq!(regions, wanted);

    let sites = find("name=ULM&showSites=true").await;
    let of_sites = ["south", "swabia", "NEU-ULM", "ulm hall"];
    assert_eq!(names(&sites["nodes"]), of_sites);
    assert_eq!(sites["nodes"][2]["type"], "RESOURCE_KIND_SITE");
    assert_eq!(sites["nodes"][2]["parentId"], "");
    assert_eq!(sites["nodes"][3]["parentId"], swabia.as_str());
    assert_eq!(
        (&sites["totalElements"], &sites["outputElements"]),
        (&json!(2), &json!(2))
    );

    let both = "showSites=true&showRegions=true";
    for (name, shown, total) in [("ulm", 5, 3), ("u*m", 5, 3), ("*", 6, 6), ("%", 0, 0)] {
        let found = find(&format!("{}&{both}", query("name", name))).await;
        let nodes = found["nodes"].as_array().map_or(0, Vec::len);
        assert_eq!(
            (nodes, &found["totalElements"]),
            (shown, &json!(total)),
            "{name}"
        );
    }
}

#[tokio::test]
async fn fifty_locations_of_a_kind_are_shown_and_all_are_counted() {
    let house = House::new().await;
    for n in 0..52 {
        made(&house, "sites", json!({"name": format!("shop {n:02}")})).await;
    }
    let found = house
        .ok("GET locations?name=shop&showSites=true", None)
        .await;
    let shown = names(&found["nodes"]);
    assert_eq!((shown.len(), shown[49].as_str()), (50, "shop 49"));
    assert_eq!(
        (&found["totalElements"], &found["outputElements"]),
        (&json!(52), &json!(50))
    );
}

#[tokio::test]
async fn what_is_not_said_of_locations_is_asked_for() {
    let house = House::new().await;
    for (what, parameter) in [
        ("showSites=true", "name"),
        ("name=&showSites=true", "name"),
        ("name=%00&showSites=true", "name"),
        ("name=ulm", "showSites"),
        ("name=ulm&showSites=false&showRegions=false", "showSites"),
        ("name=ulm&showRegions=1", "showRegions"),
    ] {
        let (status, problem) = house.ours(&format!("GET locations?{what}"), None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
        assert_eq!(problem["code"], "InvalidArgument", "{what}");
        assert_eq!(problem["field"], parameter, "{what}: {problem}");
    }
}

#[tokio::test]
async fn places_are_filtered_by_what_they_lie_in_and_ordered() {
    let house = House::new().await;
    let [south, swabia, _] = furnished(&house).await;
    let below = format!(
        "region.resource_id='{south}' OR region.parent_region.resource_id='{south}' \
         OR region.parent_region.parent_region.resource_id='{south}' \
         OR region.parent_region.parent_region.parent_region.resource_id='{south}'"
    );
    for (list, filter, wanted) in [
        ("regions/*/sites", below, vec!["bonn", "ulm hall"]),
        (
            "sites",
            format!("region.resourceId=\"{swabia}\""),
            vec!["ulm hall"],
        ),
        ("sites", "NOT has(region)".to_owned(), vec!["NEU-ULM"]),
        (
            "sites",
            "name=\"ulm\"".to_owned(),
            vec!["NEU-ULM", "ulm hall"],
        ),
        (
            "regions",
            "NOT has(parent_region)".to_owned(),
            vec!["south"],
        ),
        (
            "regions",
            format!("parentRegion.resourceId='{swabia}'"),
            vec!["Ulm city"],
        ),
    ] {
        let what = format!("GET {list}?orderBy=name&{}", query("filter", &filter));
        let answer = house.ok(&what, None).await;
        let key = list.rsplit('/').next().expect("a word");
        let mut found = names(&answer[key]);
        found.sort();
        assert_eq!(found, wanted, "{filter}");
        assert_eq!(answer["totalElements"], wanted.len(), "{filter}");
    }
    let one = query("filter", &format!("resource_id='{south}'"));
    let counted = house
        .ok(&format!("GET regions?showTotalSites=true&{one}"), None)
        .await;
    assert_eq!(counted["regions"][0]["totalSites"], 2);
    let last = house
        .ok("GET sites?orderBy=name%20desc&pageSize=1", None)
        .await;
    assert_eq!(names(&last["sites"]), ["ulm hall"]);
    assert_eq!(
        (&last["totalElements"], &last["hasNext"]),
        (&json!(3), &json!(true))
    );
}
