use chrono::DateTime;
use evenkeel_domain::id::SiteId;
use evenkeel_proto::agent::Decision;
use futures_util::FutureExt;
use uuid::Uuid;

use super::*;
use crate::view::{Answer, Learnt, OwnAnswer, Said, View, ViewSettings, Who};

const TENANT: TenantId = TenantId::new(Uuid::nil());

struct House {
    view: View,
    memory: Memory,
    holds: Holds,
}

impl House {
    fn new(settings: HoldSettings) -> Self {
        let memory = Memory::default();
        Self {
            view: View::new(ViewSettings::default()),
            holds: Holds::new(settings, memory.clone()),
            memory,
        }
    }

    /// What the node at a site is answered.
    fn hit(&self, node: u32, site: u32, counted: Option<Scope>) -> Hit {
        let idle = OwnAnswer {
            decision: Decision::default(),
            next: None,
            want_facts: false,
            want_packages: false,
        };
        let learnt = Learnt {
            who: Who::Host(TENANT, HostId::nth(node)),
            host: HostId::nth(node),
            instance: InstanceId::nth(node),
            site: Some(SiteId::nth(site)),
            regions: Vec::new(),
            asked: self.view.asked_own(&[], None, ""),
            answer: Answer {
                said: Said::Own(idle),
                tag: 1,
                fresh: false,
                counted,
                in_line: counted.is_some(),
            },
            until: None,
            as_of: self.view.pass(),
        };
        Hit {
            kept: true,
            ..self.view.learn(learnt, DateTime::UNIX_EPOCH)
        }
    }

    /// The poll of a node at a site of its own.
    fn hold(&self, node: u32) -> Option<Waiting> {
        self.hold_over(node, None)
    }

    fn hold_over(&self, node: u32, carried: Option<&Carried>) -> Option<Waiting> {
        let hit = self.hit(node, node, None);
        self.holds.hold(self.asks(node), &hit, carried)
    }

    fn hold_counted(&self, node: u32, scope: Scope) -> Waiting {
        let hit = self.hit(node, 1, Some(scope));
        self.holds.hold(self.asks(node), &hit, None).expect("held")
    }

    fn asks(&self, node: u32) -> ((TenantId, HostId), Asked) {
        (who(node), self.view.asked_own(&[], None, ""))
    }
}

fn who(node: u32) -> (TenantId, HostId) {
    (TENANT, HostId::nth(node))
}

/// What has woken it, if anything has.
fn woken(waiting: &mut Waiting) -> Option<Woken> {
    waiting.woken().now_or_never()
}

fn host(node: u32) -> Touched {
    Touched {
        hosts: vec![who(node)],
        ..Touched::default()
    }
}

#[test]
fn a_change_wakes_whom_it_concerns() {
    let house = House::new(HoldSettings::default());
    let ground = house.hit(1, 1, None).ground;
    let of_the_first = [
        host(1),
        Touched {
            instances: vec![(TENANT, InstanceId::nth(1))],
            ..Touched::default()
        },
        Touched {
            grounds: vec![ground],
            ..Touched::default()
        },
    ];
    let mut first = house.hold(1).expect("held");
    let mut second = house.hold(2).expect("held");
    for touched in &of_the_first {
        house.holds.wake(touched);
        assert_eq!(woken(&mut first), Some(Woken::Look), "{touched:?}");
        assert_eq!(woken(&mut second), None, "{touched:?}");
    }
    let of_others = [
        Touched::default(),
        host(3),
        Touched {
            hosts: vec![(TenantId::new(Uuid::max()), HostId::nth(1))],
            tenants: vec![TenantId::new(Uuid::max())],
            counted: vec![(TENANT, Scope::Project)],
            ..Touched::default()
        },
    ];
    for touched in &of_others {
        house.holds.wake(touched);
        assert_eq!(woken(&mut first), None, "{touched:?}");
    }
    let of_all = [
        Touched {
            tenants: vec![TENANT],
            ..Touched::default()
        },
        Touched {
            all: true,
            ..Touched::default()
        },
    ];
    for touched in &of_all {
        house.holds.wake(touched);
        assert_eq!(woken(&mut first), Some(Woken::Look), "{touched:?}");
        assert_eq!(woken(&mut second), Some(Woken::Look), "{touched:?}");
    }
}

