//! Users and groups of `/etc/passwd` and `/etc/group`.
//!
//! Only the local files are read: accounts of NSS, for example of LDAP, do not count, because a
//! node cannot change them; documents name them by number. Lines with a wrong number of fields, a
//! number that is none, or an empty name are ignored, as are entries of NIS. The first line of a
//! name or a number counts.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use super::error::FileError;
use super::folder::RootFolder;
use super::lines::LineReader;

const PASSWD_PATH: &str = "/etc/passwd";
const GROUP_PATH: &str = "/etc/group";

/// Lowest number of a person's account on Debian.
const FIRST_PERSON_UID: u32 = 1000;

/// The number of users that the kernel cannot show; it belongs to a user without rights.
const OVERFLOW_UID: u32 = 65_534;

/// Programs that end at once, in the place of a login shell.
const SHELLS_WITHOUT_LOGIN: [&str; 6] = ["nologin", "false", "true", "sync", "halt", "shutdown"];

/// What passwd(5) means by an empty shell.
const DEFAULT_SHELL: &str = "/bin/sh";

/// The users and groups of the machine, or why they cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct AccountDatabase {
    pub users: Result<UserTable, String>,
    pub groups: Result<GroupTable, String>,
}

/// All users.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserTable {
    users: BTreeMap<String, UserRecord>,
    /// The first name of each number.
    names: BTreeMap<u32, String>,
}

/// All groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupTable {
    groups: BTreeMap<String, GroupRecord>,
    /// The first name of each number.
    names: BTreeMap<u32, String>,
}

/// A line of `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserRecord {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub comment: String,
    pub home: String,
    pub shell: String,
}

/// A line of `/etc/group`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    pub name: String,
    pub gid: u32,
    pub members: Vec<String>,
}

impl AccountDatabase {
    /// Reads both files. A missing file is an error.
    pub(crate) fn read(root: &RootFolder) -> Self {
        let missing = |path: &str| format!("cannot read {path}: it does not exist");
        let users = UserTable::read(root).map_err(|error| error.to_string());
        let groups = GroupTable::read(root).map_err(|error| error.to_string());
        Self {
            users: users.and_then(|users| users.ok_or_else(|| missing(PASSWD_PATH))),
            groups: groups.and_then(|groups| groups.ok_or_else(|| missing(GROUP_PATH))),
        }
    }
}

impl UserTable {
    /// How many users have a number.
    pub(crate) fn count_uid(&self, uid: u32) -> usize {
        self.users.values().filter(|user| user.uid == uid).count()
    }

    /// Reads `/etc/passwd`; none if it does not exist.
    fn read(root: &RootFolder) -> Result<Option<Self>, FileError> {
        let Some(lines) = root.open_lines(PASSWD_PATH)? else { return Ok(None) };
        Self::parse(lines)
            .map(Some)
            .map_err(|error| FileError::new("read", PASSWD_PATH, error.to_string()))
    }

    fn parse<R: BufRead>(mut lines: LineReader<R>) -> io::Result<Self> {
        let mut table = Self::default();
        while let Some(line) = lines.next_line()? {
            let Some(user) = parse_user(line) else { continue };
            table.names.entry(user.uid).or_insert_with(|| user.name.clone());
            table.users.entry(user.name.clone()).or_insert(user);
        }
        Ok(table)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&UserRecord> {
        self.users.get(name)
    }

    /// Users with a login shell and a number from 1000, sorted.
    pub(crate) fn people(&self) -> impl Iterator<Item = &str> {
        self.users.values().filter(|user| user.is_person()).map(|user| user.name.as_str())
    }
}

impl GroupTable {
    /// Reads `/etc/group`; none if it does not exist.
    fn read(root: &RootFolder) -> Result<Option<Self>, FileError> {
        let Some(lines) = root.open_lines(GROUP_PATH)? else { return Ok(None) };
        Self::parse(lines)
            .map(Some)
            .map_err(|error| FileError::new("read", GROUP_PATH, error.to_string()))
    }

