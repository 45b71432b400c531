//! REST form of hosts.

use evenkeel_api as api;
use evenkeel_api::Timestamps;
use evenkeel_api::host::HostResource;
use evenkeel_domain::host::{Host, HostState};
use evenkeel_domain::instance::Summary;
use evenkeel_store::hosts::HostDetails;
use evenkeel_store::related::{self, Related, RelatedIds};
use evenkeel_store::{StoreError, Tx};

use super::hardware::with_hardware;
use super::{instances, providers, status_fields};
use crate::location_tree::{LocationTree, labels};

/// Loads what hosts and their instances refer to. Runs one query for any number of hosts.
pub async fn load_related(tx: &Tx, hosts: &[HostDetails]) -> Result<Related, StoreError> {
    let mut related_ids = RelatedIds::default();
    for record in hosts {
        related_ids.add_host(&record.host);
        if let Some(instance) = &record.instance {
            related_ids.add_instance(instance);
        }
    }
    related::load(tx, &related_ids).await
}

/// REST form of a host with its instance, hardware, location and provider.
pub fn full_resource(record: HostDetails, related: &Related) -> HostResource {
    let instance = record.instance.as_ref();
    let with_instance = HostResource {
        instance: instance.map(|on| Box::new(instances::resource(on, related))),
        last_contact: record.last_contact,
        ip_addresses: record.addresses,
        ..resource_with_provider(&record.host, related)
    };
    let with_instance = match instance {
        Some(instance) => with_facts(&instance.summary, with_instance),
        None => with_instance,
    };
    match record.hardware {
        Some(hardware) => with_hardware(hardware, with_instance),
        None => with_instance,
    }
}

/// Adds what the node of a host reported about itself.
fn with_facts(summary: &Summary, host: HostResource) -> HostResource {
    let facts = &summary.facts;
    HostResource {
        agent_version: summary.agent_version.clone(),
        kernel_release: facts.kernel_release.clone().unwrap_or_default(),
        boot_time: facts.boot_time,
        reboot_required: facts.reboot_required,
        reboot_required_by: facts.reboot_required_by.clone().unwrap_or_default(),
        ..host
    }
}

/// REST form of a host with its location and provider, without its instance and hardware.
pub fn resource_with_provider(host: &Host, related: &Related) -> HostResource {
    let provider = host.provider.and_then(|id| related.providers.get(&id));
    HostResource {
        provider: provider.map(providers::resource),
        ..resource(host, LocationTree::from_related(related))
    }
}

/// REST form of a host with its location, without its instance, hardware and provider.
pub fn resource(host: &Host, locations: LocationTree<'_>) -> HostResource {
    let (host_status, host_status_indicator, host_status_timestamp) = status_fields(&host.status);
    let onboarded = host.current == HostState::Onboarded;
    HostResource {
        resource_id: host.id.to_string(),
        name: host.name.to_string(),
        desired_state: state(host.desired),
        current_state: state(host.current),
        site_id: host.site.map(|id| id.to_string()).unwrap_or_default(),
        site: host.site.and_then(|id| locations.site(id)),
        note: host.note.clone(),
        serial_number: host
            .serial
            .as_ref()
            .map(|serial| serial.as_str().to_owned())
            .unwrap_or_default(),
        uuid: host.uuid_text.clone(),
        hostname: host.hostname.clone(),
        host_status,
        host_status_indicator,
        host_status_timestamp,
        onboarding_status: if onboarded { "Onboarded" } else { "Not Connected" }.to_owned(),
        onboarding_status_indicator: if onboarded {
            api::status::StatusIndication::Idle
        } else {
            api::status::StatusIndication::Unspecified
        },
        registration_status: "Unknown".to_owned(),
        power_status: "Unknown".to_owned(),
        amt_status: "Unknown".to_owned(),
        user_lvm_size: host.user_lvm_size,
        metadata: labels(&host.metadata),
        inherited_metadata: locations.inherited_by(host),
        timestamps: Some(Timestamps::new(host.created_at, host.updated_at)),
        ..HostResource::default()
    }
}

const fn state(state: HostState) -> api::host::HostState {
    use api::host::HostState as Wire;
    match state {
        HostState::Unspecified => Wire::Unspecified,
        HostState::Registered => Wire::Registered,
        HostState::Onboarded => Wire::Onboarded,
        HostState::Untrusted => Wire::Untrusted,
        HostState::Deleted => Wire::Deleted,
    }
}
