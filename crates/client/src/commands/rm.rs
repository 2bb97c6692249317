//! `edgefaas rm NAME`

use anyhow::Context;
use edgefaas_api::control as proto;
use edgefaas_api::objects::DeleteResponse;
use serde_json::json;

use crate::app_nodes;
use crate::args::{Format, Global, Rm};
use crate::commands::objects;
use crate::connection;
use crate::fitting;
use crate::output;

pub async fn run(args: &Rm, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let (this_node, wait_ms) = (args.reach.this_node, args.reach.wait.wait_ms());
    let request = proto::RemoveRequest { app: args.name.clone(), this_node, wait_ms };
    let response = client.remove(request).await.map_err(|status| connection::failure(&status))?;
    let proto::RemoveResponse { functions, nodes } = response.into_inner();
    app_nodes::warn(&nodes);
    let left = match args.with_objects {
        true => ObjectsLeft::Deleted(delete_objects(&args.name, global).await?),
        false => kept_objects(&args.name, global).await,
    };
    match global.output {
        Format::Json => {
            let mut answer =
                json!({ "app": args.name, "functions": functions, "nodes": app_nodes::json(&nodes) });
            match left {
                ObjectsLeft::Deleted(deleted) => answer["deleted"] = objects::deleted_json(deleted),
                ObjectsLeft::Kept => answer["objects_kept"] = true.into(),
                ObjectsLeft::None => answer["objects_kept"] = false.into(),
                ObjectsLeft::Unknown(_) => answer["objects_kept"] = serde_json::Value::Null,
            }
            output::json(&answer)
        }
        Format::Table => {
            let line = format!("{} is removed, with its functions {}\n", args.name, functions.join(", "));
            output::text(&line)?;
            match left {
                ObjectsLeft::Deleted(deleted) => {
                    output::text(&format!("deleted {}\n", objects::deleted_in_words(deleted)))?;
                    if nodes.len() > 1 {
                        eprintln!(
                            "the deletions reach all members; objects that this node did not have are not deleted: \
                             `edgefaas objects list {}` on the nodes that ran the app shows if any are left",
                            args.name
                        );
                    }
                }
                ObjectsLeft::Kept => eprintln!(
                    "its objects are kept; delete them with `edgefaas objects delete {} '*'`",
                    args.name
                ),
                ObjectsLeft::Unknown(error) => eprintln!("its objects are kept, if it has any: {error:#}"),
                ObjectsLeft::None => {}
            }
            match nodes.len() {
                0 | 1 => Ok(()),
                _ => fitting::print(&app_nodes::COLUMNS, app_nodes::rows(&nodes)),
            }
        }
    }
}

/// The objects of an app after its removal.
enum ObjectsLeft {
    /// The app had none.
    None,
    /// They are kept.
    Kept,
    /// They are kept if there are any: they cannot be listed.
    Unknown(anyhow::Error),
    /// They were deleted.
    Deleted(DeleteResponse),
}

async fn delete_objects(app: &str, global: &Global) -> anyhow::Result<DeleteResponse> {
    let deleted = async {
        let mut client = connection::connect_objects(global).await?;
        objects::delete_all(&mut client, app).await
    };
    deleted.await.with_context(|| {
        format!(
            "{app} is removed, but not all of its objects; delete them with `edgefaas objects delete {app} '*'`"
        )
    })
}

/// The app is removed, so an error here is no error of the command.
async fn kept_objects(app: &str, global: &Global) -> ObjectsLeft {
    let has_any = async {
        let mut client = connection::connect_objects(global).await?;
        objects::has_any(&mut client, app).await
    };
    match has_any.await {
        Ok(true) => ObjectsLeft::Kept,
        Ok(false) => ObjectsLeft::None,
        Err(error) => ObjectsLeft::Unknown(error),
    }
}
