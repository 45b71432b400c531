//! The committed code matches the `.proto` files.

use std::fs;
use std::path::Path;

const PROTO_FILES: [&str; 3] = [
    "evenkeel/agent/v1/agent.proto",
    "hostmgr_southbound/hostmgr.proto",
    "maintmgr/v1/maintmgr.proto",
];
const GENERATED_FILES: [&str; 3] =
    ["evenkeel.agent.v1.rs", "hostmgr_southbound_proto.rs", "maintmgr.v1.rs"];

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is controlled by one environment variable")]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = root.join("src/generated");
    let fresh = tempfile::tempdir().expect("a temporary directory");
    generate_code(&root.join("proto"), fresh.path());

    for name in GENERATED_FILES {
        let expected = fs::read_to_string(fresh.path().join(name)).expect("the generated file");
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            fs::write(committed.join(name), &expected).expect("write the generated file");
        }
        let actual = fs::read_to_string(committed.join(name)).unwrap_or_default();
        assert!(
            actual == expected,
            "{name} is stale: run `make generate` and commit proto/src/generated"
        );
    }
}

/// protox compiles protobuf in Rust, so `protoc` is not needed.
fn generate_code(protos: &Path, out: &Path) {
    let files = protox::compile(PROTO_FILES, [protos]).expect("valid protobuf");
    tonic_prost_build::configure()
        .out_dir(out)
        .emit_rerun_if_changed(false)
        .codec_path("crate::OffloadCodec")
        .compile_fds(files)
        .expect("generated code");
}
