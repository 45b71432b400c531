//! Filters as SQL conditions.
//!
//! A null condition counts as false. Before negation, a condition is made true or false.

use chrono::TimeDelta;
use evenkeel_domain::filter::{
    Edge, FieldCondition, FieldKind, FieldTest, Filter, FilterField, LabelCondition,
};

use super::columns::{self, Column, ColumnForm, Link, ResourceTable};
use super::comparison::{
    SqlCondition, boolean, certain, contains_folded, enumeration, id, id_in_pattern, label, number,
    one_of, parse_id, text, time, uuid, version,
};
use super::sql_builder::{Level, SqlBuilder, unknown_column};
use crate::error::StoreError;

/// The test at the end of a path.
#[derive(Clone, Copy)]
enum PathEnd<'a> {
    Exists,
    Field(&'static FilterField, &'a FieldCondition),
    /// The id in this field is one of these ids.
    Ids(&'static FilterField, &'a [i32]),
    Label(&'a str, &'a LabelCondition),
}

pub fn filter_sql(
    builder: &mut SqlBuilder,
    level: &mut Level,
    filter: &Filter,
) -> Result<String, StoreError> {
    Ok(build_condition(builder, level, filter)?.text)
}

fn build_condition(
    builder: &mut SqlBuilder,
    level: &mut Level,
    filter: &Filter,
) -> Result<SqlCondition, StoreError> {
    match filter {
        Filter::All(parts) => conjunction(builder, level, parts),
        Filter::Any(parts) => disjunction(builder, level, parts),
        Filter::Not(inner) => {
            let inner = build_condition(builder, level, inner)?;
            Ok(certain(if inner.is_certain {
                format!("NOT ({})", inner.text)
            } else {
                format!("({}) IS NOT TRUE", inner.text)
            }))
        }
        Filter::Test(test) => {
            let FieldTest { path, field, condition } = test;
            follow_path(builder, level, path, PathEnd::Field(field, condition))
        }
        Filter::Exists(path) => follow_path(builder, level, path, PathEnd::Exists),
        Filter::Label { path, key, condition } => {
            follow_path(builder, level, path, PathEnd::Label(key, condition))
        }
    }
}

/// All parts are true.
fn conjunction(
    builder: &mut SqlBuilder,
    level: &mut Level,
    parts: &[Filter],
) -> Result<SqlCondition, StoreError> {
    let parts: Result<Vec<_>, _> =
        parts.iter().map(|part| build_condition(builder, level, part)).collect();
    Ok(join_conditions(parts?, " AND ", "TRUE"))
}

/// At least one part is true. Ids at the end of the same path are compared at once.
fn disjunction(
    builder: &mut SqlBuilder,
    level: &mut Level,
    parts: &[Filter],
) -> Result<SqlCondition, StoreError> {
    let mut groups: Vec<IdGroup<'_>> = Vec::new();
    let mut others = Vec::new();
    for part in parts {
        let Some(candidate) = single_id(level.table, part) else {
            others.push(part);
            continue;
        };
        let same = |group: &&mut IdGroup<'_>| {
            group.path == candidate.path && group.field == candidate.field
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.bits.extend(candidate.bits),
            None => groups.push(candidate),
        }
    }
    let mut parts = Vec::with_capacity(groups.len() + others.len());
    for group in &groups {
        let end = PathEnd::Ids(group.field, &group.bits);
        parts.push(follow_path(builder, level, group.path, end)?);
    }
    for part in others {
        parts.push(build_condition(builder, level, part)?);
    }
    Ok(join_conditions(parts, " OR ", "FALSE"))
}

fn join_conditions(parts: Vec<SqlCondition>, operator: &str, none: &str) -> SqlCondition {
    let is_certain = parts.iter().all(|part| part.is_certain);
    let texts: Vec<_> = parts.into_iter().map(|part| part.text).collect();
    let text = match texts.as_slice() {
        [] => none.to_owned(),
        [one] => one.clone(),
        texts => format!("({})", texts.join(operator)),
    };
    SqlCondition { text, is_certain }
}

/// Ids that are compared at the end of the same path.
struct IdGroup<'a> {
    path: &'a [&'static Edge],
    field: &'static FilterField,
    bits: Vec<i32>,
}

/// The id of a filter that tests nothing but one id.
fn single_id<'a>(table: &ResourceTable, filter: &'a Filter) -> Option<IdGroup<'a>> {
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
        FieldCondition::Exactly(id) => parse_id(prefix, id),
        FieldCondition::Contains(pattern) => id_in_pattern(prefix, pattern),
        _ => None,
    };
    Some(IdGroup {
        path: &test.path,
        field: test.field,
        bits: vec![bits.filter(|_| form == ColumnForm::Bits)?],
    })
}

