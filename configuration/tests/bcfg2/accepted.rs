//! Elements that have a counterpart, and their entries.

use evenkeel_configuration::validation::validate;
use serde_json::{Value, json};

use crate::{read, read_bundle};

/// Compares the entries of a bundle with their native form.
#[track_caller]
fn assert_entries(elements: &str, expected: Value) {
    let document = read_bundle(elements).unwrap();
    assert_eq!(validate(&document), []);
    let entries = serde_json::to_value(&document.bundles[0].entries).unwrap();
    assert_eq!(entries, expected, "{elements}");
}

/// Compares the state of the only entry.
#[track_caller]
fn assert_state(element: &str, component: &str, name: &str, desired: Value) {
    let entry = json!({"component": component, "name": name, "desired": desired});
    assert_entries(element, json!([entry]));
}

#[test]
fn paths_become_files() {
    let cases = [
        (
            "<Path name='/f' type='file' owner='root' group='adm' mode='0640'> a\n\tb \n</Path>",
            json!({"type": "file", "owner": "root", "group": "adm", "mode": "0640",
                   "content": {"inline": " a\n\tb \n"}}),
        ),
        (
            "<Path name='/f' type='file' owner='0' group='4' mode='644' empty='true'/>",
            json!({"type": "file", "owner": "0", "group": "4", "mode": "0644"}),
        ),
        (
            "<Path name='/f' type='file' owner='root' group='root' mode='4755'
                   encoding='base64'>AAEC\n/w==\n</Path>",
            json!({"type": "file", "owner": "root", "group": "root", "mode": "4755",
                   "content": {"base64": "AAEC/w=="}}),
        ),
        (
            "<Path name='/f' type='file' owner='root' group='root' mode='0600'>&lt;a&gt; &amp; \
             &#233;&#x20AC;<![CDATA[<b> & &amp;]]></Path>",
            json!({"type": "file", "owner": "root", "group": "root", "mode": "0600",
                   "content": {"inline": "<a> & é€<b> & &amp;"}}),
        ),
        (
            "<Path name='/f' type='directory' owner='root' group='root' mode='0755'/>",
            json!({"type": "directory", "owner": "root", "group": "root", "mode": "0755"}),
        ),
        (
            "<Path name='/f' type='directory' owner='root' group='root' mode='755' prune='True'/>",
            json!({"type": "directory", "owner": "root", "group": "root", "mode": "0755",
                   "prune": true}),
        ),
        (
            "<Path name='/f' type='symlink' to='../x'/>",
            json!({"type": "symlink", "target": "../x"}),
        ),
        (
            "<Path name='/f' type='permissions' owner='www' group='www' mode='2750'
                   recursive='false'/>",
            json!({"type": "permissions", "owner": "www", "group": "www", "mode": "2750"}),
        ),
        ("<Path name='/f' type='nonexistent'/>", json!({"type": "absent"})),
        (
            "<Path name='/f' type='nonexistent' recursive='true'/>",
            json!({"type": "absent", "prune": true}),
        ),
    ];
    for (element, desired) in cases {
        assert_state(element, "File", "/f", desired);
    }
}

#[test]
fn attributes_that_the_server_adds_to_every_path_are_accepted() {
    let element = "<Path name='/f' type='file' owner='root' group='root' mode='0644'
        secontext='__default__' important='false' paranoid='true' sensitive='false'
        altsrc='/g' encoding='ascii'>a</Path>";
    let desired = json!({"type": "file", "owner": "root", "group": "root", "mode": "0644",
                         "content": {"inline": "a"}});
    assert_state(element, "File", "/f", desired);
}

#[test]
fn packages_keep_their_version() {
    let cases = [("any", "any"), ("auto", "any"), ("1:2.3-4+deb12u1", "1:2.3-4+deb12u1")];
    for (version, expected) in cases {
        let element = format!(
            "<Package name='ntp' type='deb' version='{version}' origin='Packages' verify='false'/>"
        );
        assert_state(&element, "Package", "ntp", json!({"version": expected}));
    }
}

#[test]
fn services_become_units_with_a_suffix() {
    let cases = [
        ("nginx", "nginx.service"),
        ("nginx.service", "nginx.service"),
        ("apt-daily.timer", "apt-daily.timer"),
        ("org.example", "org.example.service"),
    ];
    for (service, unit) in cases {
        let element = format!("<Service name='{service}' type='systemd' status='on'/>");
        assert_state(&element, "Unit", unit, json!({"enable": true}));
    }
}

#[test]
fn the_status_of_a_service_becomes_enable_and_command() {
    let cases = [
        ("status='on'", json!({"enable": true})),
        ("status='on' restart='true' target='restart' install='true'", json!({"enable": true})),
        ("status='on' restart='false'", json!({"enable": true, "command": "start"})),
        ("status='on' restart='interactive'", json!({"enable": true, "command": "start"})),
        ("status='on' bootstatus='off'", json!({"enable": false, "command": "restart"})),
        (
            "status='on' bootstatus='off' restart='false'",
            json!({"enable": false, "command": "start"}),
        ),
        ("status='off'", json!({"enable": false})),
        ("status='off' bootstatus='on'", json!({"enable": true, "command": "stop"})),
    ];
    for (attributes, desired) in cases {
        let element = format!("<Service name='a' type='systemd' {attributes}/>");
        assert_state(&element, "Unit", "a.service", desired);
    }
}

