//! SQL conditions on a column.

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::filter::{
    Comparison, FieldCondition, LabelCondition, Pattern, VersionNumbers,
};
use evenkeel_domain::text::storable;
use serde_json::json;
use uuid::Uuid;

use super::sql_builder::SqlBuilder;

/// An SQL condition; null counts as false.
pub struct SqlCondition {
    pub text: String,
    /// Whether it is never null.
    pub is_certain: bool,
}

/// A condition that is never null.
pub fn certain(text: impl Into<String>) -> SqlCondition {
    SqlCondition { text: text.into(), is_certain: true }
}

/// A condition that may be null.
fn nullable(text: String) -> SqlCondition {
    SqlCondition { text, is_certain: false }
}

/// A condition that is always false.
fn never() -> SqlCondition {
    certain("FALSE")
}

/// The bits of a complete id.
pub fn parse_id(prefix: &str, text: &str) -> Option<i32> {
    let digits = text.strip_prefix(prefix)?.strip_prefix('-')?;
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let is_whole = digits.len() == 8 && digits.bytes().all(is_digit);
    let bits = u32::from_str_radix(digits, 16).ok()?;
    is_whole.then_some(bits.cast_signed())
}

/// The bits of the id in a pattern, if the pattern is a complete id.
pub fn id_in_pattern(prefix: &str, pattern: &Pattern) -> Option<i32> {
    match pattern.pieces() {
        [piece] => parse_id(prefix, &piece.to_ascii_lowercase()),
        _ => None,
    }
}

/// Matches one of these ids.
pub fn one_of(builder: &mut SqlBuilder, bits: &str, ids: &[i32]) -> SqlCondition {
    nullable(match ids {
        [one] => format!("{bits} = {}", builder.bind(*one)),
        many => format!("{bits} = ANY ({})", builder.bind(many.to_vec())),
    })
}

/// Matches an id, which is stored as a number and rendered as text.
pub fn id(
    builder: &mut SqlBuilder,
    prefix: &str,
    bits: &str,
    condition: &FieldCondition,
) -> SqlCondition {
    let is = |builder: &mut SqlBuilder, number: i32| one_of(builder, bits, &[number]);
    match condition {
        FieldCondition::Exactly(text) => match parse_id(prefix, text) {
            Some(number) => is(builder, number),
            None => never(),
        },
        FieldCondition::Not(text) => match parse_id(prefix, text) {
            Some(number) => nullable(format!("{bits} <> {}", builder.bind(number))),
            None => certain(format!("{bits} IS NOT NULL")),
        },
        FieldCondition::Contains(pattern) => {
            if let Some(number) = id_in_pattern(prefix, pattern) {
                return is(builder, number);
            }
            let letters = format!("{prefix}-0123456789abcdef");
            if !can_match(pattern, &letters) {
                return never();
            }
            let pattern = builder.bind_pattern(&like_pattern(pattern));
            let id_text = format!("'{prefix}-' || lpad(to_hex({bits}), 8, '0')");
            nullable(format!("({id_text}) ILIKE {pattern}"))
        }
        // The row exists, so it has an id.
        _ => never(),
    }
}

/// Matches a UUID in any case.
pub fn uuid(builder: &mut SqlBuilder, sql: &str, condition: &FieldCondition) -> SqlCondition {
    let parse_uuid = |text: &str| {
        let is_whole = text.len() == 36;
        Uuid::try_parse(text).ok().filter(|_| is_whole)
    };
    match condition {
        FieldCondition::Exactly(text) if text.is_empty() => certain(format!("{sql} IS NULL")),
        FieldCondition::Exactly(text) => match parse_uuid(text) {
            Some(uuid) => nullable(format!("{sql} = {}", builder.bind(uuid))),
            None => never(),
        },
        // Postgres writes a UUID in lower case.
        FieldCondition::Not(other) => {
            let other = FieldCondition::Not(other.to_ascii_lowercase());
            text(builder, &format!("{sql}::text"), &other)
        }
        FieldCondition::Contains(pattern) => {
            if let [piece] = pattern.pieces()
                && let Some(uuid) = parse_uuid(piece)
            {
                return nullable(format!("{sql} = {}", builder.bind(uuid)));
            }
            if can_match(pattern, "-0123456789abcdef") {
                text(builder, &format!("{sql}::text"), condition)
            } else {
                never()
            }
        }
        _ => text(builder, &format!("{sql}::text"), condition),
    }
}

