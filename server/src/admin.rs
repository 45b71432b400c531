//! Health, readiness and metrics of the process.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use evenkeel_kit::{Clock, chain};
use evenkeel_store::{ClockAgreement, Store};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;

use crate::fleet_metrics::FleetMetrics;

/// Maximum duration of the database check in `/readyz`.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct AdminState {
    store: Store,
    clock: Arc<dyn Clock>,
    metrics: PrometheusHandle,
    fleet: FleetMetrics,
    stopping: CancellationToken,
}

/// Routes: `/livez` (the process is alive), `/readyz` (the process can serve requests) and
/// `/metrics` (Prometheus text format).
pub(crate) fn router(
    (store, clock): (Store, Arc<dyn Clock>),
    (metrics, fleet): (PrometheusHandle, FleetMetrics),
    stopping: CancellationToken,
) -> Router {
    let admin = AdminState { store, clock, metrics, fleet, stopping };
    Router::new()
        .route("/livez", get(async || "alive\n"))
        .route("/readyz", get(check_ready))
        .route("/metrics", get(render_metrics))
        .with_state(admin)
}

async fn check_ready(State(admin): State<AdminState>) -> Response {
    let unavailable = |why: String| (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    if admin.stopping.is_cancelled() {
        return unavailable("stopping\n".to_owned());
    }
    let check = async {
        admin.store.ping().await?;
        admin.store.read_clocks(&*admin.clock).await
    };
    match tokio::time::timeout(DATABASE_TIMEOUT, check).await {
        Ok(Ok(clocks)) if clocks.agreement() == ClockAgreement::Differs => {
            unavailable(format!("{clocks}\n"))
        }
        Ok(Ok(_)) => "ready\n".into_response(),
        Ok(Err(error)) => {
            tracing::warn!(error = %chain(&error), "not ready");
            unavailable(format!("{}\n", chain(&error)))
        }
        Err(_) => unavailable("the database does not answer\n".to_owned()),
    }
}

async fn render_metrics(State(admin): State<AdminState>) -> Response {
    crate::observe::update_process_metrics();
    crate::observe::update_connection_metrics(&admin.store);
    admin.fleet.update_age();
    let format = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (format, admin.metrics.render()).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use chrono::TimeDelta;
    use evenkeel_kit::{SystemClock, TestClock};
    use evenkeel_store::testing::fresh_store;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn a_process_is_not_ready_while_its_clock_differs_from_that_of_the_database() {
        let clock = TestClock::new(SystemClock.now());
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let parts = (fresh_store().await, Arc::new(clock.clone()) as Arc<dyn Clock>);
        let metrics = (metrics, FleetMetrics::default());
        let router = router(parts, metrics, CancellationToken::new());
        let get = async || {
            let request = Request::get("/readyz").body(Body::empty()).unwrap();
            let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
            let body = to_bytes(body, 1 << 20).await.unwrap();
            (parts.status, String::from_utf8(body.to_vec()).unwrap())
        };
        assert_eq!(get().await, (StatusCode::OK, "ready\n".to_owned()));
        clock.advance(TimeDelta::days(-365));
        let (status, text) = get().await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("the clock of this process differs"), "{text}");
        clock.set(SystemClock.now());
        assert_eq!(get().await.0, StatusCode::OK);
    }
}
