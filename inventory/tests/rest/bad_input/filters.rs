//! Filters and orders that are none: each says where, and what was probably meant.

use serde_json::Value;

use super::{Ground, Wrong};
use crate::house::Who;
use crate::lists::encoded;

/// Which list, the filter, and what is told: the position, and the hint if there is one.
const FILTERS: &str = r#"
compute/hosts | name | 4 -
compute/hosts | name = | 6 -
compute/hosts | nam = "x" | 0 name
compute/hosts | uuid = "ä" AND nam = "x" | 15 name
compute/hosts | site.nam = "x" | 5 name
compute/hosts | site = "x" | 0 site.resourceId
compute/hosts | siteId = "site-0a1b2c3d" | 0 site.resourceId
compute/hosts | name = "x" name = "y" | 11 -
compute/hosts | name = "x" and name = "y" | 11 AND
compute/hosts | name = "x" && name = "y" | 11 AND
compute/hosts | name ~ "x" | 5 =
compute/hosts | name > "x" | 5 -
compute/hosts | name = "x | 7 -
compute/hosts | (name = "x" | 0 -
compute/hosts | name = "x") | 10 -
compute/hosts | has(sit) | 4 site
compute/hosts | size(site) | 0 has
compute/hosts | currentState = HOST_STATE_ONBORDED | 15 HOST_STATE_ONBOARDED
compute/hosts | cpuCores = many | 11 -
compute/hosts | hostStatusTimestamp > yesterday | 22 -
compute/hosts | metadata.city = null | 16 -
compute/hosts | site.region.parentRegion.parentRegion.parentRegion.parentRegion.name = "x" | 51 -
compute/hosts/summary | nam = "x" | 0 name
compute/instances | hostID = "x" | 0 host.resourceId
os-update-runs | statu = "x" | 0 status
regions | parentRegion = "x" | 0 parentRegion.resourceId
providers | colour = "x" | 0 -
"#;

/// Which list, the order, and what is told.
const ORDERS: &str = "
compute/hosts | site.name | 0 -
compute/hosts | nam | 0 name
compute/hosts | name up | 5 -
compute/hosts | name, name desc | 6 -
compute/hosts | name, | 5 -
compute/hosts | name; note | 4 -
sites | region | 0 -
";

/// Asks a list, and looks where the parameter is told to be wrong.
async fn ask(ground: &Ground, wrong: &mut Wrong, question: [&str; 3], wanted: &str) {
    let [list, parameter, text] = question;
    let what = format!("GET {list}?{parameter}={}", encoded(text));
    let (status, problem) = ground.house.ours(&what, None).await;
    let hint = problem["hint"].as_str().unwrap_or("-");
    let of = |member: &str| problem[member].as_str().unwrap_or("-").to_owned();
    let (code, named) = (of("code"), of("parameter"));
    let position = &problem["position"];
    let told = format!("{} {code} {named} {position} {hint}", status.as_u16());
    let wanted = format!("400 InvalidArgument {parameter} {wanted}");
    wrong.look(&format!("{list} {text}"), &told, &wanted, &problem);
}

#[tokio::test]
async fn what_does_not_parse_says_where_and_what_was_meant() {
    let ground = Ground::new().await;
    let mut wrong = Wrong::default();
    for (parameter, cases) in [("filter", FILTERS), ("orderBy", ORDERS)] {
        for case in cases.lines().filter(|line| !line.is_empty()) {
            let columns: Vec<&str> = case.split(" | ").collect();
            let [list, text, wanted] = columns.as_slice() else {
                panic!("this is no case: {case}");
            };
            ask(&ground, &mut wrong, [list, parameter, text], wanted).await;
        }
    }
    let [open, close] = ["(", ")"].map(|sign| sign.repeat(65));
    let long = "a".repeat(3_992);
    for (parameter, text, wanted) in [
        ("filter", format!("name = \"{long}\""), "4000 -"),
        ("filter", format!("{open}name = \"x\"{close}"), "65 -"),
        (
            "filter",
            format!("{}name = \"x\"", "NOT ".repeat(65)),
            "260 -",
        ),
        ("orderBy", "a".repeat(1_001), "1000 -"),
    ] {
        let question = ["compute/hosts", parameter, text.as_str()];
        ask(&ground, &mut wrong, question, wanted).await;
    }
    wrong.end(30);
}

#[tokio::test]
async fn a_filter_is_judged_before_who_asks() {
    let ground = Ground::new().await;
    let what = "GET /v1/projects/ours/compute/hosts?filter=nam%3D%22x%22";
    let (status, problem) = ground.house.ask(Who::Nobody, what, None).await;
    assert_eq!(
        (status.as_u16(), &problem["position"]),
        (400, &Value::from(0))
    );
}
