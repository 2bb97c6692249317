//! `edgefaas users add|role|passwd|rm|list|reload`

use std::path::PathBuf;

use anyhow::Context;
use edgefaas_api::control as proto;
use edgefaas_api::default_data_dir;
use edgefaas_client::args::{Format, Global};
use edgefaas_client::connection::{self, Client};
use edgefaas_client::exit::{self, Exit, Failure};
use edgefaas_client::{input, output};
use edgefaas_node::access::{
    Role, UserChange, Users, UsersError, change_users, hash_password, is_user_name,
};
use edgefaas_state::store::DirLock;
use serde_json::json;

use crate::args;
use crate::data_owner::act_as_owner;

/// Access to the users: a running node, or the file while no node runs.
enum Keeper {
    Node(Box<Client>),
    File {
        dir: PathBuf,
        /// Prevents the start of a node.
        _lock: DirLock,
    },
}

pub async fn run(args: &args::Users, global: &Global) -> anyhow::Result<()> {
    match args {
        args::Users::Add { name, role } => {
            check_name(name)?;
            let mut keeper = keeper(global, true).await?;
            let password = keeper.new_password(name, global).await?;
            let role = role.and_then(args::UserRole::role);
            keeper.add(name, password, role).await?;
            let also = role.map_or(String::new(), |role| format!(", and sign in with the role {role}"));
            done(name, true, &format!("{name} can connect{also}"), global)
        }
        args::Users::Role { name, role } => {
            let role = role.role();
            keeper(global, false).await?.set_role(name, role).await?;
            let text = match role {
                Some(role) => format!("{name} has the role {role}"),
                None => format!("{name} has no role"),
            };
            done(name, true, &text, global)
        }
        args::Users::Passwd { name } => {
            check_name(name)?;
            let mut keeper = keeper(global, false).await?;
            let password = keeper.new_password(name, global).await?;
            keeper.set_password(name, password).await?;
            done(name, true, &format!("{name} has a new password"), global)
        }
        args::Users::Rm { name } => {
            keeper(global, false).await?.remove(name).await?;
            done(name, false, &format!("{name} is removed"), global)
        }
        args::Users::List => list(keeper(global, false).await?.list().await?, global),
        args::Users::Reload => reload(global).await,
    }
}

impl Keeper {
    /// Asks for the password and connects to the node again, since the node closes an idle connection meanwhile.
    async fn new_password(&mut self, name: &str, global: &Global) -> anyhow::Result<String> {
        let password = input::new_password(name)?;
        if let Self::Node(client) = self {
            **client = connection::connect(global).await?;
        }
        Ok(password)
    }

    async fn add(&mut self, name: &str, password: String, role: Option<Role>) -> anyhow::Result<()> {
        match self {
            Self::Node(client) => {
                let request =
                    proto::AddUserRequest { name: name.to_owned(), password, role: text_of(role) };
                client.add_user(request).await.map_err(|status| connection::failure(&status))?;
            }
            Self::File { dir, .. } => {
                let hash = hash_password(password.as_bytes())?;
                change_users(dir, name, UserChange::Add(&hash, role)).map_err(failure)?;
            }
        }
        Ok(())
    }

    async fn set_password(&mut self, name: &str, password: String) -> anyhow::Result<()> {
        match self {
            Self::Node(client) => {
                let request = proto::SetPasswordRequest { name: name.to_owned(), password };
                client.set_password(request).await.map_err(|status| connection::failure(&status))?;
            }
            Self::File { dir, .. } => {
                let hash = hash_password(password.as_bytes())?;
                change_users(dir, name, UserChange::SetPassword(&hash)).map_err(failure)?;
            }
        }
        Ok(())
    }

    async fn set_role(&mut self, name: &str, role: Option<Role>) -> anyhow::Result<()> {
        match self {
            Self::Node(client) => {
                let request = proto::SetRoleRequest { name: name.to_owned(), role: text_of(role) };
                client.set_role(request).await.map_err(|status| connection::failure(&status))?;
            }
            Self::File { dir, .. } => {
                change_users(dir, name, UserChange::SetRole(role)).map_err(failure)?;
            }
        }
        Ok(())
    }

