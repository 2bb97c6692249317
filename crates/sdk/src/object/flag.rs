use super::{Change, FieldType, Place, Read};
use crate::HostError;

/// A field that is on or off. If two nodes enable and disable it concurrently, the enabling wins in an `ew_flag`, the
/// disabling in a `dw_flag`.
#[derive(Debug, Clone)]
pub struct Flag {
    place: Place,
    enable_wins: bool,
}

impl Flag {
    pub(super) fn at(place: Place, enable_wins: bool) -> Self {
        Self { place, enable_wins }
    }

    /// Switches it on.
    pub fn enable(&self) -> Result<(), HostError> {
        self.set(true)
    }

    /// Switches it off.
    pub fn disable(&self) -> Result<(), HostError> {
        self.set(false)
    }

    /// Whether it is on; false if it was never switched.
    pub fn value(&self) -> Result<bool, HostError> {
        let field_type = if self.enable_wins { FieldType::EwFlag } else { FieldType::DwFlag };
        self.place.flag(Read::Value(field_type))
    }

    fn set(&self, enabled: bool) -> Result<(), HostError> {
        let change = if self.enable_wins { Change::EwFlagSet(enabled) } else { Change::DwFlagSet(enabled) };
        self.place.change(change)
    }
}
