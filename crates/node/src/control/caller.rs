//! Callers of the control API, and the role that each path needs.

use std::sync::Arc;
use std::time::Duration;

use edgefaas_api::{control, history, invocations, messages, objects};
use tokio_util::sync::CancellationToken;
use tonic::Extensions;

use crate::access::Role;

/// The sender of an authenticated request. Handlers find it among the request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Caller {
    /// The holder of the admin token.
    Token,
    /// A user that has signed in.
    User {
        /// The user's name.
        name: Arc<str>,
        /// The user's role at the time of the request.
        role: Role,
    },
}

impl Caller {
    /// The role of the caller.
    pub fn role(&self) -> Role {
        match self {
            Self::Token => Role::Administer,
            Self::User { role, .. } => *role,
        }
    }

    /// The name of the user; `None` for the holder of the admin token.
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Token => None,
            Self::User { name, .. } => Some(name),
        }
    }
}

/// Life of a stream of a request with a session, among the request's extensions: the reader begins another one, and the session is
/// checked again. It also frees the connection of a reader that has gone, which HTTP/1 shows at the next write only.
#[derive(Clone)]
pub(super) struct StreamLife {
    /// Its longest time.
    pub longest: Duration,
    /// False once the session is over, or its user has another role.
    pub session_holds: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Time between two looks at the session of a stream.
const SESSION_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The end of a stream: `cancel`, the end of its life, or that of its session.
pub(super) fn stream_end(extensions: &Extensions, cancel: &CancellationToken) -> CancellationToken {
    let end = cancel.child_token();
    if let Some(StreamLife { longest, session_holds }) = extensions.get().cloned() {
        let ending = end.clone();
        tokio::spawn(async move {
            let session_ends = async {
                while session_holds() {
                    tokio::time::sleep(SESSION_CHECK_INTERVAL).await;
                }
            };
            let _ = tokio::time::timeout(longest, ending.run_until_cancelled(session_ends)).await;
            ending.cancel();
        });
    }
    end
}

/// The role that a request for `path` needs. Paths that are not listed need the highest one.
pub(super) fn required_role(path: &str) -> Role {
    listed_role(path).unwrap_or(Role::Administer)
}

fn listed_role(path: &str) -> Option<Role> {
    use control::control_server::SERVICE_NAME as CONTROL;
    use history::history_server::SERVICE_NAME as HISTORY;
    use invocations::invocations_server::SERVICE_NAME as INVOCATIONS;
    use messages::messages_server::SERVICE_NAME as MESSAGES;
    use objects::objects_server::SERVICE_NAME as OBJECTS;
    if path == "/metrics" {
        return Some(Role::Look);
    }
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let role = match (service, method) {
        (
            CONTROL,
            "List" | "Logs" | "Status" | "ListSecrets" | "ListUsers" | "ListQueues" | "ListInstances"
            | "GetInstance" | "Graph" | "Trace" | "ListTraces" | "GetPolicy" | "ExplainPlacement"
            | "GetCluster" | "GetSettings" | "CompareRevisions",
        )
        | (HISTORY, "Get" | "Events")
        | (INVOCATIONS, "List" | "Get")
        | (MESSAGES, "ListTopics" | "Subscribe" | "ListRetained" | "ListClients" | "GetClient")
        | (OBJECTS, "Get" | "List" | "Watch" | "Export") => Role::Look,
        (CONTROL, "Invoke" | "ChangeInstance" | "CancelInstances" | "Rollback")
        | (INVOCATIONS, "Retry" | "Discard")
        | (MESSAGES, "Publish" | "DropClient")
        | (OBJECTS, "Update" | "UpdateAll" | "Delete" | "Import") => Role::Operate,
        (
            CONTROL,
            "Deploy" | "Remove" | "SetSecret" | "RemoveSecret" | "AddUser" | "SetPassword" | "SetRole"
            | "RemoveUser" | "Reload" | "InitCluster" | "OpenCluster" | "JoinCluster" | "RevokeMember"
            | "SetPolicy" | "RemovePolicy",
        ) => Role::Administer,
        _ => return None,
    };
    Some(role)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn each_method_has_a_role() {
        let descriptors =
            prost_types::FileDescriptorSet::decode(edgefaas_api::FILE_DESCRIPTOR_SET).unwrap();
        let services = descriptors
            .file
            .iter()
            .flat_map(|file| file.service.iter().map(move |service| (file.package(), service)));
        let mut count = 0;
        for (package, service) in services {
            for method in &service.method {
                let path = format!("/{package}.{}/{}", service.name(), method.name());
                assert!(listed_role(&path).is_some(), "{path} has no role");
                count += 1;
            }
        }
        assert!(count >= 56, "{count}");
        assert_eq!(
            required_role("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
            Role::Administer
        );
        assert_eq!(required_role("/edgefaas.control.v1.Control/list"), Role::Administer);
    }
}
