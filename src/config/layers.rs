//! Lays flags over environment over file, and remembers where each value came from.
//!
//! The layers meet as one TOML table, so that a value is parsed and refused in the same words
//! wherever it came from. What the values mean is `check.rs`'s.

use super::file::Document;
use super::keys::{KEYS, variable};
use super::{Config, ConfigError, Source, Value, check};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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

/// Loads the configuration: flags over `environment` over the file over defaults.
pub fn load(
    overrides: &Overrides,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<Config, ConfigError> {
    let mut table = match &overrides.file {
        Some(path) => read(path)?,
        None => Table::new(),
    };
    let mut sources = BTreeMap::new();
    for key in KEYS {
        if lookup(&table, key.name).is_some() {
            sources.insert(key.name, Source::File);
        }
    }
    for (name, text) in environment {
        if let Some(key) = key_of_variable(&name, &text)? {
            insert(&mut table, key, scalar(&text))?;
            sources.insert(key, Source::Environment(name));
        }
    }
    for (name, text) in &overrides.set {
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(unknown(name, text));
        };
        insert(&mut table, key.name, scalar(text))?;
        sources.insert(key.name, Source::Flag);
    }
    if !overrides.nodes.is_empty() {
        insert(&mut table, "cluster.nodes", nodes(&overrides.nodes)?)?;
    }
    let shown = table.clone();
    let document: Document = table.try_into().map_err(|error: toml::de::Error| {
        let file = file_name(overrides);
        let rule = error.message().to_owned();
        ConfigError::new("configuration", file, rule, "correct or remove that key")
    })?;
    let mut config = check::config(document)?;
    config.values = values(&shown, &sources, &config);
    Ok(config)
}

fn file_name(overrides: &Overrides) -> String {
    let file = overrides.file.as_ref();
    file.map_or("(flags)".to_owned(), |path| path.display().to_string())
}

fn read(path: &Path) -> Result<Table, ConfigError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        ConfigError::new("--config", &name, error.to_string(), "name a readable file")
    })?;
    text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| {
            text[..span.start.min(text.len())].lines().count().max(1)
        });
        let rule = format!("line {line} is no TOML: {}", error.message());
        ConfigError::new("--config", &name, rule, "correct that line")
    })
}

fn lookup<'a>(table: &'a Table, name: &str) -> Option<&'a toml::Value> {
    let (section, key) = name.split_once('.')?;
    table.get(section)?.as_table()?.get(key)
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

/// A value as TOML would read it; what TOML does not read is a string.
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
    let sections = ["NODE", "CLUSTER", "CORES", "LOG", "LINK"];
    let ours = sections
        .iter()
        .any(|section| name.starts_with(&format!("MILLRACE_{section}_")));
    if ours {
        Err(unknown(name, text))
    } else {
        Ok(None)
    }
}

fn unknown(name: &str, text: &str) -> ConfigError {
    let rule = "there is no such key";
    ConfigError::new(name, text, rule, "see `millrace config` for the list")
}

fn nodes(list: &[String]) -> Result<toml::Value, ConfigError> {
    let entry = |text: &String| {
        let parts = text.split_once('=');
        let parts = parts.and_then(|(id, address)| Some((id.parse::<i64>().ok()?, address)));
        let Some((id, address)) = parts else {
            let rule = "must be ID=HOST:PORT";
            let mend = "write for example --nodes 1=127.0.0.1:7000";
            return Err(ConfigError::new("--nodes", text, rule, mend));
        };
        let mut table = Table::new();
        table.insert("id".to_owned(), id.into());
        table.insert("address".to_owned(), address.into());
        Ok(toml::Value::from(table))
    };
    let entries: Result<Vec<_>, _> = list.iter().map(entry).collect();
    Ok(entries?.into())
}

fn values(table: &Table, sources: &BTreeMap<&'static str, Source>, config: &Config) -> Vec<Value> {
    let shown = |name: &str| match name {
        "node.address" => Some(format!("{:?}", config.node.address)),
        "cluster.shards" => Some(config.cluster.shards.to_string()),
        "link.max_batch_size" | "log.max_block_records" => {
            Some(config.log.max_block_records.to_string())
        }
        _ => None,
    };
    let value = |key: &super::keys::Key| {
        let set = lookup(table, key.name).map(toml::Value::to_string);
        let text = shown(key.name).or(set).unwrap_or_else(key.default);
        let source = sources.get(key.name).cloned();
        Value {
            key: key.name,
            text,
            source: source.unwrap_or(Source::Default),
        }
    };
    KEYS.iter().map(value).collect()
}
