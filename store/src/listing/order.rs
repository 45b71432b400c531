//! The order of a list, and the position where a page starts.
//!
//! A missing value is ordered by its rendering: the empty text, `unspecified`, 0, or the Unix
//! epoch. So no value is null, and the final id makes the order strict.

use chrono::{DateTime, Utc};
use evenkeel_domain::filter::{FieldKind, OrderKey};
use evenkeel_domain::text::storable;
use sea_orm::{QueryResult, Value};
use serde_json::Value as Json;

use super::columns::{Column, ColumnForm};
use super::sql_builder::{Level, SqlBuilder, unknown_column};
use crate::error::StoreError;

/// Number of characters of a long text that are compared.
const MAX_ORDERED_CHARS: usize = 200;

/// An order in SQL.
#[derive(Debug)]
pub struct SortOrder {
    terms: Vec<Term>,
}

#[derive(Debug)]
struct Term {
    sql: String,
    kind: TermKind,
    is_descending: bool,
}

/// The type of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TermKind {
    Text,
    Number,
    Boolean,
    Time,
    /// The bits of an id: signed in the database, unsigned as they are shown.
    Bits,
}

impl SortOrder {
    /// The order by these fields, and then by id.
    pub fn new(level: &mut Level, keys: &[OrderKey]) -> Result<Self, StoreError> {
        let mut terms = Vec::with_capacity(keys.len() + 1);
        for key in keys {
            let column = level.table.order_column(key.field.name);
            let column = column.ok_or_else(|| unknown_column(key.field.name))?;
            let (sql, kind) = comparable(level, column, key.field.kind);
            terms.push(Term { sql, kind, is_descending: key.descending });
            if kind == TermKind::Bits {
                // The id is unique, so later fields have no effect.
                return Ok(Self { terms });
            }
        }
        terms.push(Term {
            sql: level.resolve(level.table.id),
            kind: TermKind::Bits,
            is_descending: false,
        });
        Ok(Self { terms })
    }

    /// The select list that yields the position of a row. Each term has a [`term_alias`].
    pub fn select_list(&self) -> String {
        let terms = self.terms.iter().enumerate().map(|(index, term)| {
            let name = term_alias(index);
            match term.kind {
                TermKind::Number => format!("({})::bigint AS {name}", term.sql),
                _ => format!("{} AS {name}", term.sql),
            }
        });
        terms.collect::<Vec<_>>().join(", ")
    }

    /// The same order on rows that contain the [`select_list`](Self::select_list).
    pub fn for_selection(&self, rows: &str) -> Self {
        let terms = self.terms.iter().enumerate().map(|(index, term)| Term {
            sql: format!("{rows}.{}", term_alias(index)),
            kind: term.kind,
            is_descending: term.is_descending,
        });
        Self { terms: terms.collect() }
    }

    pub fn reversed(&self) -> Self {
        let terms = self.terms.iter().map(|term| Term {
            sql: term.sql.clone(),
            kind: term.kind,
            is_descending: !term.is_descending,
        });
        Self { terms: terms.collect() }
    }

    /// The `ORDER BY` list.
    pub fn order_by(&self) -> String {
        let steps = self.steps(None).into_iter().map(|step| {
            let direction = if step.is_descending { " DESC" } else { "" };
            format!("{}{direction}", step.sql)
        });
        steps.collect::<Vec<_>>().join(", ")
    }

    /// The position of a row whose [`select_list`](Self::select_list) starts at column `first`.
    pub fn position(&self, row: &QueryResult, first: usize) -> Result<Vec<Json>, StoreError> {
        let read = |(index, term): (usize, &Term)| -> Result<Json, StoreError> {
            let index = first + index;
            Ok(match term.kind {
                TermKind::Text => row.try_get_by_index::<String>(index)?.into(),
                TermKind::Number => row.try_get_by_index::<i64>(index)?.into(),
                TermKind::Boolean => row.try_get_by_index::<bool>(index)?.into(),
                TermKind::Time => {
                    let time: DateTime<Utc> = row.try_get_by_index(index)?;
                    time.timestamp_micros().into()
                }
                TermKind::Bits => row.try_get_by_index::<i32>(index)?.cast_unsigned().into(),
            })
        };
        self.terms.iter().enumerate().map(read).collect()
    }

