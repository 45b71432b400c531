//! Prometheus scrapes a real server: every query of the alerts and of the dashboard runs, and the
//! server serves the series that its list of metrics promises.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use evenkeel_server::{LabelValues, METRIC_GROUPS, MetricDescription, MetricKind};
use evenkeel_test_support::RestClient;
use evenkeel_tests::architecture::tree;
use evenkeel_tests::history::Replicas;
use evenkeel_tests::monitoring::{
    FOLDER, PromQuery, alert_queries, dashboard_queries, parse_query, read_file,
};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

const SETTINGS: &str = "[admin]\nfleet_count_interval = \"1s\"\n";

/// How long a condition may take on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_mins(2);

const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Prometheus that scrapes servers every second. It is killed when this value is dropped.
struct Prometheus {
    client: RestClient,
    folder: TempDir,
    _process: Child,
}

impl Prometheus {
    #[expect(clippy::disallowed_methods, reason = "Prometheus is another program")]
    fn start(targets: &[String]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = free_address();
        write_configuration(folder.path(), targets);
        let log = File::create(folder.path().join("log")).expect("a log");
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn();
        let process = process
            .expect("Prometheus starts; `make tools` installs the Debian package prometheus");
        let client = RestClient::connect(&address.to_string(), "default", "none");
        Self { client, folder, _process: process }
    }

    /// Runs a query and returns its result.
    async fn query(&self, text: &str) -> Result<Value, String> {
        let path = format!("/api/v1/query?query={}", percent_encode(text));
        let answer = self.client.send(Method::GET, &path, None).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if !answer.status.is_success() {
            return Err(answer.text);
        }
        let body: Value = serde_json::from_str(&answer.text).map_err(|error| error.to_string())?;
        Ok(body["data"]["result"].clone())
    }

    /// Waits until a query has a result.
    async fn wait_for(&self, text: &str) {
        let begun = Instant::now();
        loop {
            let result = self.query(text).await;
            if result.as_ref().is_ok_and(|rows| rows.as_array().is_some_and(|r| !r.is_empty())) {
                return;
            }
            let log = || fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(begun.elapsed() < WAIT_TIMEOUT, "{text}: {result:?}\n{}", log());
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("an address")
}

fn write_configuration(folder: &Path, targets: &[String]) {
    let rules = tree::root().join(FOLDER).join("evenkeel.rules.yml");
    let configuration = json!({
        "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
        "rule_files": [rules],
        "scrape_configs": [
            { "job_name": "evenkeel", "static_configs": [{ "targets": targets }] },
        ],
    });
    // JSON is YAML.
    fs::write(folder.join("prometheus.yml"), configuration.to_string()).expect("a configuration");
}

fn percent_encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

fn all_metrics() -> impl Iterator<Item = &'static MetricDescription> {
    METRIC_GROUPS.iter().flat_map(|group| group.metrics)
}

/// Each combination of the values of a metric with closed labels must be served, and no value that
/// is not in the list.
fn assert_series(text: &str) {
    for metric in all_metrics() {
        let name = match metric.kind {
            MetricKind::Histogram => format!("{}_count", metric.name),
            MetricKind::Counter | MetricKind::Gauge => metric.name.to_owned(),
        };
        let prefix = format!("{name}{{");
        let series: Vec<&str> = text.lines().filter(|line| line.starts_with(&prefix)).collect();
        let mut expected = 1;
        let mut is_open = metric.labels.is_empty();
        for label in metric.labels {
            let LabelValues::Closed(values) = label.values else {
                is_open = true;
                continue;
            };
            expected *= values.len();
            let shown = |line: &&&str| {
                values.iter().any(|value| line.contains(&format!("{}=\"{value}\"", label.name)))
            };
            assert_eq!(series.iter().filter(shown).count(), series.len(), "{series:?}");
        }
        assert!(is_open || series.len() == expected, "{name}: {series:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_the_alerts_and_the_dashboard_runs_on_a_real_server() {
    let mut replicas = Replicas::start(2, SETTINGS).await;
    let targets: Vec<String> =
        replicas.servers().iter().map(|server| server.address("admin")).collect();
    let prometheus = Prometheus::start(&targets);
    // The second server serves the counts as well, whichever of them counted.
    prometheus.wait_for("count(evenkeel_fleet_projects == 1) == 2").await;
    prometheus.wait_for("count(evenkeel_fleet_age_seconds < 60) == 2").await;
    prometheus.wait_for("count(evenkeel_ready == 1) == 2").await;
    prometheus.wait_for("count(increase(process_cpu_seconds_total[5m])) == 2").await;

    let alerts = alert_queries(&read_file("evenkeel.rules.yml"));
    let panels = dashboard_queries(&read_file("evenkeel-overview.json"));
    for PromQuery { owner, text } in alerts.iter().chain(&panels) {
        // A function of Grafana, not of Prometheus.
        let text = match text.strip_prefix("label_values(") {
            Some(arguments) => arguments.rsplit_once(',').expect("two arguments").0,
            None => text.as_str(),
        };
        let result = prometheus.query(text).await;
        assert!(result.is_ok(), "{owner}: {text}: {result:?}");
        // Each metric that is known from the start has values.
        for selector in parse_query(text).expect("a query").selectors {
            let is_initial = all_metrics().any(|metric| {
                let is_closed = |labels: &LabelValues| matches!(labels, LabelValues::Closed(_));
                selector.metric == metric.name
                    && !metric.labels.is_empty()
                    && metric.labels.iter().all(|label| is_closed(&label.values))
            });
            if is_initial {
                let rows = prometheus.query(&selector.metric).await.expect("an answer");
                assert!(!rows.as_array().expect("rows").is_empty(), "{owner}: {selector:?}");
            }
        }
    }
    let admin = RestClient::connect(&targets[0], "default", "none");
    assert_series(&admin.call("GET /metrics", None).await.text);
    check_outage(&mut replicas, &prometheus).await;
    replicas.stop().await;
}

/// Without one server the other one counts on, and the alert for the first one is pending. The
/// second server counts within a second, so its age falls again and again.
async fn check_outage(replicas: &mut Replicas, prometheus: &Prometheus) {
    replicas.servers()[0].kill();
    prometheus.wait_for("count(up == 0) == 1").await;
    prometheus.wait_for("ALERTS{alertname=\"EvenkeelServerDown\"}").await;
    prometheus.wait_for("sum_over_time(up[6s]) == 0").await;
    prometheus.wait_for("resets(evenkeel_fleet_age_seconds[5s]) > 0").await;
}
