//! `compute/instances`: what runs on hosts.

use std::collections::HashMap;

use axum::extract::State;
use evenkeel_api as api;
use evenkeel_api::instance::{
    InstanceCondition, InstanceInput, InstanceList, InstancePatch, InstanceResource,
};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::condition::Condition;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::parse_id;
use evenkeel_domain::id::{HostId, InstanceId, OsId, PolicyId};
use evenkeel_domain::instance::{Instance, InstanceKind, InstanceState, NewInstance};
use evenkeel_domain::os::OsProfile;
use evenkeel_domain::policy::UpdatePolicy;
use evenkeel_domain::text::Name;
use evenkeel_store::decisions::{Reading, world};
use evenkeel_store::instances::InstanceChange;
use evenkeel_store::{StoreError, Tx, contents, hosts, instances, nodes, os_profiles, policies};
use serde_json::json;

use crate::App;
use crate::call::{Call, id_of_path};
use crate::extract::{Json, Params, Patch, Path};
use crate::listing::{ListParams, envelope, page};
use crate::places::Places;
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams, triplet};
use crate::{effective, operating_systems as os, policies as policy};

/// What the store calls it.
pub const WHAT: &str = "instance_resource";

/// List the instances.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/instances", tag = "instances", params(InProject, ListParams),
    responses((status = 200, description = "The instances, by id.", body = InstanceList), Problem),
)]
pub async fn list_instances(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<InstanceList> {
    params.refuse(&["filter", "orderBy"])?;
    let page = page(&params)?;
    let tx = app.read(&call).await?;
    let listed = instances::list(&tx, page).await?;
    let (total_elements, has_next) = envelope(&listed, page);
    let instances = resources(&tx, &listed.items).await?;
    tx.commit().await?;
    Ok(Json(InstanceList {
        instances,
        total_elements,
        has_next,
    }))
}

/// Make the instance of a host.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/compute/instances", tag = "instances", params(InProject),
    request_body = InstanceInput,
    responses((status = 200, description = "The instance.", body = InstanceResource), Problem),
)]
pub async fn create_instance(
    State(app): State<App>,
    call: Call,
    Json(body): Json<InstanceInput>,
) -> Answer<InstanceResource> {
    let tx = app.write(&call).await?;
    let new = new_instance(&body)?;
    if let Some(policy) = new.policy {
        check_fit(&tx, "osUpdatePolicyID", policy, new.os).await?;
    }
    let instance = instances::create(&tx, &new, app.clock.now()).await?;
    let answer = one(&app, &tx, instance).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Show an instance.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/instances/{resourceId}", tag = "instances", params(Item),
    responses((status = 200, description = "The instance.", body = InstanceResource), Problem),
)]
pub async fn get_instance(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<InstanceResource> {
    let tx = app.read(&call).await?;
    let id: InstanceId = id_of_path(WHAT, &path.resource_id)?;
    let instance = instances::find(&tx, id).await?;
    let answer = one(&app, &tx, instance).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change an instance.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/compute/instances/{resourceId}", tag = "instances",
    params(Item, MaskParams), request_body = InstancePatch,
    responses((status = 200, description = "The instance.", body = InstanceResource), Problem),
)]
pub async fn patch_instance(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    asked: Patch<InstancePatch>,
) -> Answer<InstanceResource> {
    let tx = app.write(&call).await?;
    let id: InstanceId = id_of_path(WHAT, &path.resource_id)?;
    let asked = Asked {
        mask: params.text("fieldMask"),
        patch: asked,
    };
    let change = asked.change()?;
    let instance = instances::find(&tx, id).await?;
    asked.check_fixed(&instance)?;
    if let Some(Some(policy)) = change.policy {
        check_fit(&tx, "osUpdatePolicyID", policy, instance.summary.os).await?;
    }
    let instance = instances::change(&tx, id, &change, app.clock.now()).await?;
    let answer = one(&app, &tx, instance).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete an instance with its runs.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/compute/instances/{resourceId}", tag = "instances", params(Item),
    responses((status = 200, description = "It is deleted.", body = Empty), Problem),
)]
pub async fn delete_instance(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: InstanceId = id_of_path(WHAT, &path.resource_id)?;
    instances::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn new_instance(body: &InstanceInput) -> Result<NewInstance, Problem> {
    let policy = body.os_update_policy_id.as_deref();
    Ok(NewInstance {
        host: parse_id("hostID", &body.host_id)?,
        os: parse_id("osID", &body.os_id)?,
        name: Name::parse("name", &body.name)?,
        kind: match body.kind {
            api::instance::InstanceKind::Unspecified => InstanceKind::Unspecified,
            api::instance::InstanceKind::Metal => InstanceKind::Metal,
        },
        security_feature: os::security_from(body.security_feature),
        policy: policy
            .map(|id| parse_id("osUpdatePolicyID", id))
            .transpose()?,
    })
}

/// What of an instance stays as it was made.
const FIXED: &[&str] = &[
    "kind",
    "hostID",
    "osID",
    "localAccountID",
    "customConfigID",
    "securityFeature",
];

/// A change that is asked for: the fields of the mask, else those that the body names.
struct Asked<'a> {
    mask: Option<&'a str>,
    patch: Patch<InstancePatch>,
}

