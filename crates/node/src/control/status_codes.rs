//! Status codes of refused requests: one for each kind of error, with its text.

use edgefaas_functions::invocation::InvocationError;
use edgefaas_functions::registry::DeployError;
use edgefaas_functions::secrets::SecretError;
use tonic::Status;

use super::rollouts::PolicyChangeError;
use crate::access::UsersError;
use crate::cluster::ClusterError;

/// Of deploys, removals, rollbacks and comparisons.
pub(super) fn deploy_status(error: DeployError) -> Status {
    let text = error.to_string();
    match error {
        DeployError::Manifest(_)
        | DeployError::MissingSource { .. }
        | DeployError::UnknownSource { .. }
        | DeployError::UnknownAsset { .. }
        | DeployError::TooManyAssets { .. }
        | DeployError::WrongKind { .. }
        | DeployError::Workflow(_)
        | DeployError::DryRun(_)
        | DeployError::UnknownWorkflow { .. }
        | DeployError::Calls { .. }
        | DeployError::OtherApp { .. }
        | DeployError::NoMatchingNode { .. }
        | DeployError::TooMuchMemory { .. }
        | DeployError::Prepare { .. } => Status::invalid_argument(text),
        DeployError::NameTaken { .. } | DeployError::Route(_) => Status::already_exists(text),
        DeployError::UnknownApp { .. } | DeployError::UnknownRevision { .. } => Status::not_found(text),
        DeployError::NoEarlierRevision { .. }
        | DeployError::AlreadyLive { .. }
        | DeployError::DeployedToCluster { .. }
        | DeployError::NotOnThisNode { .. } => Status::failed_precondition(text),
        DeployError::Commit { .. } => Status::resource_exhausted(text),
        DeployError::Superseded { .. } => Status::aborted(text),
        DeployError::Store(_) => Status::internal(text),
    }
}

/// Of changes of placement policies.
pub(super) fn policy_status(error: PolicyChangeError) -> Status {
    let text = error.to_string();
    match error {
        PolicyChangeError::NoMember | PolicyChangeError::Revoked { .. } => {
            Status::failed_precondition(text)
        }
        PolicyChangeError::Invalid { .. } => Status::invalid_argument(text),
        PolicyChangeError::NoPolicy => Status::not_found(text),
        PolicyChangeError::Store(_) | PolicyChangeError::Files(_) => Status::internal(text),
        PolicyChangeError::Commit(_) => Status::resource_exhausted(text),
    }
}

/// Of calls of functions and workflows.
pub(super) fn invoke_status(error: &InvocationError) -> Status {
    let text = error.to_string();
    match error {
        InvocationError::UnknownFunction { .. } | InvocationError::UnknownWorkflow { .. } => {
            Status::not_found(text)
        }
        InvocationError::PayloadTooLarge { .. } => Status::invalid_argument(text),
        InvocationError::QueueFull { .. } => Status::resource_exhausted(text),
        InvocationError::Draining | InvocationError::NoGuestMemory { .. } => Status::unavailable(text),
        _ => Status::internal(text),
    }
}

/// Of changes of users.
pub(super) fn users_status(error: UsersError) -> Status {
    let text = error.to_string();
    match error {
        UsersError::Name { .. } | UsersError::Password => Status::invalid_argument(text),
        UsersError::Exists { .. } => Status::already_exists(text),
        UsersError::Unknown { .. } => Status::not_found(text),
        UsersError::Parse { .. } => Status::failed_precondition(text),
        UsersError::Read { .. } | UsersError::Write { .. } | UsersError::Hash { .. } => {
            Status::internal(text)
        }
    }
}

/// Of changes of secrets.
pub(super) fn secret_status(error: SecretError) -> Status {
    let text = error.to_string();
    match error {
        SecretError::App { .. } | SecretError::Name { .. } | SecretError::TooLarge { .. } => {
            Status::invalid_argument(text)
        }
        SecretError::Unknown { .. } => Status::not_found(text),
        SecretError::Commit { .. } => Status::resource_exhausted(text),
    }
}

/// Of changes of the cluster.
pub(super) fn cluster_status(error: ClusterError) -> Status {
    use edgefaas_cluster::{JoinError as Join, Unreachable};
    let message = error.to_string();
    match error {
        ClusterError::Files(_) => Status::internal(message),
        ClusterError::Token(_) | ClusterError::Certificate(_) | ClusterError::LongLife { .. } => {
            Status::invalid_argument(message)
        }
        ClusterError::UnknownMember { .. } => Status::not_found(message),
        ClusterError::Join(error) => match error {
            Join::WrongToken
            | Join::UsedToken
            | Join::ExpiredToken
            | Join::Closed
            | Join::Revoked
            | Join::BadAnswer { .. } => Status::failed_precondition(message),
            Join::Unreachable { reason: Unreachable::NoAnswer { .. } | Unreachable::Cancelled } => {
                Status::unavailable(message)
            }
            // Another try with this token ends the same way.
            Join::Unreachable { .. } => Status::failed_precondition(message),
            Join::TooManyAttempts => Status::resource_exhausted(message),
            Join::NameTaken { .. } | Join::NodeIdTaken { .. } => Status::already_exists(message),
            Join::BadName(_) => Status::invalid_argument(message),
            _ => Status::unavailable(message),
        },
        _ => Status::failed_precondition(message),
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_cluster::{JoinError, NoAnswer, Unreachable};
    use tonic::Code;

    use super::*;

    #[test]
    fn a_token_that_admits_nobody_any_more_has_one_code() {
        let code = |error| cluster_status(ClusterError::Join(error)).code();
        for error in [
            JoinError::ExpiredToken,
            // The node that made it has forgotten it.
            JoinError::Closed,
            JoinError::WrongToken,
            JoinError::UsedToken,
            Unreachable::OwnToken.into(),
        ] {
            assert_eq!(code(error), Code::FailedPrecondition);
        }
        // These may pass.
        for error in [
            JoinError::NoAnswer { reason: NoAnswer::TimedOut },
            Unreachable::NoAnswer { dials: Vec::new() }.into(),
        ] {
            assert_eq!(code(error), Code::Unavailable);
        }
    }
}
