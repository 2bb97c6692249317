//! `/metrics`, `/healthz` and `/readyz`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::dependencies::ControlParts;
use crate::health::Readiness;

/// Content type of Prometheus' text format, in its OpenMetrics version.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The routes over plain HTTP.
pub(super) fn routes(parts: Arc<ControlParts>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(parts)
}

async fn metrics(State(parts): State<Arc<ControlParts>>) -> Response {
    match parts.metrics.encode(&parts.reading()) {
        Ok(text) => ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn ready(State(parts): State<Arc<ControlParts>>) -> Response {
    let readiness = parts.health.readiness();
    let text = format!("{readiness}\n");
    match readiness {
        Readiness::Ready | Readiness::DiskFull => text.into_response(),
        Readiness::Draining | Readiness::StoreFailed { .. } => {
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}
