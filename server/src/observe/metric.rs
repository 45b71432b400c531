//! Description of a metric.

use metrics::Label;

/// Type of a metric, as Prometheus knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows, except when the process restarts.
    Counter,
    /// Grows and shrinks.
    Gauge,
    /// Count, sum and buckets of recorded values.
    Histogram,
}

impl MetricKind {
    /// Name of the type in the text format of Prometheus.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Metrics that belong together.
#[derive(Debug)]
pub struct MetricGroup {
    /// Heading of the group.
    pub title: &'static str,
    /// The metrics, in the order of the page.
    pub metrics: &'static [MetricDescription],
}

/// A metric and its meaning.
#[derive(Debug)]
pub struct MetricDescription {
    /// Full name, without the suffixes of a histogram.
    pub name: &'static str,
    /// Type.
    pub kind: MetricKind,
    /// Labels, in any order.
    pub labels: &'static [MetricLabel],
    /// What the metric measures, as sentences.
    pub help: &'static str,
}

/// A label of a metric.
#[derive(Clone, Copy, Debug)]
pub struct MetricLabel {
    /// Name of the label.
    pub name: &'static str,
    /// What its values mean, for people.
    pub meaning: &'static str,
    /// All values that it may have.
    pub values: LabelValues,
}

/// The values of a label.
#[derive(Clone, Copy, Debug)]
pub enum LabelValues {
    /// These values only. The series exist from the start of the process.
    Closed(&'static [&'static str]),
    /// Values that are only known when they occur, such as the routes that are called. Their number
    /// is bounded by the program or its settings, never by what a peer sends.
    Open,
}

impl MetricDescription {
    /// Unit of the values. The name ends in it, before `_total`.
    pub fn unit(&self) -> &'static str {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        let units = ["seconds", "bytes"];
        let unit = units.into_iter().find(|unit| name.ends_with(unit));
        unit.unwrap_or_default()
    }

    /// Registers the description with the recorder of this process, and creates the series that are
    /// known in advance: an alert on the increase of a counter misses the first increase of a series
    /// that appears with it. A gauge without labels appears with its first value, because 0 would be
    /// wrong until then.
    pub(super) fn register(&self) {
        match self.kind {
            MetricKind::Counter => metrics::describe_counter!(self.name, self.help),
            MetricKind::Gauge => metrics::describe_gauge!(self.name, self.help),
            MetricKind::Histogram => metrics::describe_histogram!(self.name, self.help),
        }
        for labels in self.initial_series() {
            match self.kind {
                MetricKind::Counter => metrics::counter!(self.name, labels).increment(0),
                // Keeps a value that is already set.
                MetricKind::Gauge => metrics::gauge!(self.name, labels).increment(0.0),
                MetricKind::Histogram => drop(metrics::histogram!(self.name, labels)),
            }
        }
    }

    /// The labels of each series that exists from the start: every combination of values. None if a
    /// label is open.
    fn initial_series(&self) -> Vec<Vec<Label>> {
        if self.labels.is_empty() && self.kind == MetricKind::Gauge {
            return Vec::new();
        }
        let mut series = vec![Vec::new()];
        for label in self.labels {
            let LabelValues::Closed(values) = label.values else {
                return Vec::new();
            };
            let mut extended = Vec::new();
            for labels in &series {
                for value in values {
                    let mut labels: Vec<Label> = labels.clone();
                    labels.push(Label::new(label.name, *value));
                    extended.push(labels);
                }
            }
            series = extended;
        }
        series
    }
}

pub(super) const fn metric(
    name: &'static str,
    kind: MetricKind,
    labels: &'static [MetricLabel],
    help: &'static str,
) -> MetricDescription {
    MetricDescription { name, kind, labels, help }
}
