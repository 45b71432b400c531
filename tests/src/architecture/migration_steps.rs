//! Steps of the schema that would block servers while they run.

use std::collections::BTreeSet;

use super::tree::SourceFile;

/// The last step that the rules do not apply to: up to here no release contains the tables.
const LAST_UNCHECKED_STEP: &str = "20261129_000007";

/// A step that may break the rules, and why.
#[derive(Clone, Copy, Debug)]
pub struct StepException {
    /// Name of the step, as in the name of its file.
    pub step: &'static str,
    pub reason: &'static str,
}

/// All exceptions.
pub const STEP_EXCEPTIONS: &[StepException] = &[StepException {
    step: "20261129_000009_revocable_tokens",
    reason: "no release contains it, and only 000010 creates the table that records the parts of a step",
}];

/// Begins a part in a file of a step.
const PART_HEADER: &str = "-- part: ";

/// Constraints that Postgres checks for all rows when they are added.
const CHECKED_CONSTRAINTS: &[&str] =
    &["CHECK (", "FOREIGN KEY", "REFERENCES", "UNIQUE", "PRIMARY KEY", "EXCLUDE"];

/// Each statement that would hold a lock for as long as it reads or writes a table, or that an older
/// release may not know; and each exception that is not needed.
pub fn blocking_statements(files: &[SourceFile], exceptions: &[StepException]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        let Some(step) = name.strip_suffix(".up.sql").filter(|step| is_checked(step)) else {
            continue;
        };
        let found = check_step(&file.text);
        let is_exception = exceptions.iter().any(|exception| exception.step == step);
        if is_exception && found.is_empty() {
            findings.push(format!("{step} needs no exception"));
        } else if !is_exception {
            findings.extend(found.iter().map(|why| format!("{step}: {why}")));
        }
    }
    findings
}

fn is_checked(step: &str) -> bool {
    step.get(..LAST_UNCHECKED_STEP.len()).is_some_and(|number| number > LAST_UNCHECKED_STEP)
}

/// A part of a step.
struct StepPart {
    /// The kind, as in its header; `transaction` without a header.
    kind: String,
    /// Upper case, with single spaces, without comments and bodies of functions.
    statements: Vec<String>,
}

fn check_step(text: &str) -> Vec<String> {
    let parts = split_parts(text);
    let mut created = Vec::new();
    let mut validated = Vec::new();
    let mut findings = Vec::new();
    for part in &parts {
        let is_transaction = part.kind == "transaction";
        let mut locked = BTreeSet::new();
        for statement in &part.statements {
            if let Some(table) = word_after(statement, "CREATE TABLE ") {
                created.push(table);
            }
            let table = changed_table(statement);
            if table.is_some_and(|table| created.contains(&table)) {
                continue;
            }
            if let Some(why) =
                is_transaction.then(|| check_statement(statement, &validated)).flatten()
            {
                findings.push(format!("{why}: {statement}"));
            }
            locked.extend(table.filter(|_| !statement.starts_with("UPDATE ")));
            if statement.contains("VALIDATE CONSTRAINT") && part.statements.len() > 1 {
                findings.push(format!("validates in a part with other statements: {statement}"));
            }
            if is_contraction(statement) && !text.contains("schema_compatibility") {
                findings.push(format!("removes without a new min_release: {statement}"));
            }
        }
        if locked.len() > 1 {
            findings.push(format!(
                "holds the lock of one table while it waits for another: {locked:?}"
            ));
        }
        let checks = part.statements.iter().filter(|one| one.contains("VALIDATE CONSTRAINT"));
        validated.extend(checks.filter_map(|statement| changed_table(statement)));
    }
    findings
}

