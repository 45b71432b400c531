//! What is wanted of a field, as a condition in SQL on its column.

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::filter::{Comparison, Condition, LabelCondition, Pattern};
use evenkeel_domain::text::storable;
use serde_json::json;
use uuid::Uuid;

use super::draft::Draft;

/// A condition that holds or not; where it is null it does not.
pub struct Holds {
    /// The condition.
    pub text: String,
    /// Whether it is true or false, and never null.
    pub is_certain: bool,
}

/// One that is never null.
pub fn certain(text: impl Into<String>) -> Holds {
    Holds {
        text: text.into(),
        is_certain: true,
    }
}

/// One that may be null.
fn perhaps_null(text: String) -> Holds {
    Holds {
        text,
        is_certain: false,
    }
}

/// One that never holds.
fn never() -> Holds {
    certain("FALSE")
}

/// The bits of a whole id.
pub fn whole(prefix: &str, text: &str) -> Option<i32> {
    let digits = text.strip_prefix(prefix)?.strip_prefix('-')?;
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let is_whole = digits.len() == 8 && digits.bytes().all(is_digit);
    let bits = u32::from_str_radix(digits, 16).ok()?;
    is_whole.then_some(bits.cast_signed())
}

/// The bits of the id that a pattern wants, if that is a whole one.
pub fn whole_pattern(prefix: &str, pattern: &Pattern) -> Option<i32> {
    match pattern.pieces() {
        [piece] => whole(prefix, &piece.to_ascii_lowercase()),
        _ => None,
    }
}

/// An id is one of these.
pub fn one_of(draft: &mut Draft, bits: &str, wanted: &[i32]) -> Holds {
    perhaps_null(match wanted {
        [one] => format!("{bits} = {}", draft.bind(*one)),
        many => format!("{bits} = ANY ({})", draft.bind(many.to_vec())),
    })
}

/// An id is as wanted; it is kept as a number and shown as text.
pub fn id(draft: &mut Draft, prefix: &str, bits: &str, condition: &Condition) -> Holds {
    let is = |draft: &mut Draft, number: i32| one_of(draft, bits, &[number]);
    match condition {
        Condition::Exactly(text) => match whole(prefix, text) {
            Some(number) => is(draft, number),
            None => never(),
        },
        Condition::Not(text) => match whole(prefix, text) {
            Some(number) => perhaps_null(format!("{bits} <> {}", draft.bind(number))),
            None => certain(format!("{bits} IS NOT NULL")),
        },
        Condition::Contains(pattern) => {
            if let Some(number) = whole_pattern(prefix, pattern) {
                return is(draft, number);
            }
            let letters = format!("{prefix}-0123456789abcdef");
            if !may_be_in(pattern, &letters) {
                return never();
            }
            let pattern = draft.bind_pattern(&like(pattern));
            let shown = format!("'{prefix}-' || lpad(to_hex({bits}), 8, '0')");
            perhaps_null(format!("({shown}) ILIKE {pattern}"))
        }
        // What is there has an id.
        _ => never(),
    }
}

/// A UUID is as wanted, as it is shown.
pub fn uuid(draft: &mut Draft, sql: &str, condition: &Condition) -> Holds {
    let whole = |text: &str| {
        let is_whole = text.len() == 36;
        Uuid::try_parse(text).ok().filter(|_| is_whole)
    };
    match condition {
        Condition::Exactly(text) if text.is_empty() => certain(format!("{sql} IS NULL")),
        // As it is shown, a UUID has no capitals.
        Condition::Exactly(text) => match whole(text).filter(|uuid| uuid.to_string() == *text) {
            Some(uuid) => perhaps_null(format!("{sql} = {}", draft.bind(uuid))),
            None => never(),
        },
        Condition::Contains(pattern) => {
            if let [piece] = pattern.pieces()
                && let Some(uuid) = whole(piece)
            {
                return perhaps_null(format!("{sql} = {}", draft.bind(uuid)));
            }
            if may_be_in(pattern, "-0123456789abcdef") {
                text(draft, &format!("{sql}::text"), condition)
            } else {
                never()
            }
        }
        _ => text(draft, &format!("{sql}::text"), condition),
    }
}

/// A text is as wanted.
pub fn text(draft: &mut Draft, sql: &str, condition: &Condition) -> Holds {
    match condition {
        Condition::Unset => certain(format!("coalesce({sql}, '') = ''")),
        Condition::Exactly(text) if text.is_empty() => certain(format!("coalesce({sql}, '') = ''")),
        Condition::Not(text) if text.is_empty() => certain(format!("coalesce({sql}, '') <> ''")),
        Condition::Exactly(text) => perhaps_null(format!("{sql} = {}", draft.bind_text(text))),
        Condition::Not(text) => {
            let other = draft.bind_text(text);
            perhaps_null(format!("({sql} <> '' AND {sql} <> {other})"))
        }
        Condition::Contains(pattern) => {
            let pattern = draft.bind_pattern(&like(pattern));
            perhaps_null(format!("({sql}) ILIKE {pattern}"))
        }
        _ => never(),
    }
}

/// A text has a pattern; `folded` is the same text as it is kept in small letters. `ILIKE` makes both of its sides small by
/// `lower` before it compares them, so the same is found.
pub fn part_of_folded(draft: &mut Draft, sql: &str, folded: &str, pattern: &Pattern) -> Holds {
    let pattern = draft.bind_pattern(&like(pattern));
    let condition = format!("{folded} LIKE lower({pattern})");
    draft.note_folded(&condition, format!("({sql}) ILIKE {pattern}"));
    perhaps_null(condition)
}