    async fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        match self {
            Self::Node(client) => {
                let request = proto::RemoveUserRequest { name: name.to_owned() };
                client.remove_user(request).await.map_err(|status| connection::failure(&status))?;
            }
            Self::File { dir, .. } => {
                change_users(dir, name, UserChange::Remove).map_err(failure)?;
            }
        }
        Ok(())
    }

    /// Names and roles; an empty text is none.
    async fn list(&mut self) -> anyhow::Result<Vec<(String, String)>> {
        match self {
            Self::Node(client) => {
                let listed = client.list_users(proto::ListUsersRequest {}).await;
                let listed = listed.map_err(|status| connection::failure(&status))?.into_inner();
                // An earlier version of the node gives names only.
                if listed.users.is_empty() {
                    return Ok(listed.names.into_iter().map(|name| (name, String::new())).collect());
                }
                Ok(listed.users.into_iter().map(|user| (user.name, user.role)).collect())
            }
            Self::File { dir, .. } => {
                let users = Users::load(dir)?;
                Ok(users.names().map(|name| (name.to_owned(), text_of(users.role(name)))).collect())
            }
        }
    }
}

/// The node; or its users' file, if no node is named and none runs: a node beyond loopback does not start
/// without users. With `first` a named data directory need not exist yet.
async fn keeper(global: &Global, first: bool) -> anyhow::Result<Keeper> {
    let error = match connection::connect(global).await {
        Ok(client) => return Ok(Keeper::Node(Box::new(client))),
        Err(error) => error,
    };
    let dir = global.data_dir.clone().unwrap_or_else(default_data_dir);
    let is_named = global.data_dir.is_some() || std::env::var_os("EDGEFAAS_DATA_DIR").is_some();
    let exists = dir.exists() || (first && is_named);
    if global.node.is_some() || exit::code(&error) != Exit::Unreachable || !exists {
        return Err(error);
    }
    act_as_owner(&dir)?;
    // Fails if a node at another address holds it: then the user must name that node.
    let lock = DirLock::take(&dir).map_err(|_| error)?;
    eprintln!("no node runs; using the users in {}", dir.display());
    Ok(Keeper::File { dir, _lock: lock })
}

/// A change of the file fails with the exit code of the same change by a node.
fn failure(error: UsersError) -> anyhow::Error {
    let exit = match error {
        UsersError::Unknown { .. } => Exit::NotFound,
        UsersError::Exists { .. } => Exit::Invalid,
        _ => Exit::Failed,
    };
    Failure::new(exit, error.to_string())
}

fn check_name(name: &str) -> anyhow::Result<()> {
    if is_user_name(name) {
        return Ok(());
    }
    let message = format!(
        "`{name}` is not a name of a user: a name has 1 to 64 of letters, digits, `_`, `-`, `.` and `@`"
    );
    Err(Failure::new(Exit::Usage, message))
}

fn text_of(role: Option<Role>) -> String {
    role.map(Role::name).unwrap_or_default().to_owned()
}

fn list(users: Vec<(String, String)>, global: &Global) -> anyhow::Result<()> {
    match global.output {
        Format::Json => {
            let names: Vec<_> = users.iter().map(|(name, _)| name).collect();
            let roles = users.iter().filter(|(_, role)| !role.is_empty());
            let roles: serde_json::Map<_, _> =
                roles.map(|(name, role)| (name.clone(), json!(role))).collect();
            output::json(&json!({ "users": names, "roles": roles }))
        }
        Format::Table => {
            let line = |(name, role): &(String, String)| match role.is_empty() {
                true => format!("{name}\n"),
                false => format!("{name}  {role}\n"),
            };
            output::text(&users.iter().map(line).collect::<String>())
        }
    }
}

async fn reload(global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let reloaded =
        client.reload(proto::ReloadRequest {}).await.map_err(|status| connection::failure(&status))?;
    let proto::ReloadResponse { users, rules, tls_fingerprint } = reloaded.into_inner();
    let fingerprint = (!tls_fingerprint.is_empty()).then_some(tls_fingerprint);
    if global.output == Format::Json {
        let reloaded = json!({ "users": users, "rules": rules, "tls_fingerprint": fingerprint });
        return output::json(&reloaded);
    }
    let rules = rules.map_or("no file with rules".to_owned(), |rules| format!("{rules} rules"));
    let certificate = fingerprint.map(|text| format!("certificate {text}\n")).unwrap_or_default();
    output::text(&format!("reloaded: {users} users, {rules}\n{certificate}"))
}

fn done(name: &str, exists: bool, text: &str, global: &Global) -> anyhow::Result<()> {
    match global.output {
        Format::Json => output::json(&json!({ "user": name, "exists": exists })),
        Format::Table => output::text(&format!("{text}\n")),
    }
    .context("the result cannot be shown")
}
