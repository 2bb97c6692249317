//! A message for one subscriber.

use std::num::NonZeroU32;
use std::time::Instant;

use crate::message::{Message, QoS};

/// Delivery options of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub qos: QoS,
    pub retain: bool,
    pub identifiers: Vec<NonZeroU32>,
}

/// A message and when the broker received it, for its expiry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dated<'a> {
    pub message: &'a Message,
    pub received: Instant,
}
