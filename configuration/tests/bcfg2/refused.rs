//! Documents that are refused, and why.

use evenkeel_configuration::{ReadError, bcfg2};

use crate::{read, read_bundle};

/// Compares the errors of a bundle.
#[track_caller]
fn assert_errors(elements: &str, expected: &[&str]) {
    let errors = read_bundle(elements).unwrap_err();
    assert_eq!(errors, expected, "{elements}");
}

const FILE: &str = "type='file' owner='root' group='root' mode='0644'";

#[test]
fn types_of_paths_that_are_left_out_are_named() {
    for kind in ["hardlink", "device", "ignore", "vcs", "augeas"] {
        assert_errors(
            &format!("<Path name='/x' type='{kind}' to='/y' dev_type='fifo'/>"),
            &[&format!(
                "Bundle[b]/Path[/x]/@type: not offered: {kind}; \
                 accepted: file, directory, symlink, permissions, nonexistent"
            )],
        );
    }
    assert_errors(
        "<Path name='/x' type='socket'/>",
        &["Bundle[b]/Path[/x]/@type: \"socket\" is not a type of a path; \
           accepted: file, directory, symlink, permissions, nonexistent"],
    );
}

#[test]
fn required_attributes_of_paths_are_named() {
    assert_errors(
        "<Path/><Path name='/a'/><Path name='/b' type='file'/><Path name='/c' type='symlink'/>\
         <Path name='/d' type='directory' owner='' group='root'/>",
        &[
            "Bundle[b]/Path[1]/@name: the attribute is missing",
            "Bundle[b]/Path[/a]/@type: the attribute is missing",
            "Bundle[b]/Path[/b]/@owner: the attribute is missing",
            "Bundle[b]/Path[/b]/@group: the attribute is missing",
            "Bundle[b]/Path[/b]/@mode: the attribute is missing",
            "Bundle[b]/Path[/b]: the file has no text; write empty=\"true\" for an empty file",
            "Bundle[b]/Path[/c]/@to: the attribute is missing",
            "Bundle[b]/Path[/d]/@owner: the attribute is missing",
            "Bundle[b]/Path[/d]/@mode: the attribute is missing",
        ],
    );
}

#[test]
fn modes_are_octal() {
    for mode in ["0888", "rwx", "77777", "-644", "+644", "0o644", "99999999999"] {
        assert_errors(
            &format!("<Path name='/x' type='permissions' owner='a' group='a' mode='{mode}'/>"),
            &[&format!(
                "Bundle[b]/Path[/x]/@mode: \"{mode}\" is not a mode; \
                 write octal digits, such as 0644"
            )],
        );
    }
}

#[test]
fn contents_that_the_client_would_read_otherwise_are_refused() {
    assert_errors(
        &format!("<Path name='/x' {FILE} empty='true'>a</Path>"),
        &["Bundle[b]/Path[/x]/@empty: the file has a text; remove the text or the attribute"],
    );
    assert_errors(
        &format!("<Path name='/x' {FILE}>a<!-- b -->c</Path>"),
        &["Bundle[b]/Path[/x]: a comment divides the text; remove the comment"],
    );
    assert_errors(
        &format!("<Path name='/x' {FILE} encoding='base64'>YQ</Path>"),
        &["Bundle[b]/Path[/x]: the text is not base64: Invalid padding"],
    );
    assert_errors(
        &format!("<Path name='/x' {FILE} encoding='latin-1'>a</Path>"),
        &["Bundle[b]/Path[/x]/@encoding: \"latin-1\" is not accepted. \
           Accepted: ascii, utf-8, UTF-8, base64."],
    );
}

