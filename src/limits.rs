//! Every bound of the engine, each with the reason for its size.
//!
//! A bound that is a constant of a format may never change without that format's version. A bound
//! that is a default can be set in the configuration; its derivation is here all the same. Sums of
//! memory are written as sums, one line of reason per term. Read `buffers.rs` next.

/// Unit of direct I/O: every position, length and buffer address is a multiple of it. A constant of
/// the format; 4096 is a multiple of every logical sector size in use.
pub const DISK_ALIGNMENT: usize = 4096;

/// Bytes a device writes or loses as one: the unit in which a torn write is torn.
pub const SECTOR: usize = 512;

/// Bytes of a block's header, a batch's header and a segment's header block.
pub const BLOCK_HEADER: usize = 128;
/// Bytes of a batch's header.
pub const BATCH_HEADER: usize = 128;
/// Bytes of a segment file's header block.
pub const SEGMENT_HEADER: usize = DISK_ALIGNMENT;
/// Bytes of one checkpoint copy.
pub const CHECKPOINT_COPY: usize = DISK_ALIGNMENT;

/// Default for `max_block_bytes`: one durable write of a busy log. 1 MiB amortises a device's
/// latency (about 1 ms) at well over 500 MB/s and keeps eight in flight within 8 MiB.
pub const MAX_BLOCK_BYTES: usize = 1 << 20;

/// Default for `max_batch_bytes` (header + stored body): a block must be able to hold it beside its
/// own header within one padded buffer of `MAX_BLOCK_BYTES`.
pub const MAX_BATCH_BYTES: usize = MAX_BLOCK_BYTES - BLOCK_HEADER;

/// Default for `max_block_records`.
pub const MAX_BLOCK_RECORDS: u32 = 262_144;

/// Blocks of one log in flight to the disk.
pub const WRITE_DEPTH: usize = 8;

/// How far past `durable_end` a write may lie, in bytes; holes in the last so many bytes of a log
/// are torn, not corrupt. A constant of the format: recovery of old files depends on it.
pub const WRITE_WINDOW: u64 = 16 << 20;

/// Highest block number, offset (exclusive ends too) and tick that foreign bytes may carry. Sums of
/// a few of them cannot overflow, and at a thousand million a second it lasts for 146 years. A
/// constant of the format.
pub const POSITION_MAX: u64 = 1 << 62;

/// Highest epoch that foreign bytes may carry: a leader can always take a number above it. A
/// constant of the format.
pub const EPOCH_MAX: u32 = 1 << 31;

/// Default for `segment_bytes`.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// Default for `scrub_bytes_per_s`: a tenth of what a slow disk reads in sequence, and a terabyte
/// in a day and a half.
pub const SCRUB_BYTES_PER_S: u64 = 8 << 20;

/// Time after which damaged blocks that no node could give are asked for again.
pub const REPAIR_RETRY_MS: u64 = 2_000;

/// Default for `scrub_interval_s`: damage is found while the other copies are likely sound.
pub const SCRUB_INTERVAL_S: u64 = 86_400;

/// Bytes at the end of a segment that client's records do not use until the next file is there, at
/// most (and at most an eighth of a segment): sixteen blocks of the node's own, such as those that
/// open an epoch, on a full disk.
pub const CONTROL_ROOM: u64 = 16 * DISK_ALIGNMENT as u64;

/// Bytes of the file system that no segment file takes: for checkpoints of new logs, for names, and
/// for whoever has to make space.
pub const SPACE_RESERVE: u64 = 4 << 20;

/// Default for `batch_timeout_ms`: how long the oldest append of the open block may wait while
/// earlier blocks are in flight.
pub const BATCH_TIMEOUT_MS: u64 = 10;

/// Bytes of a frame's header.
pub const FRAME_HEADER: usize = 32;

/// Largest typed body of a frame; it is read before its CRC is known, so it is small.
pub const FRAME_BODY: usize = 16_384;

/// Largest payload of any frame: a run of blocks of one padded buffer, or one batch.
pub const FRAME_PAYLOAD: usize = WRITE_WINDOW as usize;

/// Default credit of a link in records (DESIGN: rate x round trip with room for a 1 MiB block of
/// 4-byte records).
pub const INITIAL_CREDIT: u64 = 262_144;

/// Default credit of a link in bytes, as blocks occupy memory: 32 blocks of 1 MiB.
pub const INITIAL_CREDIT_BYTES: u64 = 32 << 20;

/// Bytes of the buffers that a link may have handed to its connection and not yet to the socket;
/// the last one may reach beyond. More than that is read from the log again when the socket has
/// room: a slow peer costs this much and no more, however little of each buffer its blocks fill.
pub const LINK_QUEUE_BYTES: usize = 8 << 20;

/// Memory of the frames that may wait for the socket of a peer, in whole buffers: what a link may
/// queue, and as much again of the largest answers to fetches. A peer that lets more pile up reads
/// nothing: its connection ends.
pub const PEER_QUEUE_BYTES: usize = LINK_QUEUE_BYTES + 2 * MAX_BUFFER_BYTES;

