//! Package sources of policies: one DEB822 stanza each (deb822(5), sources.list(5)). The server and the agent use the
//! same rules, so no node refuses a source that the server has accepted.

use crate::key_block;

/// Maximum length of a source in bytes.
pub const MAX_SOURCE_BYTES: usize = 64 << 10;

/// Allowed fields of a source. The others disable checks of apt, or have no meaning for updates.
const FIELDS: [&str; 9] = [
    "Types",
    "URIs",
    "Suites",
    "Components",
    "Architectures",
    "Signed-By",
    "Enabled",
    "Languages",
    "Targets",
];

/// Fields that a source must have.
const REQUIRED_FIELDS: [&str; 4] = ["Types", "URIs", "Suites", "Signed-By"];

/// Allowed URI schemes.
const SCHEMES: [&str; 3] = ["https://", "http://", "file:/"];

/// Checks a source: one stanza that disables no check of apt. Lines that begin with `#` are comments. Empty lines may
/// precede and follow the stanza.
///
/// # Errors
/// Says what is wrong, for users.
pub fn check(source: &str) -> Result<(), String> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(format!("longer than {MAX_SOURCE_BYTES} bytes"));
    }
    if source.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
        return Err("control characters are not allowed".to_owned());
    }
    let mut stanza = Stanza::default();
    for line in stanza_lines(source) {
        stanza.add_line(line)?;
    }
    stanza.check_complete()
}

/// The source without comments and empty lines, as apt reads it.
#[must_use]
pub fn without_comments(source: &str) -> String {
    stanza_lines(source).collect::<Vec<_>>().join("\n")
}

/// The lines of the stanza, without comments and without the empty lines around it.
fn stanza_lines(source: &str) -> impl Iterator<Item = &str> {
    let is_comment = |line: &&str| line.starts_with('#');
    let lines: Vec<&str> = source.split('\n').filter(|line| !is_comment(line)).collect();
    let is_empty = |line: &&str| line.trim().is_empty();
    let first = lines.iter().position(|line| !is_empty(line)).unwrap_or(lines.len());
    let end = lines.iter().rposition(|line| !is_empty(line)).map_or(first, |last| last + 1);
    lines.into_iter().take(end).skip(first)
}

/// The fields that were read, with the values of those that are checked.
#[derive(Debug, Default)]
struct Stanza<'a> {
    fields: Vec<&'static str>,
    suites: Vec<&'a str>,
    components: usize,
    signed_by: Vec<&'a str>,
}

impl<'a> Stanza<'a> {
    fn add_line(&mut self, line: &'a str) -> Result<(), String> {
        if line.trim().is_empty() {
            return Err("it has an empty line; write each stanza as a source of its own".to_owned());
        }
        let value = if line.starts_with([' ', '\t']) { line } else { self.begin_field(line)? };
        let field = *self.fields.last().ok_or("it begins in the middle of a field")?;
        let mut values = value.split_whitespace();
        match field {
            "Types" if values.any(|item| item != "deb") => {
                return Err("only the type deb is allowed".to_owned());
            }
            "URIs" if values.any(|item| !SCHEMES.iter().any(|scheme| item.starts_with(scheme))) => {
                return Err("its URIs must begin with https://, http:// or file:/".to_owned());
            }
            "Suites" => self.suites.extend(values),
            "Components" => self.components += values.count(),
            "Signed-By" => self.signed_by.push(value),
            _ => {}
        }
        Ok(())
    }

