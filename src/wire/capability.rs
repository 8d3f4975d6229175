//! The registry of capabilities: what a node takes that older ones do not know.
//!
//! A node says in `Hello` and `HelloOk` which it has, one bit each. Bits are never reused. Nodes of
//! neighbouring versions run together: a new shape is sent to a node only if that node said that it
//! has the bit, and everybody else is served in the old form. Once every configured node has a
//! capability, `millrace finalize` makes it a fact of the cluster: each node writes it into its
//! `node.toml`, and from then on refuses a node that lacks it (`Missing`), so nothing that rests on
//! it meets a node that cannot read it.
//!
//! What needs a bit and what another `PROTOCOL` (`body.rs`): a new frame, a new value in a field
//! that had few, a new version of a batch, block, segment or checkpoint need a bit here, and the
//! protocol's number stays. Another layout of a frame's header, of `Hello` or of `HelloOk`, or
//! another meaning of a field that exists, needs another number: such nodes refuse one another
//! (`WrongVersion`), so that never happens between two neighbouring versions. A shape that one node
//! sends to one other waits for that one's bit alone; one that reaches disks or travels on waits
//! until it is finalized.
//!
//! Bit 0 is no capability: `trust::HAS_SECRET` says how a node is configured.

macro_rules! capabilities {
    ($($name:ident $text:literal bit $bit:literal since $since:literal $allows:literal;)*) => {
        /// A capability. See the list in the source for bit, first version and what it allows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Capability {
            $(#[doc = $allows] $name,)*
        }

        impl Capability {
            /// Every capability that this version has.
            pub const ALL: &'static [Capability] = &[$(Capability::$name,)*];

            /// The name by which operators and `node.toml` know it.
            pub fn name(self) -> &'static str {
                match self { $(Capability::$name => $text,)* }
            }

            /// Its place in the set of bits, 1 to 63.
            pub const fn bit(self) -> u32 {
                match self { $(Capability::$name => $bit,)* }
            }

            /// The first version that has it.
            pub fn since(self) -> &'static str {
                match self { $(Capability::$name => $since,)* }
            }

            /// What it allows.
            pub fn allows(self) -> &'static str {
                match self { $(Capability::$name => $allows,)* }
            }
        }
    };
}

capabilities! {
    TakeOver "take_over" bit 1 since "0.1.0"
        "the node takes the frame TakeOver: a leadership may be handed to it";
    SealedBytes "sealed_bytes" bit 2 since "0.1.0"
        "the node takes the frame Sealed: its pace while it is behind counts what is live";
}

/// Bit 0 belongs to `trust::HAS_SECRET`.
const RESERVED: u64 = 1;

/// A set of capabilities. It may hold bits that this version has no name for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// None at all: what a node of before there were any says.
    pub const NONE: Capabilities = Capabilities(0);

    /// Those that this version has.
    pub const HERE: Capabilities = {
        let (mut bits, mut at) = (0, 0);
        while at < Capability::ALL.len() {
            bits |= 1 << Capability::ALL[at].bit();
            at += 1;
        }
        Capabilities(bits)
    };

    /// The set that these bits of a Hello say.
    pub fn from_bits(bits: u64) -> Capabilities {
        Capabilities(bits & !RESERVED)
    }

    /// The bits for a Hello.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether it holds this one.
    pub fn has(self, one: Capability) -> bool {
        self.0 & 1 << one.bit() != 0
    }

    /// Whether it holds nothing.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What of it is not in `other`.
    pub fn without(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 & !other.0)
    }

    /// Names, lowest bit first; `bit 7` for one that this version has no name for.
    pub fn names(self) -> Vec<String> {
        let set = (0..u64::BITS).filter(|bit| self.0 & 1 << bit != 0);
        set.map(|bit| {
            let known = Capability::ALL.iter().find(|one| one.bit() == bit);
            known.map_or_else(|| format!("bit {bit}"), |one| one.name().to_owned())
        })
        .collect()
    }

    /// The set with these names; the first one that this version does not know otherwise.
    pub fn from_names<'a>(
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Capabilities, &'a str> {
        let mut bits = 0;
        for name in names {
            let known = Capability::ALL.iter().find(|one| one.name() == name);
            bits |= 1 << known.ok_or(name)?.bit();
        }
        Ok(Capabilities(bits))
    }
}

#[cfg(test)]
#[path = "capability_tests.rs"]
mod tests;
