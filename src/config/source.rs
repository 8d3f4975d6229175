//! The file as text: its keys with the lines on which they stand.
//!
//! Unknown sections and keys are refused here, while their line is known. Types and values are
//! looked at later, together with those of the other layers.

use super::file::is_beyond;
use super::keys::{KEYS, NODES, nearest};
use super::{ConfigError, Source};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use toml::de::{DeTable, DeValue, Deserializer};
use toml::{Spanned, Table};

/// Bytes of a file at most: more is no configuration.
const MOST_BYTES: u64 = 1 << 20;

/// The table of a file, and the line of every key in it.
pub(super) fn read(path: &Path) -> Result<(Table, BTreeMap<&'static str, Source>), ConfigError> {
    let name = path.display().to_string();
    let unreadable = |error: std::io::Error| {
        ConfigError::new("--config", &name, error.to_string(), "name a readable file")
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
    if read.map_err(unreadable)? as u64 > MOST_BYTES {
        let rule = format!("a configuration has at most {MOST_BYTES} bytes");
        return Err(ConfigError::new(
            "--config",
            &name,
            rule,
            "name the right file",
        ));
    }
    let no_toml = |error: toml::de::Error| {
        let line = error.span().map_or(0, |span| line_of(&text, span.start));
        let rule = format!("line {line} is no TOML: {}", error.message());
        ConfigError::new("--config", &name, rule, "correct that line")
    };
    let mut parsed = DeTable::parse(&text).map_err(no_toml)?;
    let mut sources = BTreeMap::new();
    let written = |value: &Spanned<DeValue<'_>>| text.get(value.span()).unwrap_or("").to_owned();
    for (section, keys) in parsed.get_ref() {
        let line = line_of(&text, section.span().start);
        let section = section.get_ref();
        let value = written(keys);
        let DeValue::Table(keys) = keys.get_ref() else {
            let rule = format!("must be a section ({name}:{line})");
            let mend = format!("write it as a table: [{section}]");
            return Err(ConfigError::new(&**section, value, rule, mend));
        };
        for (key, value) in keys {
            let line = line_of(&text, key.span().start);
            let full = format!("{section}.{}", key.get_ref());
            let mut names = KEYS.iter().map(|key| key.name).chain([NODES]);
            let Some(known) = names.find(|known| *known == full) else {
                let rule = format!("there is no such key ({name}:{line})");
                let known = KEYS.iter().map(|key| key.name).chain([NODES]);
                let nearest = nearest(&full, known).unwrap_or("another one");
                let mend = format!("did you mean {nearest}? `millrace config` lists every key");
                return Err(ConfigError::new(full, written(value), rule, mend));
            };
            let file = name.clone();
            sources.insert(known, Source::File { file, line });
        }
        let known = |key: &super::keys::Key| key.name.split('.').next() == Some(&**section);
        if !KEYS.iter().any(known) {
            let value = "(a section)";
            let rule = format!("there is no such section ({name}:{line})");
            let mend = "write [node], [cluster], [cores], [log] or [link]";
            return Err(ConfigError::new(&**section, value, rule, mend));
        }
    }
    parsed
        .get_mut()
        .iter_mut()
        .for_each(|(_, value)| keep_digits(value.get_mut()));
    let table = Table::deserialize(Deserializer::from(parsed)).map_err(no_toml)?;
    Ok((table, sources))
}

/// Keeps the digits of each number that TOML cannot hold, so that it is refused by its key.
fn keep_digits(value: &mut DeValue<'_>) {
    match value {
        DeValue::Integer(number) if is_beyond(number.as_str()) => {
            *value = DeValue::String(number.to_string().into());
        }
        DeValue::Array(values) => values
            .iter_mut()
            .for_each(|value| keep_digits(value.get_mut())),
        DeValue::Table(table) => table
            .iter_mut()
            .for_each(|(_, value)| keep_digits(value.get_mut())),
        _ => {}
    }
}

/// The number of the line that holds the byte at `position`, counted from 1.
fn line_of(text: &str, position: usize) -> usize {
    let before = &text.as_bytes()[..position.min(text.len())];
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}
