//! Hosts as they are shown.

use evenkeel_api as api;
use evenkeel_api::Timestamps;
use evenkeel_api::host::HostResource;
use evenkeel_domain::host::{Host, HostState};
use evenkeel_store::Tx;
use evenkeel_store::hosts::WholeHost;
use evenkeel_store::related::{self, Related, Wanted};

use super::hardware::made_of;
use crate::instances::resource as instance_resource;
use crate::places::{Places, labels};
use crate::problem::Problem;
use crate::providers;
use crate::shape::triplet;

/// Hosts with what runs on them, what they are made of, where they stand and who brought them, in the order given: one
/// statement for any number of hosts.
pub async fn resources(tx: &Tx, hosts: Vec<WholeHost>) -> Result<Vec<HostResource>, Problem> {
    let mut wanted = Wanted::default();
    for whole in &hosts {
        wanted.add_host(&whole.host);
        if let Some(instance) = &whole.instance {
            wanted.add_instance(instance);
        }
    }
    let related = related::read(tx, &wanted).await?;
    let shown = |host: WholeHost| whole(host, &related);
    Ok(hosts.into_iter().map(shown).collect())
}

/// A host with what runs on it, what it is made of, where it stands and who brought it.
pub fn whole(whole: WholeHost, related: &Related) -> HostResource {
    let instance = whole.instance.as_ref();
    let shown = HostResource {
        instance: instance.map(|on| Box::new(instance_resource(on, related))),
        ..brought(&whole.host, related)
    };
    match whole.hardware {
        Some(hardware) => made_of(hardware, shown),
        None => shown,
    }
}

/// A host with who brought it, without what runs on it and what it is made of.
pub fn brought(host: &Host, related: &Related) -> HostResource {
    let provider = host.provider.and_then(|id| related.providers.get(&id));
    HostResource {
        provider: provider.map(providers::resource),
        ..resource(host, Places::of(related))
    }
}

/// A host without what runs on it, what it is made of and who brought it.
pub fn resource(host: &Host, places: Places<'_>) -> HostResource {
    let (host_status, host_status_indicator, host_status_timestamp) = triplet(&host.status);
    let onboarded = host.current == HostState::Onboarded;
    HostResource {
        resource_id: host.id.to_string(),
        name: host.name.to_string(),
        desired_state: state(host.desired),
        current_state: state(host.current),
        site_id: host.site.map(|id| id.to_string()).unwrap_or_default(),
        site: host.site.and_then(|id| places.site(id)),
        note: host.note.clone(),
        serial_number: host
            .serial
            .as_ref()
            .map(|serial| serial.as_str().to_owned())
            .unwrap_or_default(),
        uuid: host.uuid.map(|uuid| uuid.to_string()).unwrap_or_default(),
        hostname: host.hostname.clone(),
        host_status,
        host_status_indicator,
        host_status_timestamp,
        onboarding_status: if onboarded {
            "Onboarded"
        } else {
            "Not Connected"
        }
        .to_owned(),
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
        inherited_metadata: places.inherited_by(host),
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
