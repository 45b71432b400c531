//! The schema is consistent with itself and with the rest of the domain.

use std::collections::HashSet;

use super::*;
use crate::host::HostState;
use crate::instance::{InstanceKind, InstanceState};
use crate::os::{OsKind, OsProvider, SecurityFeature};
use crate::schedule::ScheduleStatus;
use crate::status::Indication;

#[test]
fn names_in_a_resource_are_unique() {
    for resource in Resource::ALL {
        let mut names = HashSet::new();
        assert!(!resource.fields().is_empty(), "{resource:?}");
        for field in resource.fields() {
            assert!(names.insert(field.name), "{resource:?} {}", field.name);
            assert_eq!(resource.field(field.name), Some(field));
            assert_eq!(resource.field(&field.wire_name()), Some(field));
            assert_eq!(resource.edge(field.name), None);
        }
        for edge in resource.edges() {
            assert!(names.insert(edge.name), "{resource:?} {}", edge.name);
            assert_eq!(resource.edge(edge.name), Some(edge));
            assert_eq!(resource.edge(&edge.wire_name()), Some(edge));
        }
    }
}

#[test]
fn a_resource_with_labels_has_a_metadata_field() {
    for resource in Resource::ALL.iter().filter(|resource| resource.has_labels()) {
        let field = resource.field("metadata").expect("the field");
        assert_eq!(field.kind, FieldKind::Text, "{resource:?}");
    }
}

#[test]
fn wire_values_map_back_to_their_names() {
    let fields = Resource::ALL.iter().flat_map(|resource| resource.fields());
    for field in fields {
        let FieldKind::Enumeration(values) = field.kind else {
            continue;
        };
        for name in values.names {
            assert_eq!(values.name_from_wire(&values.wire_value(name)), Some(*name));
        }
    }
}

#[test]
fn enumerations_match_the_domain() {
    let names = |resource: Resource, field: &str| -> HashSet<&str> {
        match resource.field(field).map(|field| field.kind) {
            Some(FieldKind::Enumeration(values)) => values.names.iter().copied().collect(),
            other => panic!("{field}: {other:?}"),
        }
    };
    let same = |resource: Resource, field: &str, expected: HashSet<&str>| {
        assert_eq!(names(resource, field), expected, "{resource:?} {field}");
    };
    let expected = HostState::ALL.iter().map(|value| value.name());
    same(Resource::Host, "current_state", expected.collect());
    let expected = Indication::ALL.iter().map(|value| value.name());
    same(Resource::Host, "host_status_indicator", expected.collect());
    let expected = InstanceState::ALL.iter().map(|value| value.name());
    same(Resource::Instance, "current_state", expected.collect());
    let expected = InstanceKind::ALL.iter().map(|value| value.name());
    same(Resource::Instance, "kind", expected.collect());
    let expected = SecurityFeature::ALL.iter().map(|value| value.name());
    same(Resource::Os, "security_feature", expected.collect());
    let expected = OsProvider::ALL.iter().map(|value| value.name());
    same(Resource::Os, "os_provider", expected.collect());
    let expected = ScheduleStatus::ALL.iter().map(|value| value.name());
    same(Resource::SingleSchedule, "schedule_status", expected.collect());
    let mut expected = OsKind::ALL.iter().map(|value| value.name());
    let kinds = names(Resource::Os, "os_type");
    assert!(expected.all(|name| kinds.contains(name)));
}
