//! Configuration documents: validation, conversion, rendering and comparison, without a server.

use std::fs;

use clap::Parser as _;
use evenkeel_cli::args::Cli;
use evenkeel_cli::{Ending, Failure};
use serde_json::Value;

use crate::{TestCli, split};

pub const WEB: &str = r#"
bundles:
  - name: web
    entries:
      - component: Package
        name: nginx
      - component: File
        name: /etc/nginx/conf.d/default.conf
        desired:
          mode: "0644"
          content:
            inline: |
              server { listen 8080; }
      - component: Unit
        name: nginx.service
        desired:
          filePaths: [/etc/nginx/conf.d/default.conf]
"#;

/// The same document in JSON, with another order of keys and without what is a default.
const WEB_AS_JSON: &str = r#"{"bundles": [{"entries": [
  {"name": "nginx", "component": "Package", "desired": {"version": "any"}},
  {"name": "/etc/nginx/conf.d/default.conf", "component": "File", "desired": {
    "content": {"inline": "server { listen 8080; }\n"}, "mode": "0644", "type": "file"}},
  {"name": "nginx.service", "component": "Unit", "desired": {
    "filePaths": ["/etc/nginx/conf.d/default.conf"]}}
], "name": "web"}]}"#;

pub const GARDENER: &str = r"
apiVersion: extensions.gardener.cloud/v1alpha1
kind: OperatingSystemConfig
metadata:
  name: worker
spec:
  type: gardenlinux
  purpose: reconcile
  units:
    - name: nginx.service
      enable: true
      filePaths: [/etc/motd]
  files:
    - path: /etc/motd
      permissions: 420
      content:
        inline:
          data: welcome
";

const BCFG2: &str = r#"<?xml version="1.0"?>
<Configuration version="2.0">
  <Bundle name="motd">
    <Path type="file" name="/etc/motd" owner="root" group="root" mode="0644">welcome</Path>
    <Package type="deb" name="nginx" version="any"/>
  </Bundle>
</Configuration>
"#;

/// For one small file at the first boot.
const FIRST_BOOT: &str = r#"
purpose: provision
bundles:
  - name: agent
    entries:
      - component: File
        name: /etc/motd
        desired:
          mode: "0644"
          content:
            inline: "welcome\n"
"#;

/// A command line without a login, whose file of contexts is unusable, with files in its home.
pub async fn cli_with(files: &[(&str, &str)]) -> TestCli {
    let mut cli = TestCli::new().await;
    cli.token = None;
    fs::write(&cli.contexts, "{ not a list of contexts").expect("written");
    for (name, content) in files {
        fs::write(cli.home.path().join(name), content).expect("written");
    }
    cli
}

/// Runs a line with `@` for the home directory. Returns notes and output, or the error and its
/// hint.
pub async fn run(cli: &TestCli, line: &str, input: &str) -> (String, Option<Ending>) {
    let home = cli.home.path().display().to_string();
    let result = cli.bare(&line.replace('@', &home), input).await;
    assert_eq!(cli.fake_server.requests(), "", "{line}");
    match result {
        Ok((text, ending)) => (text.replace(&home, "@"), Some(ending)),
        Err(failure) => (describe(&failure).replace(&home, "@"), None),
    }
}

fn describe(failure: &Failure) -> String {
    let chain = evenkeel_kit::chain(failure);
    format!("{chain}\nhint: {}", failure.hint().unwrap_or_else(|| "none".to_owned()))
}

/// Runs a line that must succeed.
pub async fn output(cli: &TestCli, line: &str) -> String {
    let (text, ending) = run(cli, line, "").await;
    assert_eq!(ending, Some(Ending::Done), "{line}: {text}");
    text
}

/// Runs a line that must fail.
pub async fn error(cli: &TestCli, line: &str) -> String {
    let (text, ending) = run(cli, line, "").await;
    assert_eq!(ending, None, "{line}: {text}");
    text
}

#[tokio::test]
async fn a_document_is_validated_without_a_server_and_a_login() {
    let cli = cli_with(&[("web.yaml", WEB), ("web.json", WEB_AS_JSON)]).await;
    let text = output(&cli, "evenkeel configuration validate @/web.yaml").await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..3], ["format    native", "bundles   1", "entries   3"]);
    let revision = lines[3].strip_prefix("revision  ").expect("the revision");
    let (piped, _) = run(&cli, "evenkeel configuration validate -", WEB).await;
    assert_eq!(piped, text, "standard input");
    let quiet = output(&cli, "evenkeel configuration validate @/web.json -q").await;
    assert_eq!(quiet, format!("{revision}\n"), "the form of the document does not count");
    let json = output(&cli, "evenkeel configuration validate @/web.yaml -o json").await;
    let summary: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&summary["entries"], &summary["revision"]), (&3.into(), &revision.into()));
}