/// Runs of blocks that wait behind a cut, whatever their size; their bytes are bounded by credit.
pub const DELAYED_RUNS: usize = 16_384;

/// Bytes of recent blocks a log keeps in memory for its links, counted as buffers.
pub const RECENT_BYTES: usize = 8 << 20;

/// Blocks whose header facts (epoch, CRC, position) a log keeps in memory, newest first. A
/// duplicate of an older block is answered from the position alone. 65,536 x 48 bytes = 3 MiB.
pub const HELD_BLOCKS: usize = 65_536;

/// Batches a client may have unanswered on one connection.
pub const CLIENT_IN_FLIGHT: usize = 64;

/// Batches of a producer that a log remembers: what a retry can be recognised by. So a producer
/// sends a batch to a log only if at most so many, itself counted, were made since the oldest that
/// has no answer.
pub const PRODUCER_BATCHES: usize = 5;

/// Producers that a log remembers: 1,024 x 184 bytes fit into a block. The one with the oldest tick
/// leaves; in a log of smaller blocks there are as many as a block holds.
pub const PRODUCERS: usize = 1024;

/// Bytes of appends that one connection may have unanswered; the node reads no further before.
pub const CONNECTION_APPEND_BYTES: usize = 16 << 20;

/// Bytes of buffers that answers to readers of one log hold until their last byte has left for a
/// socket, and that loads for them take: two answers of the largest size, or 32 of a block of the
/// default size. Further reads wait.
pub const READ_ANSWER_BYTES: usize = 2 * MAX_BUFFER_BYTES;

/// The part of it that one connection may hold: a sixteenth, two blocks of the default size, so
/// that clients that do not take their answers leave room to others until they are cut off (10 s).
/// One answer of any size always fits.
pub const READ_ANSWER_SHARE: usize = READ_ANSWER_BYTES / 16;

/// How long a read for which there are records may wait for room before it is answered
/// `Overloaded`.
pub const READ_ROOM_MS: u64 = 5_000;

/// Loads of one log that hold a buffer and read at once, oldest first: enough to keep a device
/// busy; the others wait without one.
pub const LOADS_AT_ONCE: usize = 8;

/// Reads and searches that one log holds back until there is something to return.
pub const WAITING_READS: usize = 1024;

/// Reads of one connection that one log holds back: what a client of this version has in flight.
pub const WAITING_READS_EACH: usize = CLIENT_IN_FLIGHT;

/// Appends of one log that are accepted and not yet answered.
pub const PENDING_APPENDS: usize = 65_536;

/// Members of a set or mesh.
pub const MAX_NODES: usize = 16;

/// Shards of a cluster.
pub const MAX_SHARDS: usize = 1024;

/// Leaderships whose first block a log remembers; older ones are read from the segments again.
pub const EPOCHS_HELD: usize = 1024;

/// Time between two heartbeats of a led log on the control connection.
pub const HEARTBEAT_MS: u64 = 100;

/// Time without any frame from a peer after which its link counts as disconnected
/// (`rpc_timeout_ms`, S-167).
pub const RPC_TIMEOUT_MS: u64 = 5_000;

/// Bytes a second at which a node that is behind lets itself be brought up, all its logs together
/// (`catch_up_bytes_per_s`), so that what is live keeps most of disk and network.
pub const CATCH_UP_BYTES_PER_S: u64 = 64 << 20;

/// Longest time between two attempts to connect (`retry_backoff_ms`, S-168).
pub const RETRY_BACKOFF_MS: u64 = 1_000;

/// Time before the first attempt after one that failed; each further one waits twice as long, up to
/// `retry_backoff_ms`. A process that is started again is back within it.
pub const FIRST_RETRY_MS: u64 = 50;

/// Shortest time without a leader after which a member of an electing set stands
/// (`cluster.election_timeout_ms`); the longest is twice that. Ten heartbeats.
pub const ELECTION_TIMEOUT_MS: u64 = 1_000;

/// How long the preferred leader must have been caught up before it is handed the leadership.
pub const HANDOVER_MS: u64 = 10_000;

/// How long a starting leader waits for all configured followers before a majority is enough.
pub const GATHER_MS: u64 = 1_000;

/// Largest buffer, and so the largest block, batch and run of blocks in one frame.
pub const MAX_BUFFER_BYTES: usize = WRITE_WINDOW as usize;

/// Appends of all clients of one core that are received and not yet taken by their logs: enough for
/// four connections that fill their own bound.
pub const CORE_APPEND_BYTES: usize = 4 * CONNECTION_APPEND_BYTES;

/// Requests of any kind that one client connection may have unanswered; the node reads no further
/// before. Sixteen times what a client of this version sends.
pub const CONNECTION_REQUESTS: usize = 16 * CLIENT_IN_FLIGHT;