#[test]
fn properties_of_paths_that_are_left_out_are_named() {
    assert_errors(
        &format!(
            "<Path name='/x' {FILE} recursive='true' important='true' \
             secontext='system_u:object_r:etc_t:s0' mtime='1'>a\
             <ACL type='access' scope='user' user='a' perms='rw'/></Path>"
        ),
        &[
            "Bundle[b]/Path[/x]/@important: not offered: the order of entries is fixed: \
             packages, files, units, users; remove the attribute",
            "Bundle[b]/Path[/x]/@secontext: not offered: contexts of SELinux do not \
             change; accepted: __default__",
            "Bundle[b]/Path[/x]/@recursive: not offered: the owner, group and mode of files \
             below a directory do not change; write an entry for each file",
            "Bundle[b]/Path[/x]/@mtime: not offered: remove the attribute",
            "Bundle[b]/Path[/x]/ACL[1]: not offered: remove the access control list",
        ],
    );
    assert_errors(
        "<Path name='/x' type='symlink' to='/y' mode='0777'/>\
         <Path name='/z' type='directory' owner='a' group='a' mode='755' prune='1'/>",
        &[
            "Bundle[b]/Path[/x]/@mode: not offered: remove the attribute",
            "Bundle[b]/Path[/z]/@prune: \"1\" is not accepted. Accepted: true, false.",
        ],
    );
}

#[test]
fn packages_of_other_systems_are_refused() {
    assert_errors(
        "<Package name='a' type='yum' version='1'><Instance arch='x86_64'/></Package>\
         <Package name='b' type='deb'/><Package name='c' version='any'/>\
         <Package name='d' type='deb' version='absent'/>\
         <Package name='e' type='deb' version='any' simplefile='x.deb'/>",
        &[
            "Bundle[b]/Package[a]/@type: not offered: \"yum\" is another system; \
             accepted: deb",
            "Bundle[b]/Package[a]/Instance[1]: not offered: only packages of type deb are accepted",
            "Bundle[b]/Package[b]/@version: the attribute is missing",
            "Bundle[b]/Package[c]/@type: the attribute is missing",
            "Bundle[b]/Package[d]/@version: \"absent\" is not a version; \
             Bcfg2 cannot require that a package is absent",
            "Bundle[b]/Package[e]/@simplefile: not offered: remove the attribute",
        ],
    );
}

#[test]
fn services_that_the_agent_cannot_manage_are_refused() {
    assert_errors(
        "<Service name='a' type='chkconfig' status='on'/><Service name='b' type='systemd'/>\
         <Service name='c' type='systemd' status='ignore' bootstatus='on'/>\
         <Service name='d' type='systemd' status='on' target='reload' install='false'/>\
         <Service name='e' type='systemd' status='maybe' restart='1' sequence='09'/>",
        &[
            "Bundle[b]/Service[a]/@type: not offered: \"chkconfig\" is another system; \
             accepted: systemd",
            "Bundle[b]/Service[b]/@status: the attribute is missing",
            "Bundle[b]/Service[c]/@status: not offered: the agent starts or stops each unit of the \
             document; accepted: on, off",
            "Bundle[b]/Service[d]/@target: not offered: services are only restarted; \
             accepted: restart",
            "Bundle[b]/Service[d]/@install: not offered: a service is more than restarted; \
             remove the attribute",
            "Bundle[b]/Service[e]/@restart: \"1\" is not accepted. \
             Accepted: true, false, interactive.",
            "Bundle[b]/Service[e]/@status: \"maybe\" is not accepted. Accepted: on, off, ignore.",
        ],
    );
}

#[test]
fn actions_need_their_attributes() {
    assert_errors(
        "<Action name='a'/>\
         <Action name='b' timing='later' when='never' status='check' command='true'/>\
         <Action name='c' timing='post' when='always' status='check' command='echo \"'/>",
        &[
            "Bundle[b]/Action[a]/@timing: the attribute is missing",
            "Bundle[b]/Action[a]/@when: the attribute is missing",
            "Bundle[b]/Action[a]/@status: the attribute is missing",
            "Bundle[b]/Action[a]/@command: the attribute is missing",
            "Bundle[b]/Action[b]/@timing: \"later\" is not accepted. Accepted: pre, post, both.",
            "Bundle[b]/Action[b]/@when: \"never\" is not accepted. Accepted: modified, always.",
            "Bundle[b]/Action[c]/@command: a quote in the command has no end",
        ],
    );
}