    /// Reads the name of a field and returns the rest of the line.
    fn begin_field(&mut self, line: &'a str) -> Result<&'a str, String> {
        let (name, value) =
            line.split_once(':').ok_or_else(|| format!("the line {line:?} is not a field"))?;
        let field = FIELDS.into_iter().find(|allowed| allowed.eq_ignore_ascii_case(name));
        let field = field.ok_or_else(|| format!("the field {name:?} is not allowed"))?;
        if self.fields.contains(&field) {
            return Err(format!("the field {field} occurs twice"));
        }
        self.fields.push(field);
        Ok(value)
    }

    fn check_complete(&self) -> Result<(), String> {
        if let Some(field) = REQUIRED_FIELDS.iter().find(|field| !self.fields.contains(field)) {
            return Err(format!("the field {field} is missing"));
        }
        if self.suites.is_empty() {
            return Err("it has no suite".to_owned());
        }
        // sources.list(5): a suite that ends with a slash is a path and has no components.
        if self.components == 0 && self.suites.iter().any(|suite| !suite.ends_with('/')) {
            return Err("the field Components is missing".to_owned());
        }
        self.check_keys()
    }

    /// Checks the keys that sign the source: key blocks, or paths and fingerprints.
    fn check_keys(&self) -> Result<(), String> {
        if self.signed_by.iter().any(|line| line.contains("-----BEGIN")) {
            return key_block::check_armored(&self.signed_by.join("\n"))
                .map_err(|why| format!("the key in Signed-By cannot be read: {why}"));
        }
        let names_key = |line: &&str| line.split([' ', '\t', ',']).any(|name| !name.is_empty());
        if self.signed_by.iter().any(names_key) {
            Ok(())
        } else {
            Err("Signed-By does not name the key".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of RFC 9580, A.1.
    const GOOD: &str = "Types: deb
URIs: https://deb.example/debian
Suites: stable
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 Comment: # not a comment
 .
 xjMEU/NfCxYJKwYBBAHaRw8BAQdAPwmJlL3ZFu1AUxl5NOSofIBzOhKA1i+AEJku
 Q+47JAY=
 -----END PGP PUBLIC KEY BLOCK-----
";

    /// The fields before the keys.
    fn signed_by(keys: &str) -> String {
        let (fields, _) = GOOD.split_once("Signed-By:").expect("keys");
        format!("{fields}Signed-By:{keys}\n")
    }

    #[test]
    fn a_complete_stanza_is_accepted() {
        for source in [
            GOOD.to_owned(),
            GOOD.replace("Types", "types")
                .replace("URIs", "uris")
                .replace("Signed-By", "signed-by"),
            signed_by(" /etc/apt/keyrings/own.asc"),
            signed_by(" C959BDBAFA32A2F89A153B678CFDE12197965A9A, /etc/apt/keyrings/own.gpg"),
            signed_by("\n C959BDBAFA32A2F89A153B678CFDE12197965A9A!"),
            format!("# our repository\n{GOOD}"),
            format!("\n# See the wiki.\n#\n\n{GOOD}\n\n"),
            GOOD.replace("Components: main", "#Components: contrib\nComponents: main"),
            GOOD.replace("Suites: stable\nComponents: main", "Suites: ./"),
            GOOD.replace("URIs: ", "URIs:\n file:/srv/repo\n "),
        ] {
            assert_eq!(check(&source), Ok(()), "{source}");
        }
    }

    #[test]
    fn a_source_must_be_signed_and_disables_no_check() {
        for (source, why) in [
            (String::new(), "the field Types is missing"),
            ("# nothing\n".to_owned(), "the field Types is missing"),
            ("deb http://deb.example stable main".to_owned(), "is not allowed"),
            (
                "Types: deb\nURIs: https://deb.example\nSuites: x/\n".to_owned(),
                "Signed-By is missing",
            ),
            (GOOD.replace("Components: main", "Trusted: yes"), "the field \"Trusted\""),
            (GOOD.replace("Components: main", "Allow-Insecure: yes"), "is not allowed"),
            (GOOD.replace("Components: main", "Suites: other"), "occurs twice"),
            (GOOD.replace("Components: main\n", ""), "the field Components is missing"),
            (GOOD.replace("Suites: stable", "Suites:"), "it has no suite"),
            (GOOD.replace("https:", "ssh:"), "must begin with https://"),
            (GOOD.replace("Types: deb", "Types: deb-src"), "only the type deb"),
            (GOOD.replace("Components: main\n", "\nTypes: deb\n"), "it has an empty line"),
            (GOOD.replace("main", "main\u{0}"), "control characters"),
            (GOOD.replace("Components: main", "no field"), "is not a field"),
            (signed_by(" ,\n ,"), "Signed-By does not name the key"),
            (signed_by("\n -----BEGIN\n .\n x"), "there is no public key block"),
            (GOOD.replace(" -----END", " ----END"), "a key block has no end"),
            (GOOD.replace("xjME", "xjM!"), "Invalid symbol 33"),
            (GOOD.replace("xjMEU/", "AjMEU/"), "it is not an OpenPGP key"),
            (GOOD.replace("xjMEU/", "xjMDU/"), "a key has the unsupported version 3"),
            (GOOD.replace("xjMEU/", "xTMEU/"), "it contains a private key"),
            (format!(" continued\n{GOOD}"), "it begins in the middle of a field"),
            (format!("{GOOD}{}", "#".repeat(MAX_SOURCE_BYTES)), "longer than 65536 bytes"),
        ] {
            let error = check(&source).expect_err(&source);
            assert!(error.contains(why), "{source}: {error}");
        }
    }

    #[test]
    fn apt_reads_a_source_without_its_comments() {
        let commented = format!("# ours\n\n{}", GOOD.replace("Suites", "#x\nSuites"));
        assert_eq!(without_comments(&commented), GOOD.trim_end());
        assert_eq!(without_comments("# nothing"), "");
    }
}
