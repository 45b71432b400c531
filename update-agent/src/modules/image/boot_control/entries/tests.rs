use std::cmp::Ordering::{Equal, Greater, Less};

use proptest::prelude::*;

use super::*;

fn foreign_entry(file: &str, fields: &str) -> LoaderEntry {
    let text = fields.replace(';', "\n");
    LoaderEntry::parse(file, &format!("{text}\nefi /EFI/other/kernel.efi\n")).unwrap()
}

fn own_entry(file: &str, slot: Slot) -> LoaderEntry {
    let sequence = EntryName::parse(file, "conf").unwrap().id;
    let version = sequence.rsplit_once('-').unwrap().1.to_owned();
    let text = format!("sort-key evenkeel\nversion {version}\nefi /{}\n", kernel_path(slot));
    LoaderEntry::parse(file, &text).unwrap()
}

#[test]
fn names_are_parsed_with_their_counters() {
    let counted = |left, done| Some(BootCounter { left, done });
    let cases = [
        ("evenkeel-000002.conf", Some(("evenkeel-000002", None))),
        ("evenkeel-000002+3.conf", Some(("evenkeel-000002", counted(3, 0)))),
        ("evenkeel-000002+1-2.conf", Some(("evenkeel-000002", counted(1, 2)))),
        ("EVENKEEL-000002+0-3.CONF", Some(("EVENKEEL-000002", counted(0, 3)))),
        ("linux+1+2.conf", Some(("linux+1", counted(2, 0)))),
        // An invalid counter is a part of the ID.
        ("x+.conf", Some(("x+", None))),
        ("x+3-.conf", Some(("x+3-", None))),
        ("x+-3.conf", Some(("x+-3", None))),
        ("x+a.conf", Some(("x+a", None))),
        ("x++3.conf", Some(("x+", counted(3, 0)))),
        ("x+99999999999.conf", Some(("x+99999999999", None))),
        // Files that the loader ignores.
        ("evenkeel-000002.conf.new", None),
        ("evenkeel-000002+3.new", None),
        (".hidden.conf", None),
        ("auto-windows.conf", None),
        ("AUTO-x.conf", None),
        ("conf", None),
        ("", None),
    ];
    for (file, expected) in cases {
        let name = EntryName::parse(file, "conf");
        let name = name.as_ref().map(|name| (name.id.as_str(), name.counter));
        assert_eq!(name, expected, "{file}");
    }
}

#[test]
fn own_files_are_recognized_by_their_names() {
    let cases = [
        ("evenkeel-000002.conf", Some((2, false))),
        ("evenkeel-000002+2-1.conf", Some((2, false))),
        ("EVENKEEL-000002+3.CONF.NEW", Some((2, true))),
        ("evenkeel-000002.new", None),
        ("evenkeel-rescue.conf.new", None),
        ("rescue.conf", None),
        ("evenkeel-000002", None),
    ];
    for (file, expected) in cases {
        assert_eq!(super::parse_own_file_name(file), expected, "{file}");
    }
}

#[test]
fn versions_are_compared_as_the_specification_defines() {
    let cases = [
        ("11", "11", Equal),
        ("systemd-123", "systemd-123", Equal),
        ("bar-123", "foo-123", Less),
        ("123a", "123", Greater),
        ("123.a", "123", Greater),
        ("123.a", "123.b", Less),
        ("123a", "123.a", Greater),
        ("11α", "11β", Equal),
        ("B", "a", Less),
        ("", "0", Less),
        ("0.", "0", Greater),
        ("0.0", "0", Greater),
        ("0", "~", Greater),
        ("", "~", Greater),
        ("1_", "1", Equal),
        ("_1", "1", Equal),
        ("1_2", "12", Less),
        ("000002", "2", Equal),
        ("000010", "000009", Greater),
        ("99999999999999999999999999", "100000000000000000000000000", Less),
        ("122.1", "123~rc1-1", Less),
        ("123~rc1-1", "123", Less),
        ("123", "123-a", Less),
        ("123-a", "123-a.1", Less),
        ("123-a.1", "123^post1", Less),
        ("123^post1", "123.a-1", Less),
        ("123.a-1", "123.1-1", Less),
        ("123.1-1", "123a-1", Less),
        ("123a-1", "124-1", Less),
    ];
    for (one, other, expected) in cases {
        assert_eq!(compare_versions(one, other), expected, "{one} and {other}");
        assert_eq!(compare_versions(other, one), expected.reverse(), "{other} and {one}");
    }
}