/// Why a statement of a transaction blocks servers, if it does.
fn check_statement(statement: &str, validated: &[&str]) -> Option<&'static str> {
    let is_alter = statement.starts_with("ALTER TABLE ");
    let has = |text: &str| statement.contains(text);
    if statement.starts_with("LOCK ") && (has("ACCESS EXCLUSIVE") || !has(" MODE")) {
        Some("locks a table against all others")
    } else if statement.starts_with("CREATE INDEX ")
        || statement.starts_with("CREATE UNIQUE INDEX ")
    {
        Some("creates an index without CONCURRENTLY")
    } else if statement.starts_with("UPDATE ") || statement.starts_with("DELETE FROM ") {
        let is_release = has("SCHEMA_COMPATIBILITY");
        (!is_release).then_some("changes rows without batches")
    } else if is_alter && has(" ALTER COLUMN ") && has(" TYPE ") {
        Some("changes the type of a column")
    } else if is_alter && has("GENERATED ALWAYS AS (") {
        Some("adds a column that rewrites the table")
    } else if is_alter && has("SET NOT NULL") {
        let is_validated = changed_table(statement).is_some_and(|table| validated.contains(&table));
        (!is_validated).then_some("reads all rows for NOT NULL without a validated check")
    } else if is_alter && has(" ADD ") && !has("NOT VALID") && !has("USING INDEX") {
        let is_checked = CHECKED_CONSTRAINTS.iter().any(|constraint| has(constraint));
        is_checked.then_some("adds a constraint without NOT VALID")
    } else {
        None
    }
}

/// Whether a server of an older release may miss what the statement removes.
fn is_contraction(statement: &str) -> bool {
    let is_alter = statement.starts_with("ALTER TABLE ");
    statement.starts_with("DROP TABLE ")
        || (is_alter && (statement.contains(" DROP COLUMN ") || statement.contains(" RENAME ")))
}

/// The table that a statement changes, indexes or gives a trigger.
fn changed_table(statement: &str) -> Option<&str> {
    let is_index =
        statement.starts_with("CREATE INDEX ") || statement.starts_with("CREATE UNIQUE INDEX ");
    if is_index {
        return word_after(statement, " ON ");
    }
    if statement.starts_with("CREATE TRIGGER ") || statement.starts_with("DROP TRIGGER ") {
        return word_after(statement, " ON ");
    }
    let beginnings = ["ALTER TABLE ", "UPDATE ", "DELETE FROM ", "LOCK TABLE ", "DROP TABLE "];
    beginnings.iter().find_map(|beginning| {
        statement.starts_with(beginning).then(|| word_after(statement, beginning)).flatten()
    })
}

/// The word after the first occurrence of a text.
fn word_after<'a>(statement: &'a str, text: &str) -> Option<&'a str> {
    let (_, rest) = statement.split_once(text)?;
    rest.split([' ', '(', ',']).next().filter(|word| !word.is_empty())
}

fn split_parts(text: &str) -> Vec<StepPart> {
    let mut parts = vec![("transaction", String::new())];
    for line in text.lines() {
        if let Some(header) = line.strip_prefix(PART_HEADER) {
            parts.push((header.split(' ').next().unwrap_or_default(), String::new()));
            continue;
        }
        let code = line.split_once("--").map_or(line, |(code, _)| code);
        if let Some((_, sql)) = parts.last_mut() {
            sql.push_str(code);
            sql.push(' ');
        }
    }
    let parts = parts
        .into_iter()
        .map(|(kind, sql)| StepPart { kind: kind.to_owned(), statements: split_statements(&sql) });
    parts.collect()
}