#[test]
fn nothing_is_lost_between_two_waits() {
    let house = House::new(HoldSettings::default());
    let mut waiting = house.hold(1).expect("held");
    house.holds.wake(&host(1));
    house.holds.wake(&host(1));
    assert_eq!(woken(&mut waiting), Some(Woken::Look), "it was kept");
    assert_eq!(woken(&mut waiting), None, "once is enough");
    {
        let mut given_up = Box::pin(waiting.woken());
        assert_eq!(given_up.as_mut().now_or_never(), None);
        house.holds.wake(&host(1));
    }
    assert_eq!(woken(&mut waiting), Some(Woken::Look));
    assert_eq!(woken(&mut waiting), None);
}

#[tokio::test]
async fn whoever_waits_is_woken() {
    let house = House::new(HoldSettings::default());
    let mut waiting = house.hold(1).expect("held");
    let change = async { house.holds.wake(&host(1)) };
    let (woken, ()) = tokio::join!(waiting.woken(), change);
    assert_eq!(woken, Woken::Look);
}

#[test]
fn a_newer_poll_of_a_node_supersedes_the_older() {
    let house = House::new(HoldSettings::default());
    let mut older = house.hold(1).expect("held");
    let mut newer = house.hold(1).expect("held");
    assert_eq!(house.holds.len(), 1);
    house.holds.wake(&host(1));
    assert_eq!(woken(&mut older), Some(Woken::Superseded));
    assert_eq!(woken(&mut newer), Some(Woken::Look));
    drop(older);
    assert_eq!(house.holds.len(), 1, "the newer one is still there");
    house.holds.wake(&host(1));
    assert_eq!(woken(&mut newer), Some(Woken::Look));
}

#[test]
fn what_is_too_much_is_not_held() {
    let house = House::new(HoldSettings {
        most: 2,
        ..HoldSettings::default()
    });
    let first = house.hold(1).expect("held");
    let _second = house.hold(2).expect("held");
    assert!(house.hold(3).is_none());
    let _again = house.hold(1).expect("in its own place");
    drop(first);
    assert!(house.hold(3).is_none());
    assert_eq!(house.holds.len(), 2);
}

#[test]
fn one_connection_has_its_share() {
    let house = House::new(HoldSettings {
        per_connection: 2,
        ..HoldSettings::default()
    });
    let (proxy, other) = (Carried::default(), Carried::default());
    let first = house.hold_over(1, Some(&proxy)).expect("held");
    let _second = house.hold_over(2, Some(&proxy)).expect("held");
    assert!(house.hold_over(3, Some(&proxy)).is_none());
    let _third = house.hold_over(3, Some(&other)).expect("held");
    let again = house.hold_over(1, Some(&proxy)).expect("in its own place");
    assert_eq!(proxy.held(), 2);
    drop(first);
    assert_eq!(proxy.held(), 2);
    drop(again);
    assert_eq!(proxy.held(), 1);
    let _fourth = house.hold_over(4, Some(&proxy)).expect("held");
}

#[test]
fn while_memory_is_short_no_further_poll_is_held() {
    let house = House::new(HoldSettings::default());
    let mut first = house.hold(1).expect("held");
    house.memory.note(true);
    assert!(house.hold(2).is_none());
    assert_eq!(house.holds.len(), 1, "what is held stays so");
    house.holds.wake(&host(1));
    assert_eq!(woken(&mut first), Some(Woken::Look));
    house.memory.note(false);
    assert!(house.hold(2).is_some());
}

#[test]
fn a_stop_wakes_all_and_holds_none_from_then_on() {
    let house = House::new(HoldSettings::default());
    let carried = Carried::default();
    let mut first = house.hold_over(1, Some(&carried)).expect("held");
    let mut second = house.hold(2).expect("held");
    house.holds.wake(&host(1));
    house.holds.drain();
    assert_eq!(house.holds.len(), 0);
    assert_eq!(woken(&mut first), Some(Woken::Drain), "a change or not");
    assert_eq!(woken(&mut second), Some(Woken::Drain));
    assert_eq!(carried.held(), 0);
    assert!(house.hold(3).is_none());
    drop(first);
    assert_eq!(house.holds.len(), 0);
}

#[test]
fn an_answer_whose_changes_go_unnoticed_is_not_held() {
    let house = House::new(HoldSettings::default());
    let hit = Hit {
        kept: false,
        ..house.hit(1, 1, None)
    };
    assert!(house.holds.hold(house.asks(1), &hit, None).is_none());
}

