//! The registry of codes: what went wrong, whether to retry, and the mend.
//!
//! One list for the wire and for operators (H-79). Numbers are never reused. A code says what a
//! receiver may do next; the numbers that belong to it travel beside it in the frame.

use super::capability::Capabilities;

/// What whoever gets a code may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same request to the same node may succeed later.
    Later,
    /// The same request may succeed at another node or port.
    Elsewhere,
    /// The same request will never succeed.
    Final,
    /// The request may have taken effect.
    UnknownOutcome,
}

macro_rules! codes {
    ($($name:ident $number:literal $retry:ident $text:literal, $mend:literal;)*) => {
        /// A code. See the list in the source for number, retry class, meaning and mend.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Code {
            $(#[doc = $text] $name = $number,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The code's name.
            pub fn name(self) -> &'static str {
                match self { $(Code::$name => stringify!($name),)* }
            }

            /// What whoever gets it may do.
            pub fn retry(self) -> Retry {
                match self { $(Code::$name => Retry::$retry,)* }
            }

            /// What it means, in a few words.
            pub fn text(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// What mends it.
            pub fn mend(self) -> &'static str {
                match self { $(Code::$name => $mend,)* }
            }
        }
    };
}

codes! {
    Unsupported 1 Final
        "the frame's type is not known here",
        "use a client of this node's version";
    WrongDirection 2 Final
        "this side never receives such a frame",
        "connect to the right port with the right role";
    BadFrame 3 Final
        "the frame's CRC or lengths do not fit",
        "check the network path and the client's version";
    WrongVersion 4 Final
        "the protocol versions differ",
        "upgrade the older side";
    WrongCluster 5 Final
        "the peer belongs to another cluster",
        "correct [cluster] id or the address";
    WrongNode 6 Final
        "the peer is not the node it was taken for",
        "correct the addresses in [[cluster.nodes]]";
    WrongFingerprint 7 Final
        "shards, limits or node list differ between the nodes",
        "give all nodes the same [cluster] and block limits";
    WrongCore 8 Elsewhere
        "the shard lives on another port",
        "connect to the port named beside the code";
    NotLeader 9 Elsewhere
        "this node does not lead the log",
        "send to the leader named beside the code";
    UnknownLog 10 Final
        "no such shard or origin here",
        "use a shard below the cluster's shard count";
    UnknownLevel 11 Final
        "the level is none of local, leader, quorum",
        "name one of the three";
    BadBatch 12 Final
        "the batch is malformed",
        "encode it with this version's client";
    BadCrc 13 Final
        "a CRC over the bytes does not fit",
        "send it again; check memory and network if it repeats";
    EmptyBatch 14 Final
        "a batch needs at least one record",
        "leave it out";
    TooLarge 15 Final
        "the batch is above link.max_batch_bytes",
        "make smaller batches or raise link.max_batch_bytes on all nodes";
    NotReady 16 Later
        "the log is still opening its epoch or recovering",
        "retry; see `millrace status` for what it waits for";
    Overloaded 17 Later
        "too many requests are waiting",
        "retry later or lower the rate";
    LogFailed 18 Elsewhere
        "the log is closed until restart: its disk failed, or what it holds is damaged",
        "see `millrace status` of that node for which it is and what mends it";
    NoSpace 19 Later
        "the disk is full",
        "free space or set retention";
    Unknown 20 UnknownOutcome
        "the outcome is not known: the batch may be in the log once",
        "read the log to find out";
    OutOfRange 21 Final
        "the offset is below the log's start or past its end",
        "read from between the two offsets beside the code";
    Timeout 22 Later
        "nothing to return within the wait",
        "ask again";
    StaleEpoch 23 Final
        "a higher epoch is in force",
        "adopt the epoch named beside the code";
    OutOfSync 24 Later
        "the frame does not continue the log",
        "send from the block named beside the code";
    Diverged 25 Final
        "committed blocks differ between the two nodes",
        "compare the two logs; nothing is deleted by itself";
    OverCredit 26 Final
        "more was sent than the receiver's credit allows",
        "obey the limits granted";
    MemoryLost 27 Later
        "the log's memory was lost and is being rebuilt",
        "wait until the leader has brought it up";
    WrongMembers 28 Final
        "the log was created with another member list",
        "restore the former [[cluster.nodes]]";
    Stopping 29 Elsewhere
        "the node is stopping",
        "connect again later";
    Replaced 30 Later
        "a newer connection of the link took over",
        "use the newer one";
    SequenceGap 31 Later
        "the batch does not follow its producer's last batch in the log",
        "send the batches from the sequence beside the code on first, then this one again";
    SequenceReused 32 Final
        "another batch of the producer has this sequence",
        "count on from the last batch, or raise the producer's epoch and begin at sequence 0";
    UnknownProducer 33 UnknownOutcome
        "the log does not know the producer and the batch is not its first",
        "read the log to find out, then raise the producer's epoch and begin at sequence 0";
    ProducerFenced 34 Final
        "a newer epoch of the producer has written to the log",
        "stop this producer; the epoch beside the code took its place";
    Truncated 35 Final
        "the reader's last batch is no longer in the log: it was never committed",
        "drop what was read from the offset beside the code on and read from there";
    TooManyConnections 36 Elsewhere
        "the core of the node has as many connections as it takes",
        "share connections among producers and readers, or give the node more cores";
    LogBehind 37 Final
        "the log of the node that asks for the vote is behind the one here",
        "none: a node whose log is at least as up to date leads";
    WrongSecret 38 Final
        "the secrets of the two nodes differ",
        "give all nodes the same cluster.secret_file, byte for byte; while it is changed name two";
    SecretMissing 39 Final
        "one of the two nodes has a secret and the other one has none",
        "set cluster.secret_file on all nodes, or on none";
    RetentionFull 40 Final
        "the log holds as many bytes as log.retention = hard allows",
        "raise log.retention_bytes, or set log.retention = fifo, and restart the node";
    BlocksDamaged 41 Later
        "the blocks are damaged on this node's disk and being fetched from another one",
        "retry; see `millrace scrub` for what is damaged, and whether the other nodes are up";
    LacksCapability 42 Final
        "the cluster is finalized with what the refused node does not know",
        "start the version of millrace that finalized the cluster, or a newer one, on that node";
}

