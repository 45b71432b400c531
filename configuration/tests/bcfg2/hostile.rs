//! Documents that attack the reader.

use std::fmt::Write as _;

use proptest::prelude::*;

use crate::read;

/// The only error.
#[track_caller]
fn error(text: &str) -> String {
    let errors = read(text).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.into_iter().next().unwrap()
}

#[test]
fn document_types_are_refused_before_any_entity_is_read() {
    let mut laughs = "<!DOCTYPE l [<!ENTITY a0 'ha'>".to_owned();
    for level in 1..40 {
        let before = level - 1;
        write!(laughs, "<!ENTITY a{level} '&a{before};&a{before};'>").unwrap();
    }
    laughs.push_str("]><Configuration><Bundle name='&a39;'>&a39;</Bundle></Configuration>");
    assert_eq!(error(&laughs), "line 1: a document type (<!DOCTYPE>) is refused");

    let external = "<?xml version='1.0'?>\n<!DOCTYPE c [<!ENTITY x SYSTEM 'file:///etc/shadow'>]>\n\
                    <Configuration>&x;</Configuration>";
    assert_eq!(error(external), "line 2: a document type (<!DOCTYPE>) is refused");

    let parameter = "<!DOCTYPE c SYSTEM 'http://example.org/c.dtd'><Configuration/>";
    assert_eq!(error(parameter), "line 1: a document type (<!DOCTYPE>) is refused");
}

#[test]
fn entities_are_refused_in_text_and_attributes() {
    assert_eq!(
        error("<Configuration>\n&x;</Configuration>"),
        "line 2: the entity &x; is refused; accepted: amp, apos, gt, lt, quot"
    );
    let message = error("<Configuration><Bundle name='&nbsp;'/></Configuration>");
    assert!(message.starts_with("line 1: <Bundle>: attribute name: "), "{message}");
    assert!(message.contains("nbsp"), "{message}");
}

#[test]
fn processing_instructions_are_refused() {
    let text = "<Configuration><?php echo 1 ?></Configuration>";
    assert_eq!(error(text), "line 1: a processing instruction (<?…?>) is refused");
}

#[test]
fn other_declarations_are_refused() {
    let cases = [
        ("<?xml version='1.1'?><a/>", "line 1: XML 1.1 is refused; accepted: 1.0"),
        (
            "<?xml version='1.0' encoding='ISO-8859-1'?><a/>",
            "line 1: the encoding ISO-8859-1 is refused; convert the document to UTF-8",
        ),
        ("<a>\n<?xml version='1.0'?></a>", "line 2: an XML declaration is not at the start"),
    ];
    for (text, message) in cases {
        assert_eq!(error(text), message);
    }
}

#[test]
fn characters_that_xml_does_not_allow_are_refused() {
    let cases = [
        ("<a>\n\u{0}</a>", "line 2: a control character, which XML does not allow"),
        ("<a b='\u{1b}'/>", "line 1: a control character, which XML does not allow"),
        ("<a>&#1;</a>", "line 1: &#1; is a character that XML does not allow"),
        ("<a b='&#27;'/>", "line 1: <a>: attribute b: XML does not allow the character '\\u{1b}'"),
    ];
    for (text, message) in cases {
        assert_eq!(error(text), message);
    }
    let control = "<Configuration><Bundle name='a&#10;b'/></Configuration>";
    assert_eq!(
        error(control),
        "Bundle[a b]/@name: has a control character, or a space at its start or end; remove it"
    );
}

#[test]
fn depth_is_bounded() {
    let deep = format!("{}{}", "<a>".repeat(10_000), "</a>".repeat(10_000));
    assert_eq!(error(&deep), "line 1: elements are nested deeper than 16 levels");
}

#[test]
fn size_is_bounded() {
    let text = " ".repeat(20 * 1024 * 1024);
    let large = format!("<Configuration>{text}</Configuration>");
    assert_eq!(error(&large), "the document has 20971551 bytes; at most 16777216 are accepted");
}

