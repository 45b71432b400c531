//! Resources that are not read.

use super::*;

fn invalid(text: &str) -> String {
    match read(text) {
        Err(error @ ReadError::Invalid(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn not_offered(text: &str) -> String {
    match read(text) {
        Err(error @ ReadError::NotOffered(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn paths(error: &str) -> Vec<&str> {
    error.lines().map(|line| line.split(": ").next().unwrap()).collect()
}

#[test]
fn other_permissions_are_refused() {
    let error = |text: &str| {
        let file = format!("    permissions: {text}\n    content: {{inline: {{data: x}}}}\n");
        invalid(&with_file(&file))
    };
    let errors = ["\"0644\"", "'420'", "u=rw", "0888", "-1", "4096", "010000", "644.0", "[1]"];
    let errors = errors.map(|text| format!("{text} -> {}", error(text))).join("\n");
    insta::assert_snapshot!("permissions", errors);
}

#[test]
fn every_field_that_breaks_a_rule_is_reported_with_its_path() {
    let error = invalid(
        "
apiVersion: extensions.gardener.cloud/v1
kind: Worker
metadata:
  name: Pool_1
spec:
  purpose: bootstrap
  units:
  - content: x
    command: reload
  - name: \"\"
    dropIns:
    - {name: 10-a.conf}
    - {content: x}
    filePaths: [/etc/a, /etc/other]
  files:
  - content: {inline: {data: x}}
  - path: /etc/a
  - path: /etc/b
    content: {inline: {data: x}, secretRef: {name: a, dataKey: b}}
  - path: /etc/c
    content: {secretRef: {name: \"\"}}
  - path: /etc/d
    content: {inline: {encoding: gzip}}
  - path: /etc/e
    content: {inline: {encoding: b64, data: \"???\"}}
  - path: /etc/f
    content: {imageRef: {image: x}}
  - path: /etc/a
    content: {inline: {data: x}}
  - path: /etc/g
    hostName: Host_1
    content: {inline: {data: x}}
status:
  extensionUnits:
  - {}
  extensionFiles:
  - path: /etc/b
    content: {inline: {data: \"\"}}
",
    );
    insta::assert_snapshot!("rules", error);
}

#[test]
fn a_path_may_occur_again_only_for_another_host() {
    let file = |host: &str| format!("  - {{path: /a, {host}content: {{inline: {{data: x}}}}}}\n");
    let (one, two, every) = (file("hostName: one, "), file("hostName: two, "), file(""));
    let resource = |files: [&str; 2]| with_spec(&format!("  files:\n{}", files.concat()));
    assert_eq!(
        paths(&not_offered(&resource([&one, &two]))),
        ["spec.files[0].hostName", "spec.files[1].hostName"]
    );
    for files in [[&one, &one], [&one, &every], [&every, &one], [&every, &every]] {
        let error = invalid(&resource(files.map(String::as_str)));
        assert_eq!(paths(&error), ["spec.files[1].path"]);
        assert!(error.contains("duplicate: spec.files[0]"), "{error}");
    }
}

#[test]
fn a_wrong_section_for_containerd_is_invalid() {
    let error = invalid(&with_spec(
        "  criConfig:
    cgroupDriver: none
    containerd:
      registries:
      - {upstream: docker.io, server: docker.io}
      - {upstream: docker.io, server: \"ftp://x\"}
      - {upstream: \"registry.example:70000\"}
      - {upstream: Upper_Case}
      - hosts:
        - {url: \"https://\", capabilities: [pull, fetch]}
        - {}
      plugins:
      - {op: replace, path: [a]}
      - {op: remove, path: [a], values: {a: 1}}
      - {values: text}
",
    ));
    insta::assert_snapshot!("containerd", error);
    let text = with_spec("  criConfig: {name: containerd, containerd: {sandboxImage: pause}}\n");
    let error = invalid(&text.replace("reconcile", "provision"));
    assert_eq!(paths(&error), ["spec.criConfig.containerd"]);
    assert!(error.contains("forbidden"), "{error}");
}

#[test]
fn the_old_section_of_the_container_runtime_needs_a_name() {
    for (section, path) in [("{}", "spec.cri.name"), ("{name: rkt}", "spec.cri.name")] {
        assert_eq!(paths(&invalid(&with_spec(&format!("  cri: {section}\n")))), [path]);
    }
    for name in ["containerd", "docker"] {
        let error = not_offered(&with_spec(&format!("  cri: {{name: {name}}}\n")));
        assert_eq!(paths(&error), ["spec.cri"]);
    }
}

#[test]
fn valid_fields_that_are_not_offered_are_named() {
    let error = not_offered(&with_spec(
        "  criConfig:
    name: containerd
    cgroupDriver: systemd
    containerd:
      sandboxImage: registry.example/pause:3.10
      registries:
      - upstream: _default
        server: https://registry.example:5000/v2
        readinessProbe: true
        hosts:
        - {url: \"oci://10.0.0.1:5000\", capabilities: [pull, resolve, push], caCerts: [/ca]}
      - {upstream: \"registry.example:443\"}
      plugins:
      - {path: [a, b], values: {c: [1, 2]}}
      - {op: remove, path: [d]}
  inPlaceUpdates: {operatingSystemVersion: 1.2.3}
  providerConfig: {apiVersion: x, kind: y}
  units:
  - name: x.service
    files: []
  files:
  - {path: /a, content: {imageRef: {image: x, filePathInImage: /x}}}
  - {path: /b, hostName: node-1, content: {inline: {data: x}}}
status:
  inPlaceUpdates: {osUpdate: {command: x}}
",
    ));
    insta::assert_snapshot!("not_offered", error);
}

#[test]
fn a_resource_that_is_invalid_and_not_offered_is_invalid() {
    let error = invalid(&with_spec("  providerConfig: {}\n  units: [{}]\n"));
    assert_eq!(paths(&error), ["spec.units[0].name"]);
}

#[test]
fn a_field_that_is_unknown_or_of_another_type_is_reported_with_its_path() {
    let cases = [
        with_file("    mode: 0644\n"),
        with_file("    content: {inline: {data: x, base64: y}}\n"),
        with_spec("  units: [{name: a.service}, {name: b.service, enabled: true}]\n"),
        with_spec("  units: {}\n"),
        with_spec("  units: [{enable: maybe}]\n"),
        with_spec("  units: [{name: [a]}]\n"),
        format!("{HEADER}specs: {{}}\n"),
        HEADER.replace("name:", "nam:"),
        "- a\n".to_owned(),
        "text".to_owned(),
        String::new(),
        "{".to_owned(),
        "a: &a [*a]".to_owned(),
    ];
    let errors: Vec<_> = cases.iter().map(|text| invalid(text)).collect();
    insta::assert_snapshot!("types", errors.join("\n---\n"));
}

#[test]
fn a_repeated_key_and_a_second_document_are_refused() {
    let error = invalid(&with_spec("  purpose: provision\n"));
    assert!(error.contains("occurs twice"), "{error}");
    let error = invalid(&format!("{}---\n{}", with_spec(""), with_spec("")));
    assert!(error.contains("document"), "{error}");
}

#[test]
fn an_alias_is_read_and_many_aliases_are_refused() {
    let resource = |aliases: usize| {
        let file = |index| format!("  - {{path: /{index}, content: *content}}\n");
        let files = (0..aliases).map(file).collect::<Vec<_>>().concat();
        with_file(&format!("    content: &content {{inline: {{data: x}}}}\n{files}"))
    };
    assert_eq!(read_document(&resource(8)).bundles[0].entries.len(), 9);
    assert!(invalid(&resource(1_000)).contains("aliases"));
}

#[test]
fn a_resource_that_is_too_large_or_too_deep_is_refused() {
    let large =
        with_file(&format!("    content: {{inline: {{data: {}}}}}\n", "x".repeat(16 << 20)));
    assert!(invalid(&large).contains("at most 16777216 are accepted"));
    let deep =
        with_spec(&format!("  providerConfig: {}{}\n", "[".repeat(10_000), "]".repeat(10_000)));
    invalid(&deep);
}

#[test]
fn a_field_of_a_document_has_the_path_of_the_resource() {
    for (field, expected) in [
        ("", "spec.files[1]"),
        ("name", "spec.files[1].path"),
        ("desired.mode", "spec.files[1].permissions"),
        ("desired.content.inline", "spec.files[1].content.inline.data"),
        ("desired.content.secretRef.key", "spec.files[1].content.secretRef.dataKey"),
    ] {
        assert_eq!(field_path("spec.files[1]", field), expected);
    }
    assert_eq!(field_path("spec.units[0]", "name"), "spec.units[0].name");
}

#[test]
fn the_rules_of_documents_apply_with_the_paths_of_the_resource() {
    let error = invalid(&with_spec(
        "  units:
  - {name: kubelet, content: x}
  files:
  - {path: etc/b, content: {inline: {data: x}}}
  - {path: /etc/a, content: {secretRef: {name: CA, dataKey: /}}}
status:
  extensionUnits:
  - {name: x.service, content: \"\", dropIns: [{name: limits, content: x}]}
",
    ));
    insta::assert_snapshot!("document_rules", error);
}
