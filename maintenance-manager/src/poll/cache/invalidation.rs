//! What a change invalidates. Everything that a decision depends on is listed here:
//!
//! - A change of one node invalidates that node: its host, instance, reported state, runs and orders.
//! - An assignment or a schedule invalidates its scope as named by the log: a node, a site, a
//!   region or the project.
//! - A site invalidates its nodes; a region, an image, a policy, the settings and the project
//!   invalidate the whole project.
//! - A slot invalidates the nodes under the limits of the same assignment.
//!
//! The age of package versions is not in the log: an answer that depends on it has an expiry time.
//! The credentials of nodes are checked with every call.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::log::{ChangeKind, LoggedChange, Operation};

use super::Invalidation;
use super::recent_changes::ChangedEntity;
use super::table::CacheTable;

/// The nodes that a change affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AffectedNodes {
    /// No node that has a cached answer.
    None,
    InScope(Scope),
    /// The nodes under the limits of the assignment of this scope.
    UnderLimits(Scope),
}

fn affected_nodes(change: &LoggedChange) -> AffectedNodes {
    // A second row about a project that was created or deleted, for the audit.
    if change.tenant == TenantId::NO_PROJECT {
        return AffectedNodes::None;
    }
    let is_new = change.operation == Operation::Insert;
    match change.kind {
        ChangeKind::Other => AffectedNodes::None,
        // Nothing refers to a new object yet.
        ChangeKind::Policy | ChangeKind::Region | ChangeKind::Site if is_new => AffectedNodes::None,
        ChangeKind::Project
        | ChangeKind::Settings
        | ChangeKind::Os
        | ChangeKind::Policy
        | ChangeKind::Region => AffectedNodes::InScope(Scope::Project),
        ChangeKind::Host
        | ChangeKind::Instance
        | ChangeKind::Assignment
        | ChangeKind::Single
        | ChangeKind::Repeated
        | ChangeKind::Run
        | ChangeKind::Site
        | ChangeKind::Pause
        | ChangeKind::Order => AffectedNodes::InScope(change.scope.unwrap_or(Scope::Project)),
        ChangeKind::Slot => {
            change.scope.map_or(AffectedNodes::InScope(Scope::Project), AffectedNodes::UnderLimits)
        }
    }
}

/// Marks what a change affects as stale, with the number of the current pass.
pub fn invalidate(table: &mut CacheTable, change: &LoggedChange, invalidation: &mut Invalidation) {
    let id = change.tenant;
    let (tenant, pass) = (table.scopes.tenant(id), table.current_pass());
    match affected_nodes(change) {
        AffectedNodes::None => {}
        AffectedNodes::InScope(Scope::Instance(instance)) => {
            table.invalidate_entity(tenant, ChangedEntity::Instance(instance.bits()), pass);
            invalidation.instances.push((id, instance));
        }
        AffectedNodes::InScope(Scope::Host(host)) => {
            table.invalidate_entity(tenant, ChangedEntity::Host(host.bits()), pass);
            invalidation.hosts.push((id, host));
        }
        AffectedNodes::InScope(Scope::Site(site)) => {
            table.invalidate_entity(tenant, ChangedEntity::Site(site.bits()), pass);
            let site_scope = table.scopes.mark_site(tenant, site, pass);
            invalidation.scopes.extend(site_scope);
        }
        AffectedNodes::InScope(Scope::Region(region)) => {
            table.invalidate_entity(tenant, ChangedEntity::Region(region.bits()), pass);
            let region_scopes = table.scopes.mark_region(tenant, region, pass);
            invalidation.scopes.extend(region_scopes);
        }
        AffectedNodes::InScope(Scope::Project) => {
            table.scopes.mark_tenant(tenant, pass);
            invalidation.tenants.push(id);
        }
        AffectedNodes::UnderLimits(scope) => {
            table.scopes.mark_limits(tenant, scope, pass);
            invalidation.limit_scopes.push((id, scope));
            match change.operation {
                Operation::Insert => invalidation.taken_slots.push((id, scope)),
                Operation::Delete => invalidation.freed_slots.push((id, scope)),
                Operation::Update => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::id::{HostId, InstanceId, SiteId};
    use evenkeel_store::log::Position;
    use uuid::Uuid;

    use super::*;

    const WHOLE_PROJECT: AffectedNodes = AffectedNodes::InScope(Scope::Project);

    fn affected_by(kind: ChangeKind, operation: Operation, scope: Option<Scope>) -> AffectedNodes {
        affected_nodes(&LoggedChange {
            tenant: TenantId::new(Uuid::from_u128(1)),
            kind,
            id: 1,
            operation,
            scope,
            is_by_user: true,
            at: Position { epoch: 1, xid: 1, seq: 1 },
        })
    }

    const ALL_OPERATIONS: [Operation; 3] =
        [Operation::Insert, Operation::Update, Operation::Delete];

    #[test]
    fn a_change_affects_the_scope_that_the_log_names() {
        let scopes = [
            Scope::Instance(InstanceId::nth(1)),
            Scope::Host(HostId::nth(1)),
            Scope::Site(SiteId::nth(1)),
            Scope::Project,
        ];
        let kinds = [
            ChangeKind::Host,
            ChangeKind::Instance,
            ChangeKind::Assignment,
            ChangeKind::Single,
            ChangeKind::Repeated,
            ChangeKind::Run,
            ChangeKind::Pause,
            ChangeKind::Order,
        ];
        for (kind, operation) in
            kinds.into_iter().flat_map(|kind| ALL_OPERATIONS.map(|op| (kind, op)))
        {
            for scope in scopes {
                assert_eq!(
                    affected_by(kind, operation, Some(scope)),
                    AffectedNodes::InScope(scope)
                );
            }
            assert_eq!(affected_by(kind, operation, None), WHOLE_PROJECT, "{kind:?}");
        }
    }

    #[test]
    fn shared_objects_affect_the_whole_project() {
        for operation in ALL_OPERATIONS {
            for kind in [ChangeKind::Project, ChangeKind::Settings, ChangeKind::Os] {
                assert_eq!(affected_by(kind, operation, None), WHOLE_PROJECT, "{kind:?}");
            }
            assert_eq!(affected_by(ChangeKind::Other, operation, None), AffectedNodes::None);
        }
        for kind in [ChangeKind::Policy, ChangeKind::Region] {
            let affected = ALL_OPERATIONS.map(|operation| affected_by(kind, operation, None));
            assert_eq!(affected, [AffectedNodes::None, WHOLE_PROJECT, WHOLE_PROJECT], "{kind:?}");
        }
        let site = Scope::Site(SiteId::nth(1));
        let affected =
            ALL_OPERATIONS.map(|operation| affected_by(ChangeKind::Site, operation, Some(site)));
        let there = AffectedNodes::InScope(site);
        assert_eq!(affected, [AffectedNodes::None, there, there]);
    }

    #[test]
    fn a_slot_affects_nodes_under_the_same_limits() {
        for operation in ALL_OPERATIONS {
            let scope = Scope::Site(SiteId::nth(1));
            let affected = affected_by(ChangeKind::Slot, operation, Some(scope));
            assert_eq!(affected, AffectedNodes::UnderLimits(scope));
            assert_eq!(affected_by(ChangeKind::Slot, operation, None), WHOLE_PROJECT);
        }
    }
}
