//! Invalid filters and orders. Each error has a position, and a hint if there is a likely
//! correction.

use serde_json::Value;

use super::{BadInputFixture, CaseResults};
use crate::lists::percent_encode;
use crate::test_server::Caller;

/// List, filter, and the expected position and hint.
const INVALID_FILTERS: &str = r#"
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

/// List, order, and the expected position and hint.
const INVALID_ORDERS: &str = "
compute/hosts | site.name | 0 -
compute/hosts | nam | 0 name
compute/hosts | name up | 5 -
compute/hosts | name, name desc | 6 -
compute/hosts | name, | 5 -
compute/hosts | name; note | 4 -
sites | region | 0 -
";

/// Requests a list and checks the reported position of the error in the parameter.
async fn check_position(
    fixture: &BadInputFixture,
    results: &mut CaseResults,
    input: [&str; 3],
    expected: &str,
) {
    let [list, parameter, text] = input;
    let what = format!("GET {list}?{parameter}={}", percent_encode(text));
    let (status, problem) = fixture.server.request(&what, None).await;
    let hint = problem["hint"].as_str().unwrap_or("-");
    let of = |member: &str| problem[member].as_str().unwrap_or("-").to_owned();
    let (code, parameter_name) = (of("code"), of("parameter"));
    let position = &problem["position"];
    let actual = format!("{} {code} {parameter_name} {position} {hint}", status.as_u16());
    let expected = format!("400 InvalidArgument {parameter} {expected}");
    results.check(&format!("{list} {text}"), &actual, &expected, &problem);
}

#[tokio::test]
async fn an_invalid_filter_or_order_reports_its_position_and_a_hint() {
    let fixture = BadInputFixture::new().await;
    let mut results = CaseResults::default();
    for (parameter, cases) in [("filter", INVALID_FILTERS), ("orderBy", INVALID_ORDERS)] {
        for case in cases.lines().filter(|line| !line.is_empty()) {
            let columns: Vec<&str> = case.split(" | ").collect();
            let [list, text, expected] = columns.as_slice() else {
                panic!("this is not a case: {case}");
            };
            check_position(&fixture, &mut results, [list, parameter, text], expected).await;
        }
    }
    let [open, close] = ["(", ")"].map(|sign| sign.repeat(65));
    let long = "a".repeat(3_992);
    let labels: Vec<_> =
        (0..90).map(|n| format!("metadata.k{n:02} = \"*a{n}*b*c*d*e*f*g\"")).collect();
    for (parameter, text, expected) in [
        ("filter", format!("name = \"{long}\""), "4000 -"),
        ("filter", format!("{open}name = \"x\"{close}"), "65 -"),
        ("filter", format!("{}name = \"x\"", "NOT ".repeat(65)), "260 -"),
        ("filter", labels.join(" OR "), "0 -"),
        ("orderBy", "a".repeat(1_001), "1000 -"),
    ] {
        let input = ["compute/hosts", parameter, text.as_str()];
        check_position(&fixture, &mut results, input, expected).await;
    }
    results.assert_all_passed(30);
}

#[tokio::test]
async fn a_filter_is_checked_before_the_caller_is_authenticated() {
    let fixture = BadInputFixture::new().await;
    let what = "GET /v1/projects/ours/compute/hosts?filter=nam%3D%22x%22";
    let (status, problem) = fixture.server.client_of(Caller::Anonymous).request(what, None).await;
    assert_eq!((status.as_u16(), &problem["position"]), (400, &Value::from(0)));
}
