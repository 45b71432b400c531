//! The parts of a step, as its SQL file marks them.

/// Marks the beginning of a part, at the start of a line.
const HEADER: &str = "-- part: ";

/// A part of a step. A step without headers is one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Statements that run in one transaction.
    Transaction(&'a str),
    /// One statement that creates an index without blocking writers.
    Index { name: &'a str, sql: &'a str },
    /// One statement that changes the rows of a table in the blocks from `:first` to before `:end`.
    /// It runs once for each range of blocks, each time in a transaction of its own.
    Batches { table: &'a str, sql: &'a str },
}

impl<'a> Part<'a> {
    /// The parts of an SQL file, in their order.
    ///
    /// # Errors
    /// A header names no known kind of part, or a statement misses what its kind needs.
    pub fn parse_all(sql: &'a str) -> Result<Vec<Self>, String> {
        let headers = sql.match_indices(HEADER).map(|(at, _)| at);
        let starts: Vec<usize> =
            headers.filter(|&at| at == 0 || sql[..at].ends_with('\n')).collect();
        let Some(&first) = starts.first() else {
            return Ok(vec![Self::Transaction(sql)]);
        };
        if has_statement(&sql[..first]) {
            return Err("a statement stands before the first part".to_owned());
        }
        let ends = starts.iter().copied().skip(1).chain([sql.len()]);
        let sections = starts.iter().zip(ends);
        sections.map(|(&start, end)| Self::parse(&sql[start + HEADER.len()..end])).collect()
    }

    /// Parses a section that begins with the text after the header.
    fn parse(section: &'a str) -> Result<Self, String> {
        let (header, sql) = section.split_once('\n').unwrap_or((section, ""));
        let words: Vec<&str> = header.split_whitespace().collect();
        match words[..] {
            ["transaction"] => Ok(Self::Transaction(sql)),
            ["index", name] if sql.contains(&format!("INDEX CONCURRENTLY {name} ON ")) => {
                Ok(Self::Index { name, sql })
            }
            ["index", name] => {
                Err(format!("the part does not create the index {name} CONCURRENTLY"))
            }
            ["batches", table] if sql.contains("ctid >= :first AND ctid < :end") => {
                Ok(Self::Batches { table, sql })
            }
            ["batches", table] => Err(format!(
                "the batches of {table} are not limited to ctid >= :first AND ctid < :end"
            )),
            _ => Err(format!("unknown kind of part: {header:?}")),
        }
    }

    /// Description of the part for people.
    pub fn describe(&self) -> String {
        match self {
            Self::Transaction(_) => "a transaction with a short lock".to_owned(),
            Self::Index { name, .. } => format!("creates the index {name} while the servers write"),
            Self::Batches { table, .. } => format!("changes the rows of {table} in batches"),
        }
    }
}

/// Whether the text contains anything but comments.
fn has_statement(sql: &str) -> bool {
    sql.lines().map(str::trim).any(|line| !line.is_empty() && !line.starts_with("--"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_headers_is_one_transaction() {
        let sql = "-- Why.\nALTER TABLE a ADD COLUMN b text;\n";
        assert_eq!(Part::parse_all(sql), Ok(vec![Part::Transaction(sql)]));
    }

    #[test]
    fn headers_separate_the_parts() {
        let index = "CREATE INDEX CONCURRENTLY a_b ON a (b);\n";
        let batches = "UPDATE a SET b = '' WHERE b IS NULL AND ctid >= :first AND ctid < :end;\n";
        let sql = format!(
            "-- Why.\n-- part: transaction\nSELECT 1;\n-- part: batches a\n{batches}-- part: index a_b\n{index}"
        );
        let parts = [
            Part::Transaction("SELECT 1;\n"),
            Part::Batches { table: "a", sql: batches },
            Part::Index { name: "a_b", sql: index },
        ];
        assert_eq!(Part::parse_all(&sql), Ok(parts.to_vec()));
    }

    #[test]
    fn a_part_that_misses_what_its_kind_needs_is_refused() {
        for sql in [
            "SELECT 1;\n-- part: transaction\nSELECT 2;\n",
            "-- part: indices\nSELECT 1;\n",
            "-- part: index a_b\nCREATE INDEX a_b ON a (b);\n",
            "-- part: index a_b\nCREATE INDEX CONCURRENTLY a_c ON a (c);\n",
            "-- part: batches a\nUPDATE a SET b = '';\n",
        ] {
            assert!(Part::parse_all(sql).is_err(), "{sql}");
        }
    }
}
