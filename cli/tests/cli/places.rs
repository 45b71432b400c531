//! Regions, sites, and where hosts stand.

use serde_json::{Value, json};

use crate::Desk;

fn regions() -> Value {
    json!({
        "regions": [
            {"resourceId": "region-00000001", "name": "Germany", "parentRegion": {"name": ""}, "totalSites": 2},
            {"resourceId": "region-00000002", "name": "Berlin", "parentId": "region-00000001",
             "parentRegion": {"resourceId": "region-00000001", "name": "Germany"}, "totalSites": 1},
        ],
        "totalElements": 2, "hasNext": false,
    })
}

fn site() -> Value {
    json!({
        "resourceId": "site-00000001", "name": "Mitte", "regionId": "region-00000002", "region": {"name": "Berlin"},
        "siteLat": 525_200_080, "siteLng": -1, "metadata": [{"key": "tier", "value": "gold"}],
        "inheritedMetadata": [{"key": "country", "value": "de"}],
    })
}

#[tokio::test]
async fn regions_are_listed_with_what_they_lie_in() {
    let desk = Desk::new().await;
    desk.double
        .answer("GET regions?showTotalSites=true", regions());
    insta::assert_snapshot!(desk.run("evenkeel region list").await, @r"
    ID               NAME     IN       SITES
    region-00000001  Germany  -        2
    region-00000002  Berlin   Germany  1
    ");
}

#[tokio::test]
async fn a_region_is_made_in_another() {
    let desk = Desk::new().await;
    desk.double
        .answer("GET regions", regions())
        .answer("POST regions", regions()["regions"][1].clone())
        .answer(
            "GET regions/region-00000002",
            regions()["regions"][1].clone(),
        )
        .answer("DELETE regions/region-00000002", json!({}));
    insta::assert_snapshot!(desk.run("evenkeel region create Berlin --parent Germany").await, @r"
    id       region-00000002
    name     Berlin
    in       Germany
    created  -
    ");
    desk.run("evenkeel region get Berlin").await;
    desk.run("evenkeel region delete region-00000002").await;
    insta::assert_snapshot!(desk.double.asked(), @r#"
    GET regions
    POST regions {"name":"Berlin","parentId":"region-00000001","metadata":[]}
    GET regions
    GET regions/region-00000002
    DELETE regions/region-00000002
    "#);
}

#[tokio::test]
async fn a_site_is_made_where_it_is() {
    let desk = Desk::new().await;
    desk.double.answer("POST sites", site()).answer(
        "GET sites",
        json!({"sites": [site()], "totalElements": 1, "hasNext": false}),
    );
    let line = "evenkeel site create Mitte --region region-00000002 --latitude 52.520008 --longitude -0.0000001";
    insta::assert_snapshot!(desk.run(line).await, @r"
    id         site-00000001
    name       Mitte
    region     Berlin
    latitude   52.520008
    longitude  -0.0000001
    created    -

    Labels:
    KEY      VALUE  FROM
    tier     gold   itself
    country  de     above
    ");
    insta::assert_snapshot!(desk.run("evenkeel site list").await, @r"
    ID             NAME   REGION  LATITUDE   LONGITUDE
    site-00000001  Mitte  Berlin  52.520008  -0.0000001
    ");
    insta::assert_snapshot!(desk.double.asked(), @r#"
    POST sites {"name":"Mitte","regionId":"region-00000002","siteLat":525200080,"siteLng":-1,"metadata":[]}
    GET sites
    "#);
}

#[tokio::test]
async fn a_place_that_is_not_empty_says_how_to_empty_it() {
    let desk = Desk::new().await;
    let held = json!({"code": "FailedPrecondition", "message": "the site holds hosts"});
    desk.double
        .answer_with("DELETE sites/site-00000001", 400, held);
    insta::assert_snapshot!(desk.fail("evenkeel site delete site-00000001").await, @r"
    the site holds hosts
    hint: take its hosts away first: `evenkeel host set HOST --site OTHER` or `--no-site`
    ");
}

#[tokio::test]
async fn a_host_is_put_at_a_site_and_taken_away() {
    let desk = Desk::new().await;
    let host = json!({"resourceId": "host-00000001", "name": "edge-01", "siteId": "site-00000001", "site": site()});
    desk.double
        .answer(
            "GET sites",
            json!({"sites": [site()], "totalElements": 1, "hasNext": false}),
        )
        .answer("PATCH compute/hosts/host-00000001", host);
    let text = desk
        .run("evenkeel host set host-00000001 --site Mitte")
        .await;
    assert!(text.contains("site      Mitte\n"), "{text}");
    desk.run("evenkeel host set host-00000001 --no-site --name edge-02")
        .await;
    insta::assert_snapshot!(desk.double.asked(), @r#"
    GET sites
    PATCH compute/hosts/host-00000001 {"siteId":"site-00000001"}
    PATCH compute/hosts/host-00000001 {"name":"edge-02","siteId":""}
    "#);
    let told = desk.fail("evenkeel host set host-00000009 --no-site").await;
    assert!(
        told.starts_with("there is no host `host-00000009`\n"),
        "{told}"
    );
}
