//! Renders documents as user-data, and reads the files and units back from it.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a failed assertion is a panic, and the tests run scripts with bash"
)]

mod decode;
mod run;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evenkeel_configuration::document::{
    Bundle, Desired, Document, Entry, ExtraKind, FileContent, FileKind, FileMode, FileState,
    PackageState, Purpose, SecretRef, UnitCommand, UnitState,
};
use evenkeel_configuration::user_data::{
    MAX_USER_DATA_BYTES, PLACEHOLDERS, UserDataFormat, contains_placeholder, render,
};
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof};

/// Contents that a wrong quotation would change or run.
const HOSTILE_CONTENTS: &[&str] = &[
    "",
    "\n",
    "\n\n",
    "no line break at the end",
    "EOF\n",
    "EOF",
    "a\nEOF\nEOF_1_\nb",
    "$(touch /tmp/x) `id` ${HOME} $HOME \\ \\\n",
    "'\"'\"\\''\"\n",
    "carriage\r\nreturns\r",
    "\ttabs\t\n  spaces  \n\n\n",
    "%41%zz #?&=<>[]{}|\\^`\n",
    "h\u{e9}llo \u{1f600} \u{2028} \u{feff}\n",
    "! !! !$ ~ * ? [a-z]\n",
    "- a: b\n---\n...\n|\n>\n#cloud-config\n",
];

fn file(path: &str, state: FileState) -> Entry {
    Entry { name: path.to_owned(), desired: Desired::File(state) }
}

fn unit(name: &str, state: UnitState) -> Entry {
    Entry { name: name.to_owned(), desired: Desired::Unit(state) }
}

fn text(text: &str) -> FileContent {
    FileContent { inline: Some(text.to_owned()), ..FileContent::default() }
}

fn bytes(bytes: &[u8]) -> FileContent {
    FileContent { base64: Some(STANDARD.encode(bytes)), ..FileContent::default() }
}

fn text_file(path: &str, content: &str) -> Entry {
    file(path, FileState { content: Some(text(content)), ..FileState::default() })
}

fn provision(entries: Vec<Entry>) -> Document {
    let bundle = Bundle { name: "first-boot".to_owned(), entries };
    Document { purpose: Purpose::Provision, bundles: vec![bundle], ..Document::default() }
}

/// What a machine needs to join: the case that the formats are made for.
fn example() -> Document {
    let unit_text = "[Unit]\nDescription=Join\n[Service]\nType=oneshot\nExecStart=/opt/bin/join\n\
                     [Install]\nWantedBy=multi-user.target\n";
    let token = FileState {
        mode: Some(FileMode(0o640)),
        group: Some("adm".to_owned()),
        content: Some(text("<<BOOTSTRAP_TOKEN>>")),
        ..FileState::default()
    };
    let program = FileState {
        mode: Some(FileMode(0o755)),
        content: Some(bytes(b"#!/bin/sh\n\xff\x00")),
        ..FileState::default()
    };
    let directory = FileState { kind: FileKind::Directory, ..FileState::default() };
    let link = FileState {
        kind: FileKind::Symlink,
        target: Some("/opt/bin/join".to_owned()),
        owner: Some("1000".to_owned()),
        ..FileState::default()
    };
    let drop_ins = [("10-it's.conf".to_owned(), "[Service]\nNice=5\n".to_owned())];
    provision(vec![
        file("/var/lib/join/token", token),
        text_file("/var/lib/join/machine", "name: <<MACHINE_NAME>>\nzone: a\n"),
        file("/opt/bin/join", program),
        text_file("/etc/a file", "plain\n"),
        file("/var/lib/join/cache", directory),
        file("/usr/local/bin/join", link),
        unit(
            "join.service",
            UnitState { content: Some(unit_text.to_owned()), ..Default::default() },
        ),
        unit("cron.service", UnitState { drop_ins: drop_ins.into(), ..Default::default() }),
        unit("telnet.socket", UnitState { enable: Some(false), ..Default::default() }),
    ])
}

fn rendered(document: &Document, format: UserDataFormat) -> String {
    match render(document, format) {
        Ok(text) => text,
        Err(errors) => panic!("{errors:?}"),
    }
}