#[tokio::test]
async fn each_invalid_field_is_printed_with_its_path() {
    let two_errors = WEB.replace("\"0644\"", "\"9999\"").replace("filePaths:", "filePath:");
    let cli = cli_with(&[("bad.yaml", &two_errors)]).await;
    let line = "evenkeel configuration validate @/bad.yaml";
    let (text, ending) = run(&cli, line, "").await;
    assert_eq!(ending, Some(Ending::DocumentInvalid), "{text}");
    let mode = "bundles[0].entries[1].desired.mode: ";
    assert!(text.lines().any(|line| line.starts_with(mode)), "{text}");
    let (json, ending) = run(&cli, &format!("{line} -o json"), "").await;
    assert_eq!(ending, Some(Ending::DocumentInvalid));
    let errors: Vec<Value> = serde_json::from_str(&json).expect("a list");
    assert_eq!((errors.len(), text.lines().count()), (2, 2), "one line for each: {text}");
    let mut paths = errors.iter().map(|error| error["path"].as_str().expect("a path"));
    assert!(paths.any(|path| path == "bundles[0].entries[1].desired.mode"), "{json}");
    assert!(errors.iter().all(|error| error["message"].is_string()), "{json}");
    let (yaml, _) = run(&cli, &format!("{line} -o yaml"), "").await;
    assert!(yaml.starts_with("- path: "), "{yaml}");
}

#[tokio::test]
async fn an_invalid_document_is_neither_converted_nor_rendered_nor_compared() {
    let bad = WEB.replace("\"0644\"", "\"9999\"");
    let cli = cli_with(&[("bad.yaml", &bad), ("web.yaml", WEB)]).await;
    for line in [
        "evenkeel configuration export @/bad.yaml --format bcfg2",
        "evenkeel configuration render @/bad.yaml --format script",
    ] {
        let text = error(&cli, line).await;
        let expected =
            "@/bad.yaml is not a valid document:\n  bundles[0].entries[1].desired.mode: ";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with("hint: correct these fields and repeat the command"), "{text}");
    }
    let text = error(&cli, "evenkeel configuration diff @/web.yaml @/bad.yaml").await;
    let expected =
        "cannot compare the documents: @/bad.yaml is not a valid document:\n  bundles[0]";
    assert!(text.starts_with(expected), "{text}");
}

#[tokio::test]
async fn the_content_determines_the_format_unless_an_option_names_it() {
    let cli = cli_with(&[("osc", GARDENER), ("spec", BCFG2), ("web", WEB)]).await;
    for (file, format, entries) in
        [("osc", "gardener", 2), ("spec", "bcfg2", 2), ("web", "native", 3)]
    {
        for option in
            [String::new(), format!(" --format {format}"), format!(" --input-format {format}")]
        {
            let line = format!("evenkeel configuration validate @/{file}{option}");
            let text = output(&cli, &line).await;
            assert!(text.contains(&format!("format    {format}\n")), "{line}: {text}");
            assert!(text.contains(&format!("entries   {entries}\n")), "{line}: {text}");
        }
    }
    let (text, ending) =
        run(&cli, "evenkeel configuration validate @/web --format bcfg2", "").await;
    assert_eq!(ending, Some(Ending::DocumentInvalid), "{text}");
}

#[tokio::test]
async fn a_warning_is_printed_and_the_document_is_valid() {
    let no_purpose = GARDENER.replace("  purpose: reconcile\n", "");
    let cli = cli_with(&[("osc.yaml", &no_purpose)]).await;
    let text = output(&cli, "evenkeel configuration validate @/osc.yaml").await;
    assert!(text.starts_with("warning: @/osc.yaml: "), "{text}");
    assert!(text.lines().next().is_some_and(|line| line.contains("purpose")), "{text}");
    assert!(text.contains("\nentries   2\n"), "{text}");
}