#[test]
fn a_few_at_a_time_are_woken_for_a_free_slot_and_all_have_their_turn() {
    let house = House::new(HoldSettings::default());
    let all = 2 * u32::try_from(FEW).expect("few") + 3;
    let mut waiting: Vec<_> = (0..all)
        .map(|node| house.hold_counted(node, Scope::Project))
        .collect();
    let touched = Touched {
        counted: vec![(TENANT, Scope::Project), (TENANT, Scope::Project)],
        ..Touched::default()
    };
    let mut had_their_turn = HashSet::new();
    for _ in 0..3 {
        house.holds.wake(&touched);
        let mut few = 0;
        for (node, waiting) in waiting.iter_mut().enumerate() {
            if woken(waiting).is_some() {
                few += 1;
                had_their_turn.insert(node);
            }
        }
        assert_eq!(few, FEW);
    }
    assert_eq!(had_their_turn.len(), waiting.len());
}

#[test]
fn a_poll_that_is_held_on_depends_on_what_its_new_answer_does() {
    let house = House::new(HoldSettings::default());
    let mut waiting = house.hold(1).expect("held");
    let before = house.hit(1, 1, None);
    let after = house.hit(1, 2, Some(Scope::Project));
    house.holds.wake(&host(1));
    waiting.renew(&after);
    assert_eq!(woken(&mut waiting), Some(Woken::Look), "that is not lost");
    let touched = |ground| Touched {
        grounds: vec![ground],
        ..Touched::default()
    };
    house.holds.wake(&touched(before.ground));
    assert_eq!(woken(&mut waiting), None);
    house.holds.wake(&touched(after.ground));
    assert_eq!(woken(&mut waiting), Some(Woken::Look));
    house.holds.wake(&Touched {
        counted: vec![(TENANT, Scope::Project)],
        ..Touched::default()
    });
    assert_eq!(woken(&mut waiting), Some(Woken::Look));
    assert_eq!(house.holds.len(), 1);
}

#[test]
fn who_is_gone_leaves_nothing_behind() {
    let house = House::new(HoldSettings::default());
    let carried = Carried::default();
    let hit = house.hit(1, 1, Some(Scope::Project));
    for _ in 0..10 {
        let hold = || house.holds.hold(house.asks(1), &hit, Some(&carried));
        let (older, mut newer) = (hold(), hold().expect("held"));
        newer.renew(&house.hit(1, 2, None));
        drop((older, newer));
    }
    let all = house.holds.lock();
    let by_one = [all.held.len(), all.hosts.len(), all.instances.len()];
    let by_many = [all.grounds.len(), all.tenants.len(), all.counted.len()];
    assert_eq!((by_one, by_many), ([0; 3], [0; 3]));
    assert_eq!(carried.held(), 0);
}

#[test]
fn each_is_looked_at_in_its_turn_and_woken_if_its_answer_does_not_hold() {
    let house = House::new(HoldSettings::default());
    let mut all: Vec<_> = (1..=7).map(|n| house.hold(n).expect("held")).collect();
    let mut looked = Vec::new();
    for _ in 0..4 {
        let seen = std::cell::RefCell::new(Vec::new());
        house.holds.recheck(3, |who, _| {
            seen.borrow_mut().push(who);
            who != self::who(5)
        });
        looked.push(seen.into_inner());
    }
    let sizes: Vec<_> = looked.iter().map(Vec::len).collect();
    assert_eq!(sizes, [3, 3, 1, 3], "the fourth begins anew");
    let nodes = looked[..3].concat();
    assert_eq!(nodes, (1..=7).map(who).collect::<Vec<_>>());
    let woken: Vec<_> = all.iter_mut().map(woken).collect();
    let only_the_fifth = (1..=7).map(|n| (n == 5).then_some(Woken::Look));
    assert_eq!(woken, only_the_fifth.collect::<Vec<_>>());
}

#[test]
fn those_who_come_and_go_keep_nobody_from_its_turn() {
    let house = House::new(HoldSettings::default());
    let _stays = house.hold(1).expect("held");
    let seen = std::cell::Cell::new(0);
    for node in 2..=50 {
        let _comes = house.hold(node);
        house.holds.recheck(240, |who, _| {
            seen.set(seen.get() + u32::from(who == self::who(1)));
            true
        });
    }
    assert!(seen.get() >= 10, "{}", seen.get());
}
