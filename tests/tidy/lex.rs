//! The tokens of a Rust file: words, marks and literals, without comments.
//!
//! Owns just enough of Rust's lexical grammar that a word in a comment or in a string is never
//! taken for code. It must never fail: on text that does not lex it yields some tokens, and the
//! compiler says what is wrong. Read `paths.rs` next.

/// What a token is. Numbers count as words; lifetimes are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Word,
    Mark,
    Literal,
}

/// One token with its lines, counted from 1. Only a literal can span several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    pub(crate) line: usize,
    pub(crate) last_line: usize,
}

/// Splits a file into its tokens. `::` is one mark, any other mark is one character.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer {
        text,
        bytes: text.as_bytes(),
        at: 0,
        line: 1,
        tokens: Vec::new(),
    };
    while lexer.at < lexer.bytes.len() {
        lexer.step();
    }
    lexer.tokens
}

struct Lexer<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    line: usize,
    tokens: Vec<Token<'a>>,
}

impl Lexer<'_> {
    fn step(&mut self) {
        match self.bytes[self.at..] {
            [b'/', b'/', ..] => self.skip(self.line_comment_length()),
            [b'/', b'*', ..] => self.skip(self.block_comment_length()),
            [b'"', ..] => self.push(Kind::Literal, self.quoted_length(0)),
            [b'\'', ..] => self.character_or_lifetime(),
            [b':', b':', ..] => self.push(Kind::Mark, 2),
            [byte, ..] if byte.is_ascii_whitespace() => self.skip(1),
            [byte, ..] if is_word(byte) => self.word(),
            _ => self.push(Kind::Mark, 1),
        }
    }

    /// A word, or the literal or raw identifier that the word is the prefix of.
    fn word(&mut self) {
        let length = self.run_length(0, is_word);
        let word = &self.text[self.at..self.at + length];
        let hashes = self.run_length(length, |byte| byte == b'#');
        let quote = self.byte(length + hashes) == b'"';
        match word {
            "r" | "br" | "cr" if quote => {
                self.push(Kind::Literal, self.raw_length(length, hashes));
            }
            "r" if hashes == 1 => self.skip(2),
            "b" | "c" if quote && hashes == 0 => {
                self.push(Kind::Literal, self.quoted_length(length));
            }
            "b" if self.byte(length) == b'\'' => self.skip(1),
            _ => self.push(Kind::Word, length),
        }
    }

    fn character_or_lifetime(&mut self) {
        if self.byte(1) == b'\\' {
            let tail = self.run_length(3, |byte| byte != b'\'');
            return self.push(Kind::Literal, 3 + tail + 1);
        }
        let width = self.text[self.at + 1..]
            .chars()
            .next()
            .map_or(0, char::len_utf8);
        if self.byte(1 + width) == b'\'' {
            self.push(Kind::Literal, 1 + width + 1);
        } else {
            self.skip(1 + self.run_length(1, is_word));
        }
    }

    /// Length of a string whose opening quote lies `offset` bytes ahead.
    fn quoted_length(&self, offset: usize) -> usize {
        let mut length = offset + 1;
        while self.at + length < self.bytes.len() && self.byte(length) != b'"' {
            length += if self.byte(length) == b'\\' { 2 } else { 1 };
        }
        length + 1
    }

    fn raw_length(&self, prefix: usize, hashes: usize) -> usize {
        let open = prefix + hashes + 1;
        let close = format!("\"{}", "#".repeat(hashes));
        let body = self.text[self.at + open..].find(&close);
        body.map_or(self.bytes.len(), |body| open + body + close.len())
    }

    fn line_comment_length(&self) -> usize {
        self.run_length(0, |byte| byte != b'\n')
    }

    /// Block comments nest.
    fn block_comment_length(&self) -> usize {
        let mut length = 2;
        let mut depth = 1;
        while depth > 0 && self.at + length < self.bytes.len() {
            let (change, step) = match (self.byte(length), self.byte(length + 1)) {
                (b'/', b'*') => (1, 2),
                (b'*', b'/') => (-1, 2),
                _ => (0, 1),
            };
            depth += change;
            length += step;
        }
        length
    }

    fn run_length(&self, offset: usize, accept: impl Fn(u8) -> bool) -> usize {
        let start = (self.at + offset).min(self.bytes.len());
        self.bytes[start..]
            .iter()
            .take_while(|byte| accept(**byte))
            .count()
    }

    /// The byte `offset` ahead, zero past the end.
    fn byte(&self, offset: usize) -> u8 {
        self.bytes.get(self.at + offset).copied().unwrap_or(0)
    }

    fn push(&mut self, kind: Kind, length: usize) {
        let end = (self.at + length).min(self.bytes.len());
        let text = self.text.get(self.at..end).unwrap_or("");
        let line = self.line;
        self.skip(length);
        self.tokens.push(Token {
            kind,
            text,
            line,
            last_line: self.line,
        });
    }

    fn skip(&mut self, length: usize) {
        let end = (self.at + length).min(self.bytes.len());
        self.line += self.bytes[self.at..end]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        self.at = end;
    }
}

/// Bytes of non-ASCII characters occur outside literals and comments in identifiers alone.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}
