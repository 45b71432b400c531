//! Tests that need a machine with root, devices or programs.

use std::io::Write as _;
use std::thread;

/// Prints a line, also if the test passes.
pub fn print_line(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("a line on standard error");
}

/// Prints why a test is skipped, or fails if tests of this kind are required.
#[expect(clippy::disallowed_methods, reason = "the only setting of these tests")]
pub fn skip_test(why: &str) {
    let is_required = std::env::var_os("EVENKEEL_REQUIRE_OS_TESTS").is_some();
    assert!(!is_required, "tests of a real machine are required: {why}");
    let name = thread::current().name().unwrap_or_default().to_owned();
    print_line(&format!("skipped {name}: {why}"));
}
