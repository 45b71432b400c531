//! `os-update-policies`: desired updates. Policies can be created and deleted, not changed.

use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::policy::{
    self as wire, ImageRulesInput, OsUpdatePolicy, OsUpdatePolicyInput, OsUpdatePolicyList,
    PackageRulesInput, UpdatePolicyKind,
};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::parse_id;
use evenkeel_domain::id::{OsId, PolicyId};
use evenkeel_domain::policy::{
    DesiredUpdate, ImageRules, PackageRules, PolicySpec, RebootRule, ServiceRule,
    UnusedPackagesRule, UpdatePolicy,
};
use evenkeel_store::listing::in_order;
use evenkeel_store::related::{self, RelatedIds};
use evenkeel_store::{StoreError, Tx, policies};

use crate::call::{Call, parse_resource_id};
use crate::extract::{Json, Params, Path};
use crate::listing::{self, ListParams, Listable};
use crate::problem::Problem;
use crate::shape::policies::{resource_with_target, target_os};
use crate::shape::{Answer, InProject, Item};

const RESOURCE_KIND: &str = "os_update_policy_resource";

/// List update policies
///
/// Returns each policy with its target operating system.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-update-policies", tag = "update policies",
    params(InProject, ListParams),
    responses((status = 200, description = "The policies.", body = OsUpdatePolicyList), Problem),
)]
pub async fn list_update_policies(call: Call, params: Params) -> Result<Response, Problem> {
    listing::answer(Policies, &call, &params).await
}

struct Policies;

impl Listable for Policies {
    const RESOURCE: Resource = Resource::Policy;
    const KEY: &'static str = "osUpdatePolicies";
    type Item = OsUpdatePolicy;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<OsUpdatePolicy>, Problem> {
        let policy_ids: Vec<_> = ids.iter().copied().map(PolicyId::from_bits).collect();
        let policies = policies::find_many(tx, &policy_ids).await?;
        let policies = in_order(ids, policies, |policy: &UpdatePolicy| policy.id.bits());
        Ok(load_resources(tx, &policies).await?)
    }
}

/// Create an update policy
///
/// A policy cannot be changed later: create another one and assign it. Names need not be unique, so
/// a repeated request creates another policy.
///
/// - `UPDATE_POLICY_LATEST` requests the newest versions of all packages, or the newest image. It
///   excludes `targetOsId`, `updatePackages`, `updateSources` and `updateKernelCommand`.
/// - `UPDATE_POLICY_TARGET` requests exactly what these fields say, and needs at least one of them.
///   `targetOsId` excludes `updatePackages` and `updateSources`.
/// - `packageRules` exclude `targetOsId`, and `minAgeDays` needs `UPDATE_POLICY_LATEST`.
///   `imageRules` need `targetOsId` or `UPDATE_POLICY_LATEST`.
///
/// The server refuses a body that breaks one of these rules (`invalid-argument`), and an operating
/// system that does not exist (`failed-precondition`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/os-update-policies", tag = "update policies", params(InProject),
    request_body = OsUpdatePolicyInput,
    responses((status = 200, description = "The policy.", body = OsUpdatePolicy), Problem),
)]
pub async fn create_update_policy(
    call: Call,
    Json(body): Json<OsUpdatePolicyInput>,
) -> Answer<OsUpdatePolicy> {
    let tx = call.write().await?;
    let policy = policies::create(&tx, &parse_spec(&body)?, tx.database_time()).await?;
    let answer = load_policy_resource(&tx, policy).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Get an update policy
///
/// Returns the policy with its target operating system.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-update-policies/{resourceId}", tag = "update policies", params(Item),
    responses((status = 200, description = "The policy.", body = OsUpdatePolicy), Problem),
)]
pub async fn get_update_policy(call: Call, Path(path): Path<Item>) -> Answer<OsUpdatePolicy> {
    let tx = call.read().await?;
    let id: PolicyId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let policy = policies::find(&tx, id).await?;
    load_policy_resource(&tx, policy).await
}

