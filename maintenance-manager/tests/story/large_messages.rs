//! The largest messages that nodes may send are stored, whatever is in them.

use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{Downloading, Finished, PackageChange, PackageResult, Plan};

use crate::test_server::{TestServer, began};

/// The number of packages in each list. A search for each planned package through all results would take minutes.
const PACKAGES: usize = 50_000;

fn planned(n: usize) -> PackageChange {
    PackageChange { name: format!("planned-{n}"), after: "1".into(), ..PackageChange::default() }
}

fn results(name: &str, version: &str) -> Kind {
    let result = |n: usize| PackageResult {
        name: format!("{name}-{n}"),
        version: version.to_owned(),
        state: "installed".into(),
        ..PackageResult::default()
    };
    Kind::Finished(Finished { results: (0..PACKAGES).map(result).collect(), ..Finished::default() })
}

#[tokio::test]
async fn a_report_of_many_results_for_many_planned_packages_is_stored() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let plan = Plan { changes: (0..PACKAGES).map(planned).collect(), ..Plan::default() };
    let events = [
        (1, Kind::Downloading(Downloading { plan: Some(plan) })),
        (2, began()),
        (3, results("unplanned", "1")),
        (4, results("planned", "1")),
    ];
    assert_eq!(server.report(&node, 1, policy, &events).await.acknowledged, 4);
    let run = &server.runs(&node).await[0];
    assert_eq!(run.packages.len(), PACKAGES);
    assert!(run.packages.iter().all(evenkeel_domain::package::PackageChange::is_done));
}