/// Matches a text.
pub fn text(builder: &mut SqlBuilder, sql: &str, condition: &FieldCondition) -> SqlCondition {
    match condition {
        FieldCondition::Unset => certain(format!("coalesce({sql}, '') = ''")),
        FieldCondition::Exactly(text) if text.is_empty() => {
            certain(format!("coalesce({sql}, '') = ''"))
        }
        FieldCondition::Not(text) if text.is_empty() => {
            certain(format!("coalesce({sql}, '') <> ''"))
        }
        FieldCondition::Exactly(text) => nullable(format!("{sql} = {}", builder.bind_text(text))),
        FieldCondition::Not(text) => {
            let other = builder.bind_text(text);
            nullable(format!("({sql} <> '' AND {sql} <> {other})"))
        }
        FieldCondition::Contains(pattern) => {
            let pattern = builder.bind_pattern(&like_pattern(pattern));
            nullable(format!("({sql}) ILIKE {pattern}"))
        }
        _ => never(),
    }
}

/// Matches a text that contains a pattern; `folded` is the column with the lowercase text. `ILIKE`
/// applies `lower` to both sides as well, so the result is the same.
pub fn contains_folded(
    builder: &mut SqlBuilder,
    sql: &str,
    folded: &str,
    pattern: &Pattern,
) -> SqlCondition {
    let pattern = builder.bind_pattern(&like_pattern(pattern));
    let condition = format!("{folded} LIKE lower({pattern})");
    builder.record_folded(&condition, format!("({sql}) ILIKE {pattern}"));
    nullable(condition)
}

/// Matches a version: by size with the numbers at its beginning, otherwise as a text.
pub fn version(builder: &mut SqlBuilder, sql: &str, condition: &FieldCondition) -> SqlCondition {
    let FieldCondition::Version(comparison, numbers) = condition else {
        return text(builder, sql, condition);
    };
    let digits = format!("[0-9]{{1,{}}}", VersionNumbers::MAX_DIGITS);
    let own = format!("substring({sql} FROM '^{digits}(?:[.]{digits})*')");
    let other = builder.bind_text(&numbers.to_string());
    let operator = operator(*comparison);
    nullable(format!(
        "string_to_array({own}, '.')::bigint[] {operator} string_to_array({other}, '.')::bigint[]"
    ))
}

/// Matches an enumeration value.
pub fn enumeration(
    builder: &mut SqlBuilder,
    sql: &str,
    condition: &FieldCondition,
) -> SqlCondition {
    const NONE: &str = "unspecified";
    match condition {
        FieldCondition::Unset | FieldCondition::Is(NONE) => {
            certain(format!("coalesce({sql}, '{NONE}') = '{NONE}'"))
        }
        FieldCondition::IsNot(NONE) => certain(format!("coalesce({sql}, '{NONE}') <> '{NONE}'")),
        FieldCondition::Is(name) => nullable(format!("{sql} = {}", builder.bind(*name))),
        FieldCondition::IsNot(name) => {
            certain(format!("{sql} IS DISTINCT FROM {}", builder.bind(*name)))
        }
        _ => never(),
    }
}

/// Matches a number; a missing number counts as 0.
pub fn number(builder: &mut SqlBuilder, sql: &str, condition: &FieldCondition) -> SqlCondition {
    match condition {
        FieldCondition::Unset => certain(format!("{sql} IS NULL")),
        FieldCondition::Number(comparison, number) => {
            let number = builder.bind(*number);
            certain(format!("coalesce({sql}, 0) {} {number}", operator(*comparison)))
        }
        _ => never(),
    }
}

/// Matches a boolean.
pub fn boolean(sql: &str, condition: &FieldCondition) -> SqlCondition {
    match condition {
        FieldCondition::Unset => certain(format!("{sql} IS NULL")),
        FieldCondition::Bool(true) => certain(format!("({sql}) IS TRUE")),
        FieldCondition::Bool(false) => certain(format!("({sql}) IS NOT TRUE")),
        _ => never(),
    }
}

