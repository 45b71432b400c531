//! Whether each statement limits each table of projects to a project by a condition on `tenant_id`.
//!
//! Row-level security limits every statement to the project of its transaction, whatever its text
//! is. A database that is divided by project, such as Citus, finds the shard of a statement only
//! by such a condition.
//!
//! The check reads the text of a statement. It does not see what functions and triggers of the
//! database do, and it accepts a condition also next to an `OR`.

mod references;
mod tokens;

use std::collections::BTreeSet;

use references::References;

/// A statement that may read or write a table without a condition on the project.
#[derive(Clone, Copy, Debug)]
pub struct StatementException {
    pub table: &'static str,
    /// A part of the text of the statement, without its double quotes.
    pub part: &'static str,
    pub reason: &'static str,
}

impl StatementException {
    fn allows(&self, table: &str, statement: &str) -> bool {
        self.table == table && statement.contains(self.part)
    }
}

/// Each statement that reads or writes one of these tables without a condition on the project and
/// without an exception, and each exception without such a statement.
pub fn find_missing_tenant_conditions(
    statements: &BTreeSet<String>,
    tables: &BTreeSet<String>,
    exceptions: &[StatementException],
) -> Vec<String> {
    let mut findings = Vec::new();
    let mut is_needed = vec![false; exceptions.len()];
    for statement in statements {
        let text = statement.replace('"', "");
        for table in References::read(statement, tables).unlimited_tables() {
            let allowed = exceptions.iter().position(|one| one.allows(table, &text));
            match allowed {
                Some(index) => is_needed[index] = true,
                None => findings.push(format!("{table} has no condition on tenant_id in: {text}")),
            }
        }
    }
    for (exception, is_needed) in exceptions.iter().zip(is_needed) {
        if !is_needed {
            let StatementException { table, part, .. } = exception;
            findings.push(format!("the exception for {table} in {part:?} is not needed"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn unlimited(statement: &str) -> Vec<String> {
        let tables = names(&["hosts", "instances", "sites", "contents"]);
        let references = References::read(statement, &tables);
        references.unlimited_tables().into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn a_condition_on_each_table_limits_a_statement() {
        for statement in [
            "SELECT 1",
            r#"SELECT "hosts"."tenant_id" FROM "hosts" WHERE "hosts"."tenant_id" = $1"#,
            "SELECT name FROM hosts WHERE $1 = tenant_id AND id = 3",
            "SELECT h.id FROM hosts h JOIN instances i ON i.tenant_id = h.tenant_id WHERE h.tenant_id = $1",
            "SELECT (SELECT count(*) FROM sites s WHERE s.tenant_id = h.tenant_id) FROM hosts h \
             WHERE h.tenant_id = $1",
            "INSERT INTO contents (tenant_id, body) VALUES ($1, 'a') ON CONFLICT (tenant_id) DO NOTHING",
            "INSERT INTO sites AS s (tenant_id, id) SELECT tenant_id, id FROM hosts WHERE tenant_id = $1",
            "UPDATE hosts SET name = 'it''s' WHERE tenant_id = $1",
            "WITH old AS (SELECT tenant_id, id FROM hosts WHERE tenant_id = $1 FOR UPDATE) \
             DELETE FROM hosts h USING old WHERE h.tenant_id = old.tenant_id AND h.id = old.id",
            "SELECT id FROM hosts WHERE tenant_id = $1 UNION SELECT h.id FROM hosts h WHERE h.tenant_id = $1",
            "SELECT b.id FROM unnest($1::uuid[]) AS b (tenant_id) JOIN hosts h ON h.tenant_id = b.tenant_id",
            "WITH one AS (SELECT * FROM sites WHERE tenant_id = $1) SELECT * FROM hosts h JOIN one USING (tenant_id)",
            "SELECT extract(epoch FROM h.at) FROM public.hosts AS h WHERE h.tenant_id IN ($1, $2)",
        ] {
            assert_eq!(unlimited(statement), Vec::<String>::new(), "{statement}");
        }
    }

    #[test]
    fn a_table_without_a_condition_is_found() {
        for (statement, expected) in [
            (r#"SELECT "hosts"."tenant_id" FROM "hosts" WHERE "hosts"."id" = $1"#, vec!["hosts"]),
            ("SELECT 'tenant_id = 1' FROM hosts ORDER BY tenant_id", vec!["hosts"]),
            (
                "SELECT 1 FROM hosts h JOIN instances i ON i.tenant_id = h.tenant_id",
                vec!["hosts", "instances"],
            ),
            (
                "SELECT 1 FROM hosts h, instances i WHERE h.tenant_id = $1 AND i.host_id = h.id",
                vec!["instances"],
            ),
            (
                "SELECT 1 FROM hosts h WHERE h.tenant_id = $1 AND EXISTS (SELECT FROM sites s WHERE s.id = 1)",
                vec!["sites"],
            ),
            ("UPDATE hosts SET name = 'tenant_id'", vec!["hosts"]),
            ("INSERT INTO contents (body) VALUES ($1)", vec!["contents"]),
            (
                "INSERT INTO contents (body) VALUES ($1) ON CONFLICT (tenant_id, body) DO NOTHING",
                vec!["contents"],
            ),
            (
                "DELETE FROM hosts WHERE ctid = ANY (ARRAY(SELECT ctid FROM hosts WHERE tenant_id = $1))",
                vec!["hosts"],
            ),
            (
                "SELECT id FROM hosts WHERE tenant_id = $1 UNION ALL SELECT id FROM sites",
                vec!["sites"],
            ),
            ("SELECT 1 FROM hosts h WHERE (h.tenant_id, h.id) > ($1, $2)", vec!["hosts"]),
        ] {
            assert_eq!(unlimited(statement), expected, "{statement}");
        }
    }

    #[test]
    fn an_exception_is_for_one_table_and_must_be_needed() {
        let tables = names(&["hosts", "sites"]);
        let statements = names(&[r#"SELECT 1 FROM "hosts" WHERE id = $1"#]);
        let exception = |table, part| StatementException { table, part, reason: "a test" };
        let find = |exceptions: &[StatementException]| {
            find_missing_tenant_conditions(&statements, &tables, exceptions)
        };
        assert_eq!(find(&[exception("hosts", "FROM hosts WHERE id")]), Vec::<String>::new());
        let missing =
            "hosts has no condition on tenant_id in: SELECT 1 FROM hosts WHERE id = $1".to_owned();
        assert_eq!(find(&[]), std::slice::from_ref(&missing));
        let unneeded = "the exception for sites in \"FROM hosts\" is not needed".to_owned();
        assert_eq!(find(&[exception("sites", "FROM hosts")]), [missing, unneeded]);
    }
}
