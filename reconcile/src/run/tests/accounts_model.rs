//! Programs of the shadow package, on `/etc/passwd` and `/etc/group` of a test machine.

use std::fs;
use std::path::Path;

/// A user: name, uid, gid, comment, home, shell.
type UserLine = [String; 6];

/// A group: name, gid, members.
type GroupLine = (String, String, Vec<String>);

struct AccountFiles<'a> {
    root: &'a Path,
    users: Vec<UserLine>,
    groups: Vec<GroupLine>,
}

/// Runs a program; the error is what it prints.
pub(super) fn run(root: &Path, program: &str, arguments: &[String]) -> Result<(), String> {
    let mut files = AccountFiles::read(root);
    let (name, options) = arguments.split_last().ok_or("no name")?;
    let mut options: Vec<&String> = options.iter().collect();
    if options.pop_if(|word| *word == "--").is_none() {
        return Err("no -- before the name".to_owned());
    }
    options.retain(|option| *option != "--lock");
    let options: Vec<(&str, &str)> =
        options.chunks(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    match program {
        "groupadd" => files.add_group(name, &options)?,
        "groupmod" => files.change_group(name, &options)?,
        "groupdel" => files.remove_group(name)?,
        "useradd" => files.add_user(name, &options)?,
        "usermod" => files.change_user(name, &options)?,
        "userdel" => files.remove_user(name),
        _ => return Err(format!("no program {program}")),
    }
    files.write();
    Ok(())
}

impl<'a> AccountFiles<'a> {
    fn read(root: &'a Path) -> Self {
        let lines = |path: &str| -> Vec<Vec<String>> {
            let text = fs::read_to_string(root.join(path)).unwrap();
            text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
        };
        let users = lines("etc/passwd")
            .into_iter()
            .map(|line| [0, 2, 3, 4, 5, 6].map(|index| line[index].clone()));
        let groups = lines("etc/group").into_iter().map(|line| {
            let members = line[3].split(',').filter(|member| !member.is_empty());
            (line[0].clone(), line[2].clone(), members.map(str::to_owned).collect())
        });
        Self { root, users: users.collect(), groups: groups.collect() }
    }

    fn write(&self) {
        let user = |[name, uid, gid, comment, home, shell]: &UserLine| {
            format!("{name}:x:{uid}:{gid}:{comment}:{home}:{shell}\n")
        };
        let users: String = self.users.iter().map(user).collect();
        let group =
            |(name, gid, members): &GroupLine| format!("{name}:x:{gid}:{}\n", members.join(","));
        let groups: String = self.groups.iter().map(group).collect();
        fs::write(self.root.join("etc/passwd"), users).unwrap();
        fs::write(self.root.join("etc/group"), groups).unwrap();
    }

    fn next_id(&self) -> String {
        let ids = self.users.iter().flat_map(|user| [&user[1], &user[2]]);
        let ids = ids.chain(self.groups.iter().map(|group| &group.1));
        let max = ids.map(|id| id.parse::<u32>().unwrap()).filter(|id| *id < 60_000).max();
        max.unwrap_or(0).max(1999).saturating_add(1).to_string()
    }

    fn add_group(&mut self, name: &str, options: &[(&str, &str)]) -> Result<(), String> {
        if self.groups.iter().any(|group| group.0 == name) {
            return Err(format!("group '{name}' already exists"));
        }
        let gid = options.first().map_or_else(|| self.next_id(), |(_, gid)| (*gid).to_owned());
        if self.groups.iter().any(|group| group.1 == gid) {
            return Err(format!("GID '{gid}' already exists"));
        }
        self.groups.push((name.to_owned(), gid, Vec::new()));
        Ok(())
    }

    fn change_group(&mut self, name: &str, options: &[(&str, &str)]) -> Result<(), String> {
        let gid = options.first().ok_or("no gid")?.1;
        if self.groups.iter().any(|group| group.1 == gid) {
            return Err(format!("GID '{gid}' already exists"));
        }
        let group = self.groups.iter_mut().find(|group| group.0 == name).ok_or("no group")?;
        let old = std::mem::replace(&mut group.1, gid.to_owned());
        for user in self.users.iter_mut().filter(|user| user[2] == old) {
            gid.clone_into(&mut user[2]);
        }
        Ok(())
    }

    fn remove_group(&mut self, name: &str) -> Result<(), String> {
        let gid = self.find_gid(name)?;
        if self.users.iter().any(|user| user[2] == gid) {
            return Err("cannot remove the primary group of a user".to_owned());
        }
        self.groups.retain(|group| group.0 != name);
        Ok(())
    }

    fn find_gid(&self, group: &str) -> Result<String, String> {
        let found = self.groups.iter().find(|(name, ..)| name == group);
        found.map(|group| group.1.clone()).ok_or_else(|| format!("group '{group}' does not exist"))
    }

    fn add_user(&mut self, name: &str, options: &[(&str, &str)]) -> Result<(), String> {
        if self.users.iter().any(|user| user[0] == name) {
            return Err(format!("user '{name}' already exists"));
        }
        let id = self.next_id();
        let has_group = options.iter().any(|(option, _)| *option == "--gid");
        if !has_group {
            self.add_group(name, &[("--gid", &id)])?;
        }
        let home = format!("/home/{name}");
        let user = [name, &id, &id, "", &home, "/bin/sh"].map(str::to_owned);
        self.users.push(user);
        self.change_user(name, options)
    }

    fn change_user(&mut self, name: &str, options: &[(&str, &str)]) -> Result<(), String> {
        for (option, value) in options {
            let value = match *option {
                "--gid" if *value == "nogroup" => "65534".to_owned(),
                "--gid" => self.find_gid(value)?,
                _ => (*value).to_owned(),
            };
            let field = match *option {
                "--uid" => 1,
                "--gid" => 2,
                "--comment" => 3,
                "--home" | "--home-dir" => 4,
                "--shell" => 5,
                "--groups" => {
                    self.set_groups(name, &value)?;
                    continue;
                }
                "--expiredate" => continue,
                option => return Err(format!("unrecognized option '{option}'")),
            };
            let is_other = |user: &UserLine| user[0] != name && user[1] == value;
            if field == 1 && self.users.iter().any(is_other) {
                return Err(format!("UID {value} is not unique"));
            }
            let user = self.users.iter_mut().find(|user| user[0] == name).ok_or("no user")?;
            user[field] = value;
        }
        Ok(())
    }

    fn set_groups(&mut self, user: &str, groups: &str) -> Result<(), String> {
        for group in groups.split(',') {
            self.find_gid(group)?;
        }
        for (name, _, members) in &mut self.groups {
            members.retain(|member| member != user);
            if groups.split(',').any(|group| group == name) {
                members.push(user.to_owned());
            }
        }
        Ok(())
    }

    fn remove_user(&mut self, name: &str) {
        self.users.retain(|user| user[0] != name);
        for (_, _, members) in &mut self.groups {
            members.retain(|member| member != name);
        }
        let is_used = self.users.iter().any(|user| self.find_gid(name).as_ref() == Ok(&user[2]));
        let has_members =
            self.groups.iter().any(|(group, _, members)| group == name && !members.is_empty());
        if !is_used && !has_members {
            self.groups.retain(|group| group.0 != name);
        }
    }
}
