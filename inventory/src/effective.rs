//! Effective policies: whether a policy matches an operating system, and the REST form of assigned
//! policies, alone and in lists of hosts and instances.

use evenkeel_api::decision::EffectivePolicy;
use evenkeel_domain::assignment::{AssignedPolicy, LimitUsage, Scope, UpdateLimits};
use evenkeel_domain::decide::{AgentProtocol, NodeFacts};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::PolicyId;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::os::{Image, OsProfile};
use evenkeel_domain::policy::UpdatePolicy;
use evenkeel_store::related::Related;
use evenkeel_store::{StoreError, Tx, decisions, os_profiles, policies};
use utoipa::IntoParams;

use crate::extract::Params;
use crate::problem::Problem;
use crate::shape::policies::target_os;
use crate::shape::targets::policy_target;

/// Additional query parameters of the lists of hosts and instances.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the value")]
pub struct PolicyParams {
    /// Whether to return the policy that applies to each instance, in `effectiveUpdatePolicy`. By
    /// default false.
    show_effective_policy: Option<bool>,
}

/// Whether a list returns the policies that apply.
pub fn shows_policies(params: &Params) -> Result<bool, Problem> {
    params.flag("showEffectivePolicy")
}

/// REST form of the policies that apply to instances, in their order. `related` has the locations of
/// their hosts. Runs one query for any number of instances.
pub async fn load_policies(
    tx: &Tx,
    nodes: &[(&Host, &Instance)],
    related: &Related,
) -> Result<Vec<Option<EffectivePolicy>>, StoreError> {
    let applicable = decisions::load_applicable_policies(tx, nodes).await?.into_iter();
    Ok(applicable.map(|assigned| Some(effective_policy(&assigned?, related))).collect())
}

/// The policy and why it does not match an operating system. None if it matches, if it does not
/// exist, or if only a newer release knows the kind of the operating system.
pub async fn find_mismatch(
    tx: &Tx,
    policy: PolicyId,
    os: &OsProfile,
) -> Result<Option<(UpdatePolicy, &'static str)>, StoreError> {
    if os.has_unknown_kind {
        return Ok(None);
    }
    let Some(policy) = policies::find_many(tx, &[policy]).await?.pop() else {
        return Ok(None);
    };
    let image = match target_os(&policy) {
        None => None,
        Some(os_id) => os_profiles::find_many(tx, &[os_id]).await?.pop(),
    };
    let assigned = AssignedPolicy {
        scope: Scope::Project,
        image: image.as_ref().map(Image::from_profile),
        policy,
        limits: UpdateLimits::default(),
        usage: LimitUsage::default(),
    };
    let node = NodeFacts {
        trusted: true,
        provisioned: true,
        os_kind: os.spec.kind,
        running: Image::from_profile(os),
        protocol: AgentProtocol::Unknown,
        last_run: None,
        bad_images: Vec::new(),
    };
    let why = assigned.mismatch(&node);
    Ok(why.map(|why| (assigned.policy, why)))
}

/// Name of the site or region of a scope; empty for other scopes, and if it is not loaded.
pub fn scope_name(scope: Scope, related: &Related) -> String {
    let name = match scope {
        Scope::Site(id) => related.sites.get(&id).map(|site| &site.spec.name),
        Scope::Region(id) => related.regions.get(&id).map(|region| &region.spec.name),
        Scope::Instance(_) | Scope::Host(_) | Scope::Project => None,
    };
    name.map(ToString::to_string).unwrap_or_default()
}

/// REST form of an assigned policy. `related` has the locations of the node.
pub fn effective_policy(assigned: &AssignedPolicy, related: &Related) -> EffectivePolicy {
    EffectivePolicy {
        resource_id: assigned.policy.id.to_string(),
        name: assigned.policy.spec.name.to_string(),
        level: assigned.scope.level().name().to_owned(),
        assigned_to: assigned.scope.to_string(),
        assigned_to_name: scope_name(assigned.scope, related),
        target: policy_target(&assigned.policy.spec),
    }
}
