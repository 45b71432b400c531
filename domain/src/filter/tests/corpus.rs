//! Filters that EIM's clients send, and our extensions.

use super::*;

const CORPUS: &[(Resource, &str)] = &[
    (Resource::Host, r#"name="X""#),
    (Resource::Host, "serialNumber='S' AND uuid='U'"),
    (Resource::Host, "hostStatus='onboarded'"),
    (Resource::Host, "agentVersion < '0.10' AND NOT agentVersion = '~rc'"),
    (Resource::Host, "hostStatus='error'"),
    (Resource::Host, "hostStatus=''"),
    (Resource::Region, "resource_id='region-0a1b2c3d'"),
    (Resource::Region, "parent_region.resource_id='region-0a1b2c3d'"),
    (Resource::Region, "parentRegion.resourceId=\"region-0a1b2c3d\""),
    (Resource::Region, "NOT has(parent_region)"),
    (
        Resource::Site,
        "region.resource_id='region-0a1b2c3d' OR region.parent_region.resource_id='region-0a1b2c3d' \
         OR region.parent_region.parent_region.resource_id='region-0a1b2c3d' \
         OR region.parent_region.parent_region.parent_region.resource_id='region-0a1b2c3d'",
    ),
    (Resource::Site, "region.resourceId='region-0a1b2c3d'"),
    (Resource::Host, "site.resourceId='site-0a1b2c3d' OR site.resourceId='site-4e5f6071'"),
    (
        Resource::Host,
        "name='edge' AND (site.resourceId='site-0a1b2c3d' OR site.resourceId='site-4e5f6071')",
    ),
    (
        Resource::Host,
        "(currentState=HOST_STATE_ONBOARDED AND has(instance) AND instance.currentState=INSTANCE_STATE_RUNNING)",
    ),
    (Resource::Host, "(currentState=HOST_STATE_ONBOARDED AND has(instance))"),
    (Resource::Host, "(currentState=HOST_STATE_ONBOARDED AND NOT has(instance))"),
    (Resource::Host, "(currentState=HOST_STATE_REGISTERED OR currentState=HOST_STATE_UNSPECIFIED)"),
    (
        Resource::Host,
        "hostStatusIndicator=STATUS_INDICATION_ERROR OR onboardingStatusIndicator=STATUS_INDICATION_ERROR \
         OR registrationStatusIndicator=STATUS_INDICATION_ERROR",
    ),
    (
        Resource::Host,
        r#"(name="t" OR uuid="t" OR serialNumber="t" OR resourceId="t" OR note="t" OR site.name="t" OR instance.os.name="t")"#,
    ),
    (Resource::Host, r#"(instance.os.profileName="p1" OR instance.os.profileName="p2")"#),
    (Resource::Host, "has(instance.workloadMembers)"),
    (Resource::Host, "NOT has(instance.workloadMembers)"),
    (Resource::Instance, "NOT has(workloadMembers)"),
    (Resource::Host, r#"site.resourceId="site-0a1b2c3d""#),
    (Resource::Host, r#"uuid="01234567-89ab-cdef-0123-456789abcdef""#),
    (Resource::Instance, r#"host.resourceId="host-0a1b2c3d""#),
    (Resource::Instance, "host.site.region.name = 'south'"),
    (Resource::Run, r#"instance.resourceId="inst-0a1b2c3d""#),
    (Resource::Run, "end_time != 9999999999"),
    (
        Resource::Instance,
        r#"has(localaccount) AND localaccount.resourceId="localaccount-0a1b2c3d""#,
    ),
    (Resource::Host, r#"metadata = '{"key":"city","value":"ulm"}'"#),
    (Resource::Site, r#"metadata='{"key":"city","value":"ulm"},{"key":"rack","value":"1"}'"#),
    (Resource::Host, "hostNics.sriovEnabled = false"),
    (Resource::Host, "NOT has(provider) OR site.name = 'a*b'"),
];

/// Filters beyond those of EIM's clients.
const EXTENSIONS: &[(Resource, &str)] = &[
    (Resource::Host, "name == 'edge-01' AND serialNumber != 'S'"),
    (Resource::Host, "metadata:city AND metadata.city = 'ulm'"),
    (Resource::Host, r#"site.metadata."example.com/rack" != "1""#),
    (Resource::Region, "metadata.example.com/rack:*"),
    (Resource::Host, "memoryBytes >= 17179869184"),
    (Resource::Site, "siteLat < -100"),
    (Resource::Host, "hostNics.ipaddresses.address = 10.0.0.1/24"),
    (Resource::Run, "state = failed AND startTime > 1760000000"),
    (Resource::Run, "endTime = 0 AND createdAt < 2026-01-31T08:00:00Z"),
    (Resource::SingleSchedule, "has(targetHost) OR endSeconds != 0"),
    (Resource::Host, "site:* AND site.name:* AND -note:*"),
    (Resource::Instance, "kind != null"),
    (Resource::Host, "instance.os.resourceId != null"),
];

fn table(filters: &[(Resource, &str)]) -> String {
    let row = |(resource, text): &(Resource, &str)| {
        let filter = render(*resource, text);
        format!("{resource:?}: {text}\n    {filter}\n")
    };
    filters.iter().map(row).collect()
}

#[test]
fn the_filters_of_eim_clients_are_accepted() {
    insta::assert_snapshot!(table(CORPUS));
}

#[test]
fn our_extensions_are_accepted() {
    insta::assert_snapshot!(table(EXTENSIONS));
}

#[test]
fn a_rendered_filter_parses_to_the_same_filter() {
    for (resource, text) in CORPUS.iter().chain(EXTENSIONS) {
        let filter = parse_filter(*resource, text);
        assert_eq!(parse_filter(*resource, &render(*resource, text)), filter, "{text}");
    }
}
