//! Default data directory of a node, where commands on the same machine find its token.

use std::path::PathBuf;

/// `$EDGEFAAS_DATA_DIR`; else `/var/lib/edgefaas` for root; else `$XDG_DATA_HOME/edgefaas` or
/// `~/.local/share/edgefaas`.
pub fn default_data_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("EDGEFAAS_DATA_DIR") {
        return dir;
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/edgefaas");
    }
    set("XDG_DATA_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/share")))
        .map_or_else(|| PathBuf::from(".edgefaas"), |base| base.join("edgefaas"))
}
