//! `edgefaas upgrade FILE|URL`

use edgefaas_client::args::Global;

use crate::args::Upgrade;
use crate::upgrade::installed::Installed;
use crate::upgrade::release::{Key, ReleaseError, Source};
use crate::upgrade::service::Service;

pub async fn run(args: &Upgrade, global: &Global) -> anyhow::Result<()> {
    let installed = Installed::find(args.program.as_deref())?;
    let service = Service::find(args.restart.as_deref()).await;
    let upgrade = crate::upgrade::Upgrade { installed, service, wait: args.wait };
    let Some(source) = &args.source else { return upgrade.back(global).await };
    let key = match (&args.key, args.unsigned) {
        (Some(key), _) => Key::parse(key)?,
        (None, true) => Key::Unsigned,
        (None, false) => return Err(ReleaseError::NoKey.into()),
    };
    upgrade.to(&Source::parse(source)?, &key, global).await
}
