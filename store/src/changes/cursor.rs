//! Cursors: positions in the changes of a project, as clients store them.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use evenkeel_domain::tenant::TenantId;

/// A position in the changes of one project: after the change with this number of this transaction.
/// As text, it is opaque to clients and safe in URLs and headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeCursor {
    /// Distinguishes projects. It detects mistakes, and grants no rights.
    pub(super) project: u32,
    /// How often the database lost its last changes: it was restored, or a standby was promoted.
    pub(super) database_epoch: u32,
    /// How often rows of the log were removed that a reader may not have read.
    pub(super) log_epoch: u32,
    /// The transaction id.
    pub(super) xid: u64,
    /// The number of the change; 0 before the first change of the transaction.
    pub(super) seq: u64,
}

/// The text is not a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a cursor of a list or a stream of changes")]
pub struct InvalidCursor;

/// The first part of the text, for later forms.
const VERSION: &str = "c1";

impl ChangeCursor {
    /// Whether it is a cursor of this project.
    #[must_use]
    pub fn is_of(&self, tenant: TenantId) -> bool {
        self.project == project_mark(tenant)
    }

    /// The transaction id. Every change of an earlier transaction is before the cursor.
    #[must_use]
    pub const fn xid(&self) -> u64 {
        self.xid
    }

    /// The cursor after a change.
    #[must_use]
    pub const fn after(self, change: super::ChangeId) -> Self {
        Self { xid: change.xid, seq: change.seq, ..self }
    }

    /// The cursor before the first change of a transaction; this cursor, if it is later.
    #[must_use]
    pub const fn advanced_to(self, xid: u64) -> Self {
        if xid > self.xid { Self { xid, seq: 0, ..self } } else { self }
    }
}

/// A number that distinguishes projects.
pub(super) fn project_mark(tenant: TenantId) -> u32 {
    let (high, low) = tenant.uuid().as_u64_pair();
    let mixed = high ^ low;
    u32::try_from((mixed ^ (mixed >> 32)) & u64::from(u32::MAX)).unwrap_or_default()
}

impl Display for ChangeCursor {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { project, database_epoch, log_epoch, xid, seq } = self;
        write!(f, "{VERSION}-{project:x}-{database_epoch:x}-{log_epoch:x}-{xid:x}-{seq:x}")
    }
}

impl FromStr for ChangeCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let parts: Vec<&str> = text.split('-').collect();
        let [VERSION, project, database_epoch, log_epoch, xid, seq] = parts[..] else {
            return Err(InvalidCursor);
        };
        Ok(Self {
            project: parse_small(project)?,
            database_epoch: parse_small(database_epoch)?,
            log_epoch: parse_small(log_epoch)?,
            xid: parse_number(xid)?,
            seq: parse_number(seq)?,
        })
    }
}

fn parse_small(text: &str) -> Result<u32, InvalidCursor> {
    u32::try_from(parse_number(text)?).map_err(|_| InvalidCursor)
}

/// Parses a number as [`Display`] writes it. The database stores it with a sign.
pub(super) fn parse_number(text: &str) -> Result<u64, InvalidCursor> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_written = text.bytes().all(is_hex) && (text == "0" || !text.starts_with('0'));
    let number = u64::from_str_radix(text, 16).ok().filter(|_| is_written);
    number.filter(|number| i64::try_from(*number).is_ok()).ok_or(InvalidCursor)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn cursor() -> ChangeCursor {
        let project = project_mark(TenantId::new(Uuid::from_u128(7)));
        ChangeCursor { project, database_epoch: 1, log_epoch: 2, xid: 0x1000, seq: 42 }
    }

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let text = cursor().to_string();
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{text}");
        assert_eq!(text.parse(), Ok(cursor()));
    }

    #[test]
    fn a_cursor_knows_its_project() {
        assert!(cursor().is_of(TenantId::new(Uuid::from_u128(7))));
        assert!(!cursor().is_of(TenantId::new(Uuid::from_u128(8))));
    }

    #[test]
    fn a_cursor_never_moves_back() {
        assert_eq!(cursor().advanced_to(0xfff), cursor());
        assert_eq!(cursor().advanced_to(0x1000), cursor(), "it is behind a change of it");
        let later = cursor().advanced_to(0x1001);
        assert_eq!((later.xid, later.seq), (0x1001, 0));
    }

    #[test]
    fn an_invalid_cursor_is_rejected() {
        for bad in [
            "",
            "c1",
            "c1-7-1-2-1000",
            "c2-7-1-2-1000-2a",
            "c1-7-1-2-1000-2A",
            "c1-7-1-2-1000-02a",
            "c1-7-1-2-1000-",
            "c1-7-1-2-1000-2a-1",
            "c1-7-1-2-+100-2a",
            "c1-7-1-2-8000000000000000-2a",
            "c1-7-100000000-2-1000-2a",
        ] {
            assert_eq!(bad.parse::<ChangeCursor>(), Err(InvalidCursor), "{bad}");
        }
    }
}
