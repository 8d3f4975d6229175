//! Lays flags over environment over file over preset, and remembers where each value came from.
//!
//! The layers meet as one TOML table, so that a value is parsed and refused in the same words
//! wherever it came from. A number with two names is one number here too: the name given in a
//! higher layer takes the place of the other one. What the values mean is `check.rs`'s.

use super::file::{Document, is_beyond};
use super::keys::{KEYS, Key, NODES, OTHER_VARIABLES, nearest, variable};
use super::{Config, ConfigError, Source, Value, check, presets, source};
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::Table;

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The file, if any.
    pub file: Option<PathBuf>,
    /// Keys with their values as text, as in `--set log.sync=none`.
    pub set: Vec<(String, String)>,
    /// `ID=HOST:PORT` of every node; empty: as in the file.
    pub nodes: Vec<String>,
}

/// The two names of one number.
const NAMES_OF_ONE: [&str; 2] = ["log.max_block_records", "link.max_batch_size"];

/// Loads the configuration: flags over `environment` over the file over the preset over defaults.
pub fn load(
    overrides: &Overrides,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<Config, ConfigError> {
    let layers = lay_all(overrides, environment)?;
    let document = layers.document()?;
    let mut config = check::config(document)?;
    config.values = layers.values(Some(&config));
    Ok(config)
}

/// Every key with its value and its source, whether or not they make up a configuration.
pub fn list(
    overrides: &Overrides,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<Vec<Value>, ConfigError> {
    Ok(lay_all(overrides, environment)?.values(None))
}

fn lay_all(
    overrides: &Overrides,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<Layers, ConfigError> {
    let mut layers = Layers::default();
    if let Some(path) = &overrides.file {
        (layers.table, layers.sources) = source::read(path)?;
    }
    for (name, text) in environment {
        if let Some(key) = key_of_variable(&name, &text)? {
            layers.lay(key, scalar(&text), Source::Environment(name))?;
        }
    }
    for (name, text) in &overrides.set {
        if name == NODES {
            return Err(no_scalar(&format!("--set {NODES}"), text));
        }
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            let known = KEYS.iter().map(|key| key.name);
            return Err(unknown(name, text, nearest(name, known)));
        };
        layers.lay(key.name, scalar(text), Source::Flag)?;
    }
    if !overrides.nodes.is_empty() {
        layers.lay(NODES, nodes(&overrides.nodes)?, Source::Flag)?;
    }
    layers.lay_preset()?;
    Ok(layers)
}

#[derive(Debug, Default)]
struct Layers {
    table: Table,
    sources: BTreeMap<&'static str, Source>,
}

impl Layers {
    /// Lays a value over what lower layers say.
    fn lay(
        &mut self,
        key: &'static str,
        value: toml::Value,
        source: Source,
    ) -> Result<(), ConfigError> {
        if let Some(other) = other_name(key) {
            let lower = |found: &Source| found.layer() < source.layer();
            if self.sources.get(other).is_some_and(lower) {
                self.sources.remove(other);
                remove(&mut self.table, other);
            }
        }
        self.sources.insert(key, source);
        insert(&mut self.table, key, value)
    }

    /// Lays the preset, if one is named, under everything that is there.
    fn lay_preset(&mut self) -> Result<(), ConfigError> {
        let Some(named) = lookup(&self.table, "link.preset") else {
            return Ok(());
        };
        if named.as_str() == Some("none") {
            remove(&mut self.table, "link.preset");
            return Ok(());
        }
        let found = named.as_str().and_then(presets::find);
        let Some(preset) = found else {
            let rule = format!("must be one of {}", presets::names());
            let mend = "name one of them or remove the key";
            return Err(ConfigError::new("link.preset", named, rule, mend));
        };
        for (key, value) in preset.values {
            let names = [Some(*key), other_name(key)];
            let set = names.iter().flatten();
            if !set.clone().any(|name| self.sources.contains_key(name)) {
                insert(&mut self.table, key, (*value).into())?;
                self.sources.insert(key, Source::Preset(preset.name));
            }
        }
        Ok(())
    }

    /// The table as a document. A value of the wrong type is refused by the name of its key.
    fn document(&self) -> Result<Document, ConfigError> {
        let whole: Result<Document, _> = self.table.clone().try_into();
        whole.map_err(|error| {
            let bad = self.sources.iter().find_map(|(key, source)| {
                let value = lookup(&self.table, key)?;
                let mut alone = Table::new();
                insert(&mut alone, key, value.clone()).ok()?;
                let refused = alone.try_into::<Document>().err()?;
                Some((*key, value.to_string(), source, refused))
            });
            let mend = match bad {
                Some(("cores.cpus", ..)) => "write a list, for example [0, 1]",
                _ => "correct or remove it",
            };
            match bad {
                Some((key, value, source, refused)) => {
                    let rule = format!("{} ({source})", refused.message());
                    ConfigError::new(key, value, rule, mend)
                }
                None => ConfigError::new("configuration", "(all)", error.message(), mend),
            }
        })
    }

    /// Every key as it is in force; what follows from others only in a finished configuration.
    fn values(&self, config: Option<&Config>) -> Vec<Value> {
        let shown = |name: &str| match (name, config?) {
            ("node.address", config) => Some(format!("{:?}", config.node.address)),
            ("cluster.shards", config) => Some(config.cluster.shards.to_string()),
            ("cluster.election", config) => Some(config.cluster.election.to_string()),
            ("cores.count", config) => Some(config.cores.count.to_string()),
            ("link.max_batch_bytes", config) => Some(config.log.max_batch_bytes.to_string()),
            (name, config) if NAMES_OF_ONE.contains(&name) => {
                Some(config.log.max_block_records.to_string())
            }
            _ => None,
        };
        let source = |key: &str| {
            let names = [Some(key), other_name(key)];
            let found = names
                .iter()
                .flatten()
                .find_map(|name| self.sources.get(name));
            found.cloned().unwrap_or(Source::Default)
        };
        let value = |key: &Key| {
            let set = lookup(&self.table, key.name).map(toml::Value::to_string);
            Value {
                key: key.name,
                text: shown(key.name).or(set).unwrap_or_else(key.default),
                source: source(key.name),
            }
        };
        let entries = config.map_or(&[][..], |config| &config.cluster.nodes);
        let finished = entries
            .iter()
            .map(|entry| format!("{{ id = {}, address = {:?} }}", entry.id, entry.address));
        let raw = lookup(&self.table, NODES).map_or("none".to_owned(), toml::Value::to_string);
        let raw = config.is_none().then_some(raw);
        let nodes = finished.chain(raw).map(|text| Value {
            key: NODES,
            text,
            source: source(NODES),
        });
        KEYS.iter().map(value).chain(nodes).collect()
    }
}

fn other_name(key: &str) -> Option<&'static str> {
    let [one, other] = NAMES_OF_ONE;
    match key {
        _ if key == one => Some(other),
        _ if key == other => Some(one),
        _ => None,
    }
}

fn lookup<'a>(table: &'a Table, name: &str) -> Option<&'a toml::Value> {
    let (section, key) = name.split_once('.')?;
    table.get(section)?.as_table()?.get(key)
}

