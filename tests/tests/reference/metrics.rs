//! Renders the list of metrics, and compares it with the metrics that the code records.

use std::collections::BTreeMap;

use evenkeel_server::{METRIC_GROUPS, MetricDescription};
use evenkeel_tests::architecture::tree::{self, SourceFile};

use super::page::{header, row, wrap};

const INTRODUCTION: &str = "evenkeeld serves its metrics in the text format of Prometheus at `/metrics` of the listener `admin.listen`. The values of a counter start at 0 with each start of the process. A histogram `NAME` is served as `NAME_bucket`, `NAME_sum` and `NAME_count`. Labels never contain IDs, names of hosts or other values that a client can choose.\n\n[operate.md](../operate.md#monitor-the-server) says which metrics to watch and what to do.";

/// The file with the list; it uses no metric.
const LIST_FILE: &str = "server/src/observe/metric_list.rs";

/// The page of all metrics.
pub fn render() -> String {
    let mut text = format!("# Metrics\n\n{}", wrap(INTRODUCTION));
    for group in METRIC_GROUPS {
        text.push_str(&format!("\n## {}\n\n", group.title));
        text.push_str(&header(&["Metric", "Type", "Unit", "Meaning and labels"]));
        for metric in group.metrics {
            let labels = metric.labels.iter();
            let labels: String =
                labels.map(|label| format!("<br>`{}`: {}.", label.name, label.meaning)).collect();
            let name = format!("`{}`", metric.name);
            let meaning = format!("{}{labels}", metric.help);
            text.push_str(&row(&[&name, metric.kind.name(), metric.unit(), &meaning]));
        }
    }
    text
}

/// A metric that the code records: the macro, if the name is its argument, and its literal labels.
#[derive(Debug, Default, PartialEq, Eq)]
struct RecordedMetric {
    kind: Option<&'static str>,
    labels: Vec<String>,
}

/// Each difference between the list and the use of metrics in the code.
pub fn differences() -> Vec<String> {
    let listed: BTreeMap<&str, &MetricDescription> = METRIC_GROUPS
        .iter()
        .flat_map(|group| group.metrics)
        .map(|metric| (metric.name, metric))
        .collect();
    let mut findings = Vec::new();
    let mut unused: Vec<&str> = listed.keys().copied().collect();
    for file in files_with_metrics() {
        for (name, recorded) in recorded_metrics(before_test_module(&file.text)) {
            unused.retain(|unused| *unused != name);
            let Some(metric) = listed.get(name.as_str()) else {
                findings.push(format!("{}: {name} is not in {LIST_FILE}", file.path));
                continue;
            };
            if recorded.kind.is_some_and(|kind| kind != metric.kind.name()) {
                findings.push(format!("{}: {name} has another type", file.path));
            }
            for label in recorded.labels {
                if !metric.labels.iter().any(|known| known.name == label) {
                    findings.push(format!("{}: {name} has the label {label}", file.path));
                }
            }
        }
    }
    findings.extend(unused.iter().map(|name| format!("{LIST_FILE}: {name} is not used")));
    findings
}

/// The sources of the crates that record metrics.
fn files_with_metrics() -> Vec<SourceFile> {
    let manifests = tree::files(|path| path.ends_with("/Cargo.toml"));
    let folders: Vec<String> = manifests
        .iter()
        .filter(|manifest| manifest.text.contains("\nmetrics.workspace"))
        .map(|manifest| manifest.path.replace("Cargo.toml", "src/"))
        .collect();
    assert!(folders.len() > 2, "{folders:?}");
    let files = tree::rust_files().into_iter();
    let is_source = |file: &SourceFile| {
        let is_inside = folders.iter().any(|folder| file.path.starts_with(folder));
        is_inside && !file.is_test() && file.path != LIST_FILE
    };
    files.filter(is_source).collect()
}

/// The part of a file before its tests. An item that exists only for tests may come earlier.
fn before_test_module(text: &str) -> &str {
    let end = text.find("#[cfg(test)]\nmod tests {");
    &text[..end.unwrap_or(text.len())]
}

/// The metrics named by texts in the code: `evenkeel_…`, and the argument of a macro of metrics.
fn recorded_metrics(code: &str) -> Vec<(String, RecordedMetric)> {
    let mut recorded = Vec::new();
    for (quote, _) in code.match_indices('"') {
        let (before, rest) = (code[..quote].trim_end(), &code[quote + 1..]);
        let Some((name, after)) = rest.split_once('"') else {
            continue;
        };
        let kinds = ["counter", "gauge", "histogram"];
        let kind = kinds.into_iter().find(|kind| before.ends_with(&format!("{kind}!(")));
        let is_name = |c: char| c == '_' || c.is_ascii_lowercase();
        let is_own = name.starts_with("evenkeel_") && name.chars().all(is_name);
        if kind.is_some() || is_own {
            let labels = kind.map_or_else(Vec::new, |_| literal_labels(after));
            recorded.push((name.to_owned(), RecordedMetric { kind, labels }));
        }
    }
    recorded
}

/// The names in `"name" => value` up to the end of the arguments.
fn literal_labels(arguments: &str) -> Vec<String> {
    let mut depth = 0;
    let end = arguments.find(|c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth < 0
    });
    let arguments = &arguments[..end.unwrap_or(arguments.len())];
    let mut parts: Vec<&str> = arguments.split("=>").map(str::trim_end).collect();
    // The part after the last arrow is a value.
    parts.pop();
    let names = parts.into_iter().filter_map(|text| text.strip_suffix('"')?.rsplit_once('"'));
    names.map(|(_, name)| name.to_owned()).collect()
}

#[test]
fn the_metrics_of_a_text_are_found_with_their_labels() {
    let code = r#"
        counter!("evenkeel_a_total", "call" => call(), "outcome" => "ok").increment(1);
        const B: &str = "evenkeel_b"; gauge!("process_c").set(1); note("d" => 1);
    "#;
    let found = recorded_metrics(code);
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["evenkeel_a_total", "evenkeel_b", "process_c"]);
    assert_eq!(found[0].1.kind, Some("counter"));
    assert_eq!(found[0].1.labels, ["call", "outcome"]);
    assert_eq!(found[1].1, RecordedMetric::default());
}