/// Answers that wait for a client's socket; the node reads no further request before. One largest
/// answer always fits.
pub const CONNECTION_ANSWER_BYTES: usize = MAX_BUFFER_BYTES;

/// Answers without a buffer (errors, status, what other cores answered) that wait for the sockets
/// of one core. Above it a client that has not taken its last answer is read no further; so each
/// connection adds one answer to it at most.
pub const CORE_ANSWER_BYTES: usize = 4 * CONNECTION_ANSWER_BYTES;

/// Connections of one core. Each costs its read buffer and two tasks. A client above it is told so
/// and closed; members of the cluster are let in all the same.
pub const CORE_CONNECTIONS: usize = 1024;

/// Connections of one core above `CORE_CONNECTIONS`: a control and a data connection for each log
/// of a few, from other nodes, and those whose first frame has yet to say who they are. Above it
/// the one of these that has been silent for longest is closed for each that comes.
pub const CORE_CONNECTIONS_MORE: usize = 256;

/// Connections of one core above both that are being closed to make place. More are closed without
/// a word.
pub const CORE_CONNECTIONS_ENDING: usize = 64;

/// Bytes of a connection's read buffer: headers and typed bodies come through it, payloads above a
/// quarter of it go straight to their buffer. Twice what a header with the largest body needs.
pub const READ_BUFFER_BYTES: usize = 2 * (FRAME_HEADER + FRAME_BODY);

/// Messages on their way from one core to another: each lane is created at this capacity. Sixteen
/// clients of the wrong port that fill their windows; an entry without payload is about 200 bytes.
pub const HANDOFF_ENTRIES: usize = 16 * CLIENT_IN_FLIGHT;

/// Bytes on their way from one core to another, per lane: four blocks of the default size, so that
/// one is taken out while others come in. An empty lane takes one payload of any size, so a lane
/// holds at most the larger of this and `MAX_BUFFER_BYTES`.
pub const HANDOFF_BYTES: usize = 4 * MAX_BLOCK_BYTES;

/// Lanes between two cores: requests and answers, in both directions. Answers have their own so
/// that requests that wait for a log never hold them up.
pub const HANDOFF_LANES: usize = 4;

/// Bytes of a cluster's secret: at least what HMAC-SHA-256 is worth, at most what is read of a file
/// that was named by mistake.
pub const SECRET_BYTES_MIN: usize = 32;
/// See `SECRET_BYTES_MIN`.
pub const SECRET_BYTES_MAX: usize = 4096;

/// How long a new connection may take for its first frame, or for all up to the last proof if it is
/// one between nodes; and a dialed one for the answers.
pub const HANDSHAKE_MS: u64 = 5_000;

/// How long a payload may take from its first byte to its last: its buffer is set aside meanwhile.
/// The largest one comes in time at 1.7 MB/s, a batch of 1 MiB at 105 KB/s.
pub const PAYLOAD_MS: u64 = 10_000;

/// How long a free buffer is kept for whoever may want it next. One that nobody took in so long
/// goes back to the system: what a burst needed is not kept for ever.
pub const FREE_BUFFER_MS: u64 = 10_000;

/// What the buffers of a core are for.
#[derive(Clone, Copy, Debug)]
pub struct BufferNeeds {
    /// Logs of the core.
    pub logs: usize,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Bytes of the largest block.
    pub block_bytes: usize,
    /// Blocks of one log in flight to the disk.
    pub write_depth: usize,
    /// Bytes of credit that a follower grants per link.
    pub credit_bytes: usize,
}

/// Bytes of buffers of one core, as a sum: a bound, allocated as needed. Buffers come in powers of
/// two, so what is not a power of two may take twice its size.
pub fn core_buffer_bytes(needs: &BufferNeeds) -> usize {
    let block = needs.block_bytes.next_power_of_two();
    let terms = [
        // The open block, one that waits for a slot, those in flight to the disk.
        block * (needs.write_depth + 2),
        // Recent blocks, kept for links.
        2 * RECENT_BYTES,
        // What each link queues, with one buffer beyond, and a block that is read again for it.
        (LINK_QUEUE_BYTES + 2 * block) * needs.nodes,
        // Blocks received and not yet durable.
        2 * needs.credit_bytes,
        // Recovery's scan, and its look past the end.
        2 * WRITE_WINDOW as usize,
        // Answers to readers, and searches: a search holds one buffer while it reads.
        2 * READ_ANSWER_BYTES,
    ];
    needs.logs * terms.iter().sum::<usize>() + CORE_APPEND_BYTES
}

/// Zeroed segment files that a node keeps ahead of need for each of its logs: the one in use and
/// the next one are taken at once, the third is for the first roll.
pub const SPARES_PER_LOG: usize = 3;

/// Bytes of zeroed segment files that a node keeps ahead of need in all.
pub const SPARE_BYTES: u64 = 1 << 30;

/// Rate at which spares are zeroed while logs are written, bytes per second.
pub const ZERO_BYTES_PER_SECOND: u64 = 32 << 20;
