//! Effective policies: whether a policy matches an operating system, and the REST form of assigned
//! policies.

use evenkeel_api::decision::EffectivePolicy;
use evenkeel_domain::assignment::{AssignedPolicy, LimitUsage, Scope, UpdateLimits};
use evenkeel_domain::decide::{AgentProtocol, NodeFacts};
use evenkeel_domain::id::PolicyId;
use evenkeel_domain::os::{Image, OsProfile};
use evenkeel_domain::policy::UpdatePolicy;
use evenkeel_store::{StoreError, Tx, os_profiles, policies};

use crate::shape::policies::target_os;
use crate::shape::targets::policy_target;

/// The policy and why it does not match an operating system. None if it matches, or if it does not
/// exist.
pub async fn find_mismatch(
    tx: &Tx,
    policy: PolicyId,
    os: &OsProfile,
) -> Result<Option<(UpdatePolicy, &'static str)>, StoreError> {
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

/// REST form of an assigned policy.
pub fn effective_policy(assigned: &AssignedPolicy) -> EffectivePolicy {
    EffectivePolicy {
        resource_id: assigned.policy.id.to_string(),
        name: assigned.policy.spec.name.to_string(),
        level: assigned.scope.level().name().to_owned(),
        assigned_to: assigned.scope.to_string(),
        target: policy_target(&assigned.policy.spec),
    }
}
