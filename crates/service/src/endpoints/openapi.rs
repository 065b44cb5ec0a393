//! Generates the OpenAPI description from the table of endpoints.

use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value, json};

use crate::access::Role;
use crate::answers::{FORMATS, LINES, Reply};
use crate::app::{App, Call};
use crate::endpoints::{ENDPOINTS, Endpoint, Parameter, ResponseContent};
use crate::failure::Result;

pub(crate) async fn reply(_: Arc<App>, _: Call) -> Result<Reply> {
    // Generated once, since anyone may request it.
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());
    Ok(Reply::text("application/json", DOCUMENT.as_str()))
}

/// The OpenAPI 3.1 document.
fn document() -> Value {
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        path[endpoint.method.to_lowercase()] = operation(endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Chronotile",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "An archive over HTTP: tags, points and aggregates, events, jobs, and reads of every dataset.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn schemas() -> Value {
    // Cannot fail: the file is part of this crate, and a test parses it too.
    serde_json::from_str(include_str!("../schemas.json")).unwrap_or_default()
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn operation(endpoint: &Endpoint) -> Value {
    let in_path = endpoint.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path =
        in_path.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }));
    let parameters: Vec<Value> = in_path.chain(endpoint.parameters.iter().map(parameter)).collect();
    let mut operation = json!({
        "summary": endpoint.summary,
        "operationId": operation_id(endpoint),
        "parameters": parameters,
        "responses": responses(endpoint),
        "x-role": endpoint.role.name(),
    });
    if endpoint.role != Role::Open {
        operation["security"] = json!([{ "token": [] }]);
    }
    if let Some((schema, others)) = endpoint.takes {
        let mut content = Map::new();
        if !schema.is_empty() {
            content.insert("application/json".into(), json!({ "schema": reference(schema) }));
        }
        for other in others {
            content.insert((*other).into(), json!({}));
        }
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}

fn operation_id(endpoint: &Endpoint) -> String {
    let words = endpoint.path.split(['/', '{', '}', '.', '_']).filter(|word| !word.is_empty());
    let words = words.map(|word| word[..1].to_uppercase() + &word[1..]);
    format!("{}{}", endpoint.method.to_lowercase(), words.collect::<String>())
}

fn parameter(parameter: &Parameter) -> Value {
    let plain = json!({ "type": parameter.kind });
    let schema = if parameter.repeated { json!({ "type": "array", "items": plain }) } else { plain };
    json!({
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.about,
        "schema": schema,
    })
}

fn responses(endpoint: &Endpoint) -> Value {
    let error = json!({ "description": "What went wrong.", "content": { "application/json": { "schema": reference("Error") } } });
    let mut responses = json!({ "default": error });
    let ok = |content: Value| json!({ "description": endpoint.summary, "content": content });
    match endpoint.gives {
        ResponseContent::Rows(schema) | ResponseContent::Documents(schema) => {
            let mut content: Map<String, Value> = FORMATS
                .iter()
                .map(|name| {
                    let json = *name == "application/json";
                    ((*name).to_owned(), if json { json!({ "schema": reference(schema) }) } else { json!({}) })
                })
                .collect();
            if matches!(endpoint.gives, ResponseContent::Documents(_)) {
                content.insert(LINES.into(), json!({}));
            }
            responses["200"] = ok(content.into());
        }
        ResponseContent::Json(schema) => {
            responses["200"] = ok(json!({ "application/json": { "schema": reference(schema) } }))
        }
        ResponseContent::Other(content_type) => responses["200"] = ok(json!({ content_type: {} })),
        ResponseContent::Nothing => {
            responses["204"] = json!({ "description": "Done." });
            if endpoint.parameters.iter().any(|parameter| parameter.name == "partial") {
                responses["200"] = ok(json!({ "application/json": { "schema": reference("WriteReport") } }));
            }
        }
    }
    responses
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_schema_that_is_referred_to_is_there() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let text = document.to_string();
        let mut used = HashSet::new();
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name} is missing");
            used.insert(name);
        }
        for name in schemas.keys() {
            assert!(used.contains(name.as_str()), "{name} is of no use");
        }
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let ids: HashSet<String> = ENDPOINTS.iter().map(operation_id).collect();
        assert_eq!(ids.len(), ENDPOINTS.len());
    }
}