/// A value of an enumeration is as wanted.
pub fn word(draft: &mut Draft, sql: &str, condition: &Condition) -> Holds {
    const NONE: &str = "unspecified";
    match condition {
        Condition::Unset | Condition::Is(NONE) => {
            certain(format!("coalesce({sql}, '{NONE}') = '{NONE}'"))
        }
        Condition::IsNot(NONE) => certain(format!("coalesce({sql}, '{NONE}') <> '{NONE}'")),
        Condition::Is(name) => perhaps_null(format!("{sql} = {}", draft.bind(*name))),
        Condition::IsNot(name) => certain(format!("{sql} IS DISTINCT FROM {}", draft.bind(*name))),
        _ => never(),
    }
}

/// A number is as wanted; one that is not there is shown as 0.
pub fn number(draft: &mut Draft, sql: &str, condition: &Condition) -> Holds {
    match condition {
        Condition::Unset => certain(format!("{sql} IS NULL")),
        Condition::Number(comparison, number) => {
            let number = draft.bind(*number);
            certain(format!(
                "coalesce({sql}, 0) {} {number}",
                operator(*comparison)
            ))
        }
        _ => never(),
    }
}

/// What is true or false is as wanted.
pub fn truth(sql: &str, condition: &Condition) -> Holds {
    match condition {
        Condition::Unset => certain(format!("{sql} IS NULL")),
        Condition::Truth(true) => certain(format!("({sql}) IS TRUE")),
        Condition::Truth(false) => certain(format!("({sql}) IS NOT TRUE")),
        _ => never(),
    }
}

/// A time is as wanted. The database keeps times more exactly than they are shown: those that are shown alike are alike.
pub fn time(draft: &mut Draft, sql: &str, unit: TimeDelta, condition: &Condition) -> Holds {
    let (comparison, wanted) = match condition {
        Condition::Unset => return certain(format!("{sql} IS NULL")),
        Condition::Time(comparison, time) => (comparison, within_reason(*time)),
        _ => return never(),
    };
    let first = shown(wanted, unit);
    let beyond = first + unit;
    let is_shown = first == wanted;
    let mut bound = |operator: &str, time: Time| format!("{sql} {operator} {}", draft.bind(time));
    perhaps_null(match comparison {
        Comparison::Equal if is_shown => {
            format!("({} AND {})", bound(">=", first), bound("<", beyond))
        }
        Comparison::Equal => return never(),
        Comparison::NotEqual if is_shown => {
            format!("({} OR {})", bound("<", first), bound(">=", beyond))
        }
        Comparison::NotEqual => return certain(format!("{sql} IS NOT NULL")),
        Comparison::Less | Comparison::GreaterOrEqual => {
            let operator = operator(*comparison);
            bound(operator, if is_shown { first } else { beyond })
        }
        Comparison::LessOrEqual => bound("<", beyond),
        Comparison::Greater => bound(">=", beyond),
    })
}

/// No time of ours lies outside these years, and no database reaches as far as a `DateTime`.
fn within_reason(time: Time) -> Time {
    let year = |year: i64| DateTime::UNIX_EPOCH + TimeDelta::days(year * 365);
    time.clamp(year(-1_000), year(8_000))
}

fn shown(time: Time, unit: TimeDelta) -> Time {
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

/// A label is as wanted.
pub fn label(draft: &mut Draft, labels: &str, key: &str, condition: &LabelCondition) -> Holds {
    let key = storable(key);
    let pair = |value: &str| {
        let value = storable(value);
        json!([{"key": key, "value": value}])
    };
    let mut has = |what: serde_json::Value| format!("{labels} @> {}", draft.bind(what));
    let there = json!([{ "key": key }]);
    certain(match condition {
        LabelCondition::Present => has(there),
        LabelCondition::Is(value) => has(pair(value)),
        LabelCondition::IsNot(value) => {
            format!("({} AND NOT {})", has(there), has(pair(value)))
        }
    })
}

/// A pattern as `ILIKE` takes it.
fn like(pattern: &Pattern) -> String {
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

/// Whether a text of these letters may have a pattern.
fn may_be_in(pattern: &Pattern, letters: &str) -> bool {
    let mut wanted = pattern.pieces().iter().flat_map(|piece| piece.chars());
    wanted.all(|letter| letter.to_lowercase().all(|l| letters.contains(l)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_of_people_are_percents_and_percents_are_letters() {
        let pattern = Pattern::parse(r"a*50%_\\b").expect("a pattern");
        assert_eq!(like(&pattern), r"%a%50\%\_\\b%");
    }

    #[test]
    fn what_is_shown_alike_is_alike() {
        let at = |millis: i64| DateTime::UNIX_EPOCH + TimeDelta::milliseconds(millis);
        let second = TimeDelta::seconds(1);
        assert_eq!(shown(at(1_999), second), at(1_000));
        assert_eq!(shown(at(-1), second), at(-1_000));
        let sql = |comparison, millis| {
            let mut draft = Draft::new(Uuid::nil());
            let condition = Condition::Time(comparison, at(millis));
            time(&mut draft, "t", second, &condition).text
        };
        assert_eq!(sql(Comparison::Equal, 1_000), "(t >= $2 AND t < $3)");
        assert_eq!(sql(Comparison::Equal, 1_500), "FALSE");
        assert_eq!(sql(Comparison::NotEqual, 1_000), "(t < $2 OR t >= $3)");
        assert_eq!(sql(Comparison::LessOrEqual, 1_000), "t < $2");
        assert_eq!(sql(Comparison::Greater, 1_000), "t >= $2");
    }
}