fn split_statements(sql: &str) -> Vec<String> {
    // Every second section is the body of a function.
    let code: Vec<&str> = sql.split("$$").step_by(2).collect();
    let code = code.join(" ").to_uppercase();
    let statements =
        code.split(';').map(|one| one.split_whitespace().collect::<Vec<_>>().join(" "));
    statements.filter(|statement| !statement.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sql: &str) -> Vec<String> {
        let file = SourceFile::sample("migrations/sql/20270101_000001_next.up.sql", sql);
        blocking_statements(&[file], &[])
    }

    #[test]
    fn statements_that_block_servers_are_found() {
        for (sql, why) in [
            ("LOCK TABLE hosts IN ACCESS EXCLUSIVE MODE;", "locks a table"),
            ("LOCK TABLE hosts;", "locks a table"),
            ("CREATE INDEX a ON hosts (name);", "without CONCURRENTLY"),
            ("CREATE UNIQUE INDEX a ON hosts\n    (name);", "without CONCURRENTLY"),
            ("UPDATE hosts SET note = '';", "without batches"),
            ("DELETE FROM hosts;", "without batches"),
            ("ALTER TABLE hosts ALTER COLUMN id TYPE bigint;", "changes the type"),
            (
                "ALTER TABLE hosts ADD COLUMN a text GENERATED ALWAYS AS (lower(b)) STORED;",
                "rewrites",
            ),
            ("ALTER TABLE hosts ALTER COLUMN a SET NOT NULL;", "without a validated check"),
            ("ALTER TABLE hosts ADD CONSTRAINT a CHECK (b > 0);", "without NOT VALID"),
            ("ALTER TABLE hosts ADD COLUMN a integer CHECK (a > 0);", "without NOT VALID"),
            ("ALTER TABLE hosts ADD FOREIGN KEY (a) REFERENCES b;", "without NOT VALID"),
            ("ALTER TABLE hosts VALIDATE CONSTRAINT a; SELECT 1;", "with other statements"),
            ("ALTER TABLE hosts DROP COLUMN a;", "new min_release"),
            ("DROP TABLE hosts;", "new min_release"),
            (
                "ALTER TABLE hosts ADD COLUMN a text; CREATE TRIGGER a AFTER UPDATE ON sites FOR EACH ROW EXECUTE FUNCTION f();",
                "while it waits for another",
            ),
            (
                "-- part: transaction\nSELECT 1;\n-- part: transaction\nLOCK TABLE hosts;",
                "locks a table",
            ),
        ] {
            let found = check(sql);
            assert!(found.len() == 1 && found[0].contains(why), "{sql}: {found:?}");
        }
    }

    #[test]
    fn statements_that_do_not_block_servers_are_allowed() {
        for sql in [
            "CREATE TABLE a (b text); CREATE INDEX c ON a (b); ALTER TABLE a ADD CHECK (b <> '');",
            "ALTER TABLE hosts ADD COLUMN type text; -- LOCK TABLE hosts;",
            "ALTER TABLE hosts ADD CONSTRAINT a CHECK (b > 0) NOT VALID;",
            "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN UPDATE hosts SET a = 1; END $$;",
            "-- part: index a\nCREATE INDEX CONCURRENTLY a ON hosts (name);",
            "-- part: batches hosts\nUPDATE hosts SET a = 1 WHERE ctid >= :first AND ctid < :end;",
            "-- part: transaction\nALTER TABLE hosts VALIDATE CONSTRAINT a;\n\
             -- part: transaction\nALTER TABLE hosts ALTER COLUMN b SET NOT NULL;",
            "UPDATE schema_compatibility SET min_release = '2.0.0'; ALTER TABLE hosts DROP COLUMN a;",
            "CREATE TABLE a (b text); ALTER TABLE a ADD c text; ALTER TABLE hosts ADD COLUMN a text;",
        ] {
            assert_eq!(check(sql), Vec::<String>::new(), "{sql}");
        }
    }

    #[test]
    fn an_exception_must_be_needed() {
        let blocking = "LOCK TABLE hosts;";
        let exception = StepException { step: "20270101_000001_next", reason: "a sample" };
        let path = "migrations/sql/20270101_000001_next.up.sql";
        let needed = blocking_statements(&[SourceFile::sample(path, blocking)], &[exception]);
        assert_eq!(needed, Vec::<String>::new());
        let unneeded = blocking_statements(&[SourceFile::sample(path, "SELECT 1;")], &[exception]);
        assert_eq!(unneeded, ["20270101_000001_next needs no exception"]);
        let old = SourceFile::sample("migrations/sql/20261129_000007_old.up.sql", blocking);
        assert_eq!(blocking_statements(&[old], &[]), Vec::<String>::new());
    }
}
