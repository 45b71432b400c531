use super::*;

const EDGE: &str = "\
appVersion: apps/v1
metadata:
  release: 0.3.1
  standalone-node: true
  kubernetes-version: v1.30
  answer: 0x2a
spec:
  name: Edge 3.0
  type: OS_TYPE_IMMUTABLE
  provider: OS_PROVIDER_KIND_INFRA
  architecture: x86_64
  profileName: edge
  osImageUrl: images/edge-3.0.raw.gz
  osImageVersion: 3.0.20260602.2200
  osImageSha256: 6f7aef82aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  osPackageManifestURL: images/edge-3.0_pkg_manifest.json
  securityFeature: SECURITY_FEATURE_NONE
  platformBundle:
    installerScript: a/install.sh
    cloudInitScript:
";

fn read(yaml: &str) -> Result<Profile, Finding> {
    read_profile("edge.yaml", yaml.as_bytes())
}

/// The profile with one line replaced, found by its key; an empty line removes the value.
fn with(key: &str, line: &str) -> String {
    let is_it = |old: &&str| old.trim_start().starts_with(&format!("{key}:"));
    assert_eq!(EDGE.lines().filter(is_it).count(), 1, "{key}");
    let lines = EDGE.lines().map(|old| if is_it(&old) { line } else { old });
    lines.map(|line| line.to_owned() + "\n").collect()
}

#[test]
fn a_profile_is_read_completely() {
    let profile = read(EDGE).expect("a profile");
    let spec = &profile.spec;
    assert_eq!((spec.name.as_str(), spec.kind), ("Edge 3.0", OsKind::Immutable));
    assert_eq!(spec.image_id, "3.0.20260602.2200");
    assert!(spec.sha256.as_str().starts_with("6f7aef82"));
    assert_eq!(
        spec.metadata,
        r#"{"answer":"0x2a","kubernetes-version":"v1.30","release":"0.3.1","standalone-node":"true"}"#
    );
    assert_eq!(
        profile.platform_bundle,
        r#"{"cloudInitScript":"","installerScript":"a/install.sh"}"#
    );
    assert_eq!(profile.manifest_url, "images/edge-3.0_pkg_manifest.json");
    assert_eq!(profile.release, "0.3.1");
    assert!(profile.remarks.is_empty(), "{:?}", profile.remarks);
}

