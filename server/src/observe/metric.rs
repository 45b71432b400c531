//! Description of a metric.

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
    /// Name and possible values of each label.
    pub labels: &'static [(&'static str, &'static str)],
    /// What the metric measures, as sentences.
    pub help: &'static str,
}

impl MetricDescription {
    /// Unit of the values. The name ends in it, before `_total`.
    pub fn unit(&self) -> &'static str {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        let units = ["seconds", "bytes"];
        let unit = units.into_iter().find(|unit| name.ends_with(unit));
        unit.unwrap_or_default()
    }

    /// Registers the description with the recorder of this process.
    pub(super) fn register(&self) {
        match self.kind {
            MetricKind::Counter => metrics::describe_counter!(self.name, self.help),
            MetricKind::Gauge => metrics::describe_gauge!(self.name, self.help),
            MetricKind::Histogram => metrics::describe_histogram!(self.name, self.help),
        }
    }
}

pub(super) const fn metric(
    name: &'static str,
    kind: MetricKind,
    labels: &'static [(&'static str, &'static str)],
    help: &'static str,
) -> MetricDescription {
    MetricDescription { name, kind, labels, help }
}
