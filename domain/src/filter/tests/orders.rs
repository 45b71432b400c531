//! Orders of lists.

use super::*;

fn order(text: &str) -> String {
    match parse_order(Resource::Host, text) {
        Ok(keys) => keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        Err(bad) => bad.to_string(),
    }
}

#[test]
fn fields_are_separated_by_commas() {
    assert_eq!(order("name"), "name");
    assert_eq!(
        order("name asc, host_status desc,hostStatusTimestamp DESC"),
        "name, hostStatus desc, hostStatusTimestamp desc"
    );
    assert_eq!(order(" "), "");
}

/// EIM's clients order by columns of its database.
#[test]
fn lists_are_ordered_by_references_under_the_names_of_eim() {
    assert!(parse_order(Resource::Site, "site_resource_region desc, resource_id").is_ok());
    assert!(parse_order(Resource::Host, "site_resource_region").is_err(), "of another resource");
    for resource in Resource::ALL {
        for field in resource.references() {
            assert!(parse_order(*resource, field.name).is_ok(), "{}", field.name);
            let filter = format!("{} = 1", field.name);
            assert!(parse_filter(*resource, &filter).is_err(), "{filter}");
        }
    }
}

#[test]
fn a_bad_order_is_reported_with_its_position_and_reason() {
    let bad = [
        "nam",
        "siteId",
        "site",
        "site.name",
        "name desc, name",
        "name note",
        "name descending",
        "name,",
        ", name",
        "-name",
        "name = 'a'",
        "'name'",
        "name; note",
    ];
    let row = |text: &&str| format!("{text}\n    {}\n", order(text));
    insta::assert_snapshot!(bad.iter().map(row).collect::<String>());
    for text in bad {
        assert!(parse_order(Resource::Host, text).is_err(), "{text}");
    }
}

#[test]
fn an_order_has_a_maximum_length() {
    let bad = parse_order(Resource::Host, &"name,".repeat(201)).expect_err("too long");
    assert_eq!(bad.to_string(), "at 1000: longer than 1000 characters");
}
