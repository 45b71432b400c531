//! Where the fields and edges of resources are kept.
//!
//! In these texts `@` stands for the name of the resource's own table, and `#` for that of the other end of an edge.

mod catalogue;
mod day_zero;
mod hardware;
mod hosts;
mod instances;
mod places;
mod runs;
mod schedules;

use evenkeel_domain::filter::Resource;

/// Where a resource is kept.
#[derive(Debug)]
pub struct Table {
    /// The table.
    pub rows: &'static str,
    /// What is joined to it, as `@x`, if one of its columns is used; never more or fewer rows.
    pub joined: &'static str,
    /// Only what belongs to the project.
    pub tenant: &'static str,
    /// The bits of the id; 0 for what has none of its own.
    pub id: &'static str,
    /// The labels: a JSON array of keys and values.
    pub labels: Option<&'static str>,
    /// Its kind among the tallies, if its rows are tallied.
    pub tally: Option<&'static str>,
    pub columns: &'static [Column],
    pub links: &'static [Link],
}

impl Table {
    /// The column of a field.
    pub fn column(&self, name: &str) -> Option<&'static Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// How an edge is kept.
    pub fn link(&self, name: &str) -> Option<&'static Link> {
        self.links.iter().find(|link| link.name == name)
    }
}

/// Where a field is kept.
#[derive(Debug)]
pub struct Column {
    /// The name of the field.
    pub name: &'static str,
    pub sql: &'static str,
    pub form: Form,
    /// Whether it may be null.
    pub is_nullable: bool,
    /// Where the same text is kept in small letters.
    pub folded: Option<&'static str>,
}

/// How a field is kept, if not as its kind says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As its kind says.
    Plain,
    /// An id as a number.
    Bits,
    /// A text as a UUID.
    Uuid,
    /// A text that is too long to be ordered by as a whole.
    Long,
}

impl Column {
    const fn new(name: &'static str, sql: &'static str) -> Self {
        Self {
            name,
            sql,
            form: Form::Plain,
            is_nullable: false,
            folded: None,
        }
    }

    const fn nullable(self) -> Self {
        Self {
            is_nullable: true,
            ..self
        }
    }

    /// One whose text is kept in small letters as well.
    const fn folded(self, sql: &'static str) -> Self {
        Self {
            folded: Some(sql),
            ..self
        }
    }

    const fn long(self) -> Self {
        Self {
            form: Form::Long,
            ..self
        }
    }

    /// One that is kept as a UUID, or null.
    const fn uuid(name: &'static str, sql: &'static str) -> Self {
        Self {
            form: Form::Uuid,
            ..Self::new(name, sql).nullable()
        }
    }

    /// The id of a row.
    const ID: Self = Self {
        form: Form::Bits,
        ..Self::new("resource_id", "@.id")
    };

    /// When a row was made, where the table says so.
    const CREATED_AT: Self = Self::new("created_at", "@.created_at");

    /// When a row was last changed, where the table says so.
    const UPDATED_AT: Self = Self::new("updated_at", "@.updated_at");

    /// Labels as text: without spaces, which no label has, and empty if there are none.
    const LABELS: Self = Self::new(
        "metadata",
        "nullif(replace(@.metadata::text, ' ', ''), '[]')",
    )
    .nullable();

    /// A text that is always empty.
    const fn empty(name: &'static str) -> Self {
        Self::new(name, "''::text")
    }

    /// A value of an enumeration that nobody ever sets.
    const fn unspecified(name: &'static str) -> Self {
        Self::new(name, "'unspecified'::text")
    }

    /// A time that never comes.
    const fn never(name: &'static str) -> Self {
        Self::new(name, "NULL::timestamptz").nullable()
    }

    /// A status that nobody knows.
    const fn unknown(name: &'static str) -> Self {
        Self::new(name, "'Unknown'::text")
    }
}

/// How an edge is kept.
#[derive(Debug)]
pub struct Link {
    /// The name of the edge.
    pub name: &'static str,
    /// Where the other end is kept, if not simply in its own table.
    pub rows: Option<&'static str>,
    /// What ties the two.
    pub on: &'static str,
    /// The bits of the id of the other end, if the database vouches that what they mean is there.
    pub key: Option<&'static str>,
}

impl Link {
    const fn new(name: &'static str, on: &'static str) -> Self {
        Self {
            name,
            rows: None,
            on,
            key: None,
        }
    }

    /// One that a foreign key holds.
    const fn keyed(name: &'static str, on: &'static str, key: &'static str) -> Self {
        Self {
            key: Some(key),
            ..Self::new(name, on)
        }
    }

    /// One over something that lies between.
    const fn over(name: &'static str, rows: &'static str, on: &'static str) -> Self {
        Self {
            rows: Some(rows),
            ..Self::new(name, on)
        }
    }
}

/// A table whose rows have an id and belong to a project.
const fn rows_of(rows: &'static str, columns: &'static [Column], links: &'static [Link]) -> Table {
    Table {
        rows,
        joined: "",
        tenant: "@.tenant_id = $1",
        id: "@.id",
        labels: None,
        tally: None,
        columns,
        links,
    }
}

/// Where a resource is kept.
pub const fn table(resource: Resource) -> &'static Table {
    match resource {
        Resource::Region => &places::REGION,
        Resource::Site => &places::SITE,
        Resource::Host => &hosts::HOST,
        Resource::Instance => &instances::INSTANCE,
        Resource::Os => &catalogue::OS,
        Resource::Policy => &catalogue::POLICY,
        Resource::Run => &runs::RUN,
        Resource::SingleSchedule => &schedules::SINGLE,
        Resource::RepeatedSchedule => &schedules::REPEATED,
        Resource::Provider => &day_zero::PROVIDER,
        Resource::CustomConfig => &day_zero::CUSTOM_CONFIG,
        Resource::LocalAccount => &day_zero::LOCAL_ACCOUNT,
        Resource::Nic => &hardware::NIC,
        Resource::Storage => &hardware::STORAGE,
        Resource::Usb => &hardware::USB,
        Resource::Gpu => &hardware::GPU,
        Resource::IpAddress => &hardware::IP_ADDRESS,
        Resource::Nothing => &hardware::NOTHING,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_tables_know_what_the_domain_knows_and_nothing_else() {
        for resource in Resource::ALL {
            let table = table(*resource);
            let fields: BTreeSet<_> = resource.fields().iter().map(|field| field.name).collect();
            let columns: BTreeSet<_> = table.columns.iter().map(|column| column.name).collect();
            assert_eq!(fields, columns, "{resource:?}");
            let edges: BTreeSet<_> = resource.edges().iter().map(|edge| edge.name).collect();
            let links: BTreeSet<_> = table.links.iter().map(|link| link.name).collect();
            assert_eq!(edges, links, "{resource:?}");
            assert_eq!(
                table.labels.is_some(),
                resource.has_labels(),
                "{resource:?}"
            );
        }
    }

    #[test]
    fn an_edge_to_many_has_no_key() {
        for resource in Resource::ALL {
            for edge in resource.edges().iter().filter(|edge| edge.many) {
                let link = table(*resource).link(edge.name).expect("a link");
                assert_eq!(link.key, None, "{}", edge.name);
            }
        }
    }
}
