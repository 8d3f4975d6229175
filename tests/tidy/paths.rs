//! The paths that a Rust file names: `a::b` in code, and every leaf of a `use` tree.
//!
//! A path is kept as written, with the inline modules around it, so that `self` and `super` can be
//! resolved against the file's own module. Read `rules.rs` next.

use crate::lex::{Kind, Token};

/// One path as written. A group member carries its prefix: `use a::{b::C, self}` gives `a::b::C`
/// and `a::self`; a glob ends in `*`.
#[derive(Debug)]
pub(crate) struct Path<'a> {
    pub(crate) segments: Vec<&'a str>,
    pub(crate) line: usize,
    /// From a `use` or `extern crate`, where a single word already names something.
    pub(crate) imported: bool,
    /// Inline modules around the path, outermost first.
    pub(crate) scope: Vec<&'a str>,
}

impl<'a> Path<'a> {
    /// The path from the root of its crate when it leads there (`crate`, `super`, `self`), else
    /// nothing. `module` is the module path of the file.
    pub(crate) fn root_path(&self, module: &[&'a str]) -> Option<Vec<&'a str>> {
        let mut base: Vec<&str> = module.iter().chain(&self.scope).copied().collect();
        let mut rest = &self.segments[..];
        match rest.first() {
            Some(&"crate") => base.clear(),
            Some(&"self" | &"super") => {}
            _ => return None,
        }
        while let Some((&first @ ("crate" | "self" | "super"), tail)) = rest.split_first() {
            if first == "super" {
                base.pop();
            }
            rest = tail;
        }
        base.extend(rest);
        Some(base)
    }
}

/// All paths of a file, in its order.
pub(crate) fn paths<'a>(tokens: &[Token<'a>]) -> Vec<Path<'a>> {
    let mut reader = Reader {
        tokens,
        at: 0,
        depth: 0,
        scope: Vec::new(),
        paths: Vec::new(),
    };
    while reader.at < tokens.len() {
        reader.step();
    }
    reader.paths
}

struct Reader<'t, 'a> {
    tokens: &'t [Token<'a>],
    at: usize,
    depth: usize,
    /// Inline modules that are open, each with the brace depth outside it.
    scope: Vec<(&'a str, usize)>,
    paths: Vec<Path<'a>>,
}

impl<'a> Reader<'_, 'a> {
    fn step(&mut self) {
        match (self.text(0), self.text(1), self.text(2)) {
            ("{", ..) => {
                self.depth += 1;
                self.at += 1;
            }
            ("}", ..) => {
                self.depth = self.depth.saturating_sub(1);
                self.scope.pop_if(|(_, outside)| *outside == self.depth);
                self.at += 1;
            }
            ("mod", name, "{") => {
                self.scope.push((name, self.depth));
                self.at += 2;
            }
            ("extern", "crate", name) => {
                self.at += 3;
                self.push(vec![name], true);
            }
            // `impl Trait + use<'a>` captures, it imports nothing.
            ("use", next, _) if next != "<" => {
                self.at += 1;
                self.use_tree(&mut Vec::new());
            }
            _ if self.is_word() => self.plain_path(),
            _ => self.at += 1,
        }
    }

    fn plain_path(&mut self) {
        let mut segments = vec![self.text(0)];
        self.at += 1;
        while self.text(0) == "::" {
            self.at += 1;
            if !self.is_word() {
                break;
            }
            segments.push(self.text(0));
            self.at += 1;
        }
        self.push(segments, false);
    }

    /// One tree of a `use`, up to the `,`, `}` or `;` that ends it.
    fn use_tree(&mut self, prefix: &mut Vec<&'a str>) {
        let outer = prefix.len();
        while !matches!(self.text(0), "," | "}" | ";" | "") {
            match self.text(0) {
                "{" => self.use_group(prefix),
                "as" => self.at += 2,
                text if text == "*" || self.is_word() => {
                    prefix.push(text);
                    self.at += 1;
                    if self.text(0) != "::" {
                        self.push(prefix.clone(), true);
                    }
                }
                _ => self.at += 1,
            }
        }
        prefix.truncate(outer);
    }

    fn use_group(&mut self, prefix: &mut Vec<&'a str>) {
        self.at += 1;
        while !matches!(self.text(0), "}" | ";" | "") {
            self.use_tree(prefix);
            if self.text(0) == "," {
                self.at += 1;
            }
        }
        if self.text(0) == "}" {
            self.at += 1;
        }
    }

    fn push(&mut self, segments: Vec<&'a str>, imported: bool) {
        let line = self.tokens[self.at.saturating_sub(1).min(self.tokens.len() - 1)].line;
        let scope = self.scope.iter().map(|(name, _)| *name).collect();
        self.paths.push(Path {
            segments,
            line,
            imported,
            scope,
        });
    }

    fn is_word(&self) -> bool {
        self.tokens
            .get(self.at)
            .is_some_and(|token| token.kind == Kind::Word)
    }

    /// The text of the token `offset` ahead, empty past the end.
    fn text(&self, offset: usize) -> &'a str {
        self.tokens
            .get(self.at + offset)
            .map_or("", |token| token.text)
    }
}