#[test]
fn a_service_restarts_for_the_files_of_its_bundle() {
    let files =
        "<Path name='/a' type='nonexistent'/><Service name='on' type='systemd' status='on'/>
        <Service name='off' type='systemd' status='off'/>
        <Service name='no' type='systemd' status='on' restart='false'/>
        <Path name='/b' type='symlink' to='/c'/>";
    let text = format!(
        "<Configuration><Bundle name='x'>{files}</Bundle>
         <Bundle name='y'><Path name='/other' type='nonexistent'/></Bundle></Configuration>"
    );
    let document = serde_json::to_value(read(&text).unwrap()).unwrap();
    let desired = |index: usize| &document["bundles"][0]["entries"][index]["desired"];
    assert_eq!(*desired(1), json!({"enable": true, "filePaths": ["/a", "/b"]}));
    assert_eq!(*desired(2), json!({"enable": false}));
    assert_eq!(*desired(3), json!({"enable": true, "command": "start"}));
}

#[test]
fn an_independent_is_a_bundle_whose_services_do_not_restart() {
    let entries = "<Path name='/a' type='nonexistent'/>
        <Service name='on' type='systemd' status='on'/>
        <Action name='x' timing='post' when='always' status='check' command='true'/>";
    for (start, end, name) in [
        ("<Independent>", "</Independent>", "independent"),
        ("<Independent name='i' version='2.0'>", "</Independent>", "i"),
        ("<Bundle name='b' independent='true'>", "</Bundle>", "b"),
    ] {
        let document =
            read(&format!("<Configuration>{start}{entries}{end}</Configuration>")).unwrap();
        assert_eq!(document.bundles[0].name, name);
        let unit = serde_json::to_value(&document.bundles[0].entries[1]).unwrap();
        assert_eq!(unit["desired"], json!({"enable": true}));
    }
    let two = "<Configuration><Independent/><Independent/><Independent name='independent-3'/>\
               <Independent/></Configuration>";
    let document = read(two).unwrap();
    let names: Vec<_> = document.bundles.iter().map(|bundle| bundle.name.as_str()).collect();
    assert_eq!(names, ["independent", "independent-2", "independent-3", "independent-4"]);
}

#[test]
fn actions_run_the_same_words_in_a_shell() {
    let cases = [
        ("shell='true' command='a &amp;&amp; b | c'", "a && b | c"),
        ("command='update-grub'", "update-grub"),
        ("shell='false' build='false' command='echo $HOME'", "echo '$HOME'"),
        ("shell='true' command='a&#10;b'", "a\nb"),
    ];
    for (attributes, command) in cases {
        let element =
            format!("<Action name='x' timing='post' when='modified' status='check' {attributes}/>");
        let desired = json!({"command": command, "timing": "post", "when": "modified",
                             "status": "check", "timeout": 300});
        assert_state(&element, "Action", "x", desired);
    }
    assert_state(
        "<Action name='x' timing='both' when='always' status='ignore' command='true'/>",
        "Action",
        "x",
        json!({"command": "true", "timing": "both", "when": "always", "status": "ignore",
               "timeout": 300}),
    );
}

#[test]
fn users_get_the_values_that_the_client_gives_them() {
    let cases = [
        (
            "<POSIXUser name='a'/>",
            "a",
            json!({"comment": "a", "home": "/home/a", "shell": "/bin/bash"}),
        ),
        (
            "<POSIXUser name='root'/>",
            "root",
            json!({"comment": "root", "home": "/root", "shell": "/bin/bash"}),
        ),
        (
            "<POSIXUser name='a' uid='1001' group='users' gecos='A, b' home='/srv/a'
                shell='/bin/sh'>
               <MemberOf group='adm'/><MemberOf> sudo </MemberOf><MemberOf group='x'>x</MemberOf>
             </POSIXUser>",
            "a",
            json!({"uid": 1001, "group": "users", "comment": "A, b", "home": "/srv/a",
                   "shell": "/bin/sh", "groups": ["adm", "sudo", "x"]}),
        ),
    ];
    for (element, name, desired) in cases {
        assert_state(element, "User", name, desired);
    }
}

#[test]
fn groups_of_users_keep_their_number() {
    assert_state("<POSIXGroup name='g'/>", "UserGroup", "g", json!({}));
    assert_state("<POSIXGroup name='g' gid='0'/>", "UserGroup", "g", json!({"gid": 0}));
}

#[test]
fn a_document_as_lxml_writes_it_is_read() {
    let text = "\u{feff}<?xml version='1.0' encoding='UTF-8'?>\r\n<!-- a comment -->\r\n\
        <Configuration version=\"2.0\" revision=\"-1\">\r\n  <Bundle name=\"motd\" \
        xmlns:py=\"http://genshi.edgewall.org/\" revision=\"7\" xml:base=\"/x\" description=\"d\">\
        <!-- another -->\r\n    <Path name=\"/etc/motd\" type=\"file\" owner=\"root\" \
        group=\"root\" mode=\"0644\">a\r\nb\rc&#13;</Path>\r\n  </Bundle>\r\n</Configuration>\r\n";
    let document = read(text).unwrap();
    assert_eq!(document.bundles.len(), 1);
    let entry = serde_json::to_value(&document.bundles[0].entries[0]).unwrap();
    assert_eq!(entry["desired"]["content"], json!({"inline": "a\nb\nc\r"}));
}

#[test]
fn white_space_of_a_file_is_its_content() {
    for text in [" ", "\n", "\n\n  a\n", "a\t"] {
        let element = format!(
            "<Path name='/f' type='file' owner='root' group='root' mode='0644'>{text}</Path>"
        );
        let document = read_bundle(&element).unwrap();
        let entry = serde_json::to_value(&document.bundles[0].entries[0]).unwrap();
        assert_eq!(entry["desired"]["content"], json!({"inline": text}));
    }
}

#[test]
fn a_configuration_without_bundles_is_empty() {
    assert_eq!(read("<Configuration/>").unwrap().bundles, []);
}
