//! Compiles the control port's protobuf with a compiler written in Rust, so that nobody needs `protoc`.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = ["control", "history", "invocations", "messages", "objects"]
        .map(|service| format!("proto/edgefaas/{service}/v1/{service}.proto"));
    for proto in &protos {
        println!("cargo:rerun-if-changed={proto}");
    }
    let descriptors = protox::compile(protos, ["proto"])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    std::fs::write(out.join("api.fds"), prost_encode(&descriptors))?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}

fn prost_encode(descriptors: &prost_types::FileDescriptorSet) -> Vec<u8> {
    use prost::Message;
    descriptors.encode_to_vec()
}