impl Code {
    /// The code's number on the wire.
    pub fn number(self) -> u16 {
        self as u16
    }

    /// What the numbers beside it are; empty where there is none, or where it depends.
    fn details(self) -> [&'static str; 2] {
        match self {
            Code::WrongVersion | Code::WrongCluster | Code::WrongFingerprint => {
                ["the refusing side's", "the refused side's"]
            }
            Code::LacksCapability => ["finalized", "the refused side has"],
            Code::SecretMissing => ["the refusing side has", "the refused side has"],
            Code::WrongNode => ["it is", "taken for"],
            Code::TooLarge => ["it has", "at most"],
            Code::RetentionFull => ["bytes held", "bound"],
            Code::OutOfRange => ["from", "to"],
            Code::Timeout => ["end of what may be read", "end of the log"],
            Code::Overloaded | Code::TooManyConnections => ["at most", ""],
            Code::UnknownLevel => ["level", ""],
            Code::WrongCore => ["port", ""],
            Code::NotLeader => ["leader", ""],
            Code::StaleEpoch | Code::ProducerFenced => ["epoch", ""],
            Code::SequenceGap => ["sequence", ""],
            Code::SequenceReused | Code::Truncated => ["offset", ""],
            _ => ["", ""],
        }
    }

    /// What it means with its name, the numbers beside it, and the mend: all of it on one line.
    pub fn explain(self, details: [u64; 2]) -> String {
        let names = self.details();
        let named = names.into_iter().zip(details);
        let said = |(name, number): (&str, u64)| match (self, name) {
            (_, "") => number.to_string(),
            // As `millrace config` prints it.
            (Code::WrongFingerprint, _) => format!("{name}: {number:08x}"),
            (Code::LacksCapability, _) => {
                let names = Capabilities::from_bits(number).names().join(" ");
                format!("{name}: {}", if number == 0 { "none" } else { &names })
            }
            _ => format!("{name}: {number}"),
        };
        let one = !names[0].is_empty() && names[1].is_empty();
        let numbers: Vec<String> = named.take(if one { 1 } else { 2 }).map(said).collect();
        let numbers = match details {
            [0, 0] => String::new(),
            _ => format!(" ({})", numbers.join(", ")),
        };
        let (name, text, mend) = (self.name(), self.text(), self.mend());
        format!("{name}: {text}{numbers}; mend: {mend}")
    }

    /// The code with this number.
    pub fn from_number(number: u16) -> Option<Code> {
        Code::ALL
            .iter()
            .copied()
            .find(|code| code.number() == number)
    }

    /// The code with this name.
    pub fn from_name(name: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.name() == name)
    }
}

#[cfg(test)]
#[path = "code_tests.rs"]
mod tests;