/// Matches a time. The database stores times more precisely than they are rendered; times with the
/// same rendering count as equal.
pub fn time(
    builder: &mut SqlBuilder,
    sql: &str,
    unit: TimeDelta,
    condition: &FieldCondition,
) -> SqlCondition {
    let (comparison, instant) = match condition {
        FieldCondition::Unset => return certain(format!("{sql} IS NULL")),
        FieldCondition::Time(comparison, time) => (comparison, clamp_to_storable(*time)),
        _ => return never(),
    };
    let first = truncate(instant, unit);
    let end = first + unit;
    let is_shown = first == instant;
    let mut bound = |operator: &str, time: Time| format!("{sql} {operator} {}", builder.bind(time));
    nullable(match comparison {
        Comparison::Equal if is_shown => {
            format!("({} AND {})", bound(">=", first), bound("<", end))
        }
        Comparison::Equal => return never(),
        Comparison::NotEqual if is_shown => {
            format!("({} OR {})", bound("<", first), bound(">=", end))
        }
        Comparison::NotEqual => return certain(format!("{sql} IS NOT NULL")),
        Comparison::Less | Comparison::GreaterOrEqual => {
            let operator = operator(*comparison);
            bound(operator, if is_shown { first } else { end })
        }
        Comparison::LessOrEqual => bound("<", end),
        Comparison::Greater => bound(">=", end),
    })
}

/// Limits a time to years that the database can store. No real time lies outside of them.
fn clamp_to_storable(time: Time) -> Time {
    let year = |year: i64| DateTime::UNIX_EPOCH + TimeDelta::days(year * 365);
    time.clamp(year(-1_000), year(8_000))
}

fn truncate(time: Time, unit: TimeDelta) -> Time {
    let unit = unit.num_milliseconds().max(1);
    let millis = time.timestamp_millis().div_euclid(unit) * unit;
    DateTime::UNIX_EPOCH + TimeDelta::milliseconds(millis)
}

const fn operator(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Equal => "=",
        Comparison::NotEqual => "<>",
        Comparison::Less => "<",
        Comparison::LessOrEqual => "<=",
        Comparison::Greater => ">",
        Comparison::GreaterOrEqual => ">=",
    }
}

/// Matches a label.
pub fn label(
    builder: &mut SqlBuilder,
    labels: &str,
    key: &str,
    condition: &LabelCondition,
) -> SqlCondition {
    let key = storable(key);
    let pair = |value: &str| {
        let value = storable(value);
        json!([{"key": key, "value": value}])
    };
    let mut has = |what: serde_json::Value| format!("{labels} @> {}", builder.bind(what));
    let there = json!([{ "key": key }]);
    certain(match condition {
        LabelCondition::Present => has(there),
        LabelCondition::Is(value) => has(pair(value)),
        LabelCondition::IsNot(value) => {
            format!("({} AND NOT {})", has(there), has(pair(value)))
        }
    })
}

/// A pattern in the syntax of `ILIKE`.
fn like_pattern(pattern: &Pattern) -> String {
    let mut text = String::from("%");
    for piece in pattern.pieces() {
        for letter in piece.chars() {
            if matches!(letter, '%' | '_' | '\\') {
                text.push('\\');
            }
            text.push(letter);
        }
        text.push('%');
    }
    text
}

/// Whether a text made of these letters can match a pattern.
fn can_match(pattern: &Pattern, letters: &str) -> bool {
    let mut characters = pattern.pieces().iter().flat_map(|piece| piece.chars());
    characters.all(|letter| letter.to_lowercase().all(|l| letters.contains(l)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_become_percent_signs_and_percent_signs_are_escaped() {
        let pattern = Pattern::parse(r"a*50%_\\b").expect("a pattern");
        assert_eq!(like_pattern(&pattern), r"%a%50\%\_\\b%");
    }

    #[test]
    fn times_within_the_same_unit_are_equal() {
        let at = |millis: i64| DateTime::UNIX_EPOCH + TimeDelta::milliseconds(millis);
        let second = TimeDelta::seconds(1);
        assert_eq!(truncate(at(1_999), second), at(1_000));
        assert_eq!(truncate(at(-1), second), at(-1_000));
        let sql = |comparison, millis| {
            let mut builder = SqlBuilder::new(Uuid::nil());
            let condition = FieldCondition::Time(comparison, at(millis));
            time(&mut builder, "t", second, &condition).text
        };
        assert_eq!(sql(Comparison::Equal, 1_000), "(t >= $2 AND t < $3)");
        assert_eq!(sql(Comparison::Equal, 1_500), "FALSE");
        assert_eq!(sql(Comparison::NotEqual, 1_000), "(t < $2 OR t >= $3)");
        assert_eq!(sql(Comparison::LessOrEqual, 1_000), "t < $2");
        assert_eq!(sql(Comparison::Greater, 1_000), "t >= $2");
    }
}