proptest! {
    #[test]
    fn any_versions_can_be_compared(one in "[0-9a-zA-Z.~^_ é-]{0,12}", other in "[0-9a-zA-Z.~^_ é-]{0,12}") {
        prop_assert_eq!(compare_versions(&one, &other), compare_versions(&other, &one).reverse());
        prop_assert_eq!(compare_versions(&one, &one), Equal);
    }

    #[test]
    fn any_file_can_be_read(file in ".{0,40}", text in ".{0,200}") {
        if let Some(entry) = LoaderEntry::parse(&format!("{file}.conf"), &text) {
            slot_entry(std::slice::from_ref(&entry), Slot::A);
            foreign_entries_before_ours(&[entry]);
        }
    }
}

#[test]
fn the_loader_lists_entries_in_this_order() {
    let expected = [
        foreign_entry("z-first.conf", "sort-key aaa;version 1"),
        foreign_entry("m.conf", "sort-key evenkeel;machine-id 1;version 9"),
        foreign_entry("b.conf", "sort-key evenkeel;machine-id 2;version 000010"),
        foreign_entry("a.conf", "sort-key evenkeel;machine-id 2;version 9"),
        foreign_entry("debian.conf", "sort-key evenkeel2;version 1"),
        foreign_entry("z-2.conf", ""),
        foreign_entry("z-1+3.conf", ""),
        foreign_entry("z-1+2-1.conf", ""),
        foreign_entry("z-1+2-2.conf", ""),
        foreign_entry("spent+0-3.conf", "sort-key aaa;version 1"),
    ];
    let mut listed = expected.to_vec();
    listed.reverse();
    listed.sort_by(compare_entries);
    assert_eq!(listed, expected);
}

#[test]
fn a_slot_is_found_by_the_kernel_that_its_entry_starts() {
    let cases = [
        ("efi /EFI/evenkeel/slot-a.efi", Some(Slot::A)),
        ("efi \t /efi/EVENKEEL/SLOT-B.EFI  ", Some(Slot::B)),
        ("efi \\EFI\\evenkeel\\slot-b.efi", Some(Slot::B)),
        ("linux EFI//evenkeel/slot-a.efi", Some(Slot::A)),
        ("# efi /EFI/evenkeel/slot-a.efi", None),
        ("efi /EFI/evenkeel/slot-c.efi", None),
        ("efi /EFI/evenkeel/slot-a.efi.old", None),
        ("title slot-a.efi", None),
        ("efi", None),
        ("", None),
    ];
    for (text, slot) in cases {
        let entry = LoaderEntry::parse("any.conf", text).unwrap();
        assert_eq!(entry.slot(), slot, "{text}");
    }
}

#[test]
fn the_entries_determine_the_boot_entry_of_a_slot() {
    let plain = || own_entry("evenkeel-000001.conf", Slot::A);
    assert_eq!(slot_entry(&[], Slot::A), BootEntry::Absent);
    assert_eq!(slot_entry(&[plain()], Slot::A), BootEntry::Plain);
    assert_eq!(slot_entry(&[plain()], Slot::B), BootEntry::Absent);
    let on_trial = [plain(), own_entry("EVENKEEL-000002+2-1.CONF", Slot::B)];
    assert_eq!(slot_entry(&on_trial, Slot::B), BootEntry::Counted { left: 2, done: 1 });
}

#[test]
fn of_both_names_of_an_interrupted_rename_the_later_one_is_used() {
    let both = [
        own_entry("evenkeel-000002+2-1.conf", Slot::B),
        own_entry("evenkeel-000002.conf", Slot::B),
    ];
    assert_eq!(slot_entry(&both, Slot::B), BootEntry::Plain);
    let counted = [
        own_entry("evenkeel-000002+3.conf", Slot::B),
        own_entry("evenkeel-000002+2-1.conf", Slot::B),
    ];
    assert_eq!(slot_entry(&counted, Slot::B), BootEntry::Counted { left: 2, done: 1 });
}

