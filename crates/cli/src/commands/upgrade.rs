//! `edgefaas upgrade FILE|FOLDER|URL`

use edgefaas_client::args::Global;
use edgefaas_client::exit::{Exit, Failure};

use crate::args::Upgrade;
use crate::upgrade::installed::Installed;
use crate::upgrade::package::{self, Former};
use crate::upgrade::program;
use crate::upgrade::release::{Key, ReleaseError, Source};
use crate::upgrade::service::{Node, Service};

pub async fn run(args: &Upgrade, global: &Global) -> anyhow::Result<()> {
    let installed = Installed::find(args.program.as_deref())?;
    let is_of_package = installed.is_of_package();
    let former = match &args.previous {
        Some(path) => Former::Given(path.clone()),
        None if args.no_way_back => Former::NoWayBack,
        None => Former::Kept,
    };
    if !is_of_package && !matches!(former, Former::Kept) {
        let message = format!(
            "--previous and --no-way-back are for the Debian package, and {} does not belong to it: its upgrade keeps the program itself",
            installed.path().display()
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let node = Node { service: Service::find(args.restart.as_deref()).await, wait: args.wait, global };
    let Some(source) = &args.source else {
        return match is_of_package {
            true => package::back(&node).await,
            false => program::back(&installed, &node).await,
        };
    };
    let key = match (&args.key, args.unsigned) {
        (Some(key), _) => Key::parse(key)?,
        (None, true) => Key::Unsigned,
        (None, false) => return Err(ReleaseError::NoKey.into()),
    };
    let source = Source::parse(source)?;
    match is_of_package {
        true => package::to(installed.path(), &node, source, &key, &former).await,
        false => program::to(&installed, &node, source, &key).await,
    }
}
