//! The replicas are replaced by the next release, which has another step of the schema.

use std::path::Path;

use evenkeel_tests::history::{Replicas, print_progress};
use evenkeel_tests::next_release::NEXT_RELEASE;
use evenkeel_tests::run_program;

use super::front_proxy::FrontProxy;
use super::load::Load;
use super::{REPLICA_COUNT, assert_nothing_lost, connect_operator, haproxy_settings, restart_each};

/// The program of the next release.
const NEXT_PROGRAM: &str = env!("CARGO_BIN_EXE_evenkeeld-next");

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_upgrade_fails_no_poll_and_loses_no_report() {
    let mut replicas = Replicas::start(REPLICA_COUNT, &haproxy_settings()).await;
    let proxy = FrontProxy::start_haproxy(&mut replicas).await;
    let client = connect_operator(&replicas, &proxy);
    let load = Load::start(&replicas, &client, proxy.address("southbound")).await;
    load.wait_for_polls().await;

    let config = replicas.config_path(0);
    let config = config.to_string_lossy();
    run_program(Path::new(NEXT_PROGRAM), &["migrate", "--config", &config]).await;
    print_progress("the next release has migrated the schema");
    assert_eq!(count_next_replicas(&replicas).await, 0, "the replicas are of the old release");
    for server in replicas.servers() {
        server.set_program(Path::new(NEXT_PROGRAM));
    }
    restart_each(&mut replicas, &proxy, &load).await;
    assert_eq!(count_next_replicas(&replicas).await, REPLICA_COUNT);

    assert_nothing_lost(&load.stop().await, &client, &replicas, &proxy).await;
    replicas.stop().await;
}

/// The number of replicas that run the next release and know its step.
async fn count_next_replicas(replicas: &Replicas) -> usize {
    let lines = replicas.metric_lines("evenkeel_build_info").await;
    assert_eq!(lines.len(), REPLICA_COUNT, "{lines:?}");
    let version = format!("version=\"{}\"", NEXT_RELEASE.version);
    let schema = format!("schema=\"{}\"", NEXT_RELEASE.step.name);
    lines.iter().filter(|line| line.contains(&version) && line.contains(&schema)).count()
}
