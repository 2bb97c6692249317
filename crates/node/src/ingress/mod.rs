//! Where events come in: HTTP, MQTT and the clock. Each turns its event into an invocation and the
//! outcome into its own kind of answer.

pub mod body;
pub mod cron;
mod durable_http;
mod frames;
pub mod gateway_auth;
pub mod http;
pub mod mqtt;
pub mod object_change;
mod outflow;
pub mod places;
pub mod replies;
pub(crate) mod request_head;
pub mod socket;
pub mod websocket;
mod workflow_http;
mod write_timeout;
