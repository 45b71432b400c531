//! The order of a list, and where in it a page begins.
//!
//! What is not there is ordered as it is shown: as nothing, as `unspecified`, as 0, or as the beginning of time. So no
//! value is null, and the id at the end makes the order strict.

use chrono::{DateTime, Utc};
use evenkeel_domain::filter::{FieldKind, OrderKey};
use evenkeel_domain::text::storable;
use sea_orm::{QueryResult, Value};
use serde_json::Value as Json;

use super::columns::{Column, Form};
use super::draft::{Draft, Level, unknown};
use crate::error::StoreError;

/// How much of a long text counts.
const COUNTS: usize = 200;

/// What a list is ordered by, in SQL.
#[derive(Debug)]
pub struct Order {
    terms: Vec<Term>,
}

#[derive(Debug)]
struct Term {
    sql: String,
    kind: Kind,
    is_descending: bool,
}

/// What a term gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Truth,
    Time,
    /// The bits of an id: signed in the database, unsigned as they are shown.
    Bits,
}

impl Order {
    /// The order by these fields, and then by id.
    pub fn new(level: &mut Level, keys: &[OrderKey]) -> Result<Self, StoreError> {
        let mut terms = Vec::with_capacity(keys.len() + 1);
        for key in keys {
            let column = level.table.column(key.field.name);
            let column = column.ok_or_else(|| unknown(key.field.name))?;
            let (sql, kind) = comparable(level, column, key.field.kind);
            terms.push(Term {
                sql,
                kind,
                is_descending: key.descending,
            });
            if kind == Kind::Bits {
                // Nothing is alike any more.
                return Ok(Self { terms });
            }
        }
        terms.push(Term {
            sql: level.put(level.table.id),
            kind: Kind::Bits,
            is_descending: false,
        });
        Ok(Self { terms })
    }

    /// What to select, to know where a page ended. Each has a [`name`].
    pub fn selected(&self) -> String {
        let terms = self.terms.iter().enumerate().map(|(index, term)| {
            let name = name(index);
            match term.kind {
                Kind::Number => format!("({})::bigint AS {name}", term.sql),
                _ => format!("{} AS {name}", term.sql),
            }
        });
        terms.collect::<Vec<_>>().join(", ")
    }

    /// The same order of rows from which it was [`selected`](Self::selected) before.
    pub fn of_selected(&self, rows: &str) -> Self {
        let terms = self.terms.iter().enumerate().map(|(index, term)| Term {
            sql: format!("{rows}.{}", name(index)),
            kind: term.kind,
            is_descending: term.is_descending,
        });
        Self {
            terms: terms.collect(),
        }
    }

    /// The same from the end to the beginning.
    pub fn reversed(&self) -> Self {
        let terms = self.terms.iter().map(|term| Term {
            sql: term.sql.clone(),
            kind: term.kind,
            is_descending: !term.is_descending,
        });
        Self {
            terms: terms.collect(),
        }
    }

    /// What stands behind `ORDER BY`.
    pub fn clause(&self) -> String {
        let steps = self.steps(None).into_iter().map(|step| {
            let direction = if step.is_descending { " DESC" } else { "" };
            format!("{}{direction}", step.sql)
        });
        steps.collect::<Vec<_>>().join(", ")
    }

    /// Where a row stands; what was selected begins with its column `first`.
    pub fn place(&self, row: &QueryResult, first: usize) -> Result<Vec<Json>, StoreError> {
        let read = |(index, term): (usize, &Term)| -> Result<Json, StoreError> {
            let index = first + index;
            Ok(match term.kind {
                Kind::Text => row.try_get_by_index::<String>(index)?.into(),
                Kind::Number => row.try_get_by_index::<i64>(index)?.into(),
                Kind::Truth => row.try_get_by_index::<bool>(index)?.into(),
                Kind::Time => {
                    let time: DateTime<Utc> = row.try_get_by_index(index)?;
                    time.timestamp_micros().into()
                }
                Kind::Bits => row.try_get_by_index::<i32>(index)?.cast_unsigned().into(),
            })
        };
        self.terms.iter().enumerate().map(read).collect()
    }