#[test]
fn actions_of_an_independent_do_not_depend_on_changes() {
    let reason = "an action without a bundle does not depend on other entries; \
                  accepted: timing=\"post\" with when=\"always\"";
    for (timing, when) in [("post", "modified"), ("pre", "always"), ("both", "always")] {
        let text = format!(
            "<Configuration><Independent><Action name='a' timing='{timing}' when='{when}' \
             status='check' command='true'/></Independent></Configuration>"
        );
        let expected = format!("Independent[1]/Action[a]: not offered: {reason}");
        assert_eq!(read(&text).unwrap_err(), [expected]);
    }
}

#[test]
fn users_with_wrong_numbers_or_groups_are_refused() {
    assert_errors(
        "<POSIXUser name='a' uid='x'/><POSIXUser name='b' uid='-1'/>\
         <POSIXUser name='c'><MemberOf/><MemberOf group='x'>y</MemberOf><Other/></POSIXUser>\
         <POSIXUser name='d'><MemberOf>x</MemberOf><MemberOf group='x'/></POSIXUser>\
         <POSIXGroup name='e' gid='4294967296'/>",
        &[
            "Bundle[b]/POSIXUser[a]/@uid: \"x\" is not a number from 0 to 4294967294",
            "Bundle[b]/POSIXUser[b]/@uid: \"-1\" is not a number from 0 to 4294967294",
            "Bundle[b]/POSIXUser[c]/MemberOf[1]: the group is missing; write group=\"NAME\"",
            "Bundle[b]/POSIXUser[c]/MemberOf[2]: the attribute group and the text are different",
            "Bundle[b]/POSIXUser[c]/Other[3]: not offered: accepted in a bundle are Path, Package, \
             Service, Action, POSIXUser and POSIXGroup",
            "Bundle[b]/POSIXUser[d]/MemberOf[2]: the group x is listed twice",
            "Bundle[b]/POSIXGroup[e]/@gid: \"4294967296\" is not a number from 0 to 4294967294",
        ],
    );
}

#[test]
fn elements_that_are_left_out_are_named() {
    assert_errors(
        "<RequiredBundle name='x'/><SEBoolean name='y' value='on'/><BoundPath name='/z'/>\
         <Group name='g'/><PostInstall name='p'/><py:if test='1'/><ConfigFile name='/f'/>",
        &[
            "Bundle[b]/RequiredBundle[x]: not offered: bundles do not depend on other bundles; \
             move the entries into one bundle",
            "Bundle[b]/SEBoolean[y]: not offered: remove the entry of SELinux",
            "Bundle[b]/BoundPath[/z]: not offered: abstract entries belong to the server of Bcfg2; \
             store its literal document with bcfg2 -c FILE",
            "Bundle[b]/Group[g]: not offered: conditions belong to the server of Bcfg2; \
             store its literal document with bcfg2 -c FILE",
            "Bundle[b]/PostInstall[p]: not offered: use Action",
            "Bundle[b]/py:if[6]: not offered: templates belong to the server of Bcfg2; \
             store its literal document with bcfg2 -c FILE",
            "Bundle[b]/ConfigFile[/f]: not offered: accepted in a bundle are Path, Package, \
             Service, Action, POSIXUser and POSIXGroup",
        ],
    );
}

#[test]
fn entries_that_the_server_could_not_bind_are_errors() {
    assert_errors(
        "<Path name='/x' type='file' failure='bind'/>",
        &["Bundle[b]/Path[/x]: the server of Bcfg2 could not bind the entry: bind"],
    );
}

#[test]
fn errors_of_the_server_are_errors() {
    let message = "error: the server of Bcfg2 reported a metadata error: no profile";
    for text in [
        "<error type='metadata error'>no profile</error>",
        "<Configuration><error type='metadata error'> no profile\n</error></Configuration>",
    ] {
        assert_eq!(read(text).unwrap_err(), [message]);
    }
}