#[test]
fn entries_that_the_agent_could_not_have_written_are_invalid() {
    let text = |text: &str| format!("{text}\nefi /EFI/evenkeel/slot-b.efi");
    let good = "sort-key evenkeel\nversion 000002";
    let cases = [
        ("my-own.conf", text(good), "is not named evenkeel-NUMBER.conf"),
        ("evenkeel-two.conf", text(good), "is not named"),
        ("evenkeel-000002+x.conf", text(good), "is not named"),
        ("evenkeel-.conf", text(good), "is not named"),
        ("evenkeel-000002.conf", text("version 000002"), "sorted wrongly"),
        ("evenkeel-000002.conf", text("sort-key evenkeel"), "sorted wrongly"),
        ("evenkeel-000003.conf", text(good), "sorted wrongly"),
        ("evenkeel-000002.conf", text(&format!("{good}\nmachine-id 1")), "sorted wrongly"),
        ("evenkeel-000002+300.conf", text(good), "too large"),
    ];
    for (file, text, why) in cases {
        let listed = [LoaderEntry::parse(file, &text).unwrap()];
        let BootEntry::Invalid(reason) = slot_entry(&listed, Slot::B) else {
            panic!("{file} is not invalid");
        };
        assert!(reason.contains(file) && reason.contains(why), "{reason}");
    }
    let two =
        [own_entry("evenkeel-000001.conf", Slot::A), own_entry("evenkeel-000003+3.conf", Slot::A)];
    let BootEntry::Invalid(reason) = slot_entry(&two, Slot::A) else {
        panic!("two entries are not invalid");
    };
    assert_eq!(
        reason,
        "several boot entries start slot a: evenkeel-000001.conf, evenkeel-000003+3.conf; remove all but one"
    );
}

#[test]
fn only_entries_of_others_that_start_something_are_foreign() {
    let listed = [
        own_entry("evenkeel-000001.conf", Slot::A),
        LoaderEntry::parse("evenkeel-000002+3.conf", "").unwrap(),
        LoaderEntry::parse("empty.conf", "title nothing").unwrap(),
        foreign_entry("rescue.conf", ""),
    ];
    let files: Vec<&str> = foreign_entries(&listed).map(|entry| entry.file.as_str()).collect();
    assert_eq!(files, ["rescue.conf"]);
    assert!(listed[1].is_incomplete() && !listed[2].is_incomplete());
}

#[test]
fn a_foreign_entry_must_not_precede_ours_or_our_next_one() {
    let first = |file: &str, fields: &str, with: &[LoaderEntry]| {
        let mut listed = with.to_vec();
        listed.push(foreign_entry(file, fields));
        !foreign_entries_before_ours(&listed).is_empty()
    };
    let good = [own_entry("evenkeel-000005.conf", Slot::A)];
    assert!(!first("rescue.conf", "", &good), "no sort-key sorts after ours");
    assert!(!first("rescue.conf", "sort-key rescue", &good));
    assert!(first("debian.conf", "sort-key debian", &good));
    assert!(!first("debian+0-3.conf", "sort-key debian", &good), "exhausted");
    assert!(first("x.conf", "sort-key evenkeel;version 7", &good));
    assert!(first("x.conf", "sort-key evenkeel;version 5.1", &good), "before the good one");
    assert!(!first("x.conf", "sort-key evenkeel;version 4", &good));
    // The same without any entry of ours.
    assert!(first("debian.conf", "sort-key debian", &[]));
    assert!(!first("rescue.conf", "sort-key rescue", &[]));
}

#[test]
fn a_written_entry_is_read_back() {
    let image = "1.1".to_owned() + &"é".repeat(200);
    let text = format_entry(Slot::B, ("edge\nsort-key aaa", &image), 7);
    assert_eq!(text.lines().count(), 4, "{text}");
    let file = format!("{}+3.conf", entry_id(7));
    assert_eq!(file, "evenkeel-000007+3.conf");
    let entry = LoaderEntry::parse(&file, &text).unwrap();
    assert_eq!(entry.sequence(), Some(7));
    let listed = [entry];
    assert_eq!(slot_entry(&listed, Slot::B), BootEntry::Counted { left: 3, done: 0 });
    assert_eq!(find_slot_by_id(&listed, "evenkeel-000007.conf"), Some(Slot::B));
    assert_eq!(find_slot_by_id(&listed, "EVENKEEL-000007+2-1.conf"), Some(Slot::B));
    assert_eq!(find_slot_by_id(&listed, "evenkeel-000007"), Some(Slot::B));
    assert_eq!(find_slot_by_id(&listed, "evenkeel-000008.conf"), None);
}
