//! The copy of the function world that is published with this crate is the node's.

use std::fs;
use std::path::Path;

#[test]
fn the_world_is_the_nodes() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let original = here.join("../../wit");
    if !original.exists() {
        assert!(std::env::var_os("EDGEFAAS_NO_SKIP").is_none(), "there is no {}", original.display());
        println!("skipped: needs the repository, this is the published crate");
        return;
    }
    for file in ["function.wit", "deps/io/poll.wit"] {
        let read = |folder: &Path| fs::read_to_string(folder.join(file)).expect(file);
        let copy = here.join("wit");
        assert_eq!(read(&copy), read(&original), "copy wit/{file} to crates/sdk/wit/{file}");
    }
}