    /// The values of a place; none if it is none in this order.
    pub fn values(&self, place: &[Json]) -> Option<Vec<Value>> {
        if place.len() != self.terms.len() {
            return None;
        }
        let mut values = Vec::with_capacity(place.len() + 1);
        for (term, json) in self.terms.iter().zip(place) {
            match term.kind {
                Kind::Text => values.push(storable(json.as_str()?).into()),
                Kind::Number => values.push(json.as_i64()?.into()),
                Kind::Truth => values.push(json.as_bool()?.into()),
                Kind::Time => {
                    let time = DateTime::from_timestamp_micros(json.as_i64()?)?;
                    values.push(possible(time)?.into());
                }
                Kind::Bits => {
                    let bits = u32::try_from(json.as_u64()?).ok()?.cast_signed();
                    values.extend([Value::from(bits < 0), Value::from(bits)]);
                }
            }
        }
        Some(values)
    }

    /// The condition that a row stands behind a place, given by its [`values`](Self::values).
    pub fn behind(&self, draft: &mut Draft, values: Vec<Value>) -> String {
        let bound: Vec<_> = values.into_iter().map(|value| draft.bind(value)).collect();
        let steps = self.steps(Some(&bound));
        let descending = steps.iter().filter(|step| step.is_descending).count();
        if descending == 0 || descending == steps.len() {
            // One comparison of rows, which an index answers.
            let columns: Vec<_> = steps.iter().map(|step| step.sql.as_str()).collect();
            let operator = if descending == 0 { ">" } else { "<" };
            return format!("({}) {operator} ({})", columns.join(", "), bound.join(", "));
        }
        let mut behind = "FALSE".to_owned();
        for step in steps.iter().rev() {
            let (sql, value) = (&step.sql, &step.value);
            let operator = if step.is_descending { "<" } else { ">" };
            behind = format!("({sql} {operator} {value} OR ({sql} = {value} AND {behind}))");
        }
        // So an index of the first term begins where that is.
        let first = steps.first().map(|step| {
            let operator = if step.is_descending { "<=" } else { ">=" };
            format!("{} {operator} {} AND ", step.sql, step.value)
        });
        format!("({}{behind})", first.unwrap_or_default())
    }

    /// The terms as the database compares them: an id is first compared by its sign.
    fn steps(&self, bound: Option<&[String]>) -> Vec<Step> {
        let mut bound = bound.unwrap_or_default().iter().cloned();
        let mut step = |sql: String, is_descending| Step {
            sql,
            is_descending,
            value: bound.next().unwrap_or_default(),
        };
        let mut steps = Vec::with_capacity(self.terms.len() + 1);
        for term in &self.terms {
            if term.kind == Kind::Bits {
                steps.push(step(format!("({} < 0)", term.sql), term.is_descending));
            }
            steps.push(step(term.sql.clone(), term.is_descending));
        }
        steps
    }
}

/// What a term is called where it was selected.
fn name(index: usize) -> String {
    format!("by_{index}")
}

struct Step {
    sql: String,
    is_descending: bool,
    /// The parameter that it is compared with, if it is compared.
    value: String,
}

/// A column as something that can always be compared.
fn comparable(level: &mut Level, column: &Column, field: FieldKind) -> (String, Kind) {
    let sql = level.put(column.sql);
    let or = |fallback: &str| {
        if column.is_nullable {
            format!("coalesce({sql}, {fallback})")
        } else {
            sql.clone()
        }
    };
    match (field, column.form) {
        (FieldKind::Id(_), Form::Bits) => (sql, Kind::Bits),
        (FieldKind::Id(_) | FieldKind::Text | FieldKind::Enumeration(_), form) => {
            let nothing = match field {
                FieldKind::Enumeration(_) => "'unspecified'",
                _ => "''",
            };
            let text = match form {
                Form::Uuid => format!("coalesce({sql}::text, '')"),
                Form::Long => format!("left({}, {COUNTS})", or(nothing)),
                Form::Plain | Form::Bits => format!("({})", or(nothing)),
            };
            (format!("{text} COLLATE \"C\""), Kind::Text)
        }
        (FieldKind::Number, _) => (or("0"), Kind::Number),
        (FieldKind::Truth, _) => (or("FALSE"), Kind::Truth),
        (FieldKind::Seconds | FieldKind::Moment, _) => (or("'epoch'::timestamptz"), Kind::Time),
    }
}

