//! Health, readiness and metrics, for who looks after the process.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use evenkeel_kit::chain;
use evenkeel_store::Store;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;

/// How long the database may take to say that it is there.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct Admin {
    store: Store,
    metrics: PrometheusHandle,
    stopping: CancellationToken,
}

/// `/livez` while the process works at all, `/readyz` while it can answer requests, `/metrics` in Prometheus' format.
pub(crate) fn router(
    store: Store,
    metrics: PrometheusHandle,
    stopping: CancellationToken,
) -> Router {
    let admin = Admin {
        store,
        metrics,
        stopping,
    };
    Router::new()
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(admin)
}

async fn ready(State(admin): State<Admin>) -> Response {
    let unavailable = |why: String| (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    if admin.stopping.is_cancelled() {
        return unavailable("stopping\n".to_owned());
    }
    match tokio::time::timeout(PATIENCE, admin.store.ping()).await {
        Ok(Ok(())) => "ready\n".into_response(),
        Ok(Err(error)) => {
            tracing::warn!(error = %chain(&error), "not ready");
            unavailable(format!("{error}\n"))
        }
        Err(_) => unavailable("the database does not answer\n".to_owned()),
    }
}

async fn scrape(State(admin): State<Admin>) -> Response {
    crate::observe::look_at_process();
    let format = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (format, admin.metrics.render()).into_response()
}
