//! The page docs/reference/problems.md.

use std::path::Path;

use super::Kind;

/// Longest line of the page.
const MAX_LINE_CHARS: usize = 100;

/// The page before the list of the kinds.
const INTRODUCTION: &str = r#"<!-- Generated from the code by `make generate`. Do not edit this page. -->

# Problems

Every error of the REST API has a body of type `application/problem+json`:

```json
{
  "code": "InvalidArgument",
  "message": "filter: at 12: there is no field `nam` of hosts; did you mean `name`?",
  "type": "urn:evenkeel:problem:invalid-argument",
  "title": "The request is not valid",
  "status": 400,
  "detail": "filter: at 12: there is no field `nam` of hosts; did you mean `name`?",
  "instance": "urn:evenkeel:request:019a2b3c-0000-7000-8000-000000000000",
  "field": "filter",
  "parameter": "filter",
  "position": 12,
  "hint": "name"
}
```

`code` and `message` come first, without a space between them: EIM's clients search for them in the
raw text. `code` is the name of a gRPC code. The members up to `instance` are those of RFC 9457.
`instance` names the request, as the log and the header `X-Request-Id` do. Programs should read
`type`, people `message`.

The error names the part of the request that is wrong, if it is known:

- `field`: name of the field of the body, or of the parameter.
- `pointer`: for a field of the body, its position as a JSON pointer (RFC 6901) in the form of a URL
  fragment: `#/packageRules/suites`.
- `parameter`: name of the query parameter, path parameter or header.
- `position`: in a `filter` or `orderBy`, the number of characters before the error.
- `hint`: the value that was probably meant.

`type` is `urn:evenkeel:problem:` followed by one of these names.
"#;

#[test]
#[expect(clippy::disallowed_methods, reason = "a test has no configuration")]
fn the_committed_page_is_current() {
    let sections: String = Kind::ALL.iter().copied().map(section).collect();
    let fresh = format!("{INTRODUCTION}{sections}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/problems.md");
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&path, &fresh).expect("written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        fresh == committed,
        "docs/reference/problems.md is stale: run `make generate` and commit it"
    );
}

fn section(kind: Kind) -> String {
    format!(
        "\n## {}\n\n**{}**: status {}, code `{}`.\n\n{}\n",
        kind.name(),
        kind.title(),
        kind.status().as_u16(),
        kind.code(),
        wrap(kind.description())
    )
}

fn wrap(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a first line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > MAX_LINE_CHARS {
            lines.push(word.to_owned());
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines.join("\n")
}
