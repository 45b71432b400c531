//! Names of the types of settings, for people who write configuration files.

/// Describes what a setting expects, from the words of a deserializer: `usize` is a whole number. Other words are
/// returned unchanged.
///
/// ```
/// use evenkeel_kit::describe_setting_type;
///
/// assert_eq!(describe_setting_type("u8"), "a whole number from 0 to 255");
/// assert_eq!(describe_setting_type("a string"), "a string");
/// ```
#[must_use]
pub fn describe_setting_type(expected: &str) -> &str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" | "u64" | "usize" => "a whole number, 0 or greater",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a duration" => r#"a duration such as "10s""#,
        "a sequence" => "a list",
        "a map" => "a section",
        other if other.starts_with("struct ") => "a section",
        other => other,
    }
}
