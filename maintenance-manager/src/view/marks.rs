//! What a change concerns. Whatever a decision is made from is in this list, or is no reason to forget:
//!
//! - What is about one node marks that one: its host, its instance and what that said, its runs, its orders.
//! - What is wished or scheduled marks those that it is for, as the log says: a node, a site, a region, or the project.
//! - A site marks those who stand there; a region, an image, a policy, the settings and the project mark the project.
//! - A slot marks those who are counted under the same assignment.
//!
//! The ages of package versions are not in the log: an answer that depends on them says until when it does not change. The
//! credentials of nodes are looked at with every call.

use evenkeel_domain::assignment::Scope;
use evenkeel_store::log::{Change, Kind, Operation};

use super::Touched;
use super::recent::Thing;
use super::table::Table;

/// Whom a change concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concerned {
    /// Nobody who was answered before.
    Nobody,
    /// All for whom something in this scope applies.
    All(Scope),
    /// All who go by the limits of the assignment of this scope.
    Counted(Scope),
}

fn concerned(change: &Change) -> Concerned {
    let is_new = change.operation == Operation::Insert;
    match change.kind {
        Kind::Other => Concerned::Nobody,
        // Nothing refers to it yet.
        Kind::Policy | Kind::Region | Kind::Site if is_new => Concerned::Nobody,
        Kind::Project | Kind::Settings | Kind::Os | Kind::Policy | Kind::Region => {
            Concerned::All(Scope::Project)
        }
        Kind::Host
        | Kind::Instance
        | Kind::Assignment
        | Kind::Single
        | Kind::Repeated
        | Kind::Run
        | Kind::Site
        | Kind::Pause
        | Kind::Order => Concerned::All(change.scope.unwrap_or(Scope::Project)),
        Kind::Slot => change
            .scope
            .map_or(Concerned::All(Scope::Project), Concerned::Counted),
    }
}

/// Marks what a change concerns as stale, with the number of the present pass.
pub fn mark(table: &mut Table, change: &Change, touched: &mut Touched) {
    let id = change.tenant;
    let (tenant, pass) = (table.grounds.tenant(id), table.present());
    match concerned(change) {
        Concerned::Nobody => {}
        Concerned::All(Scope::Instance(instance)) => {
            table.touch(tenant, Thing::Instance(instance.bits()), pass);
            touched.instances.push((id, instance));
        }
        Concerned::All(Scope::Host(host)) => {
            table.touch(tenant, Thing::Host(host.bits()), pass);
            touched.hosts.push((id, host));
        }
        Concerned::All(Scope::Site(site)) => {
            table.touch(tenant, Thing::Site(site.bits()), pass);
            let ground = table.grounds.mark_site(tenant, site, pass);
            touched.grounds.extend(ground);
        }
        Concerned::All(Scope::Region(region)) => {
            table.touch(tenant, Thing::Region(region.bits()), pass);
            let grounds = table.grounds.mark_region(tenant, region, pass);
            touched.grounds.extend(grounds);
        }
        Concerned::All(Scope::Project) => {
            table.grounds.mark_tenant(tenant, pass);
            touched.tenants.push(id);
        }
        Concerned::Counted(scope) => {
            table.grounds.mark_counted(tenant, scope, pass);
            touched.counted.push((id, scope));
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::id::{HostId, InstanceId, SiteId};
    use evenkeel_domain::tenant::TenantId;
    use evenkeel_store::log::Position;
    use uuid::Uuid;

    use super::*;

    const PROJECT: Concerned = Concerned::All(Scope::Project);

    fn by(kind: Kind, operation: Operation, scope: Option<Scope>) -> Concerned {
        concerned(&Change {
            tenant: TenantId::new(Uuid::nil()),
            kind,
            id: 1,
            operation,
            scope,
            at: Position {
                epoch: 1,
                xid: 1,
                seq: 1,
            },
        })
    }

    const EACH: [Operation; 3] = [Operation::Insert, Operation::Update, Operation::Delete];

    #[test]
    fn what_the_log_says_a_change_is_about_is_what_it_concerns() {
        let scopes = [
            Scope::Instance(InstanceId::nth(1)),
            Scope::Host(HostId::nth(1)),
            Scope::Site(SiteId::nth(1)),
            Scope::Project,
        ];
        let kinds = [
            Kind::Host,
            Kind::Instance,
            Kind::Assignment,
            Kind::Single,
            Kind::Repeated,
            Kind::Run,
            Kind::Pause,
            Kind::Order,
        ];
        for (kind, operation) in kinds.into_iter().flat_map(|kind| EACH.map(|op| (kind, op))) {
            for scope in scopes {
                assert_eq!(by(kind, operation, Some(scope)), Concerned::All(scope));
            }
            assert_eq!(by(kind, operation, None), PROJECT, "{kind:?}");
        }
    }

    #[test]
    fn what_everything_may_refer_to_concerns_the_project() {
        for operation in EACH {
            for kind in [Kind::Project, Kind::Settings, Kind::Os] {
                assert_eq!(by(kind, operation, None), PROJECT, "{kind:?}");
            }
            assert_eq!(by(Kind::Other, operation, None), Concerned::Nobody);
        }
        for kind in [Kind::Policy, Kind::Region] {
            let told = EACH.map(|operation| by(kind, operation, None));
            assert_eq!(told, [Concerned::Nobody, PROJECT, PROJECT], "{kind:?}");
        }
        let site = Scope::Site(SiteId::nth(1));
        let told = EACH.map(|operation| by(Kind::Site, operation, Some(site)));
        let there = Concerned::All(site);
        assert_eq!(told, [Concerned::Nobody, there, there]);
    }

    #[test]
    fn a_slot_concerns_those_who_are_counted_with_it() {
        for operation in EACH {
            let scope = Scope::Site(SiteId::nth(1));
            let told = by(Kind::Slot, operation, Some(scope));
            assert_eq!(told, Concerned::Counted(scope));
            assert_eq!(by(Kind::Slot, operation, None), PROJECT);
        }
    }
}
