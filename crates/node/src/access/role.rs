//! Roles of users at the control API.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The permissions of a user at the control API. Each role includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads everything but secrets.
    Look,
    /// Invokes, publishes, retries, cancels, changes objects, and rolls back to an earlier revision.
    Operate,
    /// Deploys and removes; changes secrets, users and the cluster.
    Administer,
}

/// The text is not a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a role is one of `look`, `operate` and `administer`")]
pub struct UnknownRole;

impl Role {
    /// All roles, the one with the fewest permissions first.
    pub const ALL: [Self; 3] = [Self::Look, Self::Operate, Self::Administer];

    /// The name of the role.
    pub fn name(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Operate => "operate",
            Self::Administer => "administer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or(UnknownRole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_roles_are_one_to_one() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
        }
        assert_eq!("Look".parse::<Role>(), Err(UnknownRole));
        assert!(Role::Look < Role::Operate && Role::Operate < Role::Administer);
    }
}
