//! What the server says of itself (Prometheus' text format).

use std::time::Duration;

use crate::station::Station;

/// The metrics of all servers at an instant.
#[derive(Clone, Debug)]
pub struct Scrape(String);

impl Scrape {
    /// Asks each server for them.
    pub async fn of(station: &Station) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(30))
            .build()?;
        let mut all = String::new();
        for address in station.addresses("admin")? {
            let url = format!("http://{address}/metrics");
            let answer = client.get(url).send().await?.error_for_status()?;
            all.push_str(&answer.text().await?);
        }
        Ok(Self(all))
    }

    /// The sum of a metric over all servers, and all labels that include this one; none if there is no such metric.
    pub fn value(&self, name: &str, label: &str) -> Option<f64> {
        let values = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            let is_it = labels.is_empty() || labels.starts_with('{');
            (is_it && labels.contains(label)).then(|| value.parse::<f64>().ok())?
        });
        values.reduce(|sum, value| sum + value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels() {
        let scrape = Scrape(
            "# TYPE evenkeel_polls_total counter\n\
             evenkeel_polls_total{door=\"own\",kind=\"hit\"} 7\n\
             evenkeel_polls_total{door=\"eim\",kind=\"hit\"} 5\n\
             evenkeel_polls_total{door=\"own\",kind=\"news\"} 2\n\
             evenkeel_view_nodes 100\n\
             evenkeel_view_nodes_of_another_kind 3\n"
                .to_owned(),
        );
        let polls = |label| scrape.value("evenkeel_polls_total", label);
        assert_eq!(polls("kind=\"hit\""), Some(12.0));
        assert_eq!(polls(""), Some(14.0));
        assert_eq!(scrape.value("evenkeel_view_nodes", ""), Some(100.0));
        assert_eq!(scrape.value("evenkeel_view", ""), None);
    }
}
