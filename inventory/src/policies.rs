//! `os-update-policies`: what should run. Policies are made and deleted, never changed.

use axum::extract::State;
use axum::response::Response;
use evenkeel_api::os::OperatingSystemResource;
use evenkeel_api::policy::{
    self as wire, ImageRulesInput, OsUpdatePolicy, OsUpdatePolicyInput, OsUpdatePolicyList,
    PackageRulesInput, UpdatePolicyKind,
};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::parse_id;
use evenkeel_domain::id::{OsId, PolicyId};
use evenkeel_domain::package::WantedPackage;
use evenkeel_domain::policy::{
    ImageRules, PackageRules, PolicySpec, RebootRule, ServiceRule, TargetWish, UpdatePolicy, Wish,
};
use evenkeel_store::listing::in_order;
use evenkeel_store::related::{self, Related, Wanted};
use evenkeel_store::{StoreError, Tx, policies};

use crate::call::{Call, id_of_path};
use crate::extract::{Json, Params, Path};
use crate::listing::{self, ListParams, Listed};
use crate::operating_systems as os;
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};
use crate::{App, Inventory};

const WHAT: &str = "os_update_policy_resource";

/// List the update policies.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-update-policies", tag = "update policies",
    params(InProject, ListParams),
    responses((status = 200, description = "The policies.", body = OsUpdatePolicyList), Problem),
)]
pub async fn list_update_policies(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Result<Response, Problem> {
    listing::answer(Policies, &app, &call, &params).await
}

/// The list of policies.
struct Policies;

impl Listed for Policies {
    const RESOURCE: Resource = Resource::Policy;
    const KEY: &'static str = "osUpdatePolicies";
    type Item = OsUpdatePolicy;

    async fn load(
        &self,
        _: &Inventory,
        tx: &Tx,
        ids: &[u32],
    ) -> Result<Vec<OsUpdatePolicy>, Problem> {
        let wanted: Vec<_> = ids.iter().copied().map(PolicyId::from_bits).collect();
        let found = policies::find_many(tx, &wanted).await?;
        let found = in_order(ids, found, |policy: &UpdatePolicy| policy.id.bits());
        Ok(resources(tx, &found).await?)
    }
}

/// Make an update policy.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/os-update-policies", tag = "update policies", params(InProject),
    request_body = OsUpdatePolicyInput,
    responses((status = 200, description = "The policy.", body = OsUpdatePolicy), Problem),
)]
pub async fn create_update_policy(
    State(app): State<App>,
    call: Call,
    Json(body): Json<OsUpdatePolicyInput>,
) -> Answer<OsUpdatePolicy> {
    let tx = app.write(&call).await?;
    let made = policies::create(&tx, &spec(&body)?, app.clock.now()).await?;
    let answer = one(&tx, made).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Show an update policy.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-update-policies/{resourceId}", tag = "update policies", params(Item),
    responses((status = 200, description = "The policy.", body = OsUpdatePolicy), Problem),
)]
pub async fn get_update_policy(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<OsUpdatePolicy> {
    let tx = app.read(&call).await?;
    let id: PolicyId = id_of_path(WHAT, &path.resource_id)?;
    let policy = policies::find(&tx, id).await?;
    one(&tx, policy).await
}

/// Delete an update policy that is assigned to nothing.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/os-update-policies/{resourceId}", tag = "update policies", params(Item),
    responses((status = 200, description = "It is deleted.", body = Empty), Problem),
)]
pub async fn delete_update_policy(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: PolicyId = id_of_path(WHAT, &path.resource_id)?;
    policies::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn spec(body: &OsUpdatePolicyInput) -> Result<PolicySpec, Problem> {
    let os = body.target_os_id.as_deref();
    let os: Option<OsId> = os.map(|id| parse_id("targetOsId", id)).transpose()?;
    let wish = Wish::target(
        os,
        &body.update_packages,
        &body.update_sources,
        &body.update_kernel_command,
    );
    let wish = match body.update_policy {
        UpdatePolicyKind::Unspecified => {
            let why = "must be UPDATE_POLICY_LATEST or UPDATE_POLICY_TARGET";
            return Err(Problem::invalid("updatePolicy", why));
        }
        UpdatePolicyKind::Target => wish?,
        UpdatePolicyKind::Latest if names_nothing(body) => Wish::Latest,
        UpdatePolicyKind::Latest => {
            let why = "UPDATE_POLICY_LATEST excludes targetOsId, updatePackages, updateSources and updateKernelCommand";
            return Err(Problem::invalid("updatePolicy", why));
        }
    };
    let spec = PolicySpec {
        allow_downgrade: body.allow_downgrade,
        ..PolicySpec::parse(&body.name, &body.description, wish)?
    };
    let rules = body.package_rules.as_ref().map(rules).unwrap_or_default();
    let image_rules = body.image_rules.map(image_rules).unwrap_or_default();
    let days = PolicySpec::default_offline_days();
    Ok(spec
        .lasting(body.offline_days.unwrap_or(days))?
        .ruled(rules)?
        .imaged(image_rules)?)
}

fn rules(given: &PackageRulesInput) -> PackageRules {
    PackageRules {
        suites: given.suites.clone(),
        exclude: given.exclude.clone(),
        allow_removals: given.allow_removals,
        reboot: match given.reboot {
            wire::RebootRule::IfRequired => RebootRule::IfRequired,
            wire::RebootRule::Never => RebootRule::Never,
        },
        services: match given.services {
            wire::ServiceRule::Leave => ServiceRule::Leave,
            wire::ServiceRule::Restart => ServiceRule::Restart,
        },
        download_bytes_per_second: given.download_bytes_per_second,
        min_age_days: given.min_age_days,
    }
}

const fn image_rules(given: ImageRulesInput) -> ImageRules {
    ImageRules {
        download_bytes_per_second: given.download_bytes_per_second,
        max_bytes: given.max_bytes,
        attempts: given.attempts,
    }
}

/// Rules for images on the wire.
pub const fn image_rules_resource(rules: ImageRules) -> wire::ImageRules {
    wire::ImageRules {
        download_bytes_per_second: rules.download_bytes_per_second,
        max_bytes: rules.max_bytes,
        attempts: rules.attempts,
    }
}

/// Rules for packages on the wire.
pub fn rules_resource(rules: &PackageRules) -> wire::PackageRules {
    wire::PackageRules {
        suites: rules.suites.clone(),
        exclude: rules.exclude.clone(),
        min_age_days: rules.min_age_days,
        allow_removals: rules.allow_removals,
        reboot: match rules.reboot {
            RebootRule::IfRequired => wire::RebootRule::IfRequired,
            RebootRule::Never => wire::RebootRule::Never,
        },
        services: match rules.services {
            ServiceRule::Leave => wire::ServiceRule::Leave,
            ServiceRule::Restart => wire::ServiceRule::Restart,
        },
        download_bytes_per_second: rules.download_bytes_per_second,
    }
}

fn names_nothing(body: &OsUpdatePolicyInput) -> bool {
    body.target_os_id.is_none()
        && body.update_packages.is_empty()
        && body.update_sources.is_empty()
        && body.update_kernel_command.is_empty()
}

async fn one(tx: &Tx, policy: UpdatePolicy) -> Answer<OsUpdatePolicy> {
    let mut found = resources(tx, std::slice::from_ref(&policy)).await?;
    found.pop().map(Json).ok_or_else(Problem::internal)
}

/// Policies with the operating systems that they wish for.
async fn resources(tx: &Tx, policies: &[UpdatePolicy]) -> Result<Vec<OsUpdatePolicy>, StoreError> {
    let wanted = Wanted {
        oses: policies.iter().filter_map(target_os).collect(),
        ..Wanted::default()
    };
    let related = related::read(tx, &wanted).await?;
    let whole = |policy| with_target(policy, &related);
    Ok(policies.iter().map(whole).collect())
}

/// A policy with the operating system that it wishes for.
pub fn with_target(policy: &UpdatePolicy, related: &Related) -> OsUpdatePolicy {
    let wanted = target_os(policy).and_then(|id| related.oses.get(&id));
    resource(policy, wanted.map(os::resource))
}

/// The operating system that a policy wishes for.
pub fn target_os(policy: &UpdatePolicy) -> Option<OsId> {
    match &policy.spec.wish {
        Wish::Latest => None,
        Wish::Target(target) => target.os,
    }
}

/// A policy on the wire.
pub fn resource(
    policy: &UpdatePolicy,
    target_os: Option<OperatingSystemResource>,
) -> OsUpdatePolicy {
    let (update_policy, target) = match &policy.spec.wish {
        Wish::Latest => (UpdatePolicyKind::Latest, TargetWish::default()),
        Wish::Target(target) => (UpdatePolicyKind::Target, target.clone()),
    };
    OsUpdatePolicy {
        resource_id: policy.id.to_string(),
        name: policy.spec.name.to_string(),
        description: policy.spec.description.clone(),
        update_policy,
        update_packages: WantedPackage::list_text(&target.packages),
        update_sources: target.sources,
        update_kernel_command: target.kernel_command,
        target_os_id: String::new(),
        target_os,
        allow_downgrade: policy.spec.allow_downgrade,
        offline_days: policy.spec.offline_days,
        package_rules: rules_resource(&policy.spec.rules),
        image_rules: image_rules_resource(policy.spec.image_rules),
        timestamps: Some(Timestamps::new(policy.created_at, policy.created_at)),
    }
}