#[test]
fn an_entry_is_listed_once() {
    let text = "<Configuration><Bundle name='a'><Path name='/x' type='nonexistent'/>\
        <Service name='s' type='systemd' status='on'/></Bundle>\
        <Bundle name='a'/><Bundle name='b'><Path name='/x' type='symlink' to='/y'/>\
        <Service name='s.service' type='systemd' status='off'/>\
        <POSIXGroup name='s'/></Bundle></Configuration>";
    assert_eq!(
        read(text).unwrap_err(),
        [
            "Bundle[a]/@name: the bundle \"a\" is also Bundle[a]; merge them or rename one",
            "Bundle[b]/Path[/x]: File \"/x\" is also Bundle[a]/Path[/x]; a document has one entry \
             for it",
            "Bundle[b]/Service[s.service]: Unit \"s.service\" is also Bundle[a]/Service[s]; a \
             document has one entry for it",
        ]
    );
}

#[test]
fn structures_other_than_bundles_are_refused() {
    let cases: &[(&str, &[&str])] = &[
        (
            "<Rules priority='1'/>",
            &["the document is <Rules>; \
               accepted: <Configuration>, as bcfg2 -c FILE stores it"],
        ),
        (
            "<Configuration version='1.0' toolset='debian'>text<Bundle/>\
             <Path name='/x' type='nonexistent'/><Bundle name='b' color='red'>text</Bundle>\
             </Configuration>",
            &[
                "Configuration/@version: \"1.0\" is not accepted; accepted: 2.0",
                "Configuration/@toolset: not offered: remove the attribute",
                "Configuration: text is not accepted outside of files",
                "Bundle[1]/@name: the attribute is missing",
                "Path[/x]: not offered: accepted are Bundle and Independent",
                "Bundle[b]/@color: not offered: remove the attribute",
                "Bundle[b]: text is not accepted in this element",
            ],
        ),
        (
            "<Configuration xmlns='http://example.org/'/>",
            &["Configuration/@xmlns: not offered: remove the attribute"],
        ),
    ];
    for (text, errors) in cases {
        assert_eq!(read(text).unwrap_err(), *errors, "{text}");
    }
}

#[test]
fn the_rules_of_documents_apply_with_the_paths_of_the_elements() {
    assert_errors(
        &format!(
            "<Path name='/etc/../x' {FILE}>x</Path><Path name='y' type='nonexistent'/>\
             <Path name='/z' type='file' owner='a:b' group='Debian-exim' mode='0644'>x</Path>\
             <Path name='/z/below' type='nonexistent'/>\
             <Service name='a' type='systemd' status='on'/>\
             <POSIXUser name='u' home='home' gecos='a:b'><MemberOf group='1'/></POSIXUser>"
        ),
        &[
            "Bundle[b]/Path[/etc/../x]/@name: \"/etc/../x\" contains \"..\"; \
             write the path without it",
            "Bundle[b]/Path[y]/@name: \"y\" is not an absolute path; begin with \"/\"",
            "Bundle[b]/Path[/z]/@owner: \"a:b\" is not a user; write its name or number",
            "Bundle[b]/POSIXUser[u]/MemberOf[1]: \"1\" is not the name of a user or group; \
             accepted are at most 32 letters, digits, \"_\", \"-\" and \".\", with a letter or \
             \"_\" first, and \"$\" as the last character",
            "Bundle[b]/POSIXUser[u]/@gecos: has \":\", a line break or a control character, \
             which passwd(5) cannot hold",
            "Bundle[b]/POSIXUser[u]/@home: \"home\" is not an absolute path; begin with \"/\"",
            "Bundle[b]/Path[/z/below]/@name: is below \"/z\" (Bundle[b]/Path[/z]), an entry of \
             the type file; nothing can be below it",
        ],
    );
}

#[test]
fn a_document_that_is_not_offered_is_not_invalid() {
    let read = |entries: &str| {
        let text = format!("<Configuration><Bundle name='b'>{entries}</Bundle></Configuration>");
        bcfg2::read(&text).unwrap_err()
    };
    let offered_later = "<Path name='/x' type='hardlink' to='/y'/>";
    assert!(matches!(read(offered_later), ReadError::NotOffered(fields) if fields.len() == 1));
    let both = format!("{offered_later}<Path name='/z'/>");
    assert!(matches!(read(&both), ReadError::NotOffered(fields) if fields.len() == 2));
}
