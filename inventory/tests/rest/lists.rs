//! Lists.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::house::{House, nightly};

async fn register(house: &House, count: usize) {
    for n in 0..count {
        let body = json!({"name": format!("edge-{n}"), "serialNumber": format!("SERIAL{n:04}")});
        house.ok("POST compute/hosts/register", Some(body)).await;
    }
}

fn shape(answer: &Value) -> (usize, i64, bool) {
    (
        answer["hosts"].as_array().map_or(0, Vec::len),
        answer["totalElements"].as_i64().expect("a total"),
        answer["hasNext"].as_bool().expect("a truth"),
    )
}

#[tokio::test]
async fn a_list_is_paged_or_whole() {
    let house = House::new().await;
    assert_eq!(
        shape(&house.ok("GET compute/hosts", None).await),
        (0, 0, false)
    );
    register(&house, 25).await;
    for (query, wanted) in [
        ("", (25, 25, false)),
        ("?pageSize=10", (10, 25, true)),
        ("?pageSize=10&offset=10", (10, 25, true)),
        ("?pageSize=10&offset=20", (5, 25, false)),
        ("?pageSize=25", (25, 25, false)),
        ("?offset=24", (1, 25, false)),
        ("?offset=20000", (0, 25, false)),
    ] {
        let answer = house.ok(&format!("GET compute/hosts{query}"), None).await;
        assert_eq!(shape(&answer), wanted, "{query}");
    }
}

#[tokio::test]
async fn pages_neither_repeat_nor_leave_out() {
    let house = House::new().await;
    register(&house, 12).await;
    let ids = |answer: &Value| {
        let hosts = answer["hosts"].as_array().expect("hosts").iter();
        hosts
            .map(|host| host["resourceId"].as_str().expect("an id").to_owned())
            .collect::<Vec<_>>()
    };
    let whole = ids(&house.ok("GET compute/hosts", None).await);
    let mut pages = Vec::new();
    for offset in [0, 5, 10] {
        let page = house
            .ok(
                &format!("GET compute/hosts?pageSize=5&offset={offset}"),
                None,
            )
            .await;
        pages.extend(ids(&page));
    }
    assert_eq!(pages, whole);
}

#[tokio::test]
async fn a_parameter_that_would_change_the_answer_is_understood_or_refused() {
    let house = House::new().await;
    for (query, field) in [
        ("compute/hosts?pageSize=0", "pageSize"),
        ("compute/hosts?pageSize=101", "pageSize"),
        ("compute/hosts?pageSize=ten", "pageSize"),
        ("compute/hosts?offset=-1", "offset"),
        ("compute/hosts?filter=", "filter"),
        ("compute/hosts?filter=name%3D%22x%22", "filter"),
        ("compute/hosts?orderBy=name", "orderBy"),
        ("compute/hosts?pageSize=5&pageSize=6", "pageSize"),
        ("os-update-runs?filter=status%3D%22x%22", "filter"),
        (
            "os-update-runs?filter=instance.resourceId%3D%22host-00000001%22",
            "filter",
        ),
        ("compute/schedules?hostId=x", "hostId"),
        ("compute/schedules?unixEpoch=1", "unixEpoch"),
        (
            "schedules/repeated?siteId=site-00000001&regionId=region-00000001",
            "regionId",
        ),
        ("regions?showTotalSites=maybe", "showTotalSites"),
        ("sites?filter=name%3D%22x%22", "filter"),
        ("assignments?pageSize=0", "pageSize"),
    ] {
        let (status, problem) = house.ours(&format!("GET {query}"), None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
        assert_eq!(problem["code"], "InvalidArgument", "{query}");
        assert_eq!(problem["field"], field, "{query}");
    }
}

#[tokio::test]
async fn runs_are_filtered_by_their_instance() {
    let house = House::new().await;
    let things = house.furnish().await;
    let list = |instance: &str| {
        format!("GET os-update-runs?filter=instance.resourceId%3D%22{instance}%22&pageSize=10")
    };
    let of_it = house.ok(&list(&things.instance), None).await;
    assert_eq!(of_it["osUpdateRuns"][0]["resourceId"], things.run.as_str());
    assert_eq!(of_it["osUpdateRuns"][0]["events"], json!([]));
    let of_none = house.ok(&list("inst-00000000"), None).await;
    assert_eq!(of_none["totalElements"], 0);
}

#[tokio::test]
async fn schedules_are_listed_by_what_they_are_for_and_inherited_from_above() {
    let house = House::new().await;
    let things = house.furnish().await;
    let inner = json!({"name": "swabia", "parentId": things.region});
    let inner = house.ok("POST regions", Some(inner)).await["resourceId"].clone();
    let other = json!({"name": "bonn", "regionId": inner});
    let other = house.ok("POST sites", Some(other)).await["resourceId"].clone();
    let mut of_region = nightly("");
    of_region["targetRegionId"] = json!(things.region);
    of_region["name"] = json!("of the region");
    house.ok("POST schedules/repeated", Some(of_region)).await;

    let names = async |query: String| {
        let answer = house
            .ok(&format!("GET compute/schedules?{query}"), None)
            .await;
        let mut names = Vec::new();
        for kind in ["singleSchedules", "repeatedSchedules"] {
            for schedule in answer[kind].as_array().expect("a list") {
                names.push(schedule["name"].as_str().expect("a name").to_owned());
            }
        }
        assert_eq!(answer["totalElements"], names.len(), "{query}");
        names.sort();
        names
    };
    let (host, site, region) = (&things.host, &things.site, &things.region);
    let all = ["every night", "of the region", "tonight"];
    assert_eq!(names(format!("hostId={host}")).await, all);
    assert_eq!(names(format!("siteId={site}")).await, all[..2]);
    let other = other.as_str().expect("an id");
    assert_eq!(names(format!("siteId={other}")).await, all[1..2]);
    assert_eq!(names(format!("regionId={region}")).await, all[1..2]);
    let inner = inner.as_str().expect("an id");
    assert_eq!(names(format!("regionId={inner}")).await, all[1..2]);

    let list = format!("GET schedules/repeated?hostId={host}");
    let both = house.ok(&list, None).await;
    let second = house.ok(&format!("{list}&pageSize=1&offset=1"), None).await;
    assert_eq!(
        second["repeatedSchedules"],
        json!([both["repeatedSchedules"][1]])
    );
    assert_eq!(
        (&second["totalElements"], &second["hasNext"]),
        (&json!(2), &json!(false))
    );
    let of_none = house
        .ok("GET schedules/single?hostId=host-00000000", None)
        .await;
    assert_eq!(of_none["totalElements"], 0);
}
