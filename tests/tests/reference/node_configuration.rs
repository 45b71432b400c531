//! Renders the fields of a configuration document from its JSON Schema.

use evenkeel_configuration::schema::json_schema;
use serde_json::Value;

use super::page::{end_sentence, escape, header, one_line, row, wrap};

const INTRODUCTION: &str = "\
# Fields of a configuration document

A document describes the desired configuration of a node, in YAML or JSON.
[node-configuration.md](../node-configuration.md) explains documents with examples.
`evenkeel configuration schema` prints the JSON Schema from which this page is generated.

An unknown field is an error, and so is a required field that is missing.
";

/// Where the schema has its definitions.
const DEFINITIONS: &str = "#/$defs/";

/// The page: the document, its bundles and entries, and the fields of each component.
pub fn render() -> String {
    let schema = json_schema();
    let page = FieldPage { definitions: &schema["$defs"] };
    let mut text = INTRODUCTION.to_owned();
    text.push_str(&page.section("Document", &schema));
    text.push_str(&page.section("Bundle", page.definition("Bundle")));
    let entry = page.definition("Entry");
    let alternatives = alternatives(entry);
    let links = alternatives.iter().map(|alternative| {
        let title = text_of(&alternative["title"]);
        row(&[&format!("`{title}`"), &format!("[{title}](#{})", title.to_lowercase())])
    });
    text.push_str(&format!(
        "\n## Entry\n\n{}\n{}{}\n{}{}",
        description(entry),
        header(&["Field", "Type", "Required", "Meaning"]),
        page.entry_rows(&alternatives),
        header(&["`component`", "Fields of `desired`"]),
        links.collect::<String>()
    ));
    let mut objects = Vec::new();
    for alternative in &alternatives {
        let state = page.definition(reference(&alternative["properties"]["desired"]));
        text.push_str(&page.section(text_of(&alternative["title"]), state));
        page.add_objects(state, &mut objects);
    }
    for name in objects {
        text.push_str(&page.section(name, page.definition(name)));
    }
    text
}

/// Writes the sections of the page.
struct FieldPage<'a> {
    definitions: &'a Value,
}

impl<'a> FieldPage<'a> {
    fn definition(&self, name: &str) -> &'a Value {
        self.definitions.get(name).unwrap_or_else(|| panic!("the schema defines no {name}"))
    }

    /// The heading, the description and the fields of an object.
    fn section(&self, title: &str, object: &Value) -> String {
        let mut text = format!("\n## {title}\n\n{}", description(object));
        text.push_str(&format!("\n{}", header(&["Field", "Type", "Required", "Meaning"])));
        for (name, field) in fields(object) {
            text.push_str(&self.field_row(name, field, object));
        }
        text
    }

    fn field_row(&self, name: &str, field: &Value, object: &Value) -> String {
        let required = object["required"].as_array().into_iter().flatten();
        let is_required = required.into_iter().any(|required| required == name);
        let meaning = end_sentence(&escape(&one_line(self.describe_field(field))));
        let required = if is_required { "yes" } else { "" };
        row(&[&format!("`{name}`"), &self.type_name(field), required, &meaning])
    }

    /// The description of a field, or that of its type if the field has none. A field that may be
    /// absent has the description next to the reference to its type.
    fn describe_field<'f>(&self, field: &'f Value) -> &'f str
    where
        'a: 'f,
    {
        let schemas: Vec<&Value> = [field].into_iter().chain(alternatives(field)).collect();
        let own = schemas.iter().map(|schema| text_of(&schema["description"]));
        let references = schemas.iter().filter(|schema| schema.get("$ref").is_some());
        let types = references.map(|schema| self.definition(reference(schema)));
        let types = types.map(|definition| text_of(&definition["description"]));
        own.chain(types).find(|text| !text.is_empty()).unwrap_or_default()
    }

    /// The fields that all entries have.
    fn entry_rows(&self, alternatives: &[&Value]) -> String {
        let Some(first) = alternatives.first() else {
            panic!("the schema has no component");
        };
        let name = self.field_row("name", &first["properties"]["name"], first);
        let component = "Kind of the entry.";
        let desired =
            "Fields of the component. May be absent if the component requires none of them.";
        row(&["`component`", "text", "yes", component])
            + &name
            + &row(&["`desired`", "object", "", desired])
    }

    /// The type of a value, as users write it.
    fn type_name(&self, schema: &Value) -> String {
        if schema.get("$ref").is_some() {
            let name = reference(schema);
            let definition = self.definition(name);
            if has_section(definition) {
                return format!("[{name}](#{})", name.to_lowercase());
            }
            return self.type_name(definition);
        }
        if let Some(values) = schema["enum"].as_array() {
            let values = values.iter().map(|value| format!("`{}`", text_of(value)));
            return values.collect::<Vec<_>>().join(", ");
        }
        let choices = alternatives(schema);
        if !choices.is_empty() {
            let choices = choices.into_iter().filter(|choice| choice["type"] != "null");
            let names: Vec<String> = choices.map(|choice| self.type_name(choice)).collect();
            return names.join(" or ");
        }
        match simple_type(&schema["type"]) {
            "string" => "text".to_owned(),
            "integer" => "number".to_owned(),
            "boolean" => "`true` or `false`".to_owned(),
            "array" => format!("list of {}", self.type_name(&schema["items"])),
            "object" => {
                format!("map from text to {}", self.type_name(&schema["additionalProperties"]))
            }
            _ => panic!("a type without a name: {schema}"),
        }
    }

    /// Adds the objects that the fields of an object refer to, and those of these objects.
    fn add_objects(&self, object: &'a Value, names: &mut Vec<&'a str>) {
        for (_, field) in fields(object) {
            let choices = alternatives(field).into_iter().chain([field, &field["items"]]);
            for choice in choices.filter(|choice| choice.get("$ref").is_some()) {
                let name = reference(choice);
                let definition = self.definition(name);
                if fields(definition).next().is_some() && !names.contains(&name) {
                    names.push(name);
                    self.add_objects(definition, names);
                }
            }
        }
    }
}

/// The fields of an object, in the order of the schema.
fn fields(object: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let properties = object["properties"].as_object().into_iter().flatten();
    properties.map(|(name, field)| (name.as_str(), field))
}

/// Whether a definition has a section of its own: an object, or an entry, which has one object for
/// each component.
fn has_section(definition: &Value) -> bool {
    alternatives(definition)
        .into_iter()
        .chain([definition])
        .any(|object| fields(object).next().is_some())
}

fn alternatives(schema: &Value) -> Vec<&Value> {
    let listed = ["oneOf", "anyOf", "allOf"].iter().find_map(|key| schema[*key].as_array());
    listed.into_iter().flatten().collect()
}

/// The name of the definition that a schema refers to.
fn reference(schema: &Value) -> &str {
    let path = text_of(&schema["$ref"]);
    path.strip_prefix(DEFINITIONS).unwrap_or_else(|| panic!("{schema} refers to no definition"))
}

/// The type of a schema; that which is not null, if it has two.
fn simple_type(types: &Value) -> &str {
    let all = types.as_array().into_iter().flatten();
    all.chain([types]).filter_map(Value::as_str).find(|name| *name != "null").unwrap_or_default()
}

fn description(object: &Value) -> String {
    wrap(&end_sentence(&escape(text_of(&object["description"]))))
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
