//! Lists of schedules: inherited from above, open at an instant, filtered, and both kinds in one answer.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::house::{House, nightly};
use crate::lists::encoded;

/// The names of the schedules of both kinds, in the order of the answer.
async fn names(house: &House, query: &str) -> String {
    let list = format!("GET compute/schedules?{query}");
    let answer = house.ok(&list, None).await;
    let mut names = Vec::new();
    for kind in ["singleSchedules", "repeatedSchedules"] {
        for schedule in answer[kind].as_array().expect("a list") {
            names.push(schedule["name"].as_str().expect("a name").to_owned());
        }
    }
    assert_eq!(answer["totalElements"], names.len(), "{query}");
    names.join(", ")
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

    let (host, site, region) = (&things.host, &things.site, &things.region);
    let (other, inner) = (
        other.as_str().expect("an id"),
        inner.as_str().expect("an id"),
    );
    for (query, wanted) in [
        (
            format!("hostId={host}"),
            "tonight, every night, of the region",
        ),
        (format!("siteId={site}"), "every night, of the region"),
        (format!("siteId={other}"), "of the region"),
        (format!("regionId={region}"), "of the region"),
        (format!("regionId={inner}"), "of the region"),
        ("hostId=host-00000000".to_owned(), ""),
    ] {
        let query = format!("{query}&orderBy=name");
        assert_eq!(names(&house, &query).await, wanted, "{query}");
    }

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
}

#[tokio::test]
async fn only_those_are_listed_that_are_open_at_an_instant() {
    let house = House::new().await;
    let things = house.furnish().await;
    // `tonight` is open for an hour from one o'clock; Berlin's two o'clock at night is one o'clock in UTC.
    for (from_now, wanted) in [
        (0, ""),
        (3_599, ""),
        (3_600, "tonight"),
        (7_200, "tonight"),
        (7_201, ""),
        (46_799, ""),
        (46_800, "every night"),
        (54_000, "every night"),
        (54_001, ""),
    ] {
        let query = format!("unixEpoch={}", house.seconds(from_now));
        assert_eq!(names(&house, &query).await, wanted, "after {from_now} s");
    }
    let at = house.seconds(3_600);
    let of_site = format!("unixEpoch={at}&siteId={}", things.site);
    assert!(names(&house, &of_site).await.is_empty());
    let single = format!("GET schedules/single?unixEpoch={at}&pageSize=1");
    assert_eq!(house.ok(&single, None).await["totalElements"], 1);
    let repeated = format!("GET schedules/repeated?unixEpoch={at}");
    assert_eq!(house.ok(&repeated, None).await["totalElements"], 0);
}

/// What is open, and what is above a site, is found out for each page anew.
#[tokio::test]
async fn pages_of_open_schedules_go_on_when_some_came_and_went() {
    let house = House::new().await;
    let things = house.furnish().await;
    let night = |name: &str| {
        let mut more = nightly(&things.site);
        more["name"] = json!(name);
        Some(more)
    };
    house.ok("POST schedules/repeated", night("night 1")).await;
    let list = format!(
        "GET schedules/repeated?unixEpoch={}&siteId={}&orderBy=name&pageSize=1",
        house.seconds(46_800),
        things.site,
    );
    let told = |page: &Value| {
        let name = page["repeatedSchedules"][0]["name"].clone();
        json!([name, page["totalElements"], page["hasNext"]])
    };
    let behind = |page: &Value| {
        let token = page["nextPageToken"].as_str().expect("a token");
        format!("{list}&pageToken={token}")
    };
    let first = house.ok(&list, None).await;
    assert_eq!(told(&first), json!(["every night", 2, true]));

    let gone = format!("DELETE schedules/repeated/{}", things.repeated);
    house.ok(&gone, None).await;
    house.ok("POST schedules/repeated", night("night 2")).await;
    let inner = json!({"name": "swabia", "parentId": things.region});
    let inner = house.ok("POST regions", Some(inner)).await["resourceId"].clone();
    let moved = Some(json!({"regionId": inner}));
    let site = format!("PATCH sites/{}", things.site);
    house.ok(&site, moved).await;

    let second = house.ok(&behind(&first), None).await;
    assert_eq!(told(&second), json!(["night 1", 2, true]));
    let third = house.ok(&behind(&second), None).await;
    assert_eq!(told(&third), json!(["night 2", 2, false]));
}

#[tokio::test]
async fn schedules_are_filtered_and_ordered() {
    let house = House::new().await;
    let things = house.furnish().await;
    let open_ended = json!({
        "name": "another night", "scheduleStatus": "SCHEDULE_STATUS_MAINTENANCE",
        "startSeconds": house.seconds(60), "targetSiteId": things.site,
    });
    house.ok("POST schedules/single", Some(open_ended)).await;
    let of_host = format!("&hostId={}&orderBy=name", things.host);
    let night = r#"name = "NIGHT""#;
    for (filter, more, wanted) in [
        (
            night,
            "&orderBy=name",
            "another night, tonight, every night",
        ),
        (
            night,
            "&orderBy=name%20desc",
            "tonight, another night, every night",
        ),
        (
            night,
            of_host.as_str(),
            "another night, tonight, every night",
        ),
        (
            "scheduleStatus = SCHEDULE_STATUS_MAINTENANCE",
            "",
            "another night",
        ),
        ("has(targetHost)", "", "tonight"),
        (
            r#"targetSite.name = "ulm""#,
            "",
            "another night, every night",
        ),
    ] {
        let query = format!("filter={}{more}", encoded(filter));
        assert_eq!(names(&house, &query).await, wanted, "{filter}{more}");
    }

    // Only single schedules have a start.
    let starts = format!("filter={}", encoded("startSeconds > 1000"));
    let single = format!("GET schedules/single?{starts}");
    assert_eq!(house.ok(&single, None).await["totalElements"], 2);
    let joint = format!("GET compute/schedules?{starts}");
    let (status, problem) = house.ours(&joint, None).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(problem["parameter"], "filter");
}

#[tokio::test]
async fn a_page_of_both_kinds_counts_for_each_by_itself() {
    let house = House::new().await;
    let things = house.furnish().await;
    for n in 0..3 {
        let mut more = nightly(&things.site);
        more["name"] = json!(format!("night {n}"));
        house.ok("POST schedules/repeated", Some(more)).await;
    }
    let told = |page: &Value| {
        let length = |key: &str| page[key].as_array().map_or(0, Vec::len);
        (length("singleSchedules"), length("repeatedSchedules"))
    };
    let first = house.ok("GET compute/schedules?pageSize=2", None).await;
    assert_eq!(told(&first), (1, 2));
    assert_eq!(
        (&first["totalElements"], &first["hasNext"]),
        (&json!(5), &json!(true))
    );
    let token = first["nextPageToken"].as_str().expect("a token");
    let list = format!("GET compute/schedules?pageSize=2&pageToken={token}");
    let second = house.ok(&list, None).await;
    assert_eq!(told(&second), (0, 2));
    assert_eq!(
        (&second["totalElements"], &second["hasNext"]),
        (&json!(5), &json!(false))
    );
    let whole = house.ok("GET schedules", None).await;
    assert_eq!(told(&whole), (1, 4));
}
