//! Counts requests and calls. A label never holds an id or anything else that a peer chooses.

use std::time::Instant;

use anyhow::Context;
use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{self, Next};
use axum::response::Response;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

const SECONDS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// Sets up the collection of metrics for this process.
pub(crate) fn install() -> anyhow::Result<PrometheusHandle> {
    let builder = PrometheusBuilder::new()
        .set_buckets(&SECONDS)
        .context("metrics cannot be set up")?;
    let handle = builder
        .install_recorder()
        .context("metrics cannot be set up")?;
    metrics::describe_counter!(
        "evenkeel_http_requests_total",
        "Requests to the REST API that were answered."
    );
    metrics::describe_histogram!(
        "evenkeel_http_request_seconds",
        "How long answers of the REST API took."
    );
    metrics::describe_counter!(
        "evenkeel_grpc_calls_total",
        "Calls of agents that were answered."
    );
    metrics::describe_histogram!(
        "evenkeel_grpc_call_seconds",
        "How long answers to agents took, waiting included."
    );
    metrics::describe_gauge!(
        "process_resident_memory_bytes",
        "Memory that this process holds."
    );
    metrics::describe_gauge!(
        "process_cpu_seconds_total",
        "Processor time that this process took."
    );
    Ok(handle)
}

/// Counts the requests to a REST router by route.
pub(crate) fn http(router: Router) -> Router {
    router.layer(middleware::from_fn(count_http))
}

async fn count_http(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = known_method(request.method().as_str());
    let response = next.run(request).await;
    // The path as the router inside knows it, which puts it into the answer.
    let route = response.extensions().get::<MatchedPath>();
    let route = route.map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let status = response.status().as_u16().to_string();
    let labels = [
        ("method", method.to_owned()),
        ("route", route),
        ("status", status),
    ];
    metrics::counter!("evenkeel_http_requests_total", &labels).increment(1);
    let labels = [labels[0].clone(), labels[1].clone()];
    metrics::histogram!("evenkeel_http_request_seconds", &labels)
        .record(begun.elapsed().as_secs_f64());
    response
}

fn known_method(method: &str) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    known
        .into_iter()
        .find(|known| *known == method)
        .unwrap_or("other")
}

/// Counts the calls to a gRPC router by method.
pub(crate) fn grpc(router: Router) -> Router {
    router.layer(middleware::from_fn(count_grpc))
}

async fn count_grpc(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let path = request.uri().path().to_owned();
    let response = next.run(request).await;
    // An error is told in the head; in the tail there is nothing but success.
    let code = response
        .headers()
        .get("grpc-status")
        .and_then(|code| code.to_str().ok());
    let code = code.and_then(|code| code.parse::<u8>().ok()).unwrap_or(0);
    // Whoever calls what is not there chose the name.
    let method = if code == UNIMPLEMENTED {
        "none".to_owned()
    } else {
        path
    };
    let labels = [("method", method), ("code", code.to_string())];
    metrics::counter!("evenkeel_grpc_calls_total", &labels).increment(1);
    let labels = [labels[0].clone()];
    metrics::histogram!("evenkeel_grpc_call_seconds", &labels)
        .record(begun.elapsed().as_secs_f64());
    response
}

const UNIMPLEMENTED: u8 = 12;

/// Looks at what the kernel says about this process.
pub(crate) fn look_at_process() {
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let number = |text: Option<&str>| {
        text.and_then(|text| text.parse::<u32>().ok())
            .map(f64::from)
    };
    if let Some(pages) = number(read("statm").split(' ').nth(1)) {
        let page = u32::try_from(rustix::param::page_size()).map_or(4096.0, f64::from);
        metrics::gauge!("process_resident_memory_bytes").set(pages * page);
    }
    // Behind the name, which may hold anything, come the state and the numbers.
    let stat = read("stat");
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let (user, system) = (number(fields.nth(11)), number(fields.next()));
    if let (Some(user), Some(system)) = (user, system) {
        let ticks = u32::try_from(rustix::param::clock_ticks_per_second()).map_or(100.0, f64::from);
        metrics::gauge!("process_cpu_seconds_total").set((user + system) / ticks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_that_nobody_knows_has_no_label_of_its_own() {
        assert_eq!(known_method("GET"), "GET");
        assert_eq!(known_method("BREW"), "other");
    }
}
