mod refusals;

use super::*;
use crate::document::{
    Desired, FileContent, FileState, Purpose, SecretRef, UnitCommand, UnitState,
};

const HEADER: &str = "
apiVersion: extensions.gardener.cloud/v1alpha1
kind: OperatingSystemConfig
metadata:
  name: pool-1-original
";

/// A resource of purpose `reconcile` with further lines below `spec`.
fn with_spec(lines: &str) -> String {
    format!("{HEADER}spec:\n  type: ubuntu\n  purpose: reconcile\n{lines}")
}

fn with_file(lines: &str) -> String {
    with_spec(&format!("  files:\n  - path: /etc/example\n{lines}"))
}

fn read_document(text: &str) -> Document {
    match read(text) {
        Ok(read) => read.document,
        Err(error) => panic!("{error}\n{text}"),
    }
}

fn read_file(text: &str) -> FileState {
    let document = read_document(text);
    match &document.bundles[0].entries[0].desired {
        Desired::File(state) => state.clone(),
        other => panic!("{other:?}"),
    }
}

fn read_unit(text: &str) -> UnitState {
    let document = read_document(text);
    let mut entries = document.entries();
    let unit = entries.find_map(|(_, entry)| match &entry.desired {
        Desired::Unit(state) => Some(state.clone()),
        _ => None,
    });
    unit.unwrap()
}

const EXAMPLE: &str = r#"
apiVersion: extensions.gardener.cloud/v1alpha1
kind: OperatingSystemConfig
metadata:
  name: pool-1-original
  namespace: shoot--core--aws
  creationTimestamp: null
  labels: {pool: one}
  ownerReferences:
  - apiVersion: v1
    kind: Secret
    name: x
spec:
  type: suse-chost
  class: shoot
  purpose: reconcile
  units:
  - name: containerd.service
    dropIns:
    - name: 10-containerd-opts.conf
      content: |
        [Service]
        Environment="SOME_OPTS=--foo=bar"
    filePaths:
    - /etc/sysctl.d/99-k8s-general.conf
  - name: containerd-monitor.service
    command: start
    enable: true
    content: |
      [Unit]
      Description=Containerd-monitor daemon
      [Install]
      WantedBy=multi-user.target
      [Service]
      Restart=always
      ExecStart=/opt/bin/health-monitor containerd
  files:
  - path: /var/lib/kubelet/ca.crt
    permissions: 0644
    content:
      secretRef:
        name: default-token-5dtjz
        dataKey: token
  - path: /etc/sysctl.d/99-k8s-general.conf
    permissions: 420
    content:
      inline:
        data: |
          # A higher vm.max_map_count is great for elasticsearch, mongo, or other mmap users
          vm.max_map_count = 135217728
  - path: /opt/bin/health-monitor
    permissions: 0755
    content:
      inline:
        encoding: b64
        data: IyEvYmluL3NoCg==
status:
  observedGeneration: 2
  lastOperation: {state: Succeeded, progress: 100}
  extensionUnits:
  - name: extension.service
    enable: false
  extensionFiles:
  - path: /etc/extension
    content:
      inline:
        encoding: b64
        data: /w==
"#;

#[test]
fn a_resource_becomes_one_bundle_of_files_and_units() {
    let read = read(EXAMPLE).unwrap();
    assert_eq!(read.warnings, [""; 0]);
    insta::assert_json_snapshot!("example", read.document);
}

#[test]
fn json_is_read_like_yaml() {
    let value: serde_json::Value = serde_saphyr::from_str_with_options(
        EXAMPLE,
        serde_saphyr::options! { legacy_octal_numbers: true },
    )
    .unwrap();
    let json = serde_json::to_string_pretty(&value).unwrap();
    assert_eq!(read_document(&json), read_document(EXAMPLE));
}

#[test]
fn a_resource_without_a_purpose_is_read_as_reconcile_with_a_warning() {
    for purpose in ["", "  purpose: \"\"\n", "  purpose:\n"] {
        let read = read(&format!("{HEADER}spec:\n  type: ubuntu\n{purpose}")).unwrap();
        assert_eq!(read.document.purpose, Purpose::Reconcile);
        assert_eq!(
            read.warnings,
            ["spec.purpose is absent: the document is read as one of purpose reconcile"]
        );
    }
}

