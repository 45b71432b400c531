//! Where the fields and edges of resources are stored.
//!
//! In these texts `@` stands for the alias of the resource's own table, and `#` for the alias of
//! the other end of an edge.

mod catalogue;
mod day_zero;
mod hardware;
mod hosts;
mod instances;
mod locations;
mod runs;
mod schedules;

use evenkeel_domain::filter::Resource;

/// How a resource is stored.
#[derive(Debug)]
pub struct ResourceTable {
    /// The `FROM` item of the table.
    pub rows: &'static str,
    /// Joins, with aliases that begin with `@x`, that are added if one of their columns is used. They
    /// never change the number of rows. Postgres leaves out an outer join whose columns are not used.
    pub joined: &'static str,
    /// The condition that limits the rows to the project.
    pub tenant: &'static str,
    /// The bits of the id; 0 for resources without an id.
    pub id: &'static str,
    /// The labels: a JSON array of keys and values.
    pub labels: Option<&'static str>,
    /// The kind in the tallies, if the rows are tallied.
    pub tally: Option<&'static str>,
    pub columns: &'static [Column],
    pub links: &'static [Link],
    /// The references by which lists are ordered.
    pub references: &'static [Column],
}

impl ResourceTable {
    /// The column of a field.
    pub fn column(&self, name: &str) -> Option<&'static Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The column of a field or reference.
    pub fn order_column(&self, name: &str) -> Option<&'static Column> {
        self.column(name).or_else(|| self.references.iter().find(|column| column.name == name))
    }

    /// The storage of an edge.
    pub fn link(&self, name: &str) -> Option<&'static Link> {
        self.links.iter().find(|link| link.name == name)
    }
}

/// How a field is stored.
#[derive(Debug)]
pub struct Column {
    pub name: &'static str,
    pub sql: &'static str,
    pub form: ColumnForm,
    pub is_nullable: bool,
    /// The column with the same text in lowercase.
    pub folded: Option<&'static str>,
}

/// The storage format of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnForm {
    /// The usual format of the field kind.
    Plain,
    /// An id as a number.
    Bits,
    /// A text stored as a UUID.
    Uuid,
    /// A text that is too long to be an order key as a whole.
    Long,
}

impl Column {
    const fn new(name: &'static str, sql: &'static str) -> Self {
        Self { name, sql, form: ColumnForm::Plain, is_nullable: false, folded: None }
    }

    const fn nullable(self) -> Self {
        Self { is_nullable: true, ..self }
    }

    /// A column whose text is also stored in lowercase.
    const fn folded(self, sql: &'static str) -> Self {
        Self { folded: Some(sql), ..self }
    }

    const fn long(self) -> Self {
        Self { form: ColumnForm::Long, ..self }
    }

    /// A nullable UUID column.
    const fn uuid(name: &'static str, sql: &'static str) -> Self {
        Self { form: ColumnForm::Uuid, ..Self::new(name, sql).nullable() }
    }

    /// A reference to a row of another table, by the unsigned bits of its id.
    const fn reference(name: &'static str, sql: &'static str) -> Self {
        Self::new(name, sql).nullable()
    }

    /// The id of a row.
    const ID: Self = Self { form: ColumnForm::Bits, ..Self::new("resource_id", "@.id") };

    /// Creation time, for tables that have the column.
    const CREATED_AT: Self = Self::new("created_at", "@.created_at");

    /// Time of the last change, for tables that have the column.
    const UPDATED_AT: Self = Self::new("updated_at", "@.updated_at");

    /// Labels as text: without spaces, which no label contains, and null if there are none.
    const LABELS: Self =
        Self::new("metadata", "nullif(replace(@.metadata::text, ' ', ''), '[]')").nullable();

    /// A text that is always empty.
    const fn empty(name: &'static str) -> Self {
        Self::new(name, "''::text")
    }

    /// An enumeration value that is never set.
    const fn unspecified(name: &'static str) -> Self {
        Self::new(name, "'unspecified'::text")
    }

    /// A time that is never set.
    const fn never(name: &'static str) -> Self {
        Self::new(name, "NULL::timestamptz").nullable()
    }

    /// A status that is never known.
    const fn unknown(name: &'static str) -> Self {
        Self::new(name, "'Unknown'::text")
    }
}

/// How an edge is stored.
#[derive(Debug)]
pub struct Link {
    pub name: &'static str,
    /// The `FROM` item of the other end, if it is not just its table.
    pub rows: Option<&'static str>,
    /// The join condition.
    pub on: &'static str,
    /// The bits of the id of the other end, if a foreign key guarantees that the other end exists.
    pub key: Option<&'static str>,
}

impl Link {
    const fn new(name: &'static str, on: &'static str) -> Self {
        Self { name, rows: None, on, key: None }
    }

    /// An edge with a foreign key.
    const fn keyed(name: &'static str, on: &'static str, key: &'static str) -> Self {
        Self { key: Some(key), ..Self::new(name, on) }
    }

    /// An edge through another table.
    const fn through(name: &'static str, rows: &'static str, on: &'static str) -> Self {
        Self { rows: Some(rows), ..Self::new(name, on) }
    }
}

/// A table whose rows have an id and belong to a project.
const fn project_table(
    rows: &'static str,
    columns: &'static [Column],
    links: &'static [Link],
) -> ResourceTable {
    ResourceTable {
        rows,
        joined: "",
        tenant: "@.tenant_id = $1",
        id: "@.id",
        labels: None,
        tally: None,
        columns,
        links,
        references: &[],
    }
}

/// How a resource is stored.
pub const fn table(resource: Resource) -> &'static ResourceTable {
    match resource {
        Resource::Region => &locations::REGION,
        Resource::Site => &locations::SITE,
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
        Resource::WorkloadMember => &hardware::NOTHING,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn tables_cover_exactly_the_fields_of_the_domain() {
        for resource in Resource::ALL {
            let table = table(*resource);
            let fields: BTreeSet<_> = resource.fields().iter().map(|field| field.name).collect();
            let columns: BTreeSet<_> = table.columns.iter().map(|column| column.name).collect();
            assert_eq!(fields, columns, "{resource:?}");
            let fields: Vec<_> = resource.references().iter().map(|field| field.name).collect();
            let columns: Vec<_> = table.references.iter().map(|column| column.name).collect();
            assert_eq!(fields, columns, "{resource:?}");
            let edges: BTreeSet<_> = resource.edges().iter().map(|edge| edge.name).collect();
            let links: BTreeSet<_> = table.links.iter().map(|link| link.name).collect();
            assert_eq!(edges, links, "{resource:?}");
            assert_eq!(table.labels.is_some(), resource.has_labels(), "{resource:?}");
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