fn remove(table: &mut Table, name: &str) {
    let (section, key) = name.split_once('.').expect("a key has a section");
    if let Some(section) = table.get_mut(section).and_then(toml::Value::as_table_mut) {
        section.remove(key);
    }
}

fn insert(table: &mut Table, name: &str, value: toml::Value) -> Result<(), ConfigError> {
    let (section, key) = name.split_once('.').expect("a key has a section");
    let entry = table.entry(section).or_insert_with(|| Table::new().into());
    match entry.as_table_mut() {
        Some(section) => section.insert(key.to_owned(), value),
        None => {
            let mend = format!("write it as a table: [{section}]");
            return Err(ConfigError::new(section, entry, "must be a table", mend));
        }
    };
    Ok(())
}

/// A value as TOML would read it; what TOML does not read, or not hold, is a string.
fn scalar(text: &str) -> toml::Value {
    let parsed: Result<Table, _> = format!("value = {text}").parse();
    let parsed = parsed.ok().and_then(|mut table| table.remove("value"));
    parsed.unwrap_or_else(|| text.into())
}

/// The key that a variable sets; none if it belongs to nobody here.
fn key_of_variable(name: &str, text: &str) -> Result<Option<&'static str>, ConfigError> {
    if let Some(key) = KEYS.iter().find(|key| variable(key.name) == name) {
        return Ok(Some(key.name));
    }
    if name == variable(NODES) {
        return Err(no_scalar(name, text));
    }
    if !name.starts_with("MILLRACE_") || OTHER_VARIABLES.contains(&name) {
        return Ok(None);
    }
    let variables: Vec<String> = KEYS.iter().map(|key| variable(key.name)).collect();
    let known = variables
        .iter()
        .map(String::as_str)
        .chain(OTHER_VARIABLES.iter().copied());
    Err(unknown(name, text, nearest(name, known)))
}

fn unknown(name: &str, text: &str, nearest: Option<&str>) -> ConfigError {
    let rule = "there is no such key";
    let nearest = nearest.unwrap_or("another one");
    let mend = format!("did you mean {nearest}? `millrace config` lists every key");
    ConfigError::new(name, text, rule, mend)
}

/// The one key that is no single value.
fn no_scalar(name: &str, text: &str) -> ConfigError {
    let rule = "the list of nodes is set in the file or by --nodes only";
    let mend = "write [[cluster.nodes]] with id and address for each node, or pass \
                --nodes ID=HOST:PORT once for each";
    ConfigError::new(name, text, rule, mend)
}

fn nodes(list: &[String]) -> Result<toml::Value, ConfigError> {
    let entry = |text: &String| {
        let parts = text.split_once('=');
        let whole = |id: &&str| id.parse::<i64>().is_ok() || is_beyond(id);
        let parts = parts.filter(|(id, _)| whole(id));
        let Some((id, address)) = parts else {
            let rule = "must be ID=HOST:PORT";
            let mend = "write for example --nodes 1=127.0.0.1:7000";
            return Err(ConfigError::new("--nodes", text, rule, mend));
        };
        let mut table = Table::new();
        table.insert("id".to_owned(), scalar(id));
        table.insert("address".to_owned(), address.into());
        Ok(toml::Value::from(table))
    };
    let entries: Result<Vec<_>, _> = list.iter().map(entry).collect();
    Ok(entries?.into())
}
