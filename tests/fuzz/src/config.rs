//! Configurations: any file, any `--set`, any `--nodes` and any environment.

use millrace::config::{self, Config, ConfigError, Overrides, Source};
use std::fs;
use std::path::PathBuf;

/// Between the file and what is laid over it: one line each.
const SPLIT: &str = "\n---\n";

/// The text of a file; behind a line of three dashes `KEY=VALUE`, `+ID=HOST:PORT` for a node and
/// `$NAME=VALUE` for a variable, one a line.
pub fn play(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (file, over) = text.split_once(SPLIT).unwrap_or((&text, ""));
    let mut overrides = Overrides::default();
    let mut environment = Vec::new();
    for line in over.lines() {
        let pair = |line: &str| {
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            (name.to_owned(), value.to_owned())
        };
        match (line.strip_prefix('+'), line.strip_prefix('$')) {
            (Some(node), _) => overrides.nodes.push(node.to_owned()),
            (_, Some(variable)) => environment.push(pair(variable)),
            _ => overrides.set.push(pair(line)),
        }
    }
    let path = (!file.is_empty()).then(|| {
        let name = format!("millrace-fuzz-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, file).expect("the directory for temporary files takes one");
        path
    });
    overrides.file = path.clone();
    let loaded = config::load(&overrides, environment.clone().into_iter());
    let listed = config::list(&overrides, environment.into_iter());
    if let Some(path) = path {
        // It is in the way of nobody if it stays.
        let _ = fs::remove_file(path);
    }
    match &loaded {
        Ok(config) => {
            assert!(listed.is_ok(), "what is in force can be listed");
            stands(config);
        }
        Err(error) => refused(error),
    }
    if let Err(error) = listed {
        assert!(loaded.is_err(), "{error}");
        refused(&error);
    }
}

/// A refusal is one line that names key, value, rule and mend.
fn refused(error: &ConfigError) {
    let named = [&error.key, &error.rule, &error.mend];
    assert!(
        named.iter().all(|part| !part.trim().is_empty()),
        "{error:?}"
    );
    let line = error.to_string();
    assert!(!line.contains(['\n', '\r']), "{line:?}");
    assert!(line.contains("; mend: "), "{line:?}");
}

/// What is printed of a configuration makes the same one again.
fn stands(config: &Config) {
    let set = config.values.iter().filter(|value| {
        let is_node = value.key == "cluster.nodes";
        !is_node && value.source != Source::Default && !matches!(value.source, Source::Preset(_))
    });
    let again = Overrides {
        file: None::<PathBuf>,
        set: set
            .map(|value| (value.key.to_owned(), value.text.clone()))
            .collect(),
        nodes: config
            .cluster
            .nodes
            .iter()
            .map(|node| format!("{}={}", node.id, node.address))
            .collect(),
    };
    let again = config::load(&again, std::iter::empty());
    let again = again.unwrap_or_else(|error| panic!("{error}: {:?}", config.values));
    assert_eq!(again.fingerprint(), config.fingerprint());
    let texts = |config: &Config| -> Vec<_> {
        let values = config.values.iter();
        values
            .map(|value| (value.key, value.text.clone()))
            .collect()
    };
    assert_eq!(texts(&again), texts(config));
}