/// Delete an update policy
///
/// Deletes the policy and its pause. Runs keep a copy of the policy.
///
/// The server refuses a policy that is assigned (`failed-precondition`): delete the assignments
/// first.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/os-update-policies/{resourceId}", tag = "update policies", params(Item),
    responses((status = 200, description = "The policy is deleted.", body = Empty), Problem),
)]
pub async fn delete_update_policy(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: PolicyId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    policies::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn parse_spec(body: &OsUpdatePolicyInput) -> Result<PolicySpec, Problem> {
    let os = body.target_os_id.as_deref();
    let os: Option<OsId> = os.map(|id| parse_id("targetOsId", id)).transpose()?;
    let desired = DesiredUpdate::parse_target(
        os,
        &body.update_packages,
        &body.update_sources,
        &body.update_kernel_command,
    );
    let desired = match body.update_policy {
        UpdatePolicyKind::Unspecified => {
            let why = "must be UPDATE_POLICY_LATEST or UPDATE_POLICY_TARGET";
            return Err(Problem::invalid("updatePolicy", why));
        }
        UpdatePolicyKind::Target => desired?,
        UpdatePolicyKind::Latest if has_no_target_fields(body) => DesiredUpdate::Latest,
        UpdatePolicyKind::Latest => {
            let why = "UPDATE_POLICY_LATEST excludes targetOsId, updatePackages, updateSources and updateKernelCommand";
            return Err(Problem::invalid("updatePolicy", why));
        }
    };
    let spec = PolicySpec {
        allow_downgrade: body.allow_downgrade,
        ..PolicySpec::parse(&body.name, &body.description, desired)?
    };
    let rules = body.package_rules.as_ref().map(parse_package_rules).unwrap_or_default();
    let image_rules = body.image_rules.map(parse_image_rules).unwrap_or_default();
    let days = PolicySpec::default_offline_days();
    Ok(spec
        .with_offline_days(body.offline_days.unwrap_or(days))?
        .with_package_rules(rules)?
        .with_image_rules(image_rules)?)
}

fn parse_package_rules(input: &PackageRulesInput) -> PackageRules {
    PackageRules {
        suites: input.suites.clone(),
        exclude: input.exclude.clone(),
        allow_removals: input.allow_removals,
        reboot: match input.reboot {
            wire::RebootRule::IfRequired => RebootRule::IfRequired,
            wire::RebootRule::Never => RebootRule::Never,
        },
        services: match input.services {
            wire::ServiceRule::KeepRunning => ServiceRule::KeepRunning,
            wire::ServiceRule::Restart => ServiceRule::Restart,
        },
        download_bytes_per_second: input.download_bytes_per_second,
        min_age_days: input.min_age_days,
        unused_packages: match input.unused_packages {
            wire::UnusedPackagesRule::RemoveKernels => UnusedPackagesRule::RemoveKernels,
            wire::UnusedPackagesRule::RemoveAll => UnusedPackagesRule::RemoveAll,
            wire::UnusedPackagesRule::Keep => UnusedPackagesRule::Keep,
        },
        minimal_steps: input.minimal_steps,
    }
}

const fn parse_image_rules(input: ImageRulesInput) -> ImageRules {
    ImageRules {
        download_bytes_per_second: input.download_bytes_per_second,
        max_bytes: input.max_bytes,
        attempts: input.attempts,
    }
}

fn has_no_target_fields(body: &OsUpdatePolicyInput) -> bool {
    body.target_os_id.is_none()
        && body.update_packages.is_empty()
        && body.update_sources.is_empty()
        && body.update_kernel_command.is_empty()
}

async fn load_policy_resource(tx: &Tx, policy: UpdatePolicy) -> Answer<OsUpdatePolicy> {
    let mut resources = load_resources(tx, std::slice::from_ref(&policy)).await?;
    resources.pop().map(Json).ok_or_else(Problem::internal)
}

/// REST form of policies, including their target operating systems.
async fn load_resources(
    tx: &Tx,
    policies: &[UpdatePolicy],
) -> Result<Vec<OsUpdatePolicy>, StoreError> {
    let related_ids = RelatedIds {
        oses: policies.iter().filter_map(target_os).collect(),
        ..RelatedIds::default()
    };
    let related = related::load(tx, &related_ids).await?;
    let render = |policy| resource_with_target(policy, &related);
    Ok(policies.iter().map(render).collect())
}
