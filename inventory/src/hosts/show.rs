//! Hosts as they are shown.

use std::collections::HashMap;

use evenkeel_api as api;
use evenkeel_api::Timestamps;
use evenkeel_api::host::HostResource;
use evenkeel_domain::host::{Host, HostState};
use evenkeel_store::{Tx, hardware, instances};

use super::hardware::made_of;
use crate::instances::{Related, resource as instance_resource};
use crate::places::{Places, labels};
use crate::problem::Problem;
use crate::providers;
use crate::shape::triplet;

/// Hosts with what runs on them, what they are made of, where they stand and who brought them, in the order given: the
/// same number of statements for any number of hosts.
pub async fn resources(tx: &Tx, hosts: Vec<Host>) -> Result<Vec<HostResource>, Problem> {
    let ids: Vec<_> = hosts.iter().map(|host| host.id).collect();
    let instances = instances::of_hosts(tx, &ids).await?;
    let related = Related::of(tx, &instances).await?;
    let places = Places::of_hosts(tx, &hosts).await?;
    let providers = providers::of_hosts(tx, &hosts).await?;
    let mut hardware = hardware::of_hosts(tx, &ids).await?;
    let by_host: HashMap<_, _> = instances.iter().map(|on| (on.host, on)).collect();
    let whole = |host: &Host| {
        let provider = host.provider.and_then(|id| providers.get(&id));
        let shown = HostResource {
            instance: by_host
                .get(&host.id)
                .map(|instance| Box::new(instance_resource(instance, &related))),
            provider: provider.map(providers::resource),
            ..resource(host, &places)
        };
        match hardware.remove(&host.id) {
            Some(hardware) => made_of(hardware, shown),
            None => shown,
        }
    };
    Ok(hosts.iter().map(whole).collect())
}

/// A host without what runs on it, what it is made of and who brought it.
pub fn resource(host: &Host, places: &Places) -> HostResource {
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
