//! Filters as conditions in SQL.
//!
//! A condition that is null counts as one that does not hold. What is turned round is first made to be true or false.

use chrono::TimeDelta;
use evenkeel_domain::filter::{Condition, Edge, Field, FieldKind, Filter, LabelCondition, Test};

use super::columns::{self, Column, Form, Link, Table};
use super::comparison::{
    Holds, certain, id, label, number, one_of, part_of_folded, text, time, truth, uuid, whole,
    whole_pattern, word,
};
use super::draft::{Draft, Level, unknown};
use crate::error::StoreError;

/// What stands at the end of a path.
#[derive(Clone, Copy)]
enum End<'a> {
    There,
    Field(&'static Field, &'a Condition),
    /// The id in this field is one of these.
    Ids(&'static Field, &'a [i32]),
    Label(&'a str, &'a LabelCondition),
}

/// The condition of a filter.
pub fn written(
    draft: &mut Draft,
    level: &mut Level,
    filter: &Filter,
) -> Result<String, StoreError> {
    Ok(holds(draft, level, filter)?.text)
}

fn holds(draft: &mut Draft, level: &mut Level, filter: &Filter) -> Result<Holds, StoreError> {
    match filter {
        Filter::All(parts) => each(draft, level, parts),
        Filter::Any(parts) => any(draft, level, parts),
        Filter::Not(inner) => {
            let inner = holds(draft, level, inner)?;
            Ok(certain(if inner.is_certain {
                format!("NOT ({})", inner.text)
            } else {
                format!("({}) IS NOT TRUE", inner.text)
            }))
        }
        Filter::Test(test) => {
            let Test {
                path,
                field,
                condition,
            } = test;
            along(draft, level, path, End::Field(field, condition))
        }
        Filter::Exists(path) => along(draft, level, path, End::There),
        Filter::Label {
            path,
            key,
            condition,
        } => along(draft, level, path, End::Label(key, condition)),
    }
}

/// Each of the parts holds.
fn each(draft: &mut Draft, level: &mut Level, parts: &[Filter]) -> Result<Holds, StoreError> {
    let parts: Result<Vec<_>, _> = parts.iter().map(|part| holds(draft, level, part)).collect();
    Ok(joined(parts?, " AND ", "TRUE"))
}

/// One of the parts holds. Ids that are wanted at the end of one path are compared at once, however many they are.
fn any(draft: &mut Draft, level: &mut Level, parts: &[Filter]) -> Result<Holds, StoreError> {
    let mut groups: Vec<Wanted<'_>> = Vec::new();
    let mut others = Vec::new();
    for part in parts {
        let Some(wanted) = wanted_id(level.table, part) else {
            others.push(part);
            continue;
        };
        let same =
            |group: &&mut Wanted<'_>| group.path == wanted.path && group.field == wanted.field;
        match groups.iter_mut().find(same) {
            Some(group) => group.bits.extend(wanted.bits),
            None => groups.push(wanted),
        }
    }
    let mut parts = Vec::with_capacity(groups.len() + others.len());
    for group in &groups {
        let end = End::Ids(group.field, &group.bits);
        parts.push(along(draft, level, group.path, end)?);
    }
    for part in others {
        parts.push(holds(draft, level, part)?);
    }
    Ok(joined(parts, " OR ", "FALSE"))
}

fn joined(parts: Vec<Holds>, word: &str, none: &str) -> Holds {
    let is_certain = parts.iter().all(|part| part.is_certain);
    let texts: Vec<_> = parts.into_iter().map(|part| part.text).collect();
    let text = match texts.as_slice() {
        [] => none.to_owned(),
        [one] => one.clone(),
        texts => format!("({})", texts.join(word)),
    };
    Holds { text, is_certain }
}

/// Ids that are wanted at the end of a path.
struct Wanted<'a> {
    path: &'a [&'static Edge],
    field: &'static Field,
    bits: Vec<i32>,
}

/// The one id that a filter wants, if it wants nothing else.
fn wanted_id<'a>(table: &Table, filter: &'a Filter) -> Option<Wanted<'a>> {
    let Filter::Test(test) = filter else {
        return None;
    };
    let FieldKind::Id(prefix) = test.field.kind else {
        return None;
    };
    let form = match test.path.last() {
        None => table.column(test.field.name)?.form,
        Some(edge) => columns::table(edge.to).column(test.field.name)?.form,
    };
    let bits = match &test.condition {
        Condition::Exactly(id) => whole(prefix, id),
        Condition::Contains(pattern) => whole_pattern(prefix, pattern),
        _ => None,
    };
    Some(Wanted {
        path: &test.path,
        field: test.field,
        bits: vec![bits.filter(|_| form == Form::Bits)?],
    })
}

