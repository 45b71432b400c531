mod documents;

use super::validate;
use crate::native;

/// The errors of a document, one a line.
fn errors(text: &str) -> Vec<String> {
    let document = native::parse(text).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    validate(&document).iter().map(ToString::to_string).collect()
}

/// The errors of a document with one entry, with paths in the entry.
fn entry_errors(component: &str, name: &str, desired: &str) -> Vec<String> {
    let name = serde_json::to_string(name).unwrap();
    let entry = format!("{{component: {component}, name: {name}, desired: {desired}}}");
    let errors = errors(&format!("bundles:\n- name: b\n  entries:\n  - {entry}\n"));
    let relative = |error: String| error.replace("bundles[0].entries[0].", "");
    errors.into_iter().map(relative).collect()
}

#[track_caller]
fn assert_accepted(component: &str, name: &str, desired: &str) {
    let errors = entry_errors(component, name, desired);
    assert!(errors.is_empty(), "{component} {name:?} {desired}: {errors:?}");
}

#[track_caller]
fn assert_refused(component: &str, name: &str, desired: &str, message: &str) {
    let errors = entry_errors(component, name, desired);
    let is_refused = errors.len() == 1 && errors[0].starts_with(message);
    assert!(is_refused, "{component} {name:?} {desired}: {errors:?}, expected {message}");
}

const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

#[test]
fn a_path_is_absolute_and_normalised() {
    let long_name = format!("/{}", "a".repeat(255));
    let long_path = "/a".repeat(2047);
    for name in ["/a", "/etc/a b", "/ä", "/a/..b", "/a/.b/...", &long_name, &long_path] {
        assert_accepted("File", name, "{}");
    }
    for (name, message) in [
        ("", "name: \"\" is not an absolute path; begin with \"/\""),
        ("etc/a", "name: \"etc/a\" is not an absolute path; begin with \"/\""),
        ("/", "name: is the root directory; name something in it"),
        ("/a/../b", "name: \"/a/../b\" contains \"..\"; write the path without it"),
        ("/a/..", "name: \"/a/..\" contains \"..\""),
        ("/a//b/", "name: \"/a//b/\" is not normalised; write \"/a/b\""),
        ("/a/./b", "name: \"/a/./b\" is not normalised; write \"/a/b\""),
        ("/a\nb", "name: \"/a\\nb\" has a control character; remove it"),
        ("/a\0", "name: \"/a\\0\" has a control character; remove it"),
        (&format!("/{}", "a".repeat(256)), "name: contains a name with more than 255 bytes"),
        (&"/a".repeat(2048), "name: is longer than 4095 bytes"),
    ] {
        assert_refused("File", name, "{}", message);
    }
}

#[test]
fn a_file_has_only_the_fields_of_its_type() {
    for desired in [
        "{}",
        "{mode: 0644, owner: root, group: 4294967294, content: {inline: ''}}",
        "{type: directory, mode: 0755, owner: www-data, prune: true}",
        "{type: symlink, target: ../b, owner: root}",
        "{type: absent, prune: true}",
        "{type: permissions, group: adm}",
    ] {
        assert_accepted("File", "/a", desired);
    }
    for (desired, message) in [
        (
            "{target: /b}",
            "desired.target: does not belong to the type file; it belongs to symlink; remove it",
        ),
        ("{prune: true}", "desired.prune: does not belong to the type file"),
        (
            "{type: directory, content: {inline: a}}",
            "desired.content: does not belong to the type directory",
        ),
        ("{type: symlink}", "desired: the type symlink needs the field \"target\""),
        ("{type: symlink, target: ''}", "desired.target: is empty; write a path"),
        ("{type: symlink, target: \"a\\0\"}", "desired.target: \"a\\0\" has a control character"),
        (
            "{type: symlink, target: /b, mode: 0777}",
            "desired.mode: does not belong to the type symlink",
        ),
        ("{type: absent, owner: root}", "desired.owner: does not belong to the type absent"),
        (
            "{type: permissions}",
            "desired: the type permissions needs at least one of mode, owner and group",
        ),
        (
            "{type: permissions, mode: 0600, prune: true}",
            "desired.prune: does not belong to the type permissions",
        ),
        ("{owner: a b}", "desired.owner: \"a b\" is not a user; write its name or number"),
        ("{owner: ''}", "desired.owner: \"\" is not a user"),
        ("{group: 4294967295}", "desired.group: accepted are the numbers 0 to 4294967294"),
        ("{group: '-1'}", "desired.group: \"-1\" is not a group"),
    ] {
        assert_refused("File", "/a", desired, message);
    }
}