fn refused(document: &Document, format: UserDataFormat) -> String {
    let errors = render(document, format).expect_err("the document is refused");
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_document_becomes_a_script() {
    insta::assert_snapshot!("script", rendered(&example(), UserDataFormat::Script));
}

#[test]
fn a_document_becomes_an_archive_of_cloud_init() {
    insta::assert_snapshot!("cloud_init", rendered(&example(), UserDataFormat::CloudInit));
}

#[test]
fn a_document_becomes_a_configuration_of_ignition() {
    let json = rendered(&example(), UserDataFormat::Ignition);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    insta::assert_json_snapshot!("ignition", value);
    assert_eq!(json.lines().count(), 1);
}

#[test]
fn a_resource_of_gardener_becomes_user_data() {
    let resource = r#"
apiVersion: extensions.gardener.cloud/v1alpha1
kind: OperatingSystemConfig
metadata: {name: pool-1-init}
spec:
  type: ubuntu
  purpose: provision
  units:
  - name: gardener-node-init.service
    command: start
    enable: true
    content: "[Service]\nExecStart=/var/lib/gardener-node-agent/init.sh\n"
    filePaths: [/var/lib/gardener-node-agent/init.sh]
  files:
  - path: /var/lib/gardener-node-agent/credentials/bootstrap-token
    permissions: 0640
    content:
      inline: {data: "<<BOOTSTRAP_TOKEN>>"}
      transmitUnencoded: true
  - path: /var/lib/gardener-node-agent/init.sh
    permissions: 0755
    content:
      inline: {encoding: b64, data: IyEvYmluL3NoCg==}
"#;
    let document = evenkeel_configuration::gardener::read(resource).unwrap().document;
    for format in UserDataFormat::ALL {
        let files = decode::files(&rendered(&document, format), format);
        let folder = "/var/lib/gardener-node-agent";
        assert_eq!(files[&format!("{folder}/init.sh")], b"#!/bin/sh\n");
        let token = &files[&format!("{folder}/credentials/bootstrap-token")];
        assert_eq!(token, b"<<BOOTSTRAP_TOKEN>>");
    }
}

#[test]
fn the_same_document_always_gives_the_same_user_data() {
    for format in UserDataFormat::ALL {
        assert_eq!(rendered(&example(), format), rendered(&example(), format));
    }
}

#[test]
fn a_format_is_parsed_from_its_name() {
    for format in UserDataFormat::ALL {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    let error = "butane".parse::<UserDataFormat>().unwrap_err();
    assert!(error.contains("cloud-init, ignition or script"), "{error}");
}

#[test]
fn every_content_is_decoded_unchanged() {
    for content in HOSTILE_CONTENTS {
        for content in [(*content).to_owned(), format!("{content}{}{content}", PLACEHOLDERS[0])] {
            let document = provision(vec![
                text_file("/etc/first", &content),
                file(
                    "/etc/it's $(id)",
                    FileState { content: Some(bytes(&[0xff, 0, 0x80])), ..Default::default() },
                ),
                text_file("/etc/last", &content),
            ]);
            for format in UserDataFormat::ALL {
                let files = decode::files(&rendered(&document, format), format);
                assert_eq!(files["/etc/first"], content.as_bytes(), "{format}");
                assert_eq!(files["/etc/it's $(id)"], [0xff, 0, 0x80], "{format}");
                assert_eq!(files["/etc/last"], content.as_bytes(), "{format}");
            }
        }
    }
}

#[test]
fn bash_writes_every_content_unchanged() {
    let machine = run::TestMachine::create("contents");
    let mut contents = Vec::new();
    for content in HOSTILE_CONTENTS {
        contents.push((*content).to_owned());
        contents.push(format!("{content}{}{content}", PLACEHOLDERS[0]));
    }
    contents.push(format!("{}\n{}", "long ".repeat(1_000), PLACEHOLDERS[1]));
    for content in contents {
        let state = FileState { content: Some(text(&content)), ..machine.owned_state() };
        let document = provision(vec![file(&machine.path("a/b/it's"), state)]);
        machine.run(&rendered(&document, UserDataFormat::Script)).expect_success();
        assert_eq!(machine.read("a/b/it's"), content.as_bytes(), "{content:?}");
        machine.remove_marker();
    }
}

#[test]
fn the_script_sets_modes_and_replaces_what_exists() {
    let machine = run::TestMachine::create("modes");
    let state = |kind, mode: Option<u32>| FileState {
        kind,
        mode: mode.map(FileMode),
        content: (kind == FileKind::File).then(|| text("new")),
        target: (kind == FileKind::Symlink).then(|| "target of it".to_owned()),
        ..machine.owned_state()
    };
    let document = provision(vec![
        file(&machine.path("etc/default"), state(FileKind::File, None)),
        file(&machine.path("etc/special"), state(FileKind::File, Some(0o4711))),
        file(&machine.path("etc/dir"), state(FileKind::Directory, None)),
        file(&machine.path("etc/private"), state(FileKind::Directory, Some(0o1700))),
        file(&machine.path("etc/link"), state(FileKind::Symlink, None)),
    ]);
    machine.write("etc/default", "old and longer");
    machine.link("etc/link", "/nowhere");
    machine.run(&rendered(&document, UserDataFormat::Script)).expect_success();
    assert_eq!(machine.read("etc/default"), b"new");
    assert_eq!(machine.mode("etc/default"), 0o600);
    assert_eq!(machine.mode("etc/special"), 0o4711);
    assert_eq!(machine.mode("etc/dir"), 0o755);
    assert_eq!(machine.mode("etc/private"), 0o1700);
    assert_eq!(machine.target("etc/link"), "target of it");
    let mut names = machine.list("etc");
    names.sort();
    assert_eq!(names, ["default", "dir", "link", "private", "special"]);
}

#[test]
fn the_script_enables_restarts_disables_and_stops_units() {
    let machine = run::TestMachine::create("units");
    let state = |enable, command| UnitState {
        content: Some("[Service]\n".to_owned()),
        enable,
        command,
        ..UnitState::default()
    };
    let document = provision(vec![
        unit("default.service", state(None, None)),
        unit("started.service", state(Some(true), Some(UnitCommand::Start))),
        unit("stopped.service", state(None, Some(UnitCommand::Stop))),
        unit("disabled.service", state(Some(false), None)),
        unit("unknown.service", state(Some(false), Some(UnitCommand::Restart))),
        unit("template@.service", state(None, None)),
    ]);
    let script = rendered(&document, UserDataFormat::Script);
    machine.run(&script).expect_success();
    assert_eq!(machine.read("units/default.service"), b"[Service]\n");
    assert_eq!(machine.mode("units/default.service"), 0o644);
    insta::assert_snapshot!("systemctl", machine.systemctl_calls());
}

#[test]
fn the_script_runs_once() {
    let machine = run::TestMachine::create("once");
    let state = FileState { content: Some(text("first")), ..machine.owned_state() };
    let document = provision(vec![file(&machine.path("file"), state)]);
    let script = rendered(&document, UserDataFormat::Script);
    machine.run(&script).expect_success();
    machine.write("file", "changed by hand");
    machine.run(&script).expect_success();
    assert_eq!(machine.read("file"), b"changed by hand");
}

#[test]
fn a_script_that_fails_runs_again() {
    let machine = run::TestMachine::create("again");
    let failing = unit("failing.service", UnitState::default());
    let good = unit("good.service", UnitState::default());
    let script = rendered(&provision(vec![failing, good]), UserDataFormat::Script);
    for _ in 0..2 {
        let error = machine.run(&script).expect_failure();
        assert!(error.contains("could not be enabled"), "{error}");
    }
    let calls = machine.systemctl_calls();
    assert_eq!(calls.matches("restart --no-block good.service").count(), 2, "{calls}");
    let state = FileState { owner: Some("no-such-user".to_owned()), ..FileState::default() };
    let document = provision(vec![file(&machine.path("new/file"), state)]);
    machine.run(&rendered(&document, UserDataFormat::Script)).expect_failure();
    assert!(!machine.has_marker());
    assert_eq!(machine.list("new"), [""; 0]);
}

#[test]
fn only_documents_of_purpose_provision_are_rendered() {
    let document = Document { purpose: Purpose::Reconcile, ..example() };
    for format in UserDataFormat::ALL {
        assert!(refused(&document, format).starts_with("purpose: "));
    }
}

#[test]
fn entries_without_an_exact_form_are_refused_by_name() {
    let secret = SecretRef { name: "ca".to_owned(), key: "crt".to_owned(), version: None };
    let secret = FileContent { secret_ref: Some(secret), ..FileContent::default() };
    let uri = FileContent {
        uri: Some("https://example.org/x".to_owned()),
        sha256: Some("0".repeat(64)),
        ..FileContent::default()
    };
    let package = PackageState { version: "any".to_owned() };
    let drop_ins = [("10-a.conf".to_owned(), "[Service]\nType oneshot".to_owned())].into();
    let state = FileState::default;
    let entries = vec![
        file("/a", FileState { content: Some(secret), ..state() }),
        file("/b", FileState { content: Some(uri), ..state() }),
        file("/c", FileState { kind: FileKind::Absent, ..state() }),
        file("/d", FileState { kind: FileKind::Permissions, mode: Some(FileMode(0)), ..state() }),
        file("/e", FileState { kind: FileKind::Directory, prune: true, ..state() }),
        file("/f", FileState { mode: Some(FileMode(0o4755)), ..state() }),
        Entry { name: "ntp".to_owned(), desired: Desired::Package(package) },
        unit("x.service", UnitState { command: Some(UnitCommand::Stop), ..Default::default() }),
        text_file("/g", "<<MACHINE_NAME>>\u{1b}"),
        unit("x@.service", UnitState { enable: Some(true), ..Default::default() }),
        unit("y.service", UnitState { content: Some("[Service\n".into()), ..Default::default() }),
        unit("z.service", UnitState { drop_ins, ..Default::default() }),
    ];
    let document = Document { remove_extras: vec![ExtraKind::Packages], ..provision(entries) };
    let errors = UserDataFormat::ALL
        .map(|format| format!("{format}:\n{}\n", refused(&document, format)))
        .concat();
    insta::assert_snapshot!("refused", errors);
}

#[test]
fn ignition_downloads_a_file_and_checks_its_digest() {
    let uri = FileContent {
        uri: Some("https://example.org/x".to_owned()),
        sha256: Some("ab".repeat(32)),
        ..FileContent::default()
    };
    let entry = file("/x", FileState { content: Some(uri), ..FileState::default() });
    let json = rendered(&provision(vec![entry]), UserDataFormat::Ignition);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let contents = &value["storage"]["files"][0]["contents"];
    assert_eq!(contents["source"], "https://example.org/x");
    assert_eq!(contents["verification"]["hash"], format!("sha256-{}", "ab".repeat(32)));
}

#[test]
fn a_placeholder_stays_readable() {
    let document = provision(vec![text_file("/etc/token", "token=<<BOOTSTRAP_TOKEN>>\n")]);
    for format in [UserDataFormat::Script, UserDataFormat::CloudInit] {
        assert!(rendered(&document, format).contains("token=<<BOOTSTRAP_TOKEN>>\n"));
    }
    // Ignition refuses a URL with `<`.
    let json = rendered(&document, UserDataFormat::Ignition);
    assert!(json.contains("data:,token=%3C%3CBOOTSTRAP_TOKEN%3E%3E%0A"), "{json}");
    for placeholder in PLACEHOLDERS {
        assert!(contains_placeholder(placeholder));
    }
}

#[test]
fn user_data_above_the_limit_is_refused_with_its_size() {
    for format in UserDataFormat::ALL {
        let size = |bytes: usize| {
            let document = provision(vec![text_file("/etc/x", &"\u{e9}".repeat(bytes / 2))]);
            render(&document, format)
        };
        let mut largest = 0;
        for bytes in (10_000..13_000).step_by(2) {
            match size(bytes) {
                Ok(text) => largest = text.len(),
                Err(errors) => {
                    let message = &errors[0].message;
                    assert!(message.contains("the limit is 16384"), "{message}");
                    break;
                }
            }
        }
        assert!((MAX_USER_DATA_BYTES - 16..=MAX_USER_DATA_BYTES).contains(&largest), "{largest}");
    }
}

fn content() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("EOF".to_owned()),
        Just(PLACEHOLDERS[0].to_owned()),
        Just("'".to_owned()),
        "[ -~\t\r]{0,20}",
        "\\PC{0,10}",
    ];
    prop::collection::vec(line, 0..6).prop_map(|lines| lines.join("\n"))
}

proptest::proptest! {
    #[test]
    fn any_content_is_decoded_unchanged(
        text in content(),
        data in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let binary = FileState { content: Some(bytes(&data)), ..FileState::default() };
        let document = provision(vec![text_file("/a", &text), file("/b", binary)]);
        for format in UserDataFormat::ALL {
            let rendered = render(&document, format);
            prop_assert!(rendered.is_ok(), "{rendered:?}");
            let files = decode::files(&rendered.unwrap(), format);
            prop_assert_eq!(&files["/a"], text.as_bytes());
            prop_assert_eq!(&files["/b"], &data);
        }
    }
}
