//! Compares the alerts and the dashboard of `deploy/monitoring` with the list of metrics, and with
//! their documents.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use evenkeel_server::{LabelValues, METRIC_GROUPS, MetricDescription, MetricKind};
use evenkeel_tests::architecture::tree;
use evenkeel_tests::lab::describe_output;
use evenkeel_tests::monitoring::{
    FOLDER, PromQuery, Selector, alert_queries, dashboard_queries, parse_query, read_file,
};
use serde_json::Value;

/// Labels that Prometheus adds to each series, and the label of the buckets of a histogram.
const ADDED_LABELS: [&str; 3] = ["instance", "job", "le"];

const RULES: &str = "evenkeel.rules.yml";
const RULE_TESTS: &str = "evenkeel.rules.test.yml";
const DASHBOARD: &str = "evenkeel-overview.json";

/// What is wrong with the metrics and labels of a query; empty if nothing is.
fn query_findings(query: &PromQuery) -> Vec<String> {
    let found = match parse_query(&query.text) {
        Ok(found) => found,
        Err(why) => return vec![format!("{}: {why}: {}", query.owner, query.text)],
    };
    let mut findings = Vec::new();
    let mut labels = BTreeSet::from(ADDED_LABELS.map(str::to_owned));
    for selector in &found.selectors {
        // Prometheus makes this metric itself.
        if selector.metric == "up" {
            continue;
        }
        let Some(metric) = find_metric(&selector.metric) else {
            findings.push(format!("{}: there is no metric {}", query.owner, selector.metric));
            continue;
        };
        labels.extend(metric.labels.iter().map(|label| label.name.to_owned()));
        findings.extend(matcher_findings(query, selector, metric));
    }
    let unknown = found.grouping.difference(&labels);
    findings.extend(unknown.map(|label| format!("{}: no metric has {label}", query.owner)));
    findings
}

fn matcher_findings(
    query: &PromQuery,
    selector: &Selector,
    metric: &MetricDescription,
) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, values) in &selector.matchers {
        if ADDED_LABELS.contains(&name.as_str()) {
            continue;
        }
        let Some(label) = metric.labels.iter().find(|label| label.name == name) else {
            findings.push(format!("{}: {} has no label {name}", query.owner, metric.name));
            continue;
        };
        if let LabelValues::Closed(known) = label.values {
            let wrong = values.iter().filter(|value| !known.contains(&value.as_str()));
            findings.extend(wrong.map(|value| format!("{}: {name} is never {value}", query.owner)));
        }
    }
    findings
}

/// The metric of a series. A histogram has only series with a suffix.
fn find_metric(series: &str) -> Option<&'static MetricDescription> {
    let mut metrics = METRIC_GROUPS.iter().flat_map(|group| group.metrics);
    let suffixes = ["_bucket", "_count", "_sum"];
    metrics.find(|metric| match metric.kind {
        MetricKind::Histogram => {
            let suffix = series.strip_prefix(metric.name);
            suffix.is_some_and(|suffix| suffixes.contains(&suffix))
        }
        MetricKind::Counter | MetricKind::Gauge => metric.name == series,
    })
}

#[test]
fn the_alerts_and_the_dashboard_use_existing_metrics_and_labels() {
    let mut queries = alert_queries(&read_file(RULES));
    assert!(queries.len() > 10, "{queries:?}");
    let panels = dashboard_queries(&read_file(DASHBOARD));
    assert!(panels.len() > 20, "{panels:?}");
    queries.extend(panels);
    let findings: Vec<String> = queries.iter().flat_map(query_findings).collect();
    assert!(findings.is_empty(), "{FOLDER}:\n{}", findings.join("\n"));
}

#[test]
fn a_wrong_metric_label_or_value_is_a_finding() {
    for text in [
        "evenkeel_fleet_moons",
        "evenkeel_fleet_hosts{colour=\"blue\"}",
        "evenkeel_fleet_hosts{status=\"blue\"}",
        "evenkeel_fleet_hosts{status=~\"silent|blue\"}",
        "sum by (colour) (evenkeel_fleet_hosts)",
        "rate(evenkeel_grpc_call_seconds[5m])",
    ] {
        let query = PromQuery { owner: "a".to_owned(), text: text.to_owned() };
        assert_eq!(query_findings(&query).len(), 1, "{text}");
    }
    let text = "sum by (le) (rate(evenkeel_grpc_call_seconds_bucket{job=\"a\"}[5m]))".to_owned();
    let query = PromQuery { owner: "a".to_owned(), text };
    assert!(query_findings(&query).is_empty());
}

/// The lines of each alert in the file of rules, by its name.
fn alerts(rules: &str) -> BTreeMap<&str, &str> {
    let alerts = rules.split("- alert: ").skip(1);
    alerts.filter_map(|alert| alert.split_once('\n')).collect()
}

#[test]
fn each_alert_has_a_section_and_a_test_in_which_it_fires_and_one_in_which_it_does_not() {
    let (rules, tests) = (read_file(RULES), read_file(RULE_TESTS));
    let page = std::fs::read_to_string(tree::root().join("docs/monitoring.md")).expect("a page");
    let mut findings = Vec::new();
    for (name, text) in alerts(&rules) {
        let runbook = format!("runbook: docs/monitoring.md#{}", name.to_lowercase());
        for part in ["summary: ", "description: ", "severity: ", &runbook] {
            if !text.contains(part) {
                findings.push(format!("{name} has no {part}"));
            }
        }
        if !page.contains(&format!("\n### {name}\n")) {
            findings.push(format!("docs/monitoring.md has no section {name}"));
        }
        let (mut fires, mut is_quiet) = (false, false);
        for case in tests.split(&format!("alertname: {name}\n")).skip(1) {
            let is_firing = case.trim_start().starts_with("exp_alerts:");
            fires |= is_firing;
            is_quiet |= !is_firing;
        }
        if !fires || !is_quiet {
            findings.push(format!("{RULE_TESTS} does not test {name}"));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn the_dashboard_has_the_form_that_grafana_imports() {
    let dashboard: Value = serde_json::from_str(&read_file(DASHBOARD)).expect("JSON");
    assert_eq!(dashboard["schemaVersion"], 39);
    assert_eq!(dashboard["uid"], "evenkeel-overview");
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    assert!(variables.iter().any(|variable| variable["type"] == "datasource"));
    let panels = dashboard["panels"].as_array().expect("panels");
    let rows: Vec<&str> = panels
        .iter()
        .filter(|panel| panel["type"] == "row")
        .filter_map(|row| row["title"].as_str())
        .collect();
    assert_eq!(rows, ["Fleet", "Updates", "Server", "Database"]);
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: its id is not unique");
        let [left, top, width, height] =
            ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a position"));
        assert!(0 < width && left + width <= 24 && 0 < height, "{title}");
        let columns = left..left + width;
        for cell in columns.flat_map(|column| (top..top + height).map(move |line| (column, line))) {
            assert!(cells.insert(cell), "{title} covers another panel");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{title}");
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}

/// Runs promtool in the folder of the alerts.
#[expect(clippy::disallowed_methods, reason = "promtool is another program")]
fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool")
        .args(arguments)
        .current_dir(tree::root().join(FOLDER))
        .output()
        .expect("promtool starts; `make tools` installs the Debian package prometheus");
    assert!(output.status.success(), "promtool {arguments:?}: {}", describe_output(&output));
}

#[test]
fn the_alerts_fire_and_stay_quiet_as_their_tests_say() {
    promtool(&["check", "rules", RULES]);
    promtool(&["check", "config", "prometheus.yml"]);
    promtool(&["test", "rules", RULE_TESTS]);
}
