//! The types of settings in the Rust sources: fields, doc comments and attributes of serde.

use std::collections::HashMap;

use evenkeel_tests::architecture::tree;
use syn::{Attribute, Expr, ExprLit, Fields, Item, Lit, Meta, Type};

use super::page::one_line;

/// The crates that define settings.
const CRATES: &[&str] = &[
    "server/",
    "kit/",
    "auth/",
    "maintenance-manager/",
    "os-resource-manager/",
    "registry/",
    "update-agent/",
];

/// The structs and enums of the crates, by the folder of their crate and their name.
pub struct RustTypes(HashMap<(String, String), TypeDefinition>);

/// A struct, or an enum without data.
pub enum TypeDefinition {
    /// A section of a file.
    Struct(StructDefinition),
    /// A choice: value and meaning.
    Enum(Vec<(String, String)>),
}

/// A section of a file.
pub struct StructDefinition {
    pub crate_folder: String,
    /// Doc comment.
    pub doc: String,
    /// The fields that serde reads.
    pub fields: Vec<FieldDefinition>,
}

/// A key of a section.
pub struct FieldDefinition {
    pub name: String,
    pub doc: String,
    pub field_type: Type,
    /// Whether the key must be present.
    pub is_required: bool,
    /// Whether it is a secret, which is never written.
    pub is_secret: bool,
    /// Whether it is a number of bytes that can be written with a unit.
    pub is_size: bool,
}

impl RustTypes {
    /// Reads the sources.
    pub fn read() -> Self {
        let mut types = HashMap::new();
        let files = tree::rust_files().into_iter().filter(|file| {
            let is_inside = CRATES.iter().any(|folder| file.path.starts_with(folder));
            is_inside && !file.is_test() && file.text.contains("Deserialize")
        });
        for file in files {
            let crate_folder = file.path.split('/').next().unwrap_or_default();
            let parsed = syn::parse_file(&file.text);
            let parsed = parsed.unwrap_or_else(|error| panic!("{}: {error}", file.path));
            for (name, definition) in
                parsed.items.iter().filter_map(|item| read(crate_folder, item))
            {
                types.insert((crate_folder.to_owned(), name), definition);
            }
        }
        Self(types)
    }

    /// The definition that a path such as `LogConfig` or `evenkeel_auth::Settings` means in a crate.
    pub fn find(&self, crate_folder: &str, path: &syn::Path) -> Option<&TypeDefinition> {
        let names: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        let name = names.last()?.clone();
        if let Some(other) = names[0].strip_prefix("evenkeel_") {
            return self.0.get(&(other.replace('_', "-"), name));
        }
        let own = self.0.get(&(crate_folder.to_owned(), name.clone()));
        own.or_else(|| {
            let mut same_name = self.0.iter().filter(|((_, other), _)| *other == name);
            let (_, found) = same_name.next()?;
            assert!(same_name.next().is_none(), "{name} is ambiguous in {crate_folder}");
            Some(found)
        })
    }

    pub fn find_struct(&self, crate_folder: &str, name: &str) -> &StructDefinition {
        match self.0.get(&(crate_folder.to_owned(), name.to_owned())) {
            Some(TypeDefinition::Struct(found)) => found,
            _ => panic!("{crate_folder} has no struct {name}"),
        }
    }
}

fn read(crate_folder: &str, item: &Item) -> Option<(String, TypeDefinition)> {
    match item {
        Item::Struct(item) => {
            let Fields::Named(named) = &item.fields else {
                return None;
            };
            let is_optional = SerdeAttributes::read(&item.attrs).has("default");
            let fields = named.named.iter();
            let fields = fields.filter_map(|field| read_field(field, is_optional));
            let definition = StructDefinition {
                crate_folder: crate_folder.to_owned(),
                doc: doc(&item.attrs),
                fields: fields.collect(),
            };
            Some((item.ident.to_string(), TypeDefinition::Struct(definition)))
        }
        Item::Enum(item) if item.variants.iter().all(|variant| variant.fields.is_empty()) => {
            let serde = SerdeAttributes::read(&item.attrs);
            let is_kebab_case = serde.value("rename_all") == Some("kebab-case");
            let separator = if is_kebab_case { '-' } else { '_' };
            let values = item.variants.iter().map(|variant| {
                (variant_name(&variant.ident.to_string(), separator), doc(&variant.attrs))
            });
            Some((item.ident.to_string(), TypeDefinition::Enum(values.collect())))
        }
        _ => None,
    }
}

fn read_field(field: &syn::Field, is_optional: bool) -> Option<FieldDefinition> {
    let serde = SerdeAttributes::read(&field.attrs);
    if serde.has("skip") {
        return None;
    }
    let deserializer = serde.value("deserialize_with").unwrap_or_default();
    Some(FieldDefinition {
        name: field.ident.as_ref()?.to_string(),
        doc: doc(&field.attrs),
        field_type: field.ty.clone(),
        is_required: !is_optional && !serde.has("default"),
        is_secret: serde.has("skip_serializing"),
        is_size: deserializer == "deserialize_bytes",
    })
}

/// The attributes `#[serde(…)]` of an item, each with its value.
struct SerdeAttributes(HashMap<String, String>);

impl SerdeAttributes {
    fn read(attributes: &[Attribute]) -> Self {
        let mut entries = HashMap::new();
        for attribute in attributes.iter().filter(|one| one.path().is_ident("serde")) {
            let parsed = attribute.parse_nested_meta(|meta| {
                let name = meta.path.require_ident()?.to_string();
                let value = match meta.value() {
                    Ok(value) => value.parse::<syn::LitStr>()?.value(),
                    Err(_) => String::new(),
                };
                entries.insert(name, value);
                Ok(())
            });
            parsed.expect("attributes of serde");
        }
        Self(entries)
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// The doc comment in one line. Links to Rust items become code.
fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    let text = one_line(&lines.collect::<Vec<_>>().join("\n"));
    text.replace("[`", "`").replace("`]", "`")
}

/// The name that serde gives to a variant with `rename_all = "snake_case"`, `"kebab-case"` or
/// `"lowercase"`, which has the same result for the one-word variants that it is used for.
fn variant_name(name: &str, separator: char) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push(separator);
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}
