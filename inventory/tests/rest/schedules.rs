//! Lists of schedules: inherited from regions, open at an instant, filtered, and both kinds in one
//! response.

use serde_json::{Value, json};

use crate::lists::percent_encode;
use crate::test_server::{TestServer, nightly};

/// The names of the schedules of both kinds, in the order of the response.
async fn names(server: &TestServer, query: &str) -> String {
    let list = format!("GET compute/schedules?{query}");
    let answer = server.expect_ok(&list, None).await;
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
async fn schedules_are_listed_by_target_and_inherited_from_the_regions_above() {
    let (server, resources) = TestServer::with_resources().await;
    let inner = json!({"name": "swabia", "parentId": resources.region});
    let inner = server.post("regions", inner).await["resourceId"].clone();
    let other = json!({"name": "bonn", "regionId": inner});
    let other = server.post("sites", other).await["resourceId"].clone();
    let mut of_region = nightly("");
    of_region["targetRegionId"] = json!(resources.region);
    of_region["name"] = json!("of the region");
    server.post("schedules/repeated", of_region).await;

    let (host, site, region) = (&resources.host, &resources.site, &resources.region);
    let (other, inner) = (other.as_str().expect("an id"), inner.as_str().expect("an id"));
    for (query, expected) in [
        (format!("hostId={host}"), "tonight, every night, of the region"),
        (format!("siteId={site}"), "every night, of the region"),
        (format!("siteId={other}"), "of the region"),
        (format!("regionId={region}"), "of the region"),
        (format!("regionId={inner}"), "of the region"),
        ("hostId=host-00000000".to_owned(), ""),
    ] {
        let query = format!("{query}&orderBy=name");
        assert_eq!(names(&server, &query).await, expected, "{query}");
    }

    let list = format!("GET schedules/repeated?hostId={host}");
    let both = server.expect_ok(&list, None).await;
    let second = server.expect_ok(&format!("{list}&pageSize=1&offset=1"), None).await;
    assert_eq!(second["repeatedSchedules"], json!([both["repeatedSchedules"][1]]));
    assert_eq!((&second["totalElements"], &second["hasNext"]), (&json!(2), &json!(false)));
}

#[tokio::test]
async fn schedules_are_filtered_by_the_instant_at_which_they_are_open() {
    let (server, resources) = TestServer::with_resources().await;
    // `tonight` is open from 13:00 to 14:00 UTC. 02:00 in Berlin is 01:00 UTC.
    for (from_now, expected) in [
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
        let query = format!("unixEpoch={}", server.seconds(from_now));
        assert_eq!(names(&server, &query).await, expected, "after {from_now} s");
    }
    let at = server.seconds(3_600);
    let of_site = format!("unixEpoch={at}&siteId={}", resources.site);
    assert!(names(&server, &of_site).await.is_empty());
    let single = format!("GET schedules/single?unixEpoch={at}&pageSize=1");
    assert_eq!(server.expect_ok(&single, None).await["totalElements"], 1);
    let repeated = format!("GET schedules/repeated?unixEpoch={at}");
    assert_eq!(server.expect_ok(&repeated, None).await["totalElements"], 0);
}

/// Each page evaluates again which schedules are open and which regions contain the site.
#[tokio::test]
async fn paging_of_open_schedules_survives_changes() {
    let (server, resources) = TestServer::with_resources().await;
    let night = |name: &str| {
        let mut more = nightly(&resources.site);
        more["name"] = json!(name);
        Some(more)
    };
    server.expect_ok("POST schedules/repeated", night("night 1")).await;
    let list = format!(
        "GET schedules/repeated?unixEpoch={}&siteId={}&orderBy=name&pageSize=1",
        server.seconds(46_800),
        resources.site,
    );
    let summarize = |page: &Value| {
        let name = page["repeatedSchedules"][0]["name"].clone();
        json!([name, page["totalElements"], page["hasNext"]])
    };
    let behind = |page: &Value| {
        let token = page["nextPageToken"].as_str().expect("a token");
        format!("{list}&pageToken={token}")
    };
    let first = server.expect_ok(&list, None).await;
    assert_eq!(summarize(&first), json!(["every night", 2, true]));

    let delete = format!("DELETE schedules/repeated/{}", resources.repeated);
    server.expect_ok(&delete, None).await;
    server.expect_ok("POST schedules/repeated", night("night 2")).await;
    let inner = json!({"name": "swabia", "parentId": resources.region});
    let inner = server.post("regions", inner).await["resourceId"].clone();
    let moved = Some(json!({"regionId": inner}));
    let site = format!("PATCH sites/{}", resources.site);
    server.expect_ok(&site, moved).await;

    let second = server.expect_ok(&behind(&first), None).await;
    assert_eq!(summarize(&second), json!(["night 1", 2, true]));
    let third = server.expect_ok(&behind(&second), None).await;
    assert_eq!(summarize(&third), json!(["night 2", 2, false]));
}

#[tokio::test]
async fn schedules_are_filtered_and_ordered() {
    let (server, resources) = TestServer::with_resources().await;
    let open_ended = json!({
        "name": "another night", "scheduleStatus": "SCHEDULE_STATUS_MAINTENANCE",
        "startSeconds": server.seconds(60), "targetSiteId": resources.site,
    });
    server.post("schedules/single", open_ended).await;
    let of_host = format!("&hostId={}&orderBy=name", resources.host);
    let night = r#"name = "NIGHT""#;
    for (filter, more, expected) in [
        (night, "&orderBy=name", "another night, tonight, every night"),
        (night, "&orderBy=name%20desc", "tonight, another night, every night"),
        (night, of_host.as_str(), "another night, tonight, every night"),
        ("scheduleStatus = SCHEDULE_STATUS_MAINTENANCE", "", "another night"),
        ("has(targetHost)", "", "tonight"),
        (r#"targetSite.name = "ulm""#, "", "another night, every night"),
    ] {
        let query = format!("filter={}{more}", percent_encode(filter));
        assert_eq!(names(&server, &query).await, expected, "{filter}{more}");
    }

    // Only single schedules have a start.
    let starts = format!("filter={}", percent_encode("startSeconds > 1000"));
    let single = format!("GET schedules/single?{starts}");
    assert_eq!(server.expect_ok(&single, None).await["totalElements"], 2);
    let joint = format!("GET compute/schedules?{starts}");
    server.expect_problem(&joint, None, 400, json!({"parameter": "filter"})).await;
}

#[tokio::test]
async fn a_page_of_both_kinds_counts_each_kind_separately() {
    let (server, resources) = TestServer::with_resources().await;
    for n in 0..3 {
        let mut more = nightly(&resources.site);
        more["name"] = json!(format!("night {n}"));
        server.post("schedules/repeated", more).await;
    }
    let summarize = |page: &Value| {
        let length = |key: &str| page[key].as_array().map_or(0, Vec::len);
        (length("singleSchedules"), length("repeatedSchedules"))
    };
    let first = server.get("compute/schedules?pageSize=2").await;
    assert_eq!(summarize(&first), (1, 2));
    assert_eq!((&first["totalElements"], &first["hasNext"]), (&json!(5), &json!(true)));
    let token = first["nextPageToken"].as_str().expect("a token");
    let list = format!("GET compute/schedules?pageSize=2&pageToken={token}");
    let second = server.expect_ok(&list, None).await;
    assert_eq!(summarize(&second), (0, 2));
    assert_eq!((&second["totalElements"], &second["hasNext"]), (&json!(5), &json!(false)));
    let all = server.get("schedules").await;
    assert_eq!(summarize(&all), (1, 4));
}

#[tokio::test]
async fn a_schedule_that_never_opens_is_refused_and_names_become_numbers() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("schedules/repeated/{}", resources.repeated);
    let never = Some(json!({"cronDayMonth": "30", "cronMonth": "FEB"}));
    let expected = json!({"code": "InvalidArgument", "field": "cronDayMonth"});
    server.expect_problem(&format!("PATCH {path}"), never, 400, expected).await;
    let named = json!({"cronMonth": "jan,JUL", "cronDayWeek": "MON-FRI"});
    let changed = server.patch(&path, named).await;
    assert_eq!((&changed["cronMonth"], &changed["cronDayWeek"]), (&json!("1,7"), &json!("1-5")));
    assert_eq!(server.get(&path).await, changed);
}