    fn parse<R: BufRead>(mut lines: LineReader<R>) -> io::Result<Self> {
        let mut table = Self::default();
        while let Some(line) = lines.next_line()? {
            let Some(group) = parse_group(line) else { continue };
            table.names.entry(group.gid).or_insert_with(|| group.name.clone());
            table.groups.entry(group.name.clone()).or_insert(group);
        }
        Ok(table)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&GroupRecord> {
        self.groups.get(name)
    }

    /// The name of a group, or its number if no group has it.
    pub(crate) fn name_of_gid(&self, gid: u32) -> String {
        self.names.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }

    /// The groups that list a user as a member, sorted.
    pub(crate) fn names_with_member(&self, user: &str) -> Vec<&str> {
        let groups = self.groups.values();
        let groups = groups.filter(|group| group.members.iter().any(|member| member == user));
        groups.map(|group| group.name.as_str()).collect()
    }
}

impl UserRecord {
    /// The login shell.
    pub(crate) fn login_shell(&self) -> &str {
        if self.shell.is_empty() { DEFAULT_SHELL } else { &self.shell }
    }

    fn is_person(&self) -> bool {
        self.uid >= FIRST_PERSON_UID && self.uid != OVERFLOW_UID && can_log_in(&self.shell)
    }
}

/// Whether a user with this shell can log in; an empty shell is `/bin/sh`.
pub(crate) fn can_log_in(shell: &str) -> bool {
    !SHELLS_WITHOUT_LOGIN.contains(&shell.rsplit('/').next().unwrap_or_default())
}

/// Names and numbers of the users and groups of `/etc/passwd` and `/etc/group` of the machine.
/// Users of a directory service have no name here; documents name them by number.
#[derive(Clone, Debug, Default)]
pub struct AccountNames {
    users: UserTable,
    groups: GroupTable,
}

impl AccountNames {
    /// Reads the accounts of the machine. A missing file has no names.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn load(root: &RootFolder) -> Result<Self, FileError> {
        let users = UserTable::read(root)?.unwrap_or_default();
        Ok(Self { users, groups: GroupTable::read(root)?.unwrap_or_default() })
    }

    /// The number of a user, who is given by name or number.
    pub fn user_id(&self, user: &str) -> Option<u32> {
        if is_number(user) {
            return user.parse().ok();
        }
        self.users.find(user).map(|user| user.uid)
    }

    /// The number of a group, which is given by name or number.
    pub fn group_id(&self, group: &str) -> Option<u32> {
        if is_number(group) {
            return group.parse().ok();
        }
        self.groups.find(group).map(|group| group.gid)
    }

    /// The name of a user, or the number if there is no name.
    pub fn user_name(&self, uid: u32) -> String {
        self.users.names.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// The name of a group, or the number if there is no name.
    pub fn group_name(&self, gid: u32) -> String {
        self.groups.name_of_gid(gid)
    }
}

/// Parses a line of passwd(5). Bytes that are not UTF-8 are replaced.
fn parse_user(line: &[u8]) -> Option<UserRecord> {
    let line = String::from_utf8_lossy(line);
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _password, uid, gid, comment, home, shell] = fields[..] else { return None };
    Some(UserRecord {
        name: parse_name(name)?,
        uid: parse_id(uid)?,
        gid: parse_id(gid)?,
        comment: comment.to_owned(),
        home: home.to_owned(),
        shell: shell.to_owned(),
    })
}

/// Parses a line of group(5). Bytes that are not UTF-8 are replaced.
fn parse_group(line: &[u8]) -> Option<GroupRecord> {
    let line = String::from_utf8_lossy(line);
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _password, gid, members] = fields[..] else { return None };
    let members = members.split(',').map(str::trim).filter(|member| !member.is_empty());
    Some(GroupRecord {
        name: parse_name(name)?,
        gid: parse_id(gid)?,
        members: members.map(str::to_owned).collect(),
    })
}