/// The condition at the end of a path. Each edge becomes a subquery that the planner may turn into
/// a join, even if it is negated; below `OR` it may hash the subquery.
fn follow_path(
    builder: &mut SqlBuilder,
    level: &mut Level,
    path: &[&'static Edge],
    end: PathEnd<'_>,
) -> Result<SqlCondition, StoreError> {
    let Some((edge, rest)) = path.split_first() else {
        return condition_at_end(builder, level, end);
    };
    let link = level.table.link(edge.name);
    let link = link.ok_or_else(|| unknown_column(edge.name))?;
    let mut other = builder.add_table(edge.to);
    if rest.is_empty()
        && let Some(short) = condition_by_key(builder, level, &other, link, end)
    {
        return Ok(short);
    }
    builder.mark_wide_search();
    let inner = follow_path(builder, &mut other, rest, end)?;
    let rows = match link.rows {
        Some(rows) => level.resolve_with(&other, rows),
        None => other.resolve(other.table.rows),
    };
    let tenant = other.resolve(other.table.tenant);
    Ok(certain(format!(
        "EXISTS (SELECT FROM {rows}{} WHERE {tenant} AND {} AND {})",
        other.join_clause(),
        level.resolve_with(&other, link.on),
        inner.text,
    )))
}

/// A condition on the foreign key alone: the id of the other end, or that the other end exists.
fn condition_by_key(
    builder: &mut SqlBuilder,
    level: &mut Level,
    other: &Level,
    link: &Link,
    end: PathEnd<'_>,
) -> Option<SqlCondition> {
    let key = level.resolve(link.key?);
    match end {
        PathEnd::Exists => Some(certain(format!("{key} IS NOT NULL"))),
        PathEnd::Field(field, condition) => {
            match (field.kind, other.table.column(field.name)?.form) {
                (FieldKind::Id(prefix), ColumnForm::Bits) => {
                    Some(id(builder, prefix, &key, condition))
                }
                _ => None,
            }
        }
        PathEnd::Ids(_, bits) => Some(one_of(builder, &key, bits)),
        PathEnd::Label(..) => None,
    }
}

fn condition_at_end(
    builder: &mut SqlBuilder,
    level: &mut Level,
    end: PathEnd<'_>,
) -> Result<SqlCondition, StoreError> {
    match end {
        PathEnd::Exists => Ok(certain("TRUE")),
        PathEnd::Label(key, condition) => {
            let labels = level.table.labels.ok_or_else(|| unknown_column("metadata"))?;
            let labels = level.resolve(labels);
            Ok(label(builder, &labels, key, condition))
        }
        PathEnd::Field(field, condition) => {
            let column = level.table.column(field.name);
            let column = column.ok_or_else(|| unknown_column(field.name))?;
            Ok(column_condition(builder, level, field, column, condition))
        }
        PathEnd::Ids(field, bits) => {
            let column = level.table.column(field.name);
            let sql = level.resolve(column.ok_or_else(|| unknown_column(field.name))?.sql);
            Ok(one_of(builder, &sql, bits))
        }
    }
}

fn column_condition(
    builder: &mut SqlBuilder,
    level: &mut Level,
    field: &'static FilterField,
    column: &Column,
    condition: &FieldCondition,
) -> SqlCondition {
    let sql = level.resolve(column.sql);
    match (field.kind, column.form) {
        (FieldKind::Id(prefix), ColumnForm::Bits) => id(builder, prefix, &sql, condition),
        (FieldKind::Id(_) | FieldKind::Text, ColumnForm::Uuid) => uuid(builder, &sql, condition),
        (FieldKind::Id(_) | FieldKind::Text, _) => match (column.folded, condition) {
            (Some(folded), FieldCondition::Contains(pattern)) => {
                contains_folded(builder, &sql, &level.resolve(folded), pattern)
            }
            _ => text(builder, &sql, condition),
        },
        (FieldKind::Version, _) => version(builder, &sql, condition),
        (FieldKind::Enumeration(_), _) => enumeration(builder, &sql, condition),
        (FieldKind::Number, _) => number(builder, &sql, condition),
        (FieldKind::Bool, _) => boolean(&sql, condition),
        (FieldKind::UnixSeconds, _) => time(builder, &sql, TimeDelta::seconds(1), condition),
        (FieldKind::Rfc3339Time, _) => time(builder, &sql, TimeDelta::milliseconds(1), condition),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::filter::{Resource, parse_filter};

    use ::uuid::Uuid;

    use super::*;

    fn sql(resource: Resource, filter: &str) -> String {
        let filter = parse_filter(resource, filter).expect("a filter");
        let mut builder = SqlBuilder::new(Uuid::nil());
        let mut level = builder.add_table(resource);
        filter_sql(&mut builder, &mut level, &filter).expect("a condition")
    }

    #[test]
    fn a_complete_id_is_compared_as_a_number() {
        let expected = "t0.id = $2";
        for filter in [
            "resourceId = 'host-0a1b2c3d'",
            "resourceId = 'HOST-0A1B2C3D'",
            "resourceId == 'host-0a1b2c3d'",
        ] {
            assert_eq!(sql(Resource::Host, filter), expected, "{filter}");
        }
        assert_eq!(sql(Resource::Host, "resourceId == 'host-0A1B2C3D'"), "FALSE");
        let part = sql(Resource::Host, "resourceId = '0a1b'");
        assert_eq!(part, "('host-' || lpad(to_hex(t0.id), 8, '0')) ILIKE $2");
        assert_eq!(sql(Resource::Host, "resourceId = 'xyz'"), "FALSE");
    }

    #[test]
    fn an_id_across_an_edge_uses_the_foreign_key() {
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
    fn a_complete_uuid_is_compared_as_a_uuid() {
        let uuid = "01234567-89ab-cdef-0123-456789abcdef";
        let is = |filter: String| sql(Resource::Host, &filter);
        assert_eq!(is(format!("uuid = '{}'", uuid.to_uppercase())), "t0.uuid = $2");
        assert_eq!(is(format!("uuid == '{uuid}'")), "t0.uuid = $2");
        assert_eq!(is(format!("uuid == '{}'", uuid.to_uppercase())), "t0.uuid = $2");
        assert_eq!(is("uuid == '0123'".to_owned()), "FALSE");
        assert_eq!(is("uuid = '0123'".to_owned()), "(t0.uuid::text) ILIKE $2");
        assert_eq!(is("uuid = 'edge'".to_owned()), "FALSE");
    }

    #[test]
    fn a_partial_name_is_searched_in_the_lowercase_column() {
        let folded = "t0.name_folded LIKE lower($2)";
        for resource in [Resource::Host, Resource::Instance, Resource::Run] {
            assert_eq!(sql(resource, "name = 'Edge'"), folded, "{resource:?}");
        }
        assert_eq!(sql(Resource::Site, "name = 'Edge'"), "(t0.name) ILIKE $2");
        let over_an_edge = sql(Resource::Run, "instance.host.name = 'Edge'");
        assert!(over_an_edge.contains("AND t2.name_folded LIKE lower($2)"), "{over_an_edge}");
    }

    #[test]
    fn own_columns_and_foreign_keys_need_no_wide_search() {
        let looks_far = |resource, text| {
            let filter = parse_filter(resource, text).expect("a filter");
            let mut builder = SqlBuilder::new(Uuid::nil());
            let mut level = builder.add_table(resource);
            filter_sql(&mut builder, &mut level, &filter).expect("a condition");
            builder.is_wide_search()
        };
        assert!(!looks_far(Resource::Host, "name == 'a'"));
        assert!(!looks_far(Resource::Host, "site.resourceId == 'site-0a1b2c3d'"));
        assert!(looks_far(Resource::Run, "instance.host.site.resourceId == 'site-0a1b2c3d'"));
        assert!(looks_far(Resource::Host, "name = 'a'"));
    }

    #[test]
    fn the_list_fingerprint_does_not_depend_on_lowercase_columns() {
        let filter = "name = 'a' OR name = 'b' OR note = 'c'";
        let filter = parse_filter(Resource::Host, filter).expect("a filter");
        let mut builder = SqlBuilder::new(Uuid::nil());
        assert!(!builder.is_wide_search());
        let mut level = builder.add_table(Resource::Host);
        let condition = filter_sql(&mut builder, &mut level, &filter).expect("a condition");
        assert!(builder.is_wide_search());
        assert_eq!(
            builder.unfolded(&condition),
            "((t0.name) ILIKE $2 OR (t0.name) ILIKE $3 OR (t0.note) ILIKE $4)"
        );
    }

    #[test]
    fn a_nullable_condition_is_made_boolean_before_negation() {
        let sql = sql(Resource::Host, "NOT serialNumber = 'a'");
        assert_eq!(sql, "((t0.serial) ILIKE $2) IS NOT TRUE");
    }
}
