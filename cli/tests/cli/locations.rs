//! Regions, sites and locations.

use serde_json::{Value, json};

use crate::TestCli;

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
async fn regions_are_listed_with_their_parent() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET regions?showTotalSites=true", regions());
    insta::assert_snapshot!(cli.run("evenkeel region list").await, @r"
    ID               NAME     PARENT   SITES  AGE
    region-00000001  Germany  -        2      -
    region-00000002  Berlin   Germany  1      -
    ");
}

#[tokio::test]
async fn a_region_is_created_in_another() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET regions", regions())
        .answer("POST regions", regions()["regions"][1].clone())
        .answer("GET regions/region-00000002", regions()["regions"][1].clone())
        .answer("DELETE regions/region-00000002", json!({}));
    insta::assert_snapshot!(cli.run("evenkeel region create Spandau --parent Germany").await, @r"
    id       region-00000002
    name     Berlin
    parent   Germany
    created  -
    ");
    cli.run("evenkeel region get Berlin").await;
    cli.run("evenkeel region delete region-00000002").await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    GET regions?filter=name == "Germany"
    GET regions?filter=name == "Spandau"
    POST regions {"name":"Spandau","parentId":"region-00000001","metadata":[]}
    GET regions?filter=name == "Berlin"
    GET regions/region-00000002
    DELETE regions/region-00000002
    "#);
}

