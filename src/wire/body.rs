//! The typed bodies of all frames.
//!
//! | number | frame | direction | answered by | payload |
//! |---|---|---|---|---|
//! | 0x01 | Hello | dialing node -> node | HelloOk, Error | |
//! | 0x02 | HelloOk | node -> dialing node | | |
//! | 0x03 | Where | leader -> replica | Position, Nack | |
//! | 0x04 | Position | replica -> leader | | |
//! | 0x05 | Replicate | leader -> replica | ReplicateOk, Nack | run of blocks |
//! | 0x06 | ReplicateOk | replica -> leader | | |
//! | 0x07 | Nack | replica -> leader, asked member -> asking one | | |
//! | 0x08 | Limits | replica -> leader | | |
//! | 0x09 | Pause | replica -> leader | | |
//! | 0x0A | Resume | replica -> leader | | |
//! | 0x0B | Fetch | opening leader -> replica, member -> member to repair | FetchOk, Nack | |
//! | 0x0C | FetchOk | answers to Fetch, back | | run of blocks |
//! | 0x0D | Ping | leader -> replica, control connection | Pong | |
//! | 0x0E | Pong | replica -> leader, control connection | | |
//! | 0x0F | Sealed | leader -> replica, control connection | | |
//! | 0x10 | Metadata | client -> node | MetadataOk, Error | |
//! | 0x11 | MetadataOk | node -> client | | |
//! | 0x12 | Append | client -> node | AppendOk, Error | one batch |
//! | 0x13 | AppendOk | node -> client | | |
//! | 0x14 | Read | client -> node | ReadOk, Error | |
//! | 0x15 | ReadOk | node -> client | | whole batches |
//! | 0x16 | Find | client -> node | FindOk, Error | |
//! | 0x17 | FindOk | node -> client | | |
//! | 0x18 | Status | client -> node | StatusOk, Error | |
//! | 0x19 | StatusOk | node -> client | | JSON |
//! | 0x1F | Error | any -> any | | |
//! | 0x20 | Challenge | node -> dialing node | Proof, Error | |
//! | 0x21 | Proof | dialing node -> node | ProofOk, Error | |
//! | 0x22 | ProofOk | node -> dialing node | | |
//! | 0x23 | Trusted | dialing node -> node | | |
//! | 0x30 | TakeOver | leader -> replica | | |
//!
//! Fields stand in the order of the list below, little-endian, without gaps; a text or a list has
//! its length as a u16 before it. A payload that is a run of blocks holds `used_len` bytes of each,
//! in order; the receiver lays each at a multiple of 4096 and zeroes the padding. All positions are
//! in blocks and exclusive unless a name says offset.

use super::field::Field;
use super::frame;
use crate::limits::FRAME_HEADER;
use crate::types::{BlockNo, Epoch, LogId, NodeId, Offset, OriginId};

/// Version of the protocol, exchanged in Hello and Metadata (S-187). Nodes with two numbers refuse
/// one another: what may differ between neighbouring versions is a capability (`capability.rs`,
/// which
/// says which change needs what), and this number stays.
pub const PROTOCOL: u16 = 4;

/// Limits that a receiver grants: absolute, cumulative per link and connection, never lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditLimits {
    /// Records that may have been sent on this connection in all.
    pub records: u64,
    /// Bytes that may have been sent on this connection in all, blocks as padded to 4096.
    pub bytes: u64,
}

/// What a connection between nodes carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Blocks and acks of one shard.
    Data,
    /// Heartbeats and votes of one core.
    Control,
}

/// Why a replica asked for a pause (S-58).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseReason {
    /// Its disk is slow.
    SlowDisk,
    /// It has too much to do.
    HighLoad,
    /// An operator asked.
    Manual,
}

/// What a replica remembers, as it says in its Position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaMemory {
    /// Everything it promised or acknowledged.
    Whole,
    /// It had more once, or may have had.
    Lost,
    /// There is no valid checkpoint and no segment: a new or a replaced disk.
    Blank,
}

/// One node of a cluster as clients are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// The node.
    pub node: NodeId,
    /// Host and base port, `host:port`.
    pub address: String,
    /// Cores it listens with: shard `s` is at `port + s % cores`; 0 if not known.
    pub cores: u16,
}

/// Foreign bytes that do not parse as the body their type says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyError;

