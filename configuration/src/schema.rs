//! JSON Schema of documents.

use serde_json::{Map, Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AdditionalProperties, ObjectBuilder, OneOfBuilder, Ref, Schema, Type,
};
use utoipa::{PartialSchema, ToSchema};

use crate::document::{
    ActionSpec, Component, Document, Entry, FileMode, FileState, PackageSourceState, PackageState,
    SysctlState, UnitState, UserGroupState, UserState,
};

/// Where utoipa looks for schemas.
const OPENAPI_SCHEMAS: &str = "#/components/schemas/";

/// Where JSON Schema looks for them.
const DEFINITIONS: &str = "#/$defs/";

type NamedSchemas = Vec<(String, RefOr<Schema>)>;

/// JSON Schema (draft 2020-12) of a document in native YAML and JSON.
pub fn json_schema() -> Value {
    let mut schemas = NamedSchemas::new();
    Document::schemas(&mut schemas);
    let definitions: Map<String, Value> =
        schemas.into_iter().map(|(name, schema)| (name, to_json(&schema))).collect();
    let mut root = Map::new();
    root.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    root.insert("title".to_owned(), json!("Node configuration"));
    if let Value::Object(document) = to_json(&Document::schema()) {
        root.extend(document);
    }
    root.insert("$defs".to_owned(), Value::Object(definitions));
    Value::Object(root)
}

fn to_json(schema: &RefOr<Schema>) -> Value {
    let mut value = serde_json::to_value(schema).expect("schemas have only text keys");
    convert_from_openapi(&mut value);
    value
}

/// Replaces what is particular to OpenAPI: the paths of references, and formats of numbers. An
/// enumeration of one value becomes a constant.
fn convert_from_openapi(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("type").is_some_and(|kind| kind.to_string().contains("integer")) {
                fields.remove("format");
            }
            let constant = fields.get("enum").and_then(Value::as_array);
            if let Some([constant]) = constant.map(Vec::as_slice) {
                let constant = constant.clone();
                fields.remove("enum");
                fields.insert("const".to_owned(), constant);
            }
            for (key, field) in fields {
                match field {
                    Value::String(path) if key == "$ref" => {
                        *path = path.replace(OPENAPI_SCHEMAS, DEFINITIONS);
                    }
                    Value::String(text) if key == "description" => {
                        // The lines of a doc comment are wrapped.
                        *text = text.replace('\n', " ");
                    }
                    _ => convert_from_openapi(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(convert_from_openapi),
        _ => {}
    }
}

impl PartialSchema for Entry {
    /// One alternative for each component, because `desired` depends on it.
    fn schema() -> RefOr<Schema> {
        let alternatives = OneOfBuilder::new().description(Some(
            "One desired thing: a component, a name and the desired state of the component.",
        ));
        let alternatives = Component::ALL
            .into_iter()
            .fold(alternatives, |all, component| all.item(entry_schema(component)));
        alternatives.into()
    }
}

impl ToSchema for Entry {
    fn name() -> std::borrow::Cow<'static, str> {
        std::borrow::Cow::Borrowed("Entry")
    }

    fn schemas(schemas: &mut NamedSchemas) {
        add::<FileState>(schemas);
        add::<UnitState>(schemas);
        add::<PackageState>(schemas);
        add::<PackageSourceState>(schemas);
        add::<ActionSpec>(schemas);
        add::<UserState>(schemas);
        add::<UserGroupState>(schemas);
        add::<SysctlState>(schemas);
    }
}

fn add<T: ToSchema>(schemas: &mut NamedSchemas) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

fn entry_schema(component: Component) -> ObjectBuilder {
    let constant =
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some([component.name()]));
    let name = ObjectBuilder::new().schema_type(Type::String).description(Some(
        "Path of a file, or name of a unit, package, source, action, user, group or kernel \
         setting.",
    ));
    let object = ObjectBuilder::new()
        .title(Some(component.name()))
        .property("component", constant)
        .property("name", name)
        .property("desired", Ref::from_schema_name(state_name(component)))
        .required("component")
        .required("name")
        .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    if has_required_fields(component) { object.required("desired") } else { object }
}

fn state_name(component: Component) -> String {
    let name = match component {
        Component::File => FileState::name(),
        Component::Unit => UnitState::name(),
        Component::Package => PackageState::name(),
        Component::PackageSource => PackageSourceState::name(),
        Component::Action => ActionSpec::name(),
        Component::User => UserState::name(),
        Component::UserGroup => UserGroupState::name(),
        Component::Sysctl => SysctlState::name(),
    };
    name.into_owned()
}

fn has_required_fields(component: Component) -> bool {
    matches!(component, Component::PackageSource | Component::Action | Component::Sysctl)
}

impl PartialSchema for FileMode {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^(0o[0-7]+|0[0-7]*|[0-7]{4})$"));
        let value = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(0))
            .maximum(Some(Self::MAX.0));
        OneOfBuilder::new().item(text).item(value).into()
    }
}

impl ToSchema for FileMode {
    fn name() -> std::borrow::Cow<'static, str> {
        std::borrow::Cow::Borrowed("FileMode")
    }
}

#[cfg(test)]
mod tests;