impl Asked<'_> {
    fn is_about(&self, field: &str) -> bool {
        match self.mask {
            Some(mask) => mask.split(',').any(|name| name.trim() == field),
            None => self.patch.given.contains_key(field),
        }
    }

    /// What of the instance changes.
    fn change(&self) -> Result<InstanceChange, Problem> {
        let body = &self.patch.body;
        let given = |field, value: &Option<String>| {
            let is_meant = self.is_about(field);
            is_meant.then(|| value.clone().unwrap_or_default())
        };
        let name = given("name", &body.name);
        let policy = given("osUpdatePolicyID", &body.os_update_policy_id);
        Ok(InstanceChange {
            name: name.map(|name| Name::parse("name", &name)).transpose()?,
            policy: match policy.as_deref() {
                None => None,
                Some("") => Some(None),
                Some(id) => Some(Some(parse_id("osUpdatePolicyID", id)?)),
            },
        })
    }

    /// What stays as it was made may be named with the value that it has, and with no other.
    fn check_fixed(&self, instance: &Instance) -> Result<(), Problem> {
        let stored = json!(shallow(instance));
        let empty = json!(InstanceResource::default());
        let differs = |field: &str| {
            let given = self.patch.given.get(field).filter(|value| !value.is_null());
            given.unwrap_or(&empty[field]) != &stored[field]
        };
        match FIXED.iter().find(|f| self.is_about(f) && differs(f)) {
            None => Ok(()),
            Some(field) => Err(Problem::invalid(field, "cannot be changed yet")),
        }
    }
}

/// A policy that is assigned to an instance itself must be meant for its operating system.
pub async fn check_fit(
    tx: &Tx,
    field: &'static str,
    policy: PolicyId,
    os: OsId,
) -> Result<(), Problem> {
    // What is missing is told by the store, which names the field.
    let Some(os) = os_profiles::find_many(tx, &[os]).await?.pop() else {
        return Ok(());
    };
    match effective::misfit(tx, policy, &os).await? {
        None => Ok(()),
        Some((policy, why)) => {
            let why = format!("policy {} does not fit: {why}", policy.spec.name);
            Err(Problem::invalid(field, why))
        }
    }
}

/// What instances refer to.
#[derive(Debug, Default)]
pub struct Related {
    oses: HashMap<OsId, OsProfile>,
    policies: HashMap<PolicyId, UpdatePolicy>,
}

impl Related {
    /// What these instances refer to: two statements for any number of them.
    pub async fn of(tx: &Tx, instances: &[Instance]) -> Result<Self, StoreError> {
        let mut oses: Vec<_> = instances
            .iter()
            .map(|instance| instance.summary.os)
            .collect();
        oses.sort_unstable();
        oses.dedup();
        let mut used: Vec<_> = instances
            .iter()
            .filter_map(|instance| instance.policy)
            .collect();
        used.sort_unstable();
        used.dedup();
        let oses = os_profiles::find_many(tx, &oses).await?;
        let used = policies::find_many(tx, &used).await?;
        Ok(Self {
            oses: oses.into_iter().map(|os| (os.id, os)).collect(),
            policies: used.into_iter().map(|policy| (policy.id, policy)).collect(),
        })
    }
}