    /// The values of a position; none if the position does not fit this order.
    pub fn position_values(&self, position: &[Json]) -> Option<Vec<Value>> {
        if position.len() != self.terms.len() {
            return None;
        }
        let mut values = Vec::with_capacity(position.len() + 1);
        for (term, json) in self.terms.iter().zip(position) {
            match term.kind {
                TermKind::Text => values.push(storable(json.as_str()?).into()),
                TermKind::Number => values.push(json.as_i64()?.into()),
                TermKind::Boolean => values.push(json.as_bool()?.into()),
                TermKind::Time => {
                    let time = DateTime::from_timestamp_micros(json.as_i64()?)?;
                    values.push(storable_time(time)?.into());
                }
                TermKind::Bits => {
                    let bits = u32::try_from(json.as_u64()?).ok()?.cast_signed();
                    values.extend([Value::from(bits < 0), Value::from(bits)]);
                }
            }
        }
        Some(values)
    }

    /// The condition that a row lies after a position, given by its
    /// [`position_values`](Self::position_values).
    pub fn after_position(&self, builder: &mut SqlBuilder, values: Vec<Value>) -> String {
        let bound: Vec<_> = values.into_iter().map(|value| builder.bind(value)).collect();
        let steps = self.steps(Some(&bound));
        let descending = steps.iter().filter(|step| step.is_descending).count();
        if descending == 0 || descending == steps.len() {
            // A single row comparison can use an index.
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
        // With this bound, an index on the first term starts at the position.
        let first = steps.first().map(|step| {
            let operator = if step.is_descending { "<=" } else { ">=" };
            format!("{} {operator} {} AND ", step.sql, step.value)
        });
        format!("({}{behind})", first.unwrap_or_default())
    }

    /// The terms as the database compares them: ids are compared by sign first.
    fn steps(&self, bound: Option<&[String]>) -> Vec<ComparisonStep> {
        let mut bound = bound.unwrap_or_default().iter().cloned();
        let mut step = |sql: String, is_descending| ComparisonStep {
            sql,
            is_descending,
            value: bound.next().unwrap_or_default(),
        };
        let mut steps = Vec::with_capacity(self.terms.len() + 1);
        for term in &self.terms {
            if term.kind == TermKind::Bits {
                steps.push(step(format!("({} < 0)", term.sql), term.is_descending));
            }
            steps.push(step(term.sql.clone(), term.is_descending));
        }
        steps
    }
}

/// The alias of a term in the select list.
fn term_alias(index: usize) -> String {
    format!("by_{index}")
}

struct ComparisonStep {
    sql: String,
    is_descending: bool,
    /// The parameter to compare with, if any.
    value: String,
}

/// A column as a term that is never null.
fn comparable(level: &mut Level, column: &Column, field: FieldKind) -> (String, TermKind) {
    let sql = level.resolve(column.sql);
    let or = |fallback: &str| {
        if column.is_nullable { format!("coalesce({sql}, {fallback})") } else { sql.clone() }
    };
    match (field, column.form) {
        (FieldKind::Id(_), ColumnForm::Bits) => (sql, TermKind::Bits),
        (
            FieldKind::Id(_) | FieldKind::Text | FieldKind::Version | FieldKind::Enumeration(_),
            form,
        ) => {
            let nothing = match field {
                FieldKind::Enumeration(_) => "'unspecified'",
                _ => "''",
            };
            let text = match form {
                ColumnForm::Uuid => format!("coalesce({sql}::text, '')"),
                ColumnForm::Long => format!("left({}, {MAX_ORDERED_CHARS})", or(nothing)),
                ColumnForm::Plain | ColumnForm::Bits => format!("({})", or(nothing)),
            };
            (format!("{text} COLLATE \"C\""), TermKind::Text)
        }
        (FieldKind::Number, _) => (or("0"), TermKind::Number),
        (FieldKind::Bool, _) => (or("FALSE"), TermKind::Boolean),
        (FieldKind::UnixSeconds | FieldKind::Rfc3339Time, _) => {
            (or("'epoch'::timestamptz"), TermKind::Time)
        }
    }
}

/// The time, if the database can store it.
fn storable_time(time: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let years = 1_000 * 365 * 24 * 3_600_i64;
    (-years..=8 * years).contains(&time.timestamp()).then_some(time)
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::filter::{Resource, parse_order};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn order(text: &str) -> (SqlBuilder, SortOrder) {
        let keys = parse_order(Resource::Host, text).expect("an order");
        let mut builder = SqlBuilder::new(Uuid::nil());
        let mut level = builder.add_table(Resource::Host);
        let order = SortOrder::new(&mut level, &keys).expect("an order");
        (builder, order)
    }

    fn after_position(text: &str, position: &[Json]) -> String {
        let (mut builder, order) = order(text);
        let values = order.position_values(position).expect("a position");
        order.after_position(&mut builder, values)
    }

    #[test]
    fn without_fields_the_id_orders() {
        let (_, order) = order("");
        assert_eq!(order.order_by(), "(t0.id < 0), t0.id");
        assert_eq!(after_position("", &[json!(7)]), "((t0.id < 0), t0.id) > ($2, $3)");
    }

    #[test]
    fn equal_rows_are_ordered_by_id() {
        let (_, order) = order("name desc, currentState");
        assert_eq!(
            order.order_by(),
            "(t0.name) COLLATE \"C\" DESC, (t0.current_state) COLLATE \"C\", (t0.id < 0), t0.id"
        );
    }

    #[test]
    fn null_values_are_ordered_as_their_defaults() {
        let (_, order) = order("bmcKind, memoryBytes, serialNumber");
        assert_eq!(
            order.order_by(),
            "(coalesce(t0x.bmc_kind, 'unspecified')) COLLATE \"C\", coalesce(t0x.memory_bytes, 0), \
             (coalesce(t0.serial, '')) COLLATE \"C\", (t0.id < 0), t0.id"
        );
    }

    #[test]
    fn an_order_also_works_on_selected_columns() {
        let (mut builder, order) = order("createdAt desc");
        assert_eq!(order.select_list(), "t0.created_at AS by_0, t0.id AS by_1");
        let selected = order.for_selection("found");
        assert_eq!(selected.order_by(), "found.by_0 DESC, (found.by_1 < 0), found.by_1");
        let values = order.position_values(&[json!(1_000_000), json!(7)]);
        let behind = selected.after_position(&mut builder, values.expect("a position"));
        assert!(behind.starts_with("(found.by_0 <= $2 AND "), "{behind}");
    }

    #[test]
    fn a_reversed_order_inverts_every_direction() {
        let (_, order) = order("createdAt desc");
        assert_eq!(order.reversed().order_by(), "t0.created_at, (t0.id < 0) DESC, t0.id DESC");
    }

    #[test]
    fn fields_after_the_id_are_ignored() {
        let (_, order) = order("resourceId desc, name");
        assert_eq!(order.order_by(), "(t0.id < 0) DESC, t0.id DESC");
        assert_eq!(
            after_position("resourceId desc", &[json!(7)]),
            "((t0.id < 0), t0.id) < ($2, $3)"
        );
    }

    #[test]
    fn a_position_in_a_mixed_order_is_compared_step_by_step() {
        assert_eq!(
            after_position("createdAt desc", &[json!(1_000_000), json!(7)]),
            "(t0.created_at <= $2 AND (t0.created_at < $2 OR (t0.created_at = $2 AND \
             ((t0.id < 0) > $3 OR ((t0.id < 0) = $3 AND (t0.id > $4 OR (t0.id = $4 AND FALSE)))))))"
        );
    }

    #[test]
    fn a_position_of_another_order_is_rejected() {
        let (_, order) = order("name");
        for bad in [
            vec![],
            vec![json!("a")],
            vec![json!(1), json!(1)],
            vec![json!("a"), json!(-1)],
            vec![json!("a"), json!(4_294_967_296_u64)],
            vec![json!("a"), json!(1), json!(1)],
        ] {
            assert!(order.position_values(&bad).is_none(), "{bad:?}");
        }
        assert!(order.position_values(&[json!("a"), json!(1)]).is_some());
    }
}