#[test]
fn fields_of_old_examples_have_no_effect_and_a_warning() {
    let read = read(
        "
apiVersion: extensions.gardener.cloud/v1alpha1
kind: OperatingSystemConfig
metadata: {name: pool-01-original, namespace: default}
spec:
  purpose: reconcile
  reloadConfigFilePath: /var/lib/cloud-config-downloader/cloud-config
  files:
  - path: /var/lib/kubelet/ca.crt
    permissions: 0644
    encoding: b64
    content: {secretRef: {name: default-token-5dtjz, dataKey: token}}
status:
  command: /usr/bin/coreos-cloudinit --from-file=/var/lib/config
  units: [docker-monitor.service]
  cloudConfig: {secretRef: {name: osc-result-pool-01-original, namespace: default}}
",
    );
    let read = read.unwrap();
    assert_eq!(read.document.bundles[0].entries.len(), 1);
    let by_agent = "has no effect: the agent applies the files and units itself";
    assert_eq!(
        read.warnings,
        [
            "spec.type is absent: Gardener requires it",
            &format!("spec.reloadConfigFilePath {by_agent}"),
            "spec.files[0].encoding has no effect: the encoding of a file is \
             content.inline.encoding",
            &format!("status.command {by_agent}"),
            &format!("status.units {by_agent}"),
        ]
    );
}

#[test]
fn anchors_and_merge_keys_are_read() {
    let text = with_spec(
        "  files:
  - &file
    path: /a
    permissions: &mode 0640
    content: &content {inline: {data: &data 0644}}
  - {path: /b, permissions: *mode, content: {inline: {data: *data}}}
  - {<<: *file, path: /c}
",
    );
    let files = read_document(&text);
    for entry in &files.bundles[0].entries {
        let Desired::File(state) = &entry.desired else { panic!("no file") };
        assert_eq!(state.mode.map(|mode| mode.0), Some(0o640), "{}", entry.name);
        let content = state.content.clone().unwrap_or_default();
        assert_eq!(content.inline.as_deref(), Some("0644"), "{}", entry.name);
    }
    assert_eq!(files.bundles[0].entries.len(), 3);
}

#[test]
fn line_ends_and_the_start_of_a_text_of_windows_are_read() {
    let windows = format!("\u{feff}{}", EXAMPLE.replace('\n', "\r\n"));
    assert_eq!(read_document(&windows), read_document(EXAMPLE));
}

#[test]
fn a_resource_without_a_name_becomes_the_bundle_gardener() {
    let text = with_spec("").replace("  name: pool-1-original\n", "  namespace: x\n");
    assert_eq!(read_document(&text).bundles[0].name, "gardener");
}

#[test]
fn a_unit_in_the_spec_and_in_the_status_is_merged() {
    let unit = read_unit(&with_spec(
        "  units:
  - name: x.service
    command: start
    enable: true
    content: spec
    dropIns:
    - {name: 10-a.conf, content: spec}
    - {name: 20-b.conf, content: spec}
    filePaths: [/a]
  files:
  - {path: /a, content: {inline: {data: a}}}
  - {path: /b, content: {inline: {data: b}}}
status:
  extensionUnits:
  - name: x.service
    command: stop
    enable: false
    content: status
    dropIns:
    - {name: 20-b.conf, content: status}
    - {name: 30-c.conf, content: status}
    filePaths: [/b, /a]
",
    ));
    let drop_ins = [("10-a.conf", "spec"), ("20-b.conf", "status"), ("30-c.conf", "status")];
    let expected = UnitState {
        content: Some("status".to_owned()),
        drop_ins: drop_ins.map(|(name, text)| (name.to_owned(), text.to_owned())).into(),
        enable: Some(false),
        command: Some(UnitCommand::Stop),
        file_paths: vec!["/a".to_owned(), "/b".to_owned()],
    };
    assert_eq!(unit, expected);
}

#[test]
fn a_later_part_of_a_unit_without_a_field_keeps_the_earlier_value() {
    let unit = read_unit(&with_spec(
        "  units:
  - {name: x.service, command: restart, enable: false, content: spec}
status:
  extensionUnits:
  - {name: x.service}
",
    ));
    assert_eq!(unit.content.as_deref(), Some("spec"));
    assert_eq!(unit.enable, Some(false));
    assert_eq!(unit.command, Some(UnitCommand::Restart));
}

