use crate::check::test_machine::MachineFixture;
use crate::finding::Difference;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
                      broken line\n\
                      app:x:990:990:App,,,:/srv/app:\n\
                      ann:x:1000:100::/home/ann:/bin/bash\n\
                      lost:x:991:4242::/:/bin/sh\n";

const GROUP: &str = "root:x:0:\n\
                     app:x:990:\n\
                     :x:1:\n\
                     users:x:100:\n\
                     adm:x:4:syslog,ann,app\n\
                     docker:x:995:app\n\
                     lost:x:991:\n";

fn machine() -> MachineFixture {
    let fixture = MachineFixture::offline();
    fixture.write("/etc/passwd", PASSWD);
    fixture.write("/etc/group", GROUP);
    fixture
}

#[test]
fn only_the_fields_of_a_user_entry_are_compared() {
    let cases = [
        ("app", "{}", "good"),
        ("app", "{uid: 990, comment: App, home: /srv/app, shell: /bin/sh}", "good"),
        ("app", "{uid: 7}", r#"the user has the number 990 {"uid":990}"#),
        ("app", "{comment: Other}", r#"the comment differs {"comment":"App,,,"}"#),
        ("app", "{home: /home/app}", r#"the home directory is /srv/app {"home":"/srv/app"}"#),
        ("app", "{shell: /bin/bash}", r#"the shell is /bin/sh {"shell":"/bin/sh"}"#),
        ("app", "{absent: true}", r#"the user exists {"absent":false}"#),
        ("none", "{uid: 7}", r#"the user does not exist {"absent":true}"#),
        ("none", "{absent: true}", "good"),
    ];
    for (name, desired, expected) in cases {
        assert_eq!(machine().describe_entry(("User", name, desired)), expected, "{desired}");
    }
}

#[test]
fn the_primary_group_is_compared_if_the_entry_has_it() {
    let cases = [
        ("ann", "{}", "good"),
        ("ann", "{group: users}", "good"),
        ("ann", "{group: ann}", r#"the primary group is users instead of ann {"group":"users"}"#),
        ("app", "{group: none}", r#"the primary group is app instead of none {"group":"app"}"#),
        ("lost", "{group: lost}", r#"the primary group is 4242 instead of lost {"group":"4242"}"#),
    ];
    for (name, desired, expected) in cases {
        assert_eq!(machine().describe_entry(("User", name, desired)), expected, "{desired}");
    }
}

#[test]
fn a_user_is_a_member_of_exactly_the_groups_of_the_entry() {
    let current = r#"{"groups":["adm","docker"]}"#;
    let cases = [
        ("{groups: []}", "good".to_owned()),
        ("{groups: [docker, adm]}", "good".to_owned()),
        ("{groups: [docker, adm, app]}", "good".to_owned()),
        (
            "{groups: [users, docker, none, adm]}",
            format!("the user is not a member of the groups users, none {current}"),
        ),
        ("{groups: [docker]}", format!("the user is a member of the group adm {current}")),
        (
            "{groups: [root]}",
            format!(
                "the user is not a member of the group root; the user is a member of the groups \
                 adm, docker {current}"
            ),
        ),
    ];
    for (desired, expected) in cases {
        assert_eq!(machine().describe_entry(("User", "app", desired)), expected, "{desired}");
    }
}

#[test]
fn groups_are_compared_by_their_number() {
    let cases = [
        ("adm", "{}", "good"),
        ("adm", "{gid: 4}", "good"),
        ("adm", "{gid: 5}", r#"the group has the number 4 {"gid":4}"#),
        ("adm", "{absent: true}", r#"the group exists {"absent":false}"#),
        ("none", "{}", r#"the group does not exist {"absent":true}"#),
        ("none", "{absent: true}", "good"),
    ];
    for (name, desired, expected) in cases {
        assert_eq!(machine().describe_entry(("UserGroup", name, desired)), expected, "{desired}");
    }
}

#[test]
fn a_file_that_cannot_be_read_makes_accounts_bad() {
    let fixture = MachineFixture::offline();
    fixture.write("/etc/passwd", PASSWD);
    let check = fixture.check_entry(("User", "app", "{uid: 7}"));
    let reason = &check.report.reason;
    assert!(reason.starts_with("the user has the number 990; cannot read /etc/group: "));
    assert_eq!(check.differences, [Difference::Attributes]);
    let check = fixture.check_entry(("UserGroup", "app", "{absent: true}"));
    assert!(check.report.reason.starts_with("cannot read /etc/group: "));
    assert!(check.differences.is_empty());
}
