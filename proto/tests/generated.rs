//! The committed code is what the `.proto` files say.

use std::fs;
use std::path::Path;

const PROTOS: [&str; 3] = [
    "evenkeel/agent/v1/agent.proto",
    "hostmgr_southbound/hostmgr.proto",
    "maintmgr/v1/maintmgr.proto",
];
const GENERATED: [&str; 3] = [
    "evenkeel.agent.v1.rs",
    "hostmgr_southbound_proto.rs",
    "maintmgr.v1.rs",
];

#[test]
#[expect(clippy::disallowed_methods, reason = "the one switch of this test")]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = root.join("src/generated");
    let fresh = tempfile::tempdir().expect("a temporary directory");
    generate(&root.join("proto"), fresh.path());

    for name in GENERATED {
        let wanted = fs::read_to_string(fresh.path().join(name)).expect("the generated file");
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            fs::write(committed.join(name), &wanted).expect("write the generated file");
        }
        let found = fs::read_to_string(committed.join(name)).unwrap_or_default();
        assert!(
            found == wanted,
            "{name} is stale: run `make generate` and commit proto/src/generated"
        );
    }
}

/// protox compiles protobuf in Rust: nobody needs `protoc`.
fn generate(protos: &Path, out: &Path) {
    let files = protox::compile(PROTOS, [protos]).expect("valid protobuf");
    tonic_prost_build::configure()
        .out_dir(out)
        .emit_rerun_if_changed(false)
        .compile_fds(files)
        .expect("generated code");
}