#[test]
fn an_entry_that_moves_from_the_spec_to_the_status_changes_nothing() {
    let a = "  - {path: /a, content: {inline: {data: a}}}\n";
    let b = "  - {path: /b, content: {inline: {data: b}}}\n";
    let unit = "  - {name: x.service, content: x}\n";
    let other = "  - {name: y.service, content: y}\n";
    let before = with_spec(&format!("  files:\n{a}{b}  units:\n{unit}{other}"));
    let after = with_spec(&format!(
        "  files:\n{b}  units:\n{other}status:\n  extensionFiles:\n{a}  extensionUnits:\n{unit}"
    ));
    assert_eq!(read_document(&before), read_document(&after));
}

#[test]
fn permissions_are_integers_as_kubernetes_reads_them() {
    let mode = |text: &str| {
        let file = format!("    permissions: {text}\n    content: {{inline: {{data: x}}}}\n");
        read_file(&with_file(&file)).mode.map(|mode| mode.0)
    };
    assert_eq!(mode("0644"), Some(0o644));
    assert_eq!(mode("0o644"), Some(0o644));
    assert_eq!(mode("420"), Some(0o644));
    assert_eq!(mode("0x1a4"), Some(0o644));
    assert_eq!(mode("0"), Some(0));
    assert_eq!(mode("07777"), Some(0o7777));
    assert_eq!(mode("null"), None);
}

#[test]
fn text_is_read_as_written_although_yaml_has_other_types() {
    let data = |text: &str| {
        let file = format!("    content: {{inline: {{data: {text}}}}}\n");
        read_file(&with_file(&file)).content.unwrap().inline.unwrap()
    };
    for text in ["y", "n", "yes", "on", "True", "false", "0644", "1.10", "1e3", "2024-01-02", "0x"]
    {
        assert_eq!(data(text), text);
        assert_eq!(data(&format!("\"{text}\"")), text);
    }
    assert_eq!(data("\"null\""), "null");
    assert_eq!(data("' a '"), " a ");
}

#[test]
fn base64_becomes_text_or_stays_base64() {
    let content = |digits: &str| {
        let lines =
            format!("    content:\n      inline:\n        encoding: b64\n        {digits}\n");
        read_file(&with_file(&lines)).content.unwrap()
    };
    let text = |text: &str| FileContent { inline: Some(text.to_owned()), ..Default::default() };
    let base64 = |text: &str| FileContent { base64: Some(text.to_owned()), ..Default::default() };
    assert_eq!(content("data: aMOpbGxvCg=="), text("h\u{e9}llo\n"));
    assert_eq!(content("data: |\n          aMOp\n          bGxvCg==\n"), text("h\u{e9}llo\n"));
    assert_eq!(content("data: /wD+"), base64("/wD+"));
    // A database does not store a NUL in JSON.
    assert_eq!(content("data: YQBi"), base64("YQBi"));
}

#[test]
fn a_reference_to_a_secret_becomes_one_without_a_version() {
    let file = read_file(&with_file("    content: {secretRef: {name: ca, dataKey: bundle.crt}}\n"));
    let secret = SecretRef { name: "ca".to_owned(), key: "bundle.crt".to_owned(), version: None };
    assert_eq!(file.content.unwrap().secret_ref, Some(secret));
}

#[test]
fn user_data_does_not_show_a_file_without_a_placeholder() {
    let file = |data: &str| {
        let lines =
            format!("    content: {{transmitUnencoded: true, inline: {{data: \"{data}\"}}}}\n");
        with_file(&lines)
    };
    let warnings = |text: &str| read(text).unwrap().warnings;
    let provision = |text: String| text.replace("reconcile", "provision");
    assert_eq!(warnings(&provision(file("<<BOOTSTRAP_TOKEN>>"))), [""; 0]);
    assert_eq!(warnings(&file("text")), [""; 0]);
    let warnings = warnings(&provision(file("text")));
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].starts_with("spec.files[0].content.transmitUnencoded"), "{warnings:?}");
}

proptest::proptest! {
    #[test]
    fn no_text_causes_a_panic(text in "\\PC{0,200}", position in 0_usize..1_500) {
        let position = (0..=position.min(EXAMPLE.len()))
            .rev()
            .find(|position| EXAMPLE.is_char_boundary(*position))
            .unwrap_or_default();
        let (start, end) = EXAMPLE.split_at(position);
        for text in [text.clone(), format!("{start}{text}{end}"), format!("{start}{text}")] {
            let _ = read(&text);
        }
    }
}
