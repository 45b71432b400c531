//! Errors of invalid filters.

use super::*;

const BAD_FILTERS: &[&str] = &[
    "",
    "   ",
    "name",
    "name =",
    "= 'a'",
    "'a'",
    "nam = 'a'",
    "serialnumber = 'a'",
    "site.nam = 'a'",
    "sit.name = 'a'",
    "siteId = 'site-0a1b2c3d'",
    "instance.hostID = 'host-0a1b2c3d'",
    "id = 'host-0a1b2c3d'",
    "tenantId = 'a'",
    "inheritedMetadata = 'a'",
    "site = 'site-0a1b2c3d'",
    "instance.os != null",
    "name.first = 'a'",
    "hostNics.metadata.city = 'ulm'",
    "metdata.city = 'ulm'",
    "name = 'a' name = 'b'",
    "name = 'a' and name = 'b'",
    "not name = 'a'",
    "name = 'a' AND",
    "name = 'a' OR OR name = 'b'",
    "name = AND",
    "(name = 'a'",
    "name = 'a')",
    "(name = 'a' name = 'b')",
    "()",
    "name = 'a",
    "name = 'a' && name = 'b'",
    "!has(site)",
    "name ~ 'a'",
    "näme = 'ä' & note = 'b'",
    "has(name)",
    "has(sites)",
    "has(site",
    "has site",
    "has()",
    "size(site)",
    "currentState = onboarded",
    "currentState = HOST_STATE_ONBORDED",
    "currentState > HOST_STATE_ONBOARDED",
    "name > 'a'",
    "name < ''",
    "cpuCores = 'many'",
    "cpuCores = 4.5",
    "memoryBytes = 9223372036854775808",
    "hostNics.sriovEnabled = yes",
    "hostNics.sriovEnabled = tru",
    "hostStatusTimestamp > yesterday",
    "hostStatusTimestamp > -5",
    "createdAt > 1760000000",
    "createdAt > '2026-01-31'",
    "hostNics.mtu:*",
    "metadata:''",
    "metadata.city > 'a'",
    "metadata.city = null",
    "name, note",
];

#[test]
fn a_bad_filter_is_reported_with_its_position_and_reason() {
    let row = |text: &&str| {
        let bad = refused(text);
        let caret = " ".repeat(bad.position);
        format!("{text}\n{caret}^ {bad}\n")
    };
    let table: String = BAD_FILTERS.iter().map(row).collect();
    insta::assert_snapshot!(table);
}

#[test]
fn a_misspelled_field_is_recognised() {
    let bad = refused("note = 'a' AND nam = 'b'");
    assert_eq!(bad.to_string(), "at 15: there is no field `nam` of hosts; did you mean `name`?");
    assert_eq!(refused("foo = 'a'").hint, None);
}

#[test]
fn a_version_is_compared_by_size_only_with_numbers() {
    let bad = refused("agentVersion < '1.x'");
    let why = "at 15: `1.x` is not a version such as \"0.10.2\", as needed for `agentVersion`";
    assert_eq!(bad.to_string(), why);
    assert!(parse_filter(Resource::Host, "agentVersion = '1.x'").is_ok());
}

#[test]
fn a_linking_id_is_suggested_as_a_path() {
    let hint = |resource: Resource, text: &str| {
        let bad = parse_filter(resource, text).expect_err("a bad filter");
        (bad.position, bad.hint.unwrap_or_default())
    };
    let site = "site.resourceId".to_owned();
    assert_eq!(hint(Resource::Host, "siteId = 'a'"), (0, site));
    let host = "host.resourceId".to_owned();
    assert_eq!(hint(Resource::Instance, "hostID = 'a'"), (0, host.clone()));
    assert_eq!(hint(Resource::Host, "instance.hostID = 'a'"), (9, host));
}

#[test]
fn a_suggestion_fits_at_the_reported_position() {
    let is_name_char = |c: &char| c.is_alphanumeric() || *c == '_';
    for text in [
        "nam = 'a'",
        "siteId = 'site-0a1b2c3d'",
        "ipAddresses = '192.0.2.'",
        "instance.hostID = 'host-0a1b2c3d'",
        "site = 'site-0a1b2c3d'",
        "sit.name = 'a'",
        "metdata.city = 'ulm'",
        "name = 'a' and name = 'b'",
        "not name = 'a'",
        "currentState = onboarded",
        "currentState = HOST_STATE_ONBORDED",
        "hostNics.sriovEnabled = tru",
    ] {
        let bad = refused(text);
        let before: String = text.chars().take(bad.position).collect();
        let after: String = text.chars().skip(bad.position).skip_while(is_name_char).collect();
        let hint = bad.hint.expect("a hint");
        let repaired = format!("{before}{hint}{after}");
        assert!(parse_filter(Resource::Host, &repaired).is_ok(), "{repaired}");
    }
}

#[test]
fn a_filter_has_a_maximum_length() {
    let long = |length: usize| format!("name = '{}'", "ä".repeat(length - 9));
    assert!(parse_filter(Resource::Host, &long(Filter::MAX_CHARS)).is_ok());
    let bad = refused(&long(Filter::MAX_CHARS + 1));
    assert_eq!(bad.to_string(), "at 4000: longer than 4000 characters");
}

#[test]
fn an_error_message_stays_short() {
    let bad = refused(&format!("{} = 'a'", "x".repeat(3_900)));
    assert!(bad.to_string().len() < 200, "{bad}");
}