#[test]
fn a_file_has_one_content() {
    for content in [
        "{base64: YQ==}",
        "{base64: ''}",
        "{secretRef: {name: tls.web-1, key: tls.key_a}}",
        &format!("{{uri: https://files.example/a?b=c, sha256: {DIGEST}}}"),
    ] {
        assert_accepted("File", "/a", &format!("{{content: {content}}}"));
    }
    for (content, message) in [
        ("{}", "desired.content: needs one of inline, base64, secretRef and uri"),
        ("{inline: a, base64: YQ==}", "desired.content: has inline, base64; write exactly one of"),
        (r#"{inline: "a\0"}"#, "desired.content.inline: has a NUL character; write base64"),
        ("{base64: YQ}", "desired.content.base64: is not base64 with padding (RFC 4648)"),
        ("{base64: 'Y-_='}", "desired.content.base64: is not base64"),
        ("{inline: a, sha256: b}", "desired.content.sha256: belongs to uri; remove it"),
        ("{uri: 'https://a'}", "desired.content: uri needs the field \"sha256\""),
        (
            "{uri: 'https://a', sha256: abc}",
            "desired.content.sha256: is not a SHA-256; accepted are 64 hexadecimal digits",
        ),
        (
            "{uri: 'http://a', sha256: DIGEST}",
            "desired.content.uri: http sends the content unencrypted",
        ),
        (
            "{uri: 'file:///a', sha256: DIGEST}",
            "desired.content.uri: the scheme \"file\" is not accepted; write https",
        ),
        (
            "{uri: 'https://', sha256: DIGEST}",
            "desired.content.uri: \"https://\" is not a URI: empty host",
        ),
        ("{uri: a, sha256: DIGEST}", "desired.content.uri: \"a\" is not a URI"),
        (
            "{uri: 'https://u:p@a/', sha256: DIGEST}",
            "desired.content.uri: contains a user name or a password",
        ),
        (
            "{secretRef: {name: A, key: a}}",
            "desired.content.secretRef.name: is not the name of a secret",
        ),
        (
            "{secretRef: {name: a-, key: a}}",
            "desired.content.secretRef.name: is not the name of a secret",
        ),
        (
            "{secretRef: {name: a, key: a/b}}",
            "desired.content.secretRef.key: is not a key of a secret",
        ),
        (
            "{secretRef: {name: a, key: a, version: 0}}",
            "desired.content.secretRef.version: accepted are 1 to 9007199254740991",
        ),
    ] {
        let desired = format!("{{content: {}}}", content.replace("DIGEST", DIGEST));
        assert_refused("File", "/a", &desired, message);
    }
}

#[test]
fn a_unit_has_a_name_as_systemd_has_it() {
    for name in [
        "a.service",
        "a-b_c:d.e.socket",
        "getty@.service",
        "getty@tty1.service",
        "a@b@c.service",
        "dev-sda\\x2d1.mount",
        "machine.slice",
        "init.scope",
        &format!("{}.service", "a".repeat(247)),
    ] {
        assert_accepted("Unit", name, "{}");
    }
    for (name, message) in [
        ("nginx", "name: \"nginx\" has no suffix of a unit; accepted are .service, .socket"),
        ("nginx.conf", "name: \"nginx.conf\" has no suffix of a unit"),
        (".service", "name: \".service\" is not the name of a unit"),
        ("@a.service", "name: \"@a.service\" is not the name of a unit"),
        ("a b.service", "name: \"a b.service\" is not the name of a unit"),
        ("../a.service", "name: \"../a.service\" is not the name of a unit"),
        ("ä.service", "name: \"ä.service\" is not the name of a unit"),
        (&format!("{}.service", "a".repeat(248)), "name: is longer than 255 bytes"),
    ] {
        assert_refused("Unit", name, "{}", message);
    }
    let message = "desired.command: a template cannot run; remove the command";
    assert_refused("Unit", "getty@.service", "{command: restart}", message);
    assert_accepted("Unit", "getty@tty1.service", "{command: restart}");
}

#[test]
fn a_unit_has_contents_and_drop_ins_that_are_not_empty() {
    let desired = "{content: \"[Unit]\\n\", dropIns: {10-a.conf: \"[Service]\\n\"}, enable: no}";
    assert_accepted("Unit", "a.service", desired);
    for (desired, message) in [
        ("{content: \"\\n\"}", "desired.content: is empty; write text, or remove the field"),
        ("{content: \"a\\0\"}", "desired.content: has a NUL character; remove it"),
        ("{dropIns: {a.conf: ''}}", "desired.dropIns[\"a.conf\"]: is empty"),
        ("{dropIns: {a: x}}", "desired.dropIns.a: is not the name of a drop-in"),
        ("{dropIns: {.conf: x}}", "desired.dropIns[\".conf\"]: is not the name of a drop-in"),
        ("{dropIns: {.a.conf: x}}", "desired.dropIns[\".a.conf\"]: is not the name of a drop-in"),
        ("{dropIns: {a/b.conf: x}}", "desired.dropIns[\"a/b.conf\"]: is not the name of a drop-in"),
    ] {
        assert_refused("Unit", "a.service", desired, message);
    }
}

#[test]
fn a_package_has_a_name_and_a_version_of_debian() {
    for name in ["jq", "libstdc++6", "0ad", "python3.11", "libc6:amd64", "libc6:kfreebsd-amd64"] {
        assert_accepted("Package", name, "{}");
    }
    for name in
        ["j", "Curl", "-o", "a b", "a/bookworm", "a=1", "a:", "a:-b", "ä2", &"a".repeat(129)]
    {
        assert_refused("Package", name, "{}", "name: ");
    }
    for version in [
        "any",
        "absent",
        "1",
        "1.10",
        "1:2.3-4",
        "7.88.1-10+deb12u5",
        "2.0~rc1-1",
        "1-2-3",
        "0:1:2-3",
    ] {
        assert_accepted("Package", "curl", &format!("{{version: '{version}'}}"));
    }
    for version in
        ["", "newest", "-1", "1-", ":1", "a:1", "v1", "1_2", "1 2", "1:", "1-a_b", "4294967296:1"]
    {
        let message =
            format!("desired.version: {version:?} is not a version; accepted are any, absent");
        assert_refused("Package", "curl", &format!("{{version: '{version}'}}"), &message);
    }
}

#[test]
fn a_source_is_a_stanza_without_keys() {
    let good = "# ours\nTypes: deb\nURIs: https://deb.example\n https://other.example\n\
                Suites: stable\nComponents: main\n";
    let key = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nxjMEU\n-----END PGP PUBLIC KEY BLOCK-----\n";
    let desired =
        |source: &str, key: &str| serde_json::json!({"source": source, "key": key}).to_string();
    assert_accepted("PackageSource", "ours-1.d_x", &desired(good, key));
    for id in ["", ".a", "a/b", "a b", &"a".repeat(65)] {
        assert_refused("PackageSource", id, &desired(good, key), "name: ");
    }
    for (source, message) in [
        (String::new(), "desired.source: has no types; write a stanza with Types"),
        (good.replace("URIs:", "Uri:"), "desired.source: has no uris"),
        (good.replace("stable", ""), "desired.source: has no suites"),
        (
            format!("{good}signed-by: /a\n"),
            "desired.source: has the field Signed-By; write the key in",
        ),
        (format!("{good}Suites: x\n"), "desired.source: has the field suites twice"),
        (format!("{good}\nTypes: deb\n"), "desired.source: has an empty line"),
        ("deb http://deb.example stable main".to_owned(), "desired.source: the line \"deb http"),
        ("# a\n b".to_owned(), "desired.source: begins in the middle of a field"),
        (good.replace("main", "main\0"), "desired.source: has a control character; remove it"),
        (format!("{good}X: {}", "a".repeat(65_536)), "desired.source: is longer than 65536 bytes"),
    ] {
        assert_refused("PackageSource", "ours", &desired(&source, key), message);
    }
    let message = "desired.key: is not an armoured OpenPGP key";
    assert_refused("PackageSource", "ours", &desired(good, "abc"), message);
}

#[test]
fn accounts_have_the_names_of_systems() {
    for component in ["User", "UserGroup"] {
        for name in ["a", "_apt", "Debian-exim", "jane.doe", "pc1$", &"a".repeat(32)] {
            assert_accepted(component, name, "{}");
        }
        for name in ["", "$", "1a", "-a", ".a", "a$b", "a:b", "a/b", "a b", "ä", &"a".repeat(33)] {
            assert_refused(component, name, "{}", "name: ");
        }
    }
}

#[test]
fn an_account_is_present_with_its_fields_or_absent() {
    let user = "{uid: 4294967294, group: adm, groups: [a, b], comment: 'Ä, b', home: /home/a, \
                shell: /bin/sh}";
    assert_accepted("User", "a", user);
    assert_accepted("User", "a", "{absent: true}");
    assert_accepted("UserGroup", "a", "{gid: 0}");
    for (desired, message) in [
        ("{absent: true, uid: 7}", "desired: an absent user has no other field"),
        ("{absent: true, groups: [a]}", "desired: an absent user has no other field"),
        ("{group: 4a}", "desired.group: \"4a\" is not the name of a user or group"),
        ("{groups: [a, a]}", "desired.groups[1]: is in the list twice; remove one"),
        ("{groups: [1000]}", "desired.groups[0]: \"1000\" is not the name of a user or group"),
        ("{comment: 'a:b'}", "desired.comment: has \":\""),
        ("{comment: \"a\\nb\"}", "desired.comment: has \":\", a line break"),
        ("{home: home}", "desired.home: \"home\" is not an absolute path"),
        ("{shell: bash}", "desired.shell: \"bash\" is not an absolute path"),
        ("{home: '/a:b'}", "desired.home: has \":\", which passwd(5) cannot hold"),
    ] {
        assert_refused("User", "a", desired, message);
    }
    let message = "desired: an absent group has no other field; remove gid";
    assert_refused("UserGroup", "a", "{absent: true, gid: 7}", message);
}

#[test]
fn a_kernel_setting_has_one_key_and_one_line() {
    for key in
        ["vm.swappiness", "net.ipv4.conf.all.rp_filter", "net/ipv4/conf/eth0.1/forwarding", "a-b.c"]
    {
        assert_accepted("Sysctl", key, "{value: \"4096\\t87380\"}");
    }
    for key in
        ["", "vm", "vm.", ".vm", "vm..a", "-vm.a", "vm.*", "net/../a", "vm.a b", "vm.ä", "a//b"]
    {
        assert_refused("Sysctl", key, "{value: 1}", "name: is not a key of a kernel setting");
    }
    for value in ["\"1\\n2\"", "\"\\0\"", "\"a\\r\""] {
        let message = "desired.value: has a line break or a control character; write one line";
        assert_refused("Sysctl", "vm.a", &format!("{{value: {value}}}"), message);
    }
}

#[test]
fn an_action_has_a_command_and_a_timeout() {
    assert_accepted("Action", "Restart everything (ü)", "{command: 'true', timeout: 86400}");
    for (desired, message) in [
        ("{command: ' '}", "desired.command: is empty; write a command line"),
        ("{command: \"a\\0\"}", "desired.command: has a NUL character"),
        (
            "{command: a, timeout: 0}",
            "desired.timeout: 0 seconds are not accepted; write 1 to 86400",
        ),
    ] {
        assert_refused("Action", "a", desired, message);
    }
    assert_refused("Action", "", "{command: a}", "name: is empty; write a name");
}