macro_rules! frames {
    ($($(#[$doc:meta])* $name:ident $number:literal {
        $($(#[$field_doc:meta])* $field:ident: $ty:ty,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $ty,)*
            }
        )*

        /// A frame's typed body.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Body {
            $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name),)*
        }

        $(
            impl $name {
                fn take_fields(_from: &mut &[u8]) -> Result<$name, BodyError> {
                    Ok($name { $($field: Field::take(_from)?,)* })
                }
            }

            impl From<$name> for Body {
                fn from(body: $name) -> Body {
                    Body::$name(body)
                }
            }
        )*

        /// Number and name of every type of frame.
        pub const TYPES: &[(u8, &str)] = &[$(($number, stringify!($name)),)*];

        impl Body {
            /// The number of the frame's type.
            pub fn kind(&self) -> u8 {
                match self { $(Body::$name(_) => $number,)* }
            }

            /// The name of the frame's type.
            pub fn name(&self) -> &'static str {
                match self { $(Body::$name(_) => stringify!($name),)* }
            }

            /// Reads the typed body of a frame of type `kind`; none if no frame has that number.
            pub fn decode(kind: u8, mut bytes: &[u8]) -> Option<Result<Body, BodyError>> {
                let from = &mut bytes;
                let body: Result<Body, BodyError> = match kind {
                    $($number => $name::take_fields(from).map(Body::$name),)*
                    _ => return None,
                };
                Some(if bytes.is_empty() { body } else { Err(BodyError) })
            }

            fn put_fields(&self, out: &mut Vec<u8>) {
                match self {
                    $(Body::$name(body) => {
                        let _ = &body;
                        $(body.$field.put(out);)*
                    })*
                }
            }
        }
    };
}

impl Body {
    /// Header and typed body of a frame whose payload of `payload_len` bytes follows. Panics on a
    /// body above `FRAME_BODY` or a payload above `FRAME_PAYLOAD`.
    pub fn encode(&self, correlation: u64, log: LogId, payload_len: usize) -> Vec<u8> {
        let mut out = vec![0; FRAME_HEADER];
        self.put_fields(&mut out);
        frame::write_header(&mut out, self.kind(), correlation, log, payload_len);
        out
    }
}

