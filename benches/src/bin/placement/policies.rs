//! What is compared: no policy, the tag under each distribution, each tolerance.

use std::path::PathBuf;

use clap::ValueEnum;
use edgefaas_benches::repository;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Policy {
    None,
    TagDefault,
    TagShared,
    TagMinMemory,
    TagIsolated,
    ToleranceAll,
    ToleranceSame,
    ToleranceNone,
}

impl Policy {
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::TagDefault,
        Self::TagShared,
        Self::TagMinMemory,
        Self::TagIsolated,
        Self::ToleranceAll,
        Self::ToleranceSame,
        Self::ToleranceNone,
    ];

    /// The policy file; none for no policy.
    pub fn file(self) -> Option<PathBuf> {
        let name = match self {
            Self::None => return None,
            Self::TagDefault => "tag-default",
            Self::TagShared => "tag-shared",
            Self::TagMinMemory => "tag-min_memory",
            Self::TagIsolated => "tag-isolated",
            Self::ToleranceAll => "tolerance-all",
            Self::ToleranceSame => "tolerance-same",
            Self::ToleranceNone => "tolerance-none",
        };
        Some(repository().join(format!("benches/apps/placement/policies/{name}.yaml")))
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "no policy",
            Self::TagDefault => "tag, default",
            Self::TagShared => "tag, shared",
            Self::TagMinMemory => "tag, min_memory",
            Self::TagIsolated => "tag, isolated",
            Self::ToleranceAll => "controller, tolerance all",
            Self::ToleranceSame => "controller, tolerance same",
            Self::ToleranceNone => "controller, tolerance none",
        }
    }

    /// The controller that is cut off, for the tolerance to have an effect.
    pub fn away(self) -> Option<&'static str> {
        matches!(self, Self::ToleranceAll | Self::ToleranceSame | Self::ToleranceNone).then_some("s1")
    }

    /// Whether it concerns only functions with the tag: the others run as under `tag, default`.
    pub fn is_tolerance(self) -> bool {
        self.away().is_some()
    }
}