#[test]
fn the_number_of_elements_and_attributes_is_bounded() {
    let many = format!("<Configuration>{}</Configuration>", "<a/>".repeat(200_000));
    assert_eq!(error(&many), "line 1: the document has more than 100000 elements");

    let package = "<Package name='aa' type='deb' version='any'/>";
    let many = format!("<Bundle name='b'>{}</Bundle>", package.repeat(90_000));
    let errors = read(&format!("<Configuration>{many}</Configuration>")).unwrap_err();
    assert_eq!(errors[0], "Configuration: 90000 entries are too many; at most 20000 are accepted");

    let attributes: String = (0..100_000).fold(String::new(), |mut all, number| {
        write!(all, " a{number}=''").unwrap();
        all
    });
    assert_eq!(
        error(&format!("<Configuration{attributes}/>")),
        "line 1: <Configuration>: more than 64 attributes"
    );

    let long = format!("<Configuration revision='{}'/>", "a".repeat(70_000));
    assert_eq!(
        error(&long),
        "line 1: <Configuration>: attribute revision is longer than 65536 bytes"
    );
}

#[test]
fn lists_of_files_that_restart_services_are_bounded() {
    let mut text = "<Configuration><Bundle name='b'>".to_owned();
    for number in 0..1_000 {
        write!(text, "<Path name='/{number}' type='nonexistent'/>").unwrap();
        write!(text, "<Service name='{number}' type='systemd' status='on'/>").unwrap();
    }
    text.push_str("</Bundle></Configuration>");
    assert_eq!(
        error(&text),
        "Bundle[b]: the bundles have too many pairs of a service and a file; \
         divide the bundle, or write restart=\"false\""
    );
}

#[test]
fn messages_are_bounded() {
    let name = "n".repeat(10_000);
    let path = format!("<Path name='{name}' type='{name}'/>");
    let text = format!(
        "<Configuration><Bundle name='{name}'>{}</Bundle></Configuration>",
        path.repeat(200)
    );
    let errors = read(&text).unwrap_err();
    assert_eq!(errors.len(), 101);
    assert!(errors.iter().all(|message| message.len() < 2_000));
    assert_eq!(errors[100], "100 further errors are not listed");
}

#[test]
fn text_that_is_not_xml_is_refused() {
    for text in [
        "",
        " ",
        "Configuration",
        "<Configuration>",
        "<Configuration></Bundle>",
        "<Configuration/><Configuration/>",
        "<Configuration/>text",
        "<Configuration a=b/>",
        "<Configuration a='1' a='2'/>",
        "<Configuration revision='<'/>",
        "<Configuration><Bundle name='b'>]]></Bundle></Configuration>",
        "<Configuration>&</Configuration>",
        "<Configuration><!-- -- --></Configuration>",
        "<Configuration><![CDATA[</Configuration>",
        "<![CDATA[a]]><Configuration/>",
    ] {
        let message = error(text);
        assert!(message.starts_with("line 1: "), "{text}: {message}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_fail(text in any::<String>()) {
        let _ = read(&text);
    }

    #[test]
    fn no_text_made_of_parts_of_documents_makes_the_reader_fail(
        parts in prop::collection::vec(prop::sample::select(PARTS), 0..40),
    ) {
        let text: String = parts.concat();
        let _ = read(&text);
        let _ = read(&format!("<Configuration><Bundle name='b'>{text}</Bundle></Configuration>"));
    }
}

const PARTS: &[&str] = &[
    "<Configuration>",
    "</Configuration>",
    "<Bundle name='b'>",
    "</Bundle>",
    "<Path name='/a' type='file' owner='a' group='a' mode='1'>",
    "</Path>",
    "<Service name='.service' type='systemd' status='on'/>",
    "<Action name='a' timing='pre' when='always' status='check' command='\"'/>",
    "<POSIXUser name='a'>",
    "</POSIXUser>",
    "<MemberOf>",
    "</MemberOf>",
    "<![CDATA[",
    "]]>",
    "<!--",
    "-->",
    "&amp;",
    "&#x10FFFF;",
    "&#",
    "<?xml version='1.0'?>",
    "<!DOCTYPE a [",
    "\u{feff}",
    "\r",
    "é",
];