frames! {
    /// First frame of a connection between nodes. The log in the frame's header is the one a data
    /// connection is for.
    Hello 0x01 {
        /// Version of the protocol.
        protocol: u16,
        /// Id of the sender's cluster.
        cluster: OriginId,
        /// The sender.
        node: NodeId,
        /// The node it takes the receiver for.
        target: NodeId,
        /// What the connection will carry.
        channel: Channel,
        /// Cores of the sender.
        cores: u16,
        /// The core that dials: a control connection carries the logs that it and the receiving
        /// core both own.
        core: u16,
        /// CRC over the cluster facts: shards, limits, node list.
        fingerprint: u32,
        /// What the sender can (`capability.rs`); bit 0: it has a secret (`trust.rs`).
        capabilities: u64,
    }
    /// Accepts a Hello.
    HelloOk 0x02 {
        /// Version of the protocol.
        protocol: u16,
        /// The receiver of the Hello.
        node: NodeId,
        /// Cores the receiver listens with.
        cores: u16,
        /// What the receiver can (`capability.rs`).
        capabilities: u64,
    }
    /// "Where are you?", and the request to promise `epoch` if it is higher than any promised.
    Where 0x03 {
        /// Epoch of the asking leader; 0 asks without asking for a promise.
        epoch: Epoch,
        /// The leader's log end.
        log_end: BlockNo,
        /// Every configured node said that it is blank: the log is new.
        founding: u8,
        /// Epoch of the leader's last block; 0 if it holds none. A vote in an election is given to
        /// a log at least as up to date only.
        last_epoch: Epoch,
        /// A majority has promised the epoch to this leader: this is no vote any more.
        won: u8,
    }
    /// What a replica holds.
    Position 0x04 {
        /// Highest epoch promised.
        promised: Epoch,
        /// Epoch of its last block; 0 if it holds none.
        last_epoch: Epoch,
        /// `header_crc` of its last block; 0 if it holds none or does not know it.
        last_crc: u32,
        /// First block it does not hold.
        next: BlockNo,
        /// First block that is not durable.
        durable_end: BlockNo,
        /// Its high watermark.
        committed_end: BlockNo,
        /// Its log start.
        log_start: BlockNo,
        /// What it remembers.
        memory: ReplicaMemory,
        /// It leads, or hears a leader other than the asking node: no election is due.
        hears_leader: u8,
        /// Credit it grants on this connection.
        limits: CreditLimits,
    }
    /// Blocks to be written verbatim. One of no blocks asks whether `first` continues the log.
    Replicate 0x05 {
        /// Epoch of the sending leader.
        epoch: Epoch,
        /// First block of the run.
        first: BlockNo,
        /// Epoch of the block before it; 0 if there is none.
        prev_epoch: Epoch,
        /// `header_crc` of the block before it; 0 if there is none or the sender does not know it.
        prev_crc: u32,
        /// The leader's high watermark.
        committed_end: BlockNo,
        /// The leader's log start: what lies below may be trimmed.
        log_start: BlockNo,
        /// Blocks in the payload.
        count: u32,
        /// Records in the blocks.
        records: u32,
        /// Bytes of the blocks as padded.
        padded_len: u32,
    }
    /// Everything up to `durable_end` is durable here and verified in this epoch.
    ReplicateOk 0x06 {
        /// Epoch the replica follows.
        epoch: Epoch,
        /// First block that is not durable or not verified.
        durable_end: BlockNo,
        /// Offset that belongs to it; 0 if the replica does not know it any more.
        durable_offset: Offset,
        /// What it remembers: a lost memory does not count for a majority.
        memory: ReplicaMemory,
        /// Credit it grants on this connection.
        limits: CreditLimits,
    }
    /// A refusal: of a Replicate, a Where or a Fetch. The link stays.
    Nack 0x07 {
        /// Number of the code.
        code: u16,
        /// First block of the refused frame.
        first: BlockNo,
        /// First block the replica does not hold.
        next: BlockNo,
        /// Highest epoch the replica promised.
        promised: Epoch,
        /// Epoch of the block before `next`; 0 if there is none.
        hint_epoch: Epoch,
        /// First block of that epoch.
        hint_first: BlockNo,
        /// Credit it grants on this connection.
        limits: CreditLimits,
    }
    /// Credit granted outside an ack.
    Limits 0x08 {
        /// The new limits.
        limits: CreditLimits,
    }
    /// A grant of nothing more, with a reason.
    Pause 0x09 {
        /// Why.
        reason: PauseReason,
    }
    /// Ends a pause; harmless without one.
    Resume 0x0A {
        /// First block wanted.
        next: BlockNo,
    }
    /// An opening leader asks for blocks that it lacks; a leader, or a follower of its leader, for
    /// blocks that are damaged in its own log.
    Fetch 0x0B {
        /// Epoch that the leader is opening.
        epoch: Epoch,
        /// First block wanted.
        first: BlockNo,
        /// Epoch of the block before it in the asker's log; 0 if there is none.
        prev_epoch: Epoch,
        /// Bytes of padded blocks that fit.
        max_bytes: u32,
    }
    /// Blocks asked for with Fetch.
    FetchOk 0x0C {
        /// Epoch that the leader is opening.
        epoch: Epoch,
        /// First block of the run.
        first: BlockNo,
        /// Epoch of the block before it; 0 if there is none.
        prev_epoch: Epoch,
        /// The sender's high watermark.
        committed_end: BlockNo,
        /// Blocks in the payload; 0 if the sender holds none from `first` on.
        count: u32,
        /// Bytes of the blocks as padded.
        padded_len: u32,
    }
    /// A leader's heartbeat for one log.
    Ping 0x0D {
        /// Epoch of the leader.
        epoch: Epoch,
        /// Its high watermark.
        committed_end: BlockNo,
        /// Its log start.
        log_start: BlockNo,
        /// Its log end.
        log_end: BlockNo,
        /// Its clock, given back in the answer.
        sent_at_us: u64,
    }
    /// Answers a Ping.
    Pong 0x0E {
        /// Highest epoch promised.
        promised: Epoch,
        /// As in ReplicateOk.
        durable_end: BlockNo,
        /// From the Ping.
        sent_at_us: u64,
    }
    /// What the leader has sealed, told with its heartbeats (capability `sealed_bytes`): how fast
    /// its log grows is the least pace at which a follower that is behind comes nearer.
    Sealed 0x0F {
        /// Epoch of the leader.
        epoch: Epoch,
        /// Bytes of the blocks that it sealed since its start, as padded to 4096.
        bytes: u64,
    }
    /// First frame of a client's connection: who is here, who leads what.
    Metadata 0x10 {
        /// Version of the protocol.
        protocol: u16,
    }
    /// Answers a Metadata.
    MetadataOk 0x11 {
        /// Version of the protocol.
        protocol: u16,
        /// The answering node.
        node: NodeId,
        /// Id of its cluster.
        cluster: OriginId,
        /// Number of the level that applies where a user names none.
        default_level: u8,
        /// Largest batch, header included.
        max_batch_bytes: u32,
        /// Records of a batch at most.
        max_batch_records: u32,
        /// The cluster's nodes.
        nodes: Vec<NodeAddress>,
        /// Leader of each shard's log as this node knows it, 0 if it knows none: in a set of the
        /// log of the set, in a mesh of that of this node's own origin.
        leaders: Vec<NodeId>,
        /// Epoch that this leader has open as this node knows; 0: it takes no appends yet.
        epochs: Vec<Epoch>,
        /// Origin of the logs to which this node's clients append.
        origin: OriginId,
        /// Origins of all logs that this node holds: in each shard one log of each.
        origins: Vec<OriginId>,
        /// Number of the read level that applies where a user names none.
        default_read_level: u8,
    }
    /// Append the batch in the payload to the log in the frame's header.
    Append 0x12 {
        /// Number of the level.
        level: u8,
        /// After so long without a result the answer is Unknown.
        timeout_ms: u32,
    }
    /// The batch is in the log and its level is reached.
    AppendOk 0x13 {
        /// Offset of its first record.
        base_offset: Offset,
        /// Block it is in.
        block: BlockNo,
        /// Epoch that accepted it.
        epoch: Epoch,
    }
    /// Read whole batches from the one that holds `offset` on.
    Read 0x14 {
        /// First record wanted.
        offset: Offset,
        /// Largest payload; one batch may be larger.
        max_bytes: u32,
        /// How long to wait if there is nothing yet.
        wait_ms: u32,
        /// Number of the read level.
        level: u8,
        /// Epoch of the reader's last batch, the one that ends at `offset`; 0 if it names none. If
        /// that batch is no longer in the log the answer is `Truncated`.
        last_epoch: Epoch,
    }
    /// Batches; the first one holds the offset asked for.
    ReadOk 0x15 {
        /// Offset behind the last record in the payload.
        next: Offset,
        /// Offset behind the last committed record.
        high_watermark: Offset,
        /// First offset kept.
        log_start: Offset,
        /// Epoch that accepted the last batch of the payload: with `next` it names that batch.
        last_epoch: Epoch,
    }
    /// Which offset has this record time?
    Find 0x16 {
        /// Microseconds since the Unix epoch.
        timestamp: u64,
    }
    /// The first batch whose running maximum of record time is not below the one asked for.
    FindOk 0x17 {
        /// Its first offset, or the log's end.
        offset: Offset,
    }
    /// The node's status, as JSON.
    Status 0x18 {}
    /// Answers a Status; the JSON is the payload.
    StatusOk 0x19 {}
    /// A refusal.
    Error 0x1F {
        /// Number of the code.
        code: u16,
        /// What the code says: a leader, a port, a bound.
        detail: u64,
        /// A second number where the code has two.
        detail_two: u64,
    }
    /// Answers a Hello at a node that has a secret: "prove that you know it". The exchange is drawn
    /// in `trust.rs`.
    Challenge 0x20 {
        /// The accepting node's nonce.
        nonce: [u8; 32],
    }
    /// The dialing node's answer.
    Proof 0x21 {
        /// The dialing node's nonce.
        nonce: [u8; 32],
        /// Made with the secret over both nonces and the Hello.
        proof: [u8; 32],
    }
    /// The accepting node's own proof.
    ProofOk 0x22 {
        /// Made with the secret over the same, by another label.
        proof: [u8; 32],
    }
    /// The dialing node takes that proof and the HelloOk: from here on frames count.
    Trusted 0x23 {}
    /// The leader holds its appends back and the receiver has all its blocks: it is to open the
    /// next epoch at once.
    TakeOver 0x30 {
        /// Epoch of the leader.
        epoch: Epoch,
    }
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
