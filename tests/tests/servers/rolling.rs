//! Three replicas behind a proxy with the configuration of `deploy/ha`, while nodes poll and report: the replicas are
//! restarted one after the other, replaced by the next release, or lose their database to a standby.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_ROLLING_POLLS_PER_SECOND` | polls per second of all nodes |
//! | `EVENKEEL_ROLLING_SECONDS` | seconds of load before and after each event |
//! | `EVENKEEL_ROLLING_MIN_PERCENT` | part of these polls that must be answered; 0 in `make test`, where other tests run |
//! | `EVENKEEL_TEST_SERVER` | another build of `evenkeeld` to test |

mod front_proxy;
mod load;
mod next_release;
mod promotion;

use std::net::{IpAddr, Ipv4Addr};

use evenkeel_test_support::install_tls;
use evenkeel_tests::history::{OperatorClient, Replicas, print_progress};
use reqwest::{Certificate, Client};
use serde_json::{Value, json};

use front_proxy::FrontProxy;
use load::{Load, LoadResult};

const REPLICA_COUNT: usize = 3;

/// The listener for files needs a registry. No project uses this one.
const FILES_SETTINGS: &str = "
[os_resource_manager.registries.unused]
address = \"http://127.0.0.1:9\"
plain_http = true
proxy = \"none\"
[files]
listen = \"127.0.0.1:0\"
min_free_bytes = 0
";

/// The rest of the section of files, and other sections. HAProxy names the address of each client.
const HAPROXY_SETTINGS: &str = "trusted_proxies = [\"127.0.0.1\"]
[southbound]
trusted_proxies = [\"127.0.0.1\"]
[rest]
trusted_proxies = [\"127.0.0.1\"]
";

/// The same for nginx: all clients have its address.
const NGINX_SETTINGS: &str = "max_unauthenticated_per_address = 0
[southbound]
max_unauthenticated_per_address = 0
[rest]
max_unauthenticated_per_address = 0
max_connections_per_address = 0
";

/// Addresses of a user and of a node, which differ from that of the proxy.
const USER_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);
const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 78);

/// The log of a server that had to give up calls when it stopped.
const UNFINISHED_STOP: &str = "some tasks did not stop in time";

/// The settings of replicas behind HAProxy.
fn haproxy_settings() -> String {
    format!("{FILES_SETTINGS}{HAPROXY_SETTINGS}")
}

/// A session of an operator through a proxy.
fn connect_operator(replicas: &Replicas, proxy: &FrontProxy) -> OperatorClient {
    OperatorClient::new(&[proxy.address("rest")], &replicas.operator_token())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_behind_haproxy_fails_no_poll_and_loses_no_report() {
    let mut replicas = Replicas::start(REPLICA_COUNT, &haproxy_settings()).await;
    let proxy = FrontProxy::start_haproxy(&mut replicas).await;
    let client = connect_operator(&replicas, &proxy);
    let mut load = Load::start(&replicas, &client, proxy.address("southbound")).await;
    assert_client_addresses(&replicas, &proxy, &client, &mut load).await;
    assert_files_are_served(&replicas, &proxy).await;
    restart_each(&mut replicas, &proxy, &load).await;
    assert_nothing_lost(&load.stop().await, &client, &replicas, &proxy).await;
    replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_behind_nginx_fails_no_poll_and_loses_no_report() {
    let settings = format!("{FILES_SETTINGS}{NGINX_SETTINGS}");
    let mut replicas = Replicas::start(REPLICA_COUNT, &settings).await;
    let proxy = FrontProxy::start_nginx(&mut replicas).await;
    let client = connect_operator(&replicas, &proxy);
    let load = Load::start(&replicas, &client, proxy.address("southbound")).await;
    assert_files_are_served(&replicas, &proxy).await;
    restart_each(&mut replicas, &proxy, &load).await;
    assert_nothing_lost(&load.stop().await, &client, &replicas, &proxy).await;
    replicas.stop().await;
}

/// Stops one replica after the other with SIGTERM and starts it again, while nodes call.
async fn restart_each(replicas: &mut Replicas, proxy: &FrontProxy, load: &Load) {
    for number in 0..REPLICA_COUNT {
        load.wait_for_polls().await;
        let server = &mut replicas.servers()[number];
        server.stop();
        server.start_and_wait().await;
        proxy.wait_until_replicas_are_up().await;
        print_progress(&format!("replica {number} was restarted"));
    }
    load.wait_for_polls().await;
}

/// Fails if a poll failed twice, a report is not recorded, or a replica gave up a call.
async fn assert_nothing_lost(
    result: &LoadResult,
    client: &OperatorClient,
    replicas: &Replicas,
    proxy: &FrontProxy,
) {
    print_progress(&result.to_string());
    let logs = format!("{}\n-- proxy\n{}", replicas.logs(), proxy.log());
    result.assert_no_failed_poll(None, &logs);
    result.assert_load();
    result.assert_no_lost_report(client).await;
    assert!(!logs.contains(UNFINISHED_STOP), "{logs}");
}

/// Fails unless the change log has the addresses of a user and of a node behind the proxy.
async fn assert_client_addresses(
    replicas: &Replicas,
    proxy: &FrontProxy,
    client: &OperatorClient,
    load: &mut Load,
) {
    install_tls();
    let http = Client::builder().no_proxy().local_address(IpAddr::from(USER_ADDRESS));
    let url = format!("http://{}/v1/projects/default/sites", proxy.address("rest"));
    let http = http.build().expect("a client");
    let request = http.post(url).bearer_auth(replicas.operator_token());
    let answer = request.json(&json!({ "name": "of a user" })).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{answer:?}");
    load.enroll_node_from(NODE_ADDRESS.into(), &replicas.ca_certificate()).await;

    let changes = client.get("changes?pageSize=100").await;
    let of = |change: &Value| change["clientAddress"].as_str().unwrap_or_default().to_owned();
    let changes: Vec<String> =
        changes["changes"].as_array().expect("changes").iter().map(of).collect();
    for address in [USER_ADDRESS, NODE_ADDRESS] {
        assert!(changes.contains(&address.to_string()), "{address}: {changes:?}");
    }
}

/// Fails unless the listener for files answers a request over TLS through the proxy.
async fn assert_files_are_served(replicas: &Replicas, proxy: &FrontProxy) {
    install_tls();
    let ca = Certificate::from_pem(replicas.ca_certificate().as_bytes());
    let http = Client::builder().no_proxy().tls_certs_only([ca.expect("a certificate")]);
    let http = http.build().expect("a client");
    let url = format!("https://{}/", proxy.address("files"));
    let answer = http.get(url).send().await.expect("an answer");
    assert!(answer.status().is_client_error(), "{answer:?}");
}
