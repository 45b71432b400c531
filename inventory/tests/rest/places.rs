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
        (json!({"metadata": labels(&[("a", "1")])}), "metadata"),
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