/// A condition at the end of a path. Each edge is a sub-select that the database may turn into a join, also one that is
/// turned round; below `OR` it may be hashed.
fn along(
    draft: &mut Draft,
    level: &mut Level,
    path: &[&'static Edge],
    end: End<'_>,
) -> Result<Holds, StoreError> {
    let Some((edge, rest)) = path.split_first() else {
        return at_end(draft, level, end);
    };
    let link = level.table.link(edge.name);
    let link = link.ok_or_else(|| unknown(edge.name))?;
    let mut other = draft.level(edge.to);
    if rest.is_empty()
        && let Some(short) = by_key(draft, level, &other, link, end)
    {
        return Ok(short);
    }
    draft.look_beyond();
    let inner = along(draft, &mut other, rest, end)?;
    let rows = match link.rows {
        Some(rows) => level.tie(&other, rows),
        None => other.put(other.table.rows),
    };
    let tenant = other.put(other.table.tenant);
    Ok(certain(format!(
        "EXISTS (SELECT FROM {rows}{} WHERE {tenant} AND {} AND {})",
        other.joined(),
        level.tie(&other, link.on),
        inner.text,
    )))
}

/// What the row itself says of the other end of an edge: its id, and that it is there.
fn by_key(
    draft: &mut Draft,
    level: &mut Level,
    other: &Level,
    link: &Link,
    end: End<'_>,
) -> Option<Holds> {
    let key = level.put(link.key?);
    match end {
        End::There => Some(certain(format!("{key} IS NOT NULL"))),
        End::Field(field, condition) => match (field.kind, other.table.column(field.name)?.form) {
            (FieldKind::Id(prefix), Form::Bits) => Some(id(draft, prefix, &key, condition)),
            _ => None,
        },
        End::Ids(_, bits) => Some(one_of(draft, &key, bits)),
        End::Label(..) => None,
    }
}

fn at_end(draft: &mut Draft, level: &mut Level, end: End<'_>) -> Result<Holds, StoreError> {
    match end {
        End::There => Ok(certain("TRUE")),
        End::Label(key, condition) => {
            let labels = level.table.labels.ok_or_else(|| unknown("metadata"))?;
            let labels = level.put(labels);
            Ok(label(draft, &labels, key, condition))
        }
        End::Field(field, condition) => {
            let column = level.table.column(field.name);
            let column = column.ok_or_else(|| unknown(field.name))?;
            Ok(of_column(draft, level, field, column, condition))
        }
        End::Ids(field, bits) => {
            let column = level.table.column(field.name);
            let sql = level.put(column.ok_or_else(|| unknown(field.name))?.sql);
            Ok(one_of(draft, &sql, bits))
        }
    }
}

fn of_column(
    draft: &mut Draft,
    level: &mut Level,
    field: &'static Field,
    column: &Column,
    condition: &Condition,
) -> Holds {
    let sql = level.put(column.sql);
    match (field.kind, column.form) {
        (FieldKind::Id(prefix), Form::Bits) => id(draft, prefix, &sql, condition),
        (FieldKind::Id(_) | FieldKind::Text, Form::Uuid) => uuid(draft, &sql, condition),
        (FieldKind::Id(_) | FieldKind::Text, _) => match (column.folded, condition) {
            (Some(folded), Condition::Contains(pattern)) => {
                part_of_folded(draft, &sql, &level.put(folded), pattern)
            }
            _ => text(draft, &sql, condition),
        },
        (FieldKind::Enumeration(_), _) => word(draft, &sql, condition),
        (FieldKind::Number, _) => number(draft, &sql, condition),
        (FieldKind::Truth, _) => truth(&sql, condition),
        (FieldKind::Seconds, _) => time(draft, &sql, TimeDelta::seconds(1), condition),
        (FieldKind::Moment, _) => time(draft, &sql, TimeDelta::milliseconds(1), condition),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::filter::{Resource, parse};

    use ::uuid::Uuid;

    use super::*;

    fn sql(resource: Resource, filter: &str) -> String {
        let filter = parse(resource, filter).expect("a filter");
        let mut draft = Draft::new(Uuid::nil());
        let mut level = draft.level(resource);
        written(&mut draft, &mut level, &filter).expect("a condition")
    }

    #[test]
    fn a_whole_id_is_a_number() {
        let whole = "t0.id = $2";
        for filter in [
            "resourceId = 'host-0a1b2c3d'",
            "resourceId = 'HOST-0A1B2C3D'",
            "resourceId == 'host-0a1b2c3d'",
        ] {
            assert_eq!(sql(Resource::Host, filter), whole, "{filter}");
        }
        assert_eq!(
            sql(Resource::Host, "resourceId == 'host-0A1B2C3D'"),
            "FALSE"
        );
        let part = sql(Resource::Host, "resourceId = '0a1b'");
        assert_eq!(part, "('host-' || lpad(to_hex(t0.id), 8, '0')) ILIKE $2");
        assert_eq!(sql(Resource::Host, "resourceId = 'xyz'"), "FALSE");
    }

    #[test]
    fn an_id_over_an_edge_is_the_key_of_the_row() {
        let site = sql(Resource::Host, "site.resourceId = 'site-0a1b2c3d'");
        assert_eq!(site, "t0.site_id = $2");
        assert_eq!(sql(Resource::Host, "has(site)"), "t0.site_id IS NOT NULL");
        assert_eq!(
            sql(Resource::Host, "NOT has(instance)"),
            "NOT (EXISTS (SELECT FROM instances t1 WHERE t1.tenant_id = $1 AND t1.host_id = t0.id AND TRUE))"
        );
    }

    #[test]
    fn many_ids_are_compared_at_once() {
        let many = "site.resourceId = 'site-00000001' OR name == 'a' OR site.resourceId == 'site-00000002'";
        let sql = sql(Resource::Host, many);
        assert_eq!(sql, "(t0.site_id = ANY ($2) OR t0.name = $3)");
    }

    #[test]
    fn a_whole_uuid_is_a_uuid() {
        let uuid = "01234567-89ab-cdef-0123-456789abcdef";
        let is = |filter: String| sql(Resource::Host, &filter);
        assert_eq!(
            is(format!("uuid = '{}'", uuid.to_uppercase())),
            "t0.uuid = $2"
        );
        assert_eq!(is(format!("uuid == '{uuid}'")), "t0.uuid = $2");
        assert_eq!(is(format!("uuid == '{}'", uuid.to_uppercase())), "FALSE");
        assert_eq!(is("uuid = '0123'".to_owned()), "(t0.uuid::text) ILIKE $2");
        assert_eq!(is("uuid = 'edge'".to_owned()), "FALSE");
    }

    #[test]
    fn a_part_of_a_name_is_looked_for_in_small_letters_where_they_are_kept() {
        let folded = "t0.name_folded LIKE lower($2)";
        for resource in [Resource::Host, Resource::Instance, Resource::Run] {
            assert_eq!(sql(resource, "name = 'Edge'"), folded, "{resource:?}");
        }
        assert_eq!(sql(Resource::Site, "name = 'Edge'"), "(t0.name) ILIKE $2");
        let over_an_edge = sql(Resource::Run, "instance.host.name = 'Edge'");
        assert!(
            over_an_edge.contains("AND t2.name_folded LIKE lower($2)"),
            "{over_an_edge}"
        );
    }

    #[test]
    fn what_stands_in_the_row_or_refers_to_another_is_not_looked_for_far_away() {
        let looks_far = |resource, text| {
            let filter = parse(resource, text).expect("a filter");
            let mut draft = Draft::new(Uuid::nil());
            let mut level = draft.level(resource);
            written(&mut draft, &mut level, &filter).expect("a condition");
            draft.looks_far()
        };
        assert!(!looks_far(Resource::Host, "name == 'a'"));
        assert!(!looks_far(
            Resource::Host,
            "site.resourceId == 'site-0a1b2c3d'"
        ));
        assert!(looks_far(
            Resource::Run,
            "instance.host.site.resourceId == 'site-0a1b2c3d'"
        ));
        assert!(looks_far(Resource::Host, "name = 'a'"));
    }

    #[test]
    fn a_list_is_known_by_what_it_looks_for_and_not_by_where() {
        let filter = "name = 'a' OR name = 'b' OR note = 'c'";
        let filter = parse(Resource::Host, filter).expect("a filter");
        let mut draft = Draft::new(Uuid::nil());
        assert!(!draft.looks_far());
        let mut level = draft.level(Resource::Host);
        let condition = written(&mut draft, &mut level, &filter).expect("a condition");
        assert!(draft.looks_far());
        assert_eq!(
            draft.unfolded(&condition),
            "((t0.name) ILIKE $2 OR (t0.name) ILIKE $3 OR (t0.note) ILIKE $4)"
        );
    }

    #[test]
    fn what_may_be_null_is_made_false_before_it_is_turned_round() {
        let sql = sql(Resource::Host, "NOT serialNumber = 'a'");
        assert_eq!(sql, "((t0.serial) ILIKE $2) IS NOT TRUE");
    }
}
