//! millrace: a replicated log for Linux on bare metal.
//!
//! # How the parts fit
//!
//! ```text
//!         pure: deterministic, no async, no I/O                  |  shells
//!   types, limits  <-  wire  <-  { wal, replica, client }  <-  shard  <-  runtime, admin  <-  main
//!                                siblings, unaware of each other |
//! ```
//!
//! A *record* is encoded once, by the client, into a *batch*. The leader of a log puts batches into
//! a *block*: one durable write, one entry of the replica protocol, padded to 4096 bytes. Followers
//! write the same bytes at the same position of the same segment file. Everything that decides is
//! pure: `wal` how bytes become durable, `replica` who may lead, what may be admitted and what is
//! committed, `shard` how their outputs reach one another. `runtime` alone knows glommio; the
//! simulator in `tests/sim` runs the same `shard` over simulated disks and a simulated network.
//!
//! One append passes through six files: `runtime/client.rs`, `runtime/driver.rs`,
//! `shard/clients.rs`, `wal/append.rs`, `replica/leader.rs`, `replica/follower.rs`.
//!
//! # Decisions taken where the design was silent
//!
//! * Sets of at least three nodes elect; others keep the leader that configuration places: for
//!   shard `s` of a set the `s mod N`-th node of the ascending list of node ids, which in an
//!   electing set is preferred and gets the shard back. Both open epochs by the same steps: `Where`
//!   asks for positions and, with a higher epoch, for a promise, which is the vote; `Position`
//!   answers both. Gathering positions is the pre-vote: whoever hears a leader gives none.
//! * A leader leads as long as a majority answers heartbeats sent within the shortest election
//!   timeout. That decides who tries when; safety rests on the durable promises alone.
//! * `TakeOver` hands a leadership over: the leader holds its appends back until the receiver has
//!   all its blocks, and goes on itself if the other one does not open an epoch in time.
//! * A frame that one node sends to one other waits for that one's capability alone; what reaches
//!   disks or travels on waits for `millrace finalize`. Nothing of the second kind exists yet.
//! * What the cluster is finalized with stands in each node's `node.toml`: it is of the node, is
//!   read before any log is, and an older version does not start with it. Each node is given the
//!   order by itself and looks whether all others are connected and able, so one that was down is
//!   never left behind, and the order may be repeated.
//! * Peers prove a shared secret before any other frame counts; the side that dialed proves first,
//!   so that a stranger gets nothing made with the secret. Clients prove nothing.
//! * `FetchOk` answers `Fetch`. It is admitted by the rule that admits `Replicate`.
//! * A frame of blocks carries a run of whole blocks, `used_len` bytes of each; the receiver lays
//!   them at multiples of 4096 and writes the run with one disk operation.
//! * Reads, writes and syncs go through an io_uring ring of each executor's own, which wakes it by
//!   an eventfd; glommio carries the sockets, the tasks and the buffers. Its file type writes whole
//!   buffers only and copies what it reads, so each block would have been copied once more.
//! * A later block's `committed_end` is evidence at recovery only in a set of one: a follower
//!   writes blocks that others committed before they are durable here, and a plain crash must not
//!   close its log.
//! * A cut also zeroes the rest of the last file that stays, so a torn tail is reported once.
//! * There is one control connection for each pair of cores, dialed by the lower node id.
//! * The leader keeps blocks in memory only while they are in flight or recent; a link that falls
//!   behind reads them from the log's files, in the same frames.
//! * A sealed block that fills at most half of its buffer is copied into one of its size: a link
//!   that waits would otherwise keep a whole buffer for each. Fuller ones are never copied.
//! * Lines of the log are written by a thread of their own, and dropped and counted rather than
//!   waited for: standard error may be a pipe that nobody reads.
//! * Runs that arrive while a follower cuts its log wait in the shard, bounded by the link's
//!   credit.
//! * A client gives a batch another name (epoch, sequence) only if every attempt under the old one
//!   was refused; what may be in the log under one name ends as unknown, never under another.
//! * A silent connection that owes a client an answer is asked for `Metadata` before it is given
//!   up, so an append may wait for its quorum and a hung node costs seconds.
//! * A leader of a mesh sends only what is durable on its own disk, so a crash never leaves a
//!   follower ahead of it. Its own memory is enough to open an epoch; if that was lost, it waits
//!   until every other node has said what it holds, and copies the most of it back.
//! * The first attempt after a failed one comes within 50 ms, each further one after twice the
//!   time, up to `retry_backoff_ms`; an ack begins anew. There is no jitter.
//! * Heartbeats also go over a data connection on which nothing is in flight or that is paused, so
//!   that one that died without a word is missed. A follower asks for a pause by itself by the two
//!   rules of `replica/pausing.rs`.
//! * A link whose logs differ is `paused` with the cause `diverged` and the block: there are four
//!   statuses, and only an operator lets it go on.
//! * A mesh is all of `[[cluster.nodes]]`: there is no key for less. Its nodes' ids are its
//!   origins; the fingerprint in `Hello` covers kind and node list.
//! * A request that finds the lane to another core full waits with its connection, which is read no
//!   further; it is never refused for that. Requests and answers cross in lanes of their own.
//! * The cores of a node stop together: one whose logs have stopped answers what others hand to it
//!   until theirs have too. Reads that wait are answered `Stopping`.
//! * A full disk shows when the next segment file cannot be brought in. The ballast for blocks of
//!   the node's own is the end of the newest segment, which records leave free until the next file
//!   is there; the file system keeps a few MiB besides. A retention bound that refuses appends has
//!   a code of its own, `RetentionFull`.
//! * Age retention counts by tick what was found at the start, leaving out a gap of more than an
//!   hour before it, and by this node's running time what began since.
//! * A leader tells a follower that it is behind the log start by sending the first blocks that it
//!   kept; `Fetch` of a log's first block asks likewise, with epoch 0 for the block before it.
//! * A log that knows producers rolls when a block opens that might not fit, because the snapshot
//!   comes before the block's batches. It never trims its last committed block: a cut could take
//!   its last segment, and the table with it.
//! * A retry that is older than the last five batches is answered `Unknown`: the log cannot tell
//!   whether it holds it. The first batch of a producer, tried again after 1,024 others came in
//!   between, counts as new; only a mark on the wire could tell.
//! * A read that meets damage in a log that nobody else holds closes it until restart: what a log
//!   holds must never be served on trust. In one that others hold the read fails alone, and the
//!   range is in both copies of the checkpoint before anything else counts as durable.
//! * A block is written over damage only if it chains to what is sound on both sides; then whoever
//!   sends it need not be believed. So a follower's repair moves no position, and neither does a
//!   leader's, which asks its followers in turn.
//! * What looks like a block behind damage counts as one only if it chains without a gap to a CRC
//!   that is known otherwise: of the next segment's header, or of memory. A client can put the
//!   bytes of a block into a record. So recovery passes damage by in every segment but the last:
//!   there the log ends before it, its memory is lost, and its leader brings back what is missing.
//! * A scrub ends with a `Replicate` of no blocks to each follower that has all of them, which is
//!   refused if the follower's last committed block is another one: replicas are compared by
//!   content without a frame of its own.
//! * A leader that finds the newest segment damaged at its start begins behind what it can prove:
//!   what it alone had acknowledged at `leader` from there on is lost, as with its disk.
//! * A lost write of the newest blocks cannot be told from a write that never was, on the node that
//!   lost it; those below `scan_from` and the high watermark of the checkpoint are missed.
//! * A follower that lacks 64 committed blocks or more raises its byte limit by its own pace alone,
//!   which is at least 5/4 of what its leader seals meanwhile, so that no pace leaves it behind for
//!   good. The leader tells those bytes with its heartbeats (`Sealed`): guessed from the blocks
//!   that come they were far too many, as a backlog's blocks are larger than live ones. It raises
//!   every 2 ms: in steps of 20 ms the same bytes came in bursts, and the p99 of live appends was
//!   2.2 times what it is otherwise instead of 1.4; in steps of 5 ms 1.9, of 2 ms 1.6, in the
//!   median of five pairs.
//! * A leader whose log is closed by an error sends `TakeOver` to the member that holds most of it:
//!   safety rests on that member's epoch, so the word of a node with a broken disk does no harm.
//! * What nobody can repair is an operator's to give up, beside a stopped node: `salvage` for
//!   damage without peers, `diverge resolve` for logs that differ. Both move it aside, and a log
//!   that others hold counts as one that lost its memory from then on.
//! * A member that says it has more committed than its leader holds is diverged, not in error.
//! * The limit of open files is shared out at the start: files of the logs first, a quarter of the
//!   rest for segments to come, connections last.
//! * The admin thread wakes no core: its orders wait in a mailbox that the core's watch task looks
//!   into every 100 ms. `millrace link` gives them over HTTP, not over the protocol.
//! * A log that is full by `log.retention = "hard"` refuses for good and says so at once: only an
//!   operator makes room, and a client that goes on trying would only say it later.
//! * A cut waits for no file on account of blocks that go: those that were never handed to the disk
//!   are dropped with it. While it waits for one that a block needs which stays, trims go on, and a
//!   stop on a full disk gives the cut up: its leader asks again.
//! * Trusted segments are known by their first headers alone, but for files that are shorter than
//!   one beside them or cannot hold as many blocks as they must: their headers are walked.
//! * A core lets in more connections than clients may have, so that members of the cluster always
//!   find a place; of clients those above the bound are told so.
//! * Nodes prove the cluster's secret by challenge, in four frames between `Hello` and the first
//!   one that counts, the dialing node first, so that strangers get nothing that was made with it
//!   (`wire/trust.rs`). The frames behind are neither hidden nor sealed: that takes TLS. Clients
//!   prove nothing. Every byte of the secret's file counts, a newline at its end too. Nodes with
//!   and without a secret do not talk, so it comes and goes with a restart of all nodes.
//! * The lack of a secret is told at the start where other machines reach a node of several.
//! * The table of producers travels as a `local` batch, the first one of a segment's first block.

#[cfg(feature = "node")]
pub mod admin;
pub mod buffers;
pub mod client;
#[cfg(feature = "node")]
pub mod config;
pub mod faults;
pub mod limits;
pub mod replica;
#[cfg(feature = "node")]
pub mod runtime;
pub mod shard;
#[cfg(feature = "node")]
pub mod snapshot;
pub mod types;
pub mod wal;
pub mod wire;