/// The name of an account. Entries of NIS and comments are none.
fn parse_name(name: &str) -> Option<String> {
    let is_name = !name.is_empty() && !name.starts_with(['+', '-', '#']);
    is_name.then(|| name.to_owned())
}

fn parse_id(text: &str) -> Option<u32> {
    // `parse` would accept a sign.
    text.parse().ok().filter(|_| is_number(text))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_lines_are_no_accounts() {
        let users = [
            "",
            "root",
            "root:x:0:0:root:/root",
            "root:x:0:0:root:/root:/bin/bash:",
            "root:x::0:root:/root:/bin/bash",
            "root:x:+1:0:root:/root:/bin/bash",
            "root:x:4294967296:0:root:/root:/bin/bash",
            ":x:0:0::/:",
            "+::::::",
            "+@team:x:0:0:::",
            "#root:x:0:0:root:/root:/bin/bash",
        ];
        for line in users {
            assert_eq!(parse_user(line.as_bytes()), None, "{line}");
        }
        for line in ["", "adm:x:4", "adm:x:4:a:b", "adm:x:-4:", ":x:4:", "+:::"] {
            assert_eq!(parse_group(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn an_account_that_is_not_utf_8_exists() {
        let user = parse_user(b"ann:x:1000:1000:J\xe9r\xf4me:/home/ann:").unwrap();
        assert_eq!((user.uid, user.login_shell()), (1000, "/bin/sh"));
    }

    #[test]
    fn people_have_a_login_shell_and_a_high_number() {
        let passwd = b"root:x:0:0::/root:/bin/bash\n\
                       zoe:x:1001:1001::/home/zoe:/usr/bin/zsh\n\
                       ann:x:1000:1000::/home/ann:\n\
                       ann:x:1000:1000::/home/ann:\n\
                       app:x:1002:1002::/srv:/usr/sbin/nologin\n\
                       job:x:1003:1003::/srv:/bin/false\n\
                       nobody:x:65534:65534::/:/bin/sh\n\
                       broken:x:1004\n";
        let table = UserTable::parse(LineReader::new(&passwd[..])).unwrap();
        assert_eq!(table.people().collect::<Vec<_>>(), ["ann", "zoe"]);
    }

    proptest! {
        #[test]
        fn arbitrary_lines_are_parsed_without_a_panic(line in vec(any::<u8>(), 0..100)) {
            parse_user(&line);
            parse_group(&line);
        }

        #[test]
        fn damaged_lines_are_parsed_without_a_panic(
            content in "(root|:|0|1000|,|\n|4294967296|\\+|\u{e9}){0,40}"
        ) {
            let lines = || LineReader::new(content.as_bytes());
            UserTable::parse(lines()).unwrap();
            GroupTable::parse(lines()).unwrap();
        }

        #[test]
        fn accounts_are_parsed_as_they_are_written(
            name in "[a-z_][a-z0-9_-]{0,8}",
            (uid, gid) in any::<(u32, u32)>(),
            (comment, home, shell) in ("[ -9;-~]{0,9}", "[ -9;-~]{0,9}", "[ -9;-~]{0,9}"),
            members in vec("[a-z]{1,5}", 0..4),
        ) {
            let user = UserRecord { name: name.clone(), uid, gid, comment, home, shell };
            let UserRecord { comment, home, shell, .. } = &user;
            let line = format!("{name}:x:{uid}:{gid}:{comment}:{home}:{shell}");
            prop_assert_eq!(parse_user(line.as_bytes()), Some(user));
            let line = format!("{name}:*:{gid}:{}", members.join(","));
            prop_assert_eq!(parse_group(line.as_bytes()), Some(GroupRecord { name, gid, members }));
        }
    }
}
