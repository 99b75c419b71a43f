//! Generates the messages and services of `proto/`, without protoc.

use std::error::Error;

const PROTOS: [&str; 4] =
    ["danube.proto", "danube_admin.proto", "danube_schema.proto", "capstan_topics.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
