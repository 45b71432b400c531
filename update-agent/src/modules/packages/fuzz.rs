//! Feeds mutated outputs of apt, dpkg and systemctl to their parsers, for `EVENKEEL_FUZZ_SECONDS` seconds each (default 1).
//!
//! Each input is derived from a seed that a failure prints. `EVENKEEL_FUZZ_SEED=<seed>` starts with it.

mod apt;
mod dpkg;
mod hostile_release;
mod sources;
mod systemctl;

/// Letters with a meaning in most outputs.
const LETTERS: &str = " \n\t\r:=.,/|'\"[]()>-+~_$*0123456789aAzZ\u{0}\u{1b}\u{e9}";

/// Whether a text can be shown in one line of a terminal.
fn is_printable(text: &str) -> bool {
    text.chars().all(|letter| letter == '\t' || !letter.is_control())
}

/// Whether dpkg accepts a text as a name or a version, and no shell or option parser finds a meaning in it.
fn is_plain(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._:~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_letter)
}
