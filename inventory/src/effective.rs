//! Whether a policy can be meant for what runs an operating system, and assigned policies on the wire.

use evenkeel_api::decision::EffectivePolicy;
use evenkeel_domain::assignment::{Assigned, Brake, Limits, Scope};
use evenkeel_domain::decide::{NodeFacts, Protocol};
use evenkeel_domain::id::PolicyId;
use evenkeel_domain::os::{Image, OsProfile};
use evenkeel_domain::policy::UpdatePolicy;
use evenkeel_store::{StoreError, Tx, os_profiles, policies};

use crate::decisions::wish;
use crate::policies::target_os;

/// Why a policy cannot be meant for what runs an operating system; none if it can, or if the policy is not there.
pub async fn misfit(
    tx: &Tx,
    policy: PolicyId,
    os: &OsProfile,
) -> Result<Option<(UpdatePolicy, &'static str)>, StoreError> {
    let Some(policy) = policies::find_many(tx, &[policy]).await?.pop() else {
        return Ok(None);
    };
    let image = match target_os(&policy) {
        None => None,
        Some(named) => os_profiles::find_many(tx, &[named]).await?.pop(),
    };
    let assigned = Assigned {
        scope: Scope::Project,
        image: image.as_ref().map(Image::of),
        policy,
        limits: Limits::default(),
        brake: Brake::default(),
    };
    let node = NodeFacts {
        trusted: true,
        provisioned: true,
        os_kind: os.spec.kind,
        running: Image::of(os),
        speaks: Protocol::Unknown,
        last_end: None,
        bad_images: Vec::new(),
    };
    let why = assigned.misfit(&node);
    Ok(why.map(|why| (assigned.policy, why)))
}

/// An assigned policy on the wire.
pub fn policy(assigned: &Assigned) -> EffectivePolicy {
    EffectivePolicy {
        resource_id: assigned.policy.id.to_string(),
        name: assigned.policy.spec.name.to_string(),
        level: assigned.scope.level().name().to_owned(),
        assigned_to: assigned.scope.to_string(),
        target: wish(&assigned.policy.spec),
    }
}