#[tokio::test]
async fn a_document_is_converted_between_formats() {
    let cli = cli_with(&[("osc.yaml", GARDENER), ("spec.xml", BCFG2)]).await;
    for file in ["osc.yaml", "spec.xml"] {
        let line = format!("evenkeel configuration export @/{file} --format native");
        let native = output(&cli, &line).await;
        fs::write(cli.home.path().join("native.yaml"), &native).expect("written");
        let line = "evenkeel configuration validate @/native.yaml --format native";
        assert!(output(&cli, line).await.contains("entries   2\n"), "{native}");
        let line = format!("evenkeel configuration diff @/{file} @/native.yaml");
        assert_eq!(output(&cli, &line).await, "", "nothing was lost: {native}");
    }
    let line = "evenkeel configuration export @/osc.yaml --format bcfg2 --input-format gardener";
    let xml = output(&cli, line).await;
    assert!(xml.contains("<Configuration") && xml.contains("/etc/motd"), "{xml}");
    assert!(xml.ends_with(">\n") && !xml.ends_with("\n\n"), "{xml}");
    let (text, _) = run(&cli, "evenkeel configuration validate - -o json", &xml).await;
    let summary: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&summary["format"], &summary["entries"]), (&"bcfg2".into(), &2.into()));
}

#[tokio::test]
async fn a_document_is_rendered_for_a_new_machine() {
    let cli = cli_with(&[("first-boot.yaml", FIRST_BOOT)]).await;
    for (format, start, part) in [
        ("cloud-init", "#cloud-config", "/etc/motd"),
        ("ignition", "{", "\"3.3.0\""),
        ("script", "#!/bin/", "/etc/motd"),
    ] {
        let line = format!("evenkeel configuration render @/first-boot.yaml --format {format}");
        let text = output(&cli, &line).await;
        assert!(text.starts_with(start) && text.contains(part), "{format}: {text}");
    }
}

#[tokio::test]
async fn user_data_over_the_limit_of_clouds_is_refused() {
    let large = FIRST_BOOT.replace("welcome", &"welcome ".repeat(3000));
    let cli = cli_with(&[("large.yaml", &large)]).await;
    let line = "evenkeel configuration render @/large.yaml --format script";
    let text = error(&cli, line).await;
    assert!(text.contains("16,384") || text.contains("16384"), "{text}");
}

#[tokio::test]
async fn a_part_that_the_format_does_not_have_is_named() {
    let web = WEB.replace(
        "inline: |\n              server { listen 8080; }",
        "secretRef: {name: web, key: conf}",
    );
    let cli = cli_with(&[("web.yaml", &web)]).await;
    for (line, start) in [
        (
            "evenkeel configuration export @/web.yaml --format bcfg2",
            "the document cannot be written as Bcfg2:\n  bundles[0].entries[1]",
        ),
        (
            "evenkeel configuration render @/web.yaml --format ignition",
            "the document cannot be written as user-data for Ignition:\n  purpose: ",
        ),
    ] {
        let text = error(&cli, line).await;
        assert!(text.starts_with(start), "{text}");
        let hint = "hint: remove or replace these parts, or choose another format";
        assert!(text.ends_with(hint), "{text}");
    }
}

#[tokio::test]
async fn documents_are_compared_by_their_entries() {
    let changed = WEB
        .replace("8080", "8081")
        .replace("name: nginx\n", "name: nginx-light\n")
        .replace("bundles:", "# a comment\nbundles:");
    let cli =
        cli_with(&[("old.yaml", WEB), ("same.json", WEB_AS_JSON), ("new.yaml", &changed)]).await;
    let text = output(&cli, "evenkeel configuration diff @/old.yaml @/same.json").await;
    assert_eq!(text, "");
    let json = output(&cli, "evenkeel configuration diff @/old.yaml @/same.json -o json").await;
    assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json}");

    let line = "evenkeel configuration diff @/old.yaml @/new.yaml";
    let (text, ending) = run(&cli, line, "").await;
    assert_eq!(ending, Some(Ending::DocumentsDiffer), "{text}");
    insta::assert_snapshot!(text, @r#"
    + Package nginx-light
    ~ File /etc/nginx/conf.d/default.conf
        ~ desired.content.inline: "server { listen 8080; }\n" -> "server { listen 8081; }\n"
    - Package nginx
    "#);
    let (json, ending) = run(&cli, &format!("{line} -o json"), "").await;
    assert_eq!(ending, Some(Ending::DocumentsDiffer), "{json}");
    let differences: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(differences["settings"], Value::Array(Vec::new()));
    assert_eq!(differences["entries"][0]["change"], "added");
    let (names, _) = run(&cli, &format!("{line} -q"), "").await;
    assert_eq!(names, "Package nginx-light\nFile /etc/nginx/conf.d/default.conf\nPackage nginx\n");
    let (piped, ending) = run(&cli, "evenkeel configuration diff - @/new.yaml", WEB).await;
    assert_eq!((&piped, ending), (&text, Some(Ending::DocumentsDiffer)));
    let message = error(&cli, "evenkeel configuration diff - -").await;
    assert!(message.contains("standard input can be only one of the documents"), "{message}");
}