/// An instance with all that is known of it: also with what is too much for a list.
async fn one(app: &App, tx: &Tx, instance: Instance) -> Answer<InstanceResource> {
    let mut found = resources(tx, std::slice::from_ref(&instance)).await?;
    let found = found.pop().ok_or_else(Problem::internal)?;
    let node = nodes::find(tx, instance.id).await?;
    let packages = match &node.packages_digest {
        None => None,
        Some(digest) => contents::get(tx, digest).await?,
    };
    let host = hosts::find(tx, instance.host).await?;
    let now = Reading::Look(app.clock.now());
    let world = world(tx, &host, &node, &app.settings.horizon, now).await?;
    Ok(Json(InstanceResource {
        runtime_packages: packages.unwrap_or_default(),
        effective_update_policy: world.applies().map(effective::policy),
        ..found
    }))
}

/// Instances with their hosts: the same number of statements for any number of instances.
async fn resources(tx: &Tx, instances: &[Instance]) -> Result<Vec<InstanceResource>, StoreError> {
    let related = Related::of(tx, instances).await?;
    let ids: Vec<_> = instances.iter().map(|instance| instance.host).collect();
    let hosts = hosts::find_many(tx, &ids).await?;
    let places = Places::of_hosts(tx, &hosts).await?;
    let hosts: HashMap<HostId, Host> = hosts.into_iter().map(|host| (host.id, host)).collect();
    let whole = |instance: &Instance| InstanceResource {
        host: hosts
            .get(&instance.host)
            .map(|host| Box::new(crate::hosts::resource(host, &places))),
        ..resource(instance, &related)
    };
    Ok(instances.iter().map(whole).collect())
}

/// An instance with its operating system and policy, without its host.
pub fn resource(instance: &Instance, related: &Related) -> InstanceResource {
    let policy = instance.policy.and_then(|id| related.policies.get(&id));
    InstanceResource {
        os: related.oses.get(&instance.summary.os).map(os::resource),
        update_policy: policy.map(|policy| policy::resource(policy, None)),
        ..shallow(instance)
    }
}

/// An instance by itself.
pub fn shallow(instance: &Instance) -> InstanceResource {
    let summary = &instance.summary;
    let (instance_status, instance_status_indicator, instance_status_timestamp) =
        triplet(&summary.status);
    let (update_status, update_status_indicator, update_status_timestamp) =
        triplet(&summary.update_status);
    InstanceResource {
        resource_id: instance.id.to_string(),
        instance_id: instance.id.to_string(),
        kind: match instance.kind {
            InstanceKind::Unspecified => api::instance::InstanceKind::Unspecified,
            InstanceKind::Metal => api::instance::InstanceKind::Metal,
        },
        name: instance.name.to_string(),
        desired_state: state(instance.desired),
        current_state: state(instance.current),
        host_id: instance.host.to_string(),
        os_id: summary.os.to_string(),
        security_feature: os::security_to(instance.security_feature),
        instance_status,
        instance_status_indicator,
        instance_status_timestamp,
        provisioning_status: if summary.provisioned {
            "Provisioned"
        } else {
            "Not Provisioned"
        }
        .to_owned(),
        provisioning_status_indicator: if summary.provisioned {
            api::status::StatusIndication::Idle
        } else {
            api::status::StatusIndication::Unspecified
        },
        update_status,
        update_status_indicator,
        update_status_timestamp,
        trusted_attestation_status: "Unknown".to_owned(),
        os_update_available: summary.os_update_available.clone(),
        timestamps: Some(Timestamps::new(instance.created_at, instance.updated_at)),
        conditions: summary.conditions.iter().map(condition).collect(),
        ..InstanceResource::default()
    }
}

fn condition(condition: &Condition) -> InstanceCondition {
    InstanceCondition {
        kind: condition.kind.name().to_owned(),
        message: condition.text.clone(),
        since: condition.since,
    }
}

const fn state(state: InstanceState) -> api::instance::InstanceState {
    use api::instance::InstanceState as Wire;
    match state {
        InstanceState::Unspecified => Wire::Unspecified,
        InstanceState::Running => Wire::Running,
        InstanceState::Untrusted => Wire::Untrusted,
        InstanceState::Deleted => Wire::Deleted,
    }
}