/// The time, if a database can hold it.
fn possible(time: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let years = 1_000 * 365 * 24 * 3_600_i64;
    (-years..=8 * years)
        .contains(&time.timestamp())
        .then_some(time)
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::filter::{Resource, parse_order};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn order(text: &str) -> (Draft, Order) {
        let keys = parse_order(Resource::Host, text).expect("an order");
        let mut draft = Draft::new(Uuid::nil());
        let mut level = draft.level(Resource::Host);
        let order = Order::new(&mut level, &keys).expect("an order");
        (draft, order)
    }

    fn behind(text: &str, place: &[Json]) -> String {
        let (mut draft, order) = order(text);
        let values = order.values(place).expect("a place");
        order.behind(&mut draft, values)
    }

    #[test]
    fn without_fields_the_id_orders() {
        let (_, order) = order("");
        assert_eq!(order.clause(), "(t0.id < 0), t0.id");
        assert_eq!(behind("", &[json!(7)]), "((t0.id < 0), t0.id) > ($2, $3)");
    }

    #[test]
    fn what_is_alike_is_ordered_by_id() {
        let (_, order) = order("name desc, currentState");
        assert_eq!(
            order.clause(),
            "(t0.name) COLLATE \"C\" DESC, (t0.current_state) COLLATE \"C\", (t0.id < 0), t0.id"
        );
    }

    #[test]
    fn what_is_not_there_is_ordered_as_it_is_shown() {
        let (_, order) = order("bmcKind, memoryBytes, serialNumber");
        assert_eq!(
            order.clause(),
            "(coalesce(t0x.bmc_kind, 'unspecified')) COLLATE \"C\", coalesce(t0x.memory_bytes, 0), \
             (coalesce(t0.serial, '')) COLLATE \"C\", (t0.id < 0), t0.id"
        );
    }

    #[test]
    fn an_order_is_the_same_on_what_was_selected() {
        let (mut draft, order) = order("createdAt desc");
        assert_eq!(order.selected(), "t0.created_at AS by_0, t0.id AS by_1");
        let found = order.of_selected("found");
        assert_eq!(
            found.clause(),
            "found.by_0 DESC, (found.by_1 < 0), found.by_1"
        );
        let values = order.values(&[json!(1_000_000), json!(7)]);
        let behind = found.behind(&mut draft, values.expect("a place"));
        assert!(behind.starts_with("(found.by_0 <= $2 AND "), "{behind}");
    }

    #[test]
    fn from_the_end_everything_is_the_other_way_round() {
        let (_, order) = order("createdAt desc");
        assert_eq!(
            order.reversed().clause(),
            "t0.created_at, (t0.id < 0) DESC, t0.id DESC"
        );
    }

    #[test]
    fn behind_the_id_nothing_counts() {
        let (_, order) = order("resourceId desc, name");
        assert_eq!(order.clause(), "(t0.id < 0) DESC, t0.id DESC");
        assert_eq!(
            behind("resourceId desc", &[json!(7)]),
            "((t0.id < 0), t0.id) < ($2, $3)"
        );
    }

    #[test]
    fn a_place_in_a_mixed_order_is_compared_step_by_step() {
        assert_eq!(
            behind("createdAt desc", &[json!(1_000_000), json!(7)]),
            "(t0.created_at <= $2 AND (t0.created_at < $2 OR (t0.created_at = $2 AND \
             ((t0.id < 0) > $3 OR ((t0.id < 0) = $3 AND (t0.id > $4 OR (t0.id = $4 AND FALSE)))))))"
        );
    }

    #[test]
    fn a_place_of_another_order_is_none() {
        let (_, order) = order("name");
        for bad in [
            vec![],
            vec![json!("a")],
            vec![json!(1), json!(1)],
            vec![json!("a"), json!(-1)],
            vec![json!("a"), json!(4_294_967_296_u64)],
            vec![json!("a"), json!(1), json!(1)],
        ] {
            assert!(order.values(&bad).is_none(), "{bad:?}");
        }
        assert!(order.values(&[json!("a"), json!(1)]).is_some());
    }
}
