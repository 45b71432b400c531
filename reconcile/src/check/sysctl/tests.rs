use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::check::test_machine::MachineFixture;

const KEY: &str = "net.ipv4.tcp_rmem";

fn machine() -> MachineFixture {
    let fixture = MachineFixture::offline();
    fixture.write("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
    fixture.write("/proc/sys/net/ipv4/conf/eth0.1/forwarding", "1\n");
    fixture
}

fn describe(fixture: &MachineFixture, key: &str, value: &str) -> String {
    fixture.describe_entry(("Sysctl", key, &format!("{{value: \"{value}\"}}")))
}

#[test]
fn the_file_and_the_kernel_have_the_value() {
    let fixture = machine();
    let value = "4096 131072  6291456";
    let no_line = format!("{SYSCTL_FILE} does not have the setting {{}}");
    assert_eq!(describe(&fixture, KEY, value), no_line);
    fixture.write(SYSCTL_FILE, "net.ipv4.tcp_rmem = 1 2 3\n");
    let other_line = format!("{SYSCTL_FILE} has the value 1 2 3 {{}}");
    assert_eq!(describe(&fixture, KEY, value), other_line);
    let other_kernel = "the kernel has the value 4096\t131072\t6291456 \
                        {\"value\":\"4096\\t131072\\t6291456\"}";
    assert_eq!(describe(&fixture, KEY, "1 2 3"), other_kernel);
    fixture.write(SYSCTL_FILE, "# x\n; y\nnone\n-net/ipv4/tcp_rmem=4096 131072 6291456\n");
    assert_eq!(describe(&fixture, KEY, value), "good");
}

#[test]
fn a_name_in_a_key_may_have_dots() {
    let fixture = machine();
    fixture.write(SYSCTL_FILE, "net/ipv4/conf/eth0.1/forwarding = 1\n");
    assert_eq!(describe(&fixture, "net/ipv4/conf/eth0.1/forwarding", "1"), "good");
}

#[test]
fn a_setting_that_the_kernel_does_not_have_is_bad() {
    let fixture = machine();
    fixture.write(SYSCTL_FILE, "vm.none = 1\n");
    let check = fixture.check_entry(("Sysctl", "vm.none", "{value: \"1\"}"));
    assert_eq!(check.report.reason, "the running kernel does not have this setting");
    assert!(check.differences.is_empty(), "nothing can be corrected");
}

#[test]
fn only_the_file_of_an_image_is_compared() {
    let fixture = MachineFixture::offline();
    let no_line = format!("{SYSCTL_FILE} does not have the setting {{\"value\":null}}");
    assert_eq!(describe(&fixture, KEY, "1"), no_line);
    fixture.write(SYSCTL_FILE, "net.ipv4.tcp_rmem = 2\n");
    let other_line = format!("{SYSCTL_FILE} has the value 2 {{\"value\":\"2\"}}");
    assert_eq!(describe(&fixture, KEY, "1"), other_line);
    assert_eq!(describe(&fixture, KEY, "2"), "good");
}

#[test]
fn the_first_separator_of_a_key_is_its_separator() {
    let cases = [
        ("vm.swappiness", Some("vm/swappiness")),
        ("net.ipv4.conf.eth0/1.forwarding", Some("net/ipv4/conf/eth0.1/forwarding")),
        ("net/ipv4/conf/eth0.1/forwarding", Some("net/ipv4/conf/eth0.1/forwarding")),
        ("swappiness", None),
        ("", None),
        ("vm..swappiness", None),
        ("/etc/passwd", None),
        ("vm/../../etc/passwd", None),
        ("vm.", None),
    ];
    for (key, path) in cases {
        assert_eq!(sysctl_path(key).as_deref(), path, "{key}");
    }
}

proptest! {
    #[test]
    fn a_path_stays_below_its_folder(key in "([a.]|/|\\.\\.){0,12}") {
        if let Some(path) = sysctl_path(&key) {
            prop_assert!(path.split('/').all(|name| !matches!(name, "" | "." | "..")), "{}", path);
        }
    }

    #[test]
    fn any_file_is_parsed_without_a_panic(content in vec(any::<u8>(), 0..200)) {
        parse_settings(LineReader::new(&content[..]), &[KEY]).unwrap();
    }

    #[test]
    fn settings_are_parsed_as_they_are_written(value in "[!-~]( ?[!-~]){0,20}") {
        let content = format!("a.b=1\n{KEY} = {value}\n");
        let values = parse_settings(LineReader::new(content.as_bytes()), &[KEY]).unwrap();
        prop_assert_eq!(values.get("net/ipv4/tcp_rmem"), Some(&value));
        prop_assert_eq!(values.len(), 1);
    }
}