#[test]
fn values_are_read_as_text() {
    for (written, text) in
        [("yes", "yes"), ("3.10", "3.10"), ("007", "007"), ("~", ""), ("\"a\"", "a")]
    {
        let yaml = with("standalone-node", &format!("  standalone-node: {written}"));
        let metadata = read(&yaml).expect(written).spec.metadata;
        assert!(metadata.contains(&format!(r#""standalone-node":"{text}""#)), "{metadata}");
    }
}

#[test]
fn each_bad_value_is_named_in_its_finding() {
    let zeros = format!("  osImageSha256: '{}'", "0".repeat(64));
    for (key, line, field) in [
        ("name", "", "spec.name"),
        ("name", "  name: ''", "spec.name"),
        ("name", "  name: a;b", "spec.name"),
        ("type", "  type: OS_TYPE_UNSPECIFIED", "spec.type"),
        ("type", "", "spec.type"),
        ("provider", "  provider: infra", "spec.provider"),
        ("securityFeature", "", "spec.securityFeature"),
        ("architecture", "  architecture: x86_64_but_much_too_long", "spec.architecture"),
        ("osImageVersion", "  osImageVersion: main", "spec.osImageVersion"),
        ("osImageVersion", "", "spec.osImageVersion"),
        ("osImageSha256", "", "spec.osImageSha256"),
        ("osImageSha256", zeros.as_str(), "spec.osImageSha256"),
        ("osImageSha256", "  osImageSha256: 6F", "spec.osImageSha256"),
        ("osImageUrl", "", "spec.osImageUrl"),
        ("osImageUrl", "  osImageUrl: ../../etc/shadow", "spec.osImageUrl"),
        ("osImageUrl", "  osImageUrl: http://files.example/x", "spec.osImageUrl"),
        ("osPackageManifestURL", "  osPackageManifestURL: a%2fb", "spec.osPackageManifestURL"),
        ("release", "  release: V1", "metadata"),
        ("release", "  Release: v1", "metadata"),
    ] {
        let finding = read(&with(key, line)).expect_err(line);
        assert_eq!(finding.kind, FindingKind::BadField, "{line}: {finding}");
        assert_eq!(finding.field.as_deref(), Some(field), "{line}: {finding}");
    }
    let long = format!("  release: {}", "a".repeat(500));
    assert_eq!(read(&with("release", &long)).unwrap_err().field.as_deref(), Some("metadata"));
}

/// The profile with these image signatures.
fn signed(signatures: &[&str]) -> String {
    let lines = signatures.iter().map(|one| format!("\n    - {one}"));
    with("architecture", &format!("  osImageSignatures:{}", lines.collect::<String>()))
}

#[test]
fn the_signatures_of_an_image_are_taken_as_they_are_written() {
    let key = "0123456789abcdef".repeat(4);
    let signature = format!("{key}:MEUCIQ+/aQ==");
    let longest = format!("{key}:{}", "A".repeat(188));
    let quoted = format!("\"{longest}\"");
    let profile = read(&signed(&[signature.as_str(), quoted.as_str()])).expect("a profile");
    assert_eq!(profile.spec.image_signatures, [signature.clone(), longest]);
    assert!(profile.remarks.is_empty(), "{:?}", profile.remarks);
    let eight = signed(&[signature.as_str(); OsSpec::MAX_IMAGE_SIGNATURES]);
    assert_eq!(read(&eight).expect("a profile").spec.image_signatures.len(), 8);
    for none in ["", "  osImageSignatures: []", "  osImageSignatures: ~"] {
        let profile = read(&with("architecture", none)).expect(none);
        assert!(profile.spec.image_signatures.is_empty(), "{none}");
    }
}

#[test]
fn an_invalid_image_signature_is_named_in_its_finding() {
    let key = "0123456789abcdef".repeat(4);
    let good = format!("{key}:MEUC");
    let long = format!("{key}:{}", "A".repeat(192));
    for bad in [
        "''".to_owned(),
        key.clone(),
        format!("'{key}:'"),
        format!("{key}:MEU"),
        format!("{key}:ME-_"),
        format!("{key}:MEUC:MEUC"),
        format!("{}:MEUC", key.to_uppercase()),
        format!("{}:MEUC", &key[1..]),
        format!("{key}0:MEUC"),
        format!("sha256:{key}"),
        long,
    ] {
        let finding = read(&signed(&[good.as_str(), bad.as_str()])).expect_err(&bad);
        assert_eq!(finding.kind, FindingKind::BadField, "{bad}: {finding}");
        let field = finding.field.as_deref();
        assert_eq!(field, Some("spec.osImageSignatures[1]"), "{bad}");
    }
    let nine = signed(&[good.as_str(); OsSpec::MAX_IMAGE_SIGNATURES + 1]);
    let finding = read(&nine).expect_err("too many");
    assert_eq!(finding.field.as_deref(), Some("spec.osImageSignatures"));
    assert!(finding.message.contains("more than 8"), "{finding}");
    for shape in ["[[a]]", "{a: b}", "[{a: b}]"] {
        let line = format!("  osImageSignatures: {shape}");
        let finding = read(&with("architecture", &line)).expect_err(shape);
        assert_eq!(finding.kind, FindingKind::Yaml, "{shape}: {finding}");
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_profile() {
    let marked = "\u{feff}".to_owned() + EDGE;
    assert_eq!(read(&marked), read(EDGE));
    let kind = |yaml: &str| read(yaml).expect_err(yaml).kind;
    assert_eq!(kind("\u{feff}"), FindingKind::NotAProfile);
    assert_eq!(kind("\u{feff}<html></html>"), FindingKind::NotAProfile);
}

#[test]
fn a_package_based_system_needs_no_image() {
    let yaml = with("type", "  type: OS_TYPE_MUTABLE").replace("osImageSha256:", "description:");
    let spec = read(&yaml).expect("a profile").spec;
    assert_eq!((spec.kind, spec.sha256), (OsKind::Mutable, Sha256::NONE));
}

#[test]
fn a_file_holds_the_profile_that_it_is_named_after() {
    let kind = |file: &str| read_profile(file, EDGE.as_bytes()).expect_err(file).kind;
    assert_eq!(kind("other.yaml"), FindingKind::OtherProfile);
    for file in ["edge", "", ".yaml", "../edge.yaml", "a/edge.yaml", "..yaml", "edge.yaml\0"] {
        assert_eq!(kind(file), FindingKind::NotAProfile, "{file}");
    }
}

#[test]
fn unknown_keys_are_remarked_on() {
    let yaml = with("architecture", "  color: red\n  shape: {round: [very]}") + "kind: Profile\n";
    let remarks = read(&yaml).expect("a profile").remarks;
    let fields: Vec<_> = remarks.iter().filter_map(|one| one.field.as_deref()).collect();
    assert_eq!(fields, ["kind", "spec.color", "spec.shape"]);
    let many: Vec<_> = (0..100).map(|n| format!("key{n}: 1\n")).collect();
    let many = many.concat();
    let remarks = read(&(EDGE.to_owned() + &many)).expect("a profile").remarks;
    assert_eq!(remarks.len(), MAX_REMARKS + 1);
    assert_eq!(remarks[MAX_REMARKS].message, "80 more keys are unknown");
}

#[test]
fn other_features_of_yaml_are_refused() {
    let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
    let deep = format!("deep: {}{}\n", "[".repeat(20), "]".repeat(20));
    let wide = format!("wide: [{}]\n", "x,".repeat(2_500));
    for more in [
        "spec: {}\n",
        "appVersion: 1\n",
        bomb,
        "x: &x y\n",
        "x: !!python/object y\n",
        "x: !mine y\n",
        "<<: {a: b}\n",
        "--- \nspec: {}\n",
        "x: [\n",
        deep.as_str(),
        wide.as_str(),
    ] {
        let finding = read(&(EDGE.to_owned() + more)).expect_err(more);
        assert_eq!(finding.kind, FindingKind::Yaml, "{more}: {finding}");
    }
    for (key, line) in [
        ("name", "  name: [a]"),
        ("name", "  name: {a: b}"),
        ("name", "  name: Edge\n  name: Edge"),
        ("name", "  name: &anchor Edge"),
        ("release", "  release: {a: b}"),
        ("installerScript", "    installerScript: [a]"),
    ] {
        let finding = read(&with(key, line)).expect_err(line);
        assert_eq!(finding.kind, FindingKind::Yaml, "{line}: {finding}");
    }
}

#[test]
fn an_invalid_profile_is_refused() {
    for (yaml, kind) in [
        ("", FindingKind::NotAProfile),
        ("metadata: {}", FindingKind::NotAProfile),
        ("<html></html>", FindingKind::NotAProfile),
        ("- spec", FindingKind::Yaml),
        ("spec", FindingKind::Yaml),
        ("spec: text", FindingKind::Yaml),
    ] {
        assert_eq!(read(yaml).expect_err(yaml).kind, kind, "{yaml}");
    }
    assert_eq!(read_profile("edge.yaml", b"\xff").unwrap_err().kind, FindingKind::Yaml);
    let large = EDGE.to_owned() + &"# nothing\n".repeat(MAX_PROFILE_BYTES / 10);
    assert_eq!(read(&large).unwrap_err().kind, FindingKind::TooLarge);
}
