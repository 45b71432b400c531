//! The server's metrics in the Prometheus text format.

use std::time::Duration;

use crate::bench_harness::BenchHarness;

/// The metrics of all servers at one instant.
#[derive(Clone, Debug)]
pub struct Scrape(String);

impl Scrape {
    /// Fetches the metrics of all servers.
    pub async fn fetch(harness: &BenchHarness) -> anyhow::Result<Self> {
        let client =
            reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build()?;
        let mut all = String::new();
        for address in harness.addresses("admin")? {
            let url = format!("http://{address}/metrics");
            let answer = client.get(url).send().await?.error_for_status()?;
            all.push_str(&answer.text().await?);
        }
        Ok(Self(all))
    }

    /// The sum of a metric over all servers and all series with this label; `None` if there is
    /// none.
    pub fn value(&self, name: &str, label: &str) -> Option<f64> {
        let values = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            let is_metric = labels.is_empty() || labels.starts_with('{');
            (is_metric && labels.contains(label)).then(|| value.parse::<f64>().ok())?
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
            "# TYPE evenkeel_poll_requests_total counter\n\
             evenkeel_poll_requests_total{protocol=\"own\",kind=\"hit\"} 7\n\
             evenkeel_poll_requests_total{protocol=\"eim\",kind=\"hit\"} 5\n\
             evenkeel_poll_requests_total{protocol=\"own\",kind=\"write\"} 2\n\
             evenkeel_answer_cache_nodes 100\n\
             evenkeel_answer_cache_nodes_of_another_kind 3\n"
                .to_owned(),
        );
        let polls = |label| scrape.value("evenkeel_poll_requests_total", label);
        assert_eq!(polls("kind=\"hit\""), Some(12.0));
        assert_eq!(polls(""), Some(14.0));
        assert_eq!(scrape.value("evenkeel_answer_cache_nodes", ""), Some(100.0));
        assert_eq!(scrape.value("evenkeel_answer_cache", ""), None);
    }
}
