//! The copy of the function world that is published with this crate is the node's, and the bindings were
//! generated from it. `UPDATE_BINDINGS=1 cargo test --test world` generates them anew.

use std::fs;
use std::path::Path;

use wit_bindgen_core::wit_parser::Resolve;
use wit_bindgen_core::{Files, WorldGenerator};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn the_world_is_the_nodes() {
    let original = Path::new(HERE).join("../../wit");
    if !original.exists() {
        assert!(std::env::var_os("EDGEFAAS_NO_SKIP").is_none(), "there is no {}", original.display());
        println!("skipped: needs the repository, this is the published crate");
        return;
    }
    for file in ["function.wit", "deps/io/poll.wit"] {
        let read = |folder: &Path| fs::read_to_string(folder.join(file)).expect(file);
        let copy = Path::new(HERE).join("wit");
        assert_eq!(read(&copy), read(&original), "copy wit/{file} to crates/sdk/wit/{file}");
    }
}

#[test]
fn the_bindings_are_the_worlds() {
    let path = Path::new(HERE).join("src/host/bindings.rs");
    let expected = generated();
    if std::env::var_os("UPDATE_BINDINGS").is_some() {
        fs::write(&path, &expected).expect("the bindings can be written");
    }
    let actual = fs::read_to_string(&path).expect("there are bindings");
    assert!(actual == expected, "run: UPDATE_BINDINGS=1 cargo test --test world");
}

fn generated() -> String {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(Path::new(HERE).join("wit")).expect("the world can be read");
    let world = resolve.select_world(&[package], Some("function")).expect("there is a world `function`");
    let options = wit_bindgen_rust::Opts {
        format: true,
        generate_all: true,
        runtime_path: Some("wit_bindgen::rt".into()),
        default_bindings_module: Some("edgefaas::__private::bindings".into()),
        pub_export_macro: true,
        ..wit_bindgen_rust::Opts::default()
    };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files).expect("the world has bindings");
    let [(_, bindings)] = files.iter().collect::<Vec<_>>()[..] else { panic!("one file was expected") };
    String::from_utf8(bindings.to_vec()).expect("Rust is text")
}