#[tokio::test]
async fn unreadable_documents_are_refused_with_the_reason_and_a_hint() {
    let cli = cli_with(&[("empty.yaml", ""), ("note.txt", "dear diary")]).await;
    fs::write(cli.home.path().join("latin1.yaml"), b"bundles: []\n# gr\xfc\xdfe\n")
        .expect("written");
    let large = fs::File::create(cli.home.path().join("large.yaml")).expect("a file");
    large.set_len(1 << 30).expect("a file of 1 GB");
    for (file, message) in [
        (
            "@/missing.yaml",
            "cannot read @/missing.yaml: there is no such file\n\
             hint: check the path; `-` reads the document from standard input",
        ),
        ("@", "cannot read @: it is a directory\nhint: give the file with the document"),
        (
            "@/large.yaml",
            "cannot read @/large.yaml: it is larger than 16 MiB\n\
             hint: check that it is the right file; in a configuration document, write `uri` and \
             `sha256` in place of the content of a large file",
        ),
        ("/dev/zero", "cannot read /dev/zero: it is larger than 16 MiB\n"),
        (
            "@/latin1.yaml",
            "cannot read @/latin1.yaml: line 2 is not UTF-8 (byte 17 of the file)\n\
             hint: save the file as UTF-8; in a configuration document, write content that is not \
             text as `base64`",
        ),
    ] {
        for line in [
            format!("evenkeel configuration validate {file}"),
            format!("evenkeel configuration export {file} --format bcfg2"),
            format!("evenkeel configuration render {file} --format script"),
            format!("evenkeel configuration diff {file} @/empty.yaml"),
        ] {
            let text = error(&cli, &line).await;
            let text = text.strip_prefix("cannot compare the documents: ").unwrap_or(&text);
            assert!(text.starts_with(message), "{line}: {text}");
        }
    }
    let (text, ending) = run(&cli, "evenkeel configuration validate @/note.txt", "").await;
    assert_eq!(ending, Some(Ending::DocumentInvalid), "{text}");
    assert!(!text.trim().is_empty());
}

#[tokio::test]
async fn the_schema_of_documents_is_printed() {
    let cli = cli_with(&[]).await;
    let text = output(&cli, "evenkeel configuration schema").await;
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert!(schema["properties"]["bundles"].is_object(), "{text}");
    let yaml = output(&cli, "evenkeel configuration schema -o yaml").await;
    assert!(!yaml.starts_with('{') && yaml.contains("$defs:"), "{yaml}");
}

#[tokio::test]
async fn shells_complete_the_commands_of_configurations() {
    let cli = cli_with(&[]).await;
    for shell in ["bash", "zsh", "fish"] {
        let script = output(&cli, &format!("evenkeel completion {shell}")).await;
        for word in ["configuration", "validate", "input-format", "cloud-init"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn invalid_lines_are_rejected_before_a_file_is_read() {
    for line in [
        "evenkeel configuration validate",
        "evenkeel configuration validate a b",
        "evenkeel configuration validate a --format cloud-init",
        "evenkeel configuration validate a --format native --input-format native",
        "evenkeel configuration export a",
        "evenkeel configuration export a --format gardener",
        "evenkeel configuration render a",
        "evenkeel configuration render a --format bcfg2",
        "evenkeel configuration diff a",
        "evenkeel configuration diff a b c",
    ] {
        assert!(Cli::try_parse_from(split(line)).is_err(), "{line}");
    }
    for command in ["validate", "export", "render", "diff", "schema"] {
        let line = format!("evenkeel configuration {command} --help");
        let help = Cli::try_parse_from(split(&line)).expect_err("help").to_string();
        assert!(help.contains(&format!("Examples:\n  evenkeel configuration {command}")), "{help}");
    }
}

#[tokio::test]
async fn the_documents_of_the_manual_are_valid() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/node-configuration.md");
    let page = fs::read_to_string(page).expect("the page");
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let documents: Vec<&str> = blocks.filter(|block| block.contains("bundles:")).collect();
    assert_eq!(documents.len(), 5);
    let cli = cli_with(&[]).await;
    for document in documents {
        let (text, ending) = run(&cli, "evenkeel configuration validate -", document).await;
        assert_eq!(ending, Some(Ending::Done), "{text}{document}");
        let format = if document.contains("purpose: provision") { "script" } else { "bcfg2" };
        let command = if format == "script" { "render" } else { "export" };
        let line = format!("evenkeel configuration {command} - --format {format}");
        let (text, ending) = run(&cli, &line, document).await;
        assert_eq!(ending, Some(Ending::Done), "{line}: {text}");
    }
}
