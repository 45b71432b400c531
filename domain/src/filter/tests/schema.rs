//! The schema agrees with itself and with the rest of the domain.

use std::collections::HashSet;

use super::*;
use crate::host::HostState;
use crate::instance::{InstanceKind, InstanceState};
use crate::os::{OsKind, OsProvider, SecurityFeature};
use crate::schedule::ScheduleStatus;
use crate::status::Indication;

#[test]
fn no_name_of_a_resource_means_two_things() {
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
fn who_has_labels_has_the_field_for_them() {
    for resource in Resource::ALL
        .iter()
        .filter(|resource| resource.has_labels())
    {
        let field = resource.field("metadata").expect("the field");
        assert_eq!(field.kind, FieldKind::Text, "{resource:?}");
    }
}

#[test]
fn values_are_found_by_what_the_wire_calls_them() {
    let fields = Resource::ALL.iter().flat_map(|resource| resource.fields());
    for field in fields {
        let FieldKind::Enumeration(values) = field.kind else {
            continue;
        };
        for name in values.names {
            assert_eq!(values.name_of(&values.wire(name)), Some(*name));
        }
    }
}

#[test]
fn values_are_those_of_the_domain() {
    let names = |resource: Resource, field: &str| -> HashSet<&str> {
        match resource.field(field).map(|field| field.kind) {
            Some(FieldKind::Enumeration(values)) => values.names.iter().copied().collect(),
            other => panic!("{field}: {other:?}"),
        }
    };
    let same = |resource: Resource, field: &str, known: HashSet<&str>| {
        assert_eq!(names(resource, field), known, "{resource:?} {field}");
    };
    let known = HostState::ALL.iter().map(|value| value.name());
    same(Resource::Host, "current_state", known.collect());
    let known = Indication::ALL.iter().map(|value| value.name());
    same(Resource::Host, "host_status_indicator", known.collect());
    let known = InstanceState::ALL.iter().map(|value| value.name());
    same(Resource::Instance, "current_state", known.collect());
    let known = InstanceKind::ALL.iter().map(|value| value.name());
    same(Resource::Instance, "kind", known.collect());
    let known = SecurityFeature::ALL.iter().map(|value| value.name());
    same(Resource::Os, "security_feature", known.collect());
    let known = OsProvider::ALL.iter().map(|value| value.name());
    same(Resource::Os, "os_provider", known.collect());
    let known = ScheduleStatus::ALL.iter().map(|value| value.name());
    same(Resource::SingleSchedule, "schedule_status", known.collect());
    let mut known = OsKind::ALL.iter().map(|value| value.name());
    let kinds = names(Resource::Os, "os_type");
    assert!(known.all(|name| kinds.contains(name)));
}
