//! What is compared: no policy, a policy that concerns no function, the tag under each distribution, each tolerance.

use std::path::PathBuf;

use clap::ValueEnum;
use edgefaas_benches::repository;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Policy {
    None,
    Untagged,
    TagDefault,
    TagShared,
    TagMinMemory,
    TagIsolated,
    ToleranceAll,
    ToleranceSame,
    ToleranceNone,
}

/// Functions that use the data of the other zone, and so have the tag.
pub const TAGGED: [&str; 3] = ["document", "post", "terrain"];
pub const TAG: &str = "near_data";

impl Policy {
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Untagged,
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
            Self::Untagged | Self::TagDefault => "tag-default",
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
            Self::Untagged => "policy without the tag",
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

    /// Whether functions get the tag in their manifest.
    pub fn has_tag(self) -> bool {
        !matches!(self, Self::None | Self::Untagged)
    }
}