#[tokio::test]
async fn a_site_is_created_with_coordinates() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("POST sites", site());
    let line = "evenkeel site create Mitte --region region-00000002 --latitude 52.520008 --longitude -0.0000001";
    insta::assert_snapshot!(cli.run(line).await, @r"
    id         site-00000001
    name       Mitte
    region     Berlin
    latitude   52.520008
    longitude  -0.0000001
    created    -

    Labels:
    KEY      VALUE  SOURCE
    tier     gold   own
    country  de     inherited
    ");
    cli.fake_server
        .answer("GET sites", json!({"sites": [site()], "totalElements": 1, "hasNext": false}));
    insta::assert_snapshot!(cli.run("evenkeel site list").await, @r"
    ID             NAME   REGION  LATITUDE   LONGITUDE   AGE
    site-00000001  Mitte  Berlin  52.520008  -0.0000001  -
    ");
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    POST sites {"name":"Mitte","regionId":"region-00000002","siteLat":525200080,"siteLng":-1,"metadata":[]}
    GET sites
    "#);
}

#[tokio::test]
async fn deleting_a_site_with_hosts_explains_how_to_empty_it() {
    let cli = TestCli::new().await;
    let in_use = json!({"code": "FailedPrecondition", "message": "the site holds hosts"});
    cli.fake_server.answer_with("DELETE sites/site-00000001", 400, in_use);
    insta::assert_snapshot!(cli.fail("evenkeel site delete site-00000001").await, @r"
    the site holds hosts
    hint: remove its hosts first: `evenkeel host set HOST --site OTHER` or `--no-site`
    ");
}

#[tokio::test]
async fn a_host_is_moved_to_a_site_and_away() {
    let cli = TestCli::new().await;
    let host = json!({"resourceId": "host-00000001", "name": "edge-01", "siteId": "site-00000001", "site": site()});
    cli.fake_server
        .answer("GET sites", json!({"sites": [site()], "totalElements": 1, "hasNext": false}))
        .answer("PATCH compute/hosts/host-00000001", host);
    let text = cli.run("evenkeel host set host-00000001 --site Mitte").await;
    assert!(text.contains("site      Mitte\n"), "{text}");
    cli.run("evenkeel host set host-00000001 --no-site --name edge-02").await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    GET sites?filter=name == "Mitte"
    PATCH compute/hosts/host-00000001 {"siteId":"site-00000001"}
    PATCH compute/hosts/host-00000001 {"name":"edge-02","siteId":""}
    "#);
    let message = cli.fail("evenkeel host set host-00000009 --no-site").await;
    assert!(message.starts_with("there is no host `host-00000009`\n"), "{message}");
}

/// Nested regions, and sites with and without a region.
async fn cli_with_regions() -> TestCli {
    let cli = TestCli::new().await;
    let region = |nth: u32, name: &str, above: &str| json!({"resourceId": format!("region-0000000{nth}"), "name": name, "parentId": above});
    let site = |nth: u32, name: &str, above: &str| json!({"resourceId": format!("site-0000000{nth}"), "name": name, "regionId": above});
    let count = |total: u32, error: u32| json!({"total": total, "error": error, "running": 0, "unallocated": 0});
    cli.fake_server
        .answer(
            "GET regions?orderBy=name, resourceId",
            json!({
                "regions": [
                    region(4, "apac", ""), region(1, "emea", ""), region(3, "north", "region-00000001"),
                    region(2, "south", "region-00000001"),
                ],
                "totalElements": 4, "hasNext": false,
            }),
        )
        .answer(
            "GET sites?orderBy=name, resourceId",
            json!({
                "sites": [
                    site(1, "bonn", "region-00000001"), site(2, "ulm", "region-00000002"), site(3, "", ""),
                ],
                "totalElements": 3, "hasNext": false,
            }),
        )
        .answer(
            "GET compute/hosts/summary?filter=site.resourceId == \"site-00000001\"",
            count(12, 2),
        )
        .answer(
            "GET compute/hosts/summary?filter=site.resourceId == \"site-00000002\"",
            count(1, 0),
        )
        .answer(
            "GET compute/hosts/summary?filter=site.resourceId == \"site-00000003\"",
            count(0, 0),
        )
        .answer(
            "GET compute/hosts/summary?filter=NOT has(site)",
            count(5, 0),
        );
    cli
}

#[tokio::test]
async fn the_tree_shows_nested_regions() {
    let cli = cli_with_regions().await;
    insta::assert_snapshot!(cli.run("evenkeel region tree").await, @r"
    apac (region-00000004)
    emea (region-00000001)
    ├── north (region-00000003)
    ├── south (region-00000002)
    │   └── ulm (site-00000002)  1 host
    └── bonn (site-00000001)  12 hosts  2 with an error
    without a region
    └── site-00000003  no hosts
    without a site  5 hosts
    ");
    let json = cli.run("evenkeel region tree -o json").await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["hostsWithoutSite"]["total"], 5);
    assert_eq!(json["regions"][1]["regions"][1]["sites"][0]["hosts"]["total"], 1);
    insta::assert_snapshot!(cli.run("evenkeel region tree -q").await, @r"
    region-00000004
    region-00000001
    region-00000003
    region-00000002
    site-00000002
    site-00000001
    site-00000003
    ");
}

#[tokio::test]
async fn the_tree_of_one_region_shows_only_its_contents() {
    let cli = cli_with_regions().await;
    insta::assert_snapshot!(cli.run("evenkeel region tree region-00000002").await, @r"
    south (region-00000002)
    └── ulm (site-00000002)  1 host
    ");
    let message = cli.fail("evenkeel region tree region-00000009").await;
    assert!(message.starts_with("there is no region `region-00000009`\n"), "{message}");
}

#[tokio::test]
async fn an_empty_tree_is_reported() {
    let cli = TestCli::new().await;
    let none = |key: &str| json!({key: [], "totalElements": 0, "hasNext": false});
    cli.fake_server
        .answer("GET regions?orderBy=name, resourceId", none("regions"))
        .answer("GET sites?orderBy=name, resourceId", none("sites"))
        .answer("GET compute/hosts/summary?filter=NOT has(site)", json!({}));
    assert_eq!(cli.run("evenkeel region tree").await, "no regions\n");
}

#[tokio::test]
async fn regions_and_sites_are_patched() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET sites/site-00000001", site())
        .answer("PATCH sites/site-00000001", site())
        .answer("GET regions", regions())
        .answer("PATCH regions/region-00000002", json!({}));
    for line in [
        "evenkeel region set region-00000002 --name Berlin-Brandenburg --no-parent",
        "evenkeel region set region-00000002 --parent Germany -q",
        "evenkeel site set site-00000001 --region Berlin --latitude -1.5 --longitude 13",
        "evenkeel site set site-00000001 --no-region --label tier=silver",
    ] {
        cli.run(line).await;
    }
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    GET regions?filter=name == "Berlin-Brandenburg"
    PATCH regions/region-00000002 {"name":"Berlin-Brandenburg","parentId":""}
    GET regions?filter=name == "Germany"
    PATCH regions/region-00000002 {"parentId":"region-00000001"}
    GET regions?filter=name == "Berlin"
    PATCH sites/site-00000001 {"regionId":"region-00000002","siteLat":-15000000,"siteLng":130000000}
    GET sites/site-00000001
    PATCH sites/site-00000001 {"metadata":[{"key":"tier","value":"silver"}],"regionId":""}
    "#);
}

#[tokio::test]
async fn regions_and_sites_are_created_with_labels() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("POST regions", json!({})).answer("POST sites", site());
    cli.run("evenkeel region create Berlin --label country=de -q").await;
    cli.run("evenkeel site create Mitte --label tier=gold -q").await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    POST regions {"name":"Berlin","parentId":"","metadata":[{"key":"country","value":"de"}]}
    POST sites {"name":"Mitte","regionId":"","siteLat":0,"siteLng":0,"metadata":[{"key":"tier","value":"gold"}]}
    "#);
}

#[tokio::test]
async fn a_location_is_found_by_part_of_its_name() {
    let cli = TestCli::new().await;
    let node = |id: &str, above: &str, name: &str, kind: &str| json!({"resourceId": id, "parentId": above, "name": name, "type": kind});
    let (region, site) = ("RESOURCE_KIND_REGION", "RESOURCE_KIND_SITE");
    cli.fake_server
        .answer(
            "GET locations?name=ber?showRegions=true?showSites=true",
            json!({
                "nodes": [
                    node("region-00000001", "", "Germany", region),
                    node("region-00000002", "region-00000001", "Berlin", region),
                    node("site-00000001", "region-00000002", "Berlin-Mitte", site),
                    node("site-00000002", "region-00000001", "Bamberg", site),
                ],
                "totalElements": 9, "outputElements": 3,
            }),
        )
        .answer(
            "GET locations?name=ber?showRegions=false?showSites=true",
            json!({"nodes": [], "totalElements": 0, "outputElements": 0}),
        );
    insta::assert_snapshot!(cli.run("evenkeel location find ber").await, @r"
    note: showing 3 of 9; use a longer text
    Germany (region-00000001)  region
    ├── Berlin (region-00000002)  region
    │   └── Berlin-Mitte (site-00000001)  site
    └── Bamberg (site-00000002)  site
    ");
    assert_eq!(cli.run("evenkeel location find ber --sites").await, "no match for `ber`\n");
}
