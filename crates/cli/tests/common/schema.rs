// SPDX-License-Identifier: Apache-2.0
//! The published schemas of JSON output (docs/reference/schema), and a check that an output fits one: with the
//! keywords of JSON Schema that these use. It is stricter than a validator: a field that the schema does not
//! describe is an error.

use serde_json::Value;

macro_rules! schemas {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../docs/reference/schema/", $name, ".json")))),+]
    };
}

/// Each schema by its name.
const SCHEMAS: &[(&str, &str)] = schemas![
    "advise",
    "align",
    "align-separate",
    "attach",
    "attach-watch",
    "compare",
    "compare-by",
    "doctor",
    "inspect-cost",
    "lab",
    "lab-all",
    "lab-walks",
    "pool",
    "pool-need",
    "pool-set",
    "prime",
    "prime-plan",
    "report",
    "service-check",
    "service-offers",
    "service-report",
    "service-status",
    "stat",
    "stat-against",
    "store-list",
    "top",
];

/// Asserts that `value` fits the schema `name`.
pub fn fits(name: &str, value: &Value) {
    let root = schema_of(name).expect("a schema");
    if let Err(why) = check(&root, &root, value, "$") {
        panic!("docs/reference/schema/{name}.json: {why}\n{value}");
    }
}

fn schema_of(name: &str) -> Option<Value> {
    let (_, text) = SCHEMAS.iter().find(|(known, _)| *known == name)?;
    Some(serde_json::from_str(text).unwrap_or_else(|e| panic!("{name}.json: {e}")))
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let has_properties = schema.get("properties").is_some();
    for (keyword, is) in schema.as_object().ok_or("a schema is an object")? {
        let fine = match keyword.as_str() {
            "$schema" | "title" | "description" | "$defs" => true,
            // Another file.
            "$ref" if is.as_str().is_some_and(|name| !name.starts_with('#')) => {
                let other = is.as_str().and_then(|name| schema_of(name.trim_end_matches(".json")));
                let other = other.ok_or_else(|| format!("{is} does not exist"))?;
                check(&other, &other, value, at)?;
                true
            }
            "$ref" => {
                let place = is.as_str().and_then(|place| root.pointer(place.trim_start_matches('#')));
                check(root, place.ok_or_else(|| format!("{is} does not exist"))?, value, at)?;
                true
            }
            "const" => value == is,
            "enum" => list(is).contains(value),
            "type" => list(is).iter().any(|kind| is_of(kind, value)),
            "minimum" => value.as_f64().is_none_or(|number| is.as_f64().is_some_and(|least| number >= least)),
            "maximum" => value.as_f64().is_none_or(|number| is.as_f64().is_some_and(|most| number <= most)),
            "minItems" => {
                value.as_array().is_none_or(|all| is.as_u64().is_some_and(|n| all.len() as u64 >= n))
            }
            "maxItems" => {
                value.as_array().is_none_or(|all| is.as_u64().is_some_and(|n| all.len() as u64 <= n))
            }
            "anyOf" => list(is).iter().any(|one| check(root, one, value, at).is_ok()),
            "required" => value.as_object().is_none_or(|object| {
                list(is).iter().filter_map(Value::as_str).all(|name| object.contains_key(name))
            }),
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, is, item, &format!("{at}[{i}]"))?;
                }
                true
            }
            "prefixItems" => {
                for (i, (item, is)) in value.as_array().into_iter().flatten().zip(list(is)).enumerate() {
                    check(root, &is, item, &format!("{at}[{i}]"))?;
                }
                true
            }
            "properties" => {
                for (name, inner) in value.as_object().into_iter().flatten() {
                    let is = is.get(name).ok_or_else(|| format!("{at}.{name} is not described"))?;
                    check(root, is, inner, &format!("{at}.{name}"))?;
                }
                true
            }
            "additionalProperties" => {
                for (name, inner) in value.as_object().into_iter().flatten().filter(|_| !has_properties) {
                    check(root, is, inner, &format!("{at}.{name}"))?;
                }
                true
            }
            "propertyNames" => {
                for name in value.as_object().into_iter().flatten().map(|(name, _)| name.as_str()) {
                    check(root, is, &name.into(), &format!("{at}.{name}"))?;
                }
                true
            }
            other => return Err(format!("the check does not know the keyword {other}")),
        };
        if !fine {
            return Err(format!("{at}: {value} does not fit {keyword} {is}"));
        }
    }
    Ok(())
}

/// Returns the elements of a list; of anything else, itself alone.
fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_else(|| vec![value.clone()])
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        _ => false,
    }
}
