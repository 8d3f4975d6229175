//! Runs of blocks between this shard and its peers: from the log to a connection, and back.
//!
//! `replica` decides what may go and what may come in; the bytes are loaded from the log, or
//! checked and written to it, here. The one place where a received byte is verified before it
//! reaches the disk is [`Shard::on_run`]: header and chain were admitted by `replica`, the batches'
//! CRCs and the padding are checked now, and only then is anything cut or written (H-88).

use super::{Action, DelayedRun, Part, Purpose, Shard, View};
use crate::buffers::Buffers;
use crate::faults::{self, Fault};
use crate::limits;
use crate::replica::{SendRun, ServeFetch, Verdict, with_run};
use crate::types::{BlockNo, BufferId, ConnectionId, Epoch, Time};
use crate::wal::{From, Load, Loaded};
use crate::wire::block::{self, BlockHeader};
use crate::wire::body::{Body, CreditLimits, Nack};
use crate::wire::checkpoint::LogStart;
use crate::wire::code::Code;
use crate::wire::message::Message;
use std::collections::VecDeque;

impl Shard {
    pub(super) fn on_frame(
        &mut self,
        now: Time,
        connection: ConnectionId,
        body: Body,
        payload: Option<(BufferId, usize)>,
        buffers: &mut dyn Buffers,
    ) {
        match body {
            // A cut may wait for a repair.
            Body::FetchOk(_) if self.replica.is_mending_by(connection) => {
                self.on_run(now, connection, &body, payload, buffers);
            }
            Body::Replicate(_) | Body::FetchOk(_)
                if self.stash.is_some() || self.log.is_cutting() =>
            {
                self.delay(now, connection, body, payload);
            }
            Body::Replicate(_) | Body::FetchOk(_) => {
                self.on_run(now, connection, &body, payload, buffers);
            }
            _ => {
                if let Some((buffer, _)) = payload {
                    self.release(buffer);
                }
                let view = View::new(&self.log, &self.stash);
                self.replica.on_body(now, connection, &body, &view);
            }
        }
    }

    /// Keeps a run until the cut is done. Its sender's credit is counted only then, so the bound is
    /// kept here: twice what it may have sent on one connection, for one that was replaced.
    fn delay(
        &mut self,
        now: Time,
        connection: ConnectionId,
        body: Body,
        payload: Option<(BufferId, usize)>,
    ) {
        let window = self.config.link.initial_credit_bytes as usize;
        let most = window
            .saturating_add(limits::MAX_BUFFER_BYTES)
            .saturating_mul(2);
        let len = |payload: &Option<(BufferId, usize)>| payload.map_or(0, |(_, len)| len);
        let held: usize = self
            .delayed
            .iter()
            .map(|(_, _, payload)| len(payload))
            .sum();
        let too_many = self.delayed.len() >= limits::DELAYED_RUNS;
        if !too_many && held + len(&payload) <= most {
            return self.delayed.push_back((connection, body, payload));
        }
        if let Some((buffer, _)) = payload {
            self.release(buffer);
        }
        self.forget_delayed(connection);
        self.replica
            .end_connection(now, connection, Code::OverCredit);
    }

    /// A connection is gone: nothing of it will be admitted.
    pub(super) fn forget_delayed(&mut self, connection: ConnectionId) {
        let (gone, kept) = std::mem::take(&mut self.delayed)
            .into_iter()
            .partition(|(from, _, _)| *from == connection);
        self.delayed = kept;
        let gone: VecDeque<DelayedRun> = gone;
        for (buffer, _) in gone.into_iter().filter_map(|(_, _, payload)| payload) {
            self.release(buffer);
        }
    }

    /// Admits a run: position by `replica`, then CRCs, then the cut, then the write.
    fn on_run(
        &mut self,
        now: Time,
        connection: ConnectionId,
        body: &Body,
        payload: Option<(BufferId, usize)>,
        buffers: &mut dyn Buffers,
    ) {
        let bytes = payload.map_or(&[][..], |(buffer, len)| &buffers.bytes(buffer)[..len]);
        let headers = headers_of(bytes);
        let view = View::new(&self.log, &self.stash);
        let verdict = self
            .replica
            .on_run(now, connection, body, headers.as_deref(), &view);
        let damaged = headers.is_none() || verdict == Verdict::Refuse(Code::BadCrc);
        self.counters.crc_failures += u64::from(damaged);
        let (cut, anew) = match verdict {
            Verdict::Write { cut } => (cut, None),
            Verdict::Reset { start } => (None, Some(start)),
            Verdict::Repair => {
                let payload = payload.expect("a run for a repair has blocks");
                let headers = headers.expect("they are sound");
                return self.on_repair_run(payload, &headers, buffers);
            }
            Verdict::AckAgain | Verdict::Refuse(_) | Verdict::Ignore => {
                if let Some((buffer, _)) = payload {
                    self.release(buffer);
                }
                return;
            }
        };
        let (buffer, _) = payload.expect("a run to be written has blocks");
        let headers = headers.expect("a run to be written has sound headers");
        let sound = faults::active(Fault::SkipCrc) || batches_sound(bytes, &headers);
        // A log that begins anew gives back its own files first.
        let fits = anew.is_some() || self.log.has_space_for(&headers);
        let chains = anew.is_some() || cut.is_some() || self.log.is_continued_by(&headers);
        let refusal = match sound && chains {
            false => Some(Code::BadCrc),
            true => (!fits).then_some(Code::NoSpace),
        };
        if let Some(code) = refusal {
            self.counters.crc_failures += u64::from(code == Code::BadCrc);
            self.replica.run_refused(now, code, &view);
            self.release(buffer);
            return;
        }
        if faults::active(Fault::ReEncode) {
            spoil_padding(buffers.bytes_mut(buffer), &headers);
        }
        self.counters.blocks_admitted += headers.len() as u64;
        if let Some(from) = cut {
            let epoch = self.replica.epoch();
            self.note_cut(from, &format!("epoch {epoch} has others there"));
            self.log.cut(from);
        }
        if let Some(start) = anew {
            self.note_anew(start);
            self.log.reset(start);
        }
        if self.log.is_cutting() {
            self.stash = Some((buffer, headers));
        } else {
            self.log.write_run(buffer, &headers, buffers);
        }
        self.replica
            .run_written(now, &View::new(&self.log, &self.stash));
    }

    /// Blocks of this log go: counted, and told with the records that were in them, if that is
    /// still remembered.
    pub(super) fn note_cut(&mut self, from: BlockNo, why: &str) {
        let end = self.log.log_end();
        self.counters.blocks_cut += end.0 - from.0;
        let last = self.log.end_offset();
        let records = match self.log.end_offset_of(from) {
            Some(first) => format!("records {first} to {last}"),
            None => format!("records up to {last}"),
        };
        let text = format!("cut blocks {from} to {end}, {records}: {why}");
        self.notice(Message::BlocksCut, text);
    }

    /// The log begins anew where the sender's does; what it held is gone.
    fn note_anew(&mut self, start: LogStart) {
        self.counters.resets += 1;
        self.counters.blocks_cut += self.log.log_end().0 - self.log.committed_end().0;
        let (block, offset) = (start.block, start.offset);
        let text = format!("begins anew at block {block}, record {offset}, the leader's first");
        self.notice(Message::BlocksCut, text);
    }

    /// After a cut: writes the run that waited for it, then takes the runs that came meanwhile.
    ///
    /// Before the cut memory may not have known the last block that stays, and the run was admitted
    /// by its epoch alone. The cut has read that block, so whether the run chains to it shows now.
    pub(super) fn after_cut(&mut self, now: Time, buffers: &mut dyn Buffers) {
        if let Some((buffer, headers)) = self.stash.take() {
            // Below what recovery scanned only epochs were compared: now that the block before the
            // run was read, it may turn out to be another one.
            if self.log.is_continued_by(&headers) {
                self.log.write_run(buffer, &headers, buffers);
            } else {
                self.counters.crc_failures += 1;
                self.release(buffer);
                let view = View::new(&self.log, &self.stash);
                self.replica.run_dropped(now, &headers, &view);
            }
        }
        while self.stash.is_none() && !self.log.is_cutting() {
            let Some((connection, body, payload)) = self.delayed.pop_front() else {
                break;
            };
            self.on_run(now, connection, &body, payload, buffers);
        }
    }

    /// Gives up what waits behind a cut that will never be done.
    pub(super) fn drop_delayed(&mut self) {
        let stashed = self.stash.take().map(|(buffer, _)| buffer);
        let delayed: Vec<BufferId> = self
            .delayed
            .drain(..)
            .filter_map(|(_, _, payload)| Some(payload?.0))
            .collect();
        stashed
            .into_iter()
            .chain(delayed)
            .for_each(|buffer| self.release(buffer));
    }

    pub(super) fn load_run(&mut self, now: Time, run: SendRun, buffers: &dyn Buffers) {
        let id = self.next_request();
        let max_bytes = run.max_bytes as usize;
        match self.log.load(id, From::Block(run.from), run.end, max_bytes) {
            Load::Now(loaded) => self.send_run(now, &run, &loaded, buffers),
            Load::Later => {
                self.loads.begin(id, Purpose::Run(run));
            }
            Load::NotHeld => self.replica.run_sent(now, run.connection, (&[], 0)),
        }
    }

    /// Sends as many of the loaded blocks as the run takes.
    pub(super) fn send_run(
        &mut self,
        now: Time,
        run: &SendRun,
        loaded: &Loaded,
        buffers: &dyn Buffers,
    ) {
        let mut headers = Vec::with_capacity(loaded.blocks.len());
        let mut parts = Vec::with_capacity(loaded.blocks.len());
        for (header, start) in &loaded.blocks {
            if !run.takes(&headers, header) {
                break;
            }
            headers.push(*header);
            let len = header.used_len as usize;
            parts.push(Part {
                buffer: loaded.buffer,
                start: *start,
                len,
            });
        }
        if !headers.is_empty() {
            let body = with_run(run.head.clone(), &headers).into();
            let connection = run.connection;
            self.actions.push_back(Action::Send {
                connection,
                body,
                parts,
            });
        }
        let held = buffers.bytes(loaded.buffer).len();
        self.replica.run_sent(now, run.connection, (&headers, held));
    }

    pub(super) fn load_fetch(&mut self, fetch: ServeFetch) {
        if self.loads.fetches() >= limits::MAX_NODES {
            // Whoever asks asks once and waits: who asks so often gets nothing.
            return self.send_fetch(&fetch, None);
        }
        let id = self.next_request();
        let max_bytes = fetch.max_bytes as usize;
        match self
            .log
            .load(id, From::Block(fetch.from), fetch.end, max_bytes)
        {
            Load::Now(loaded) => self.send_fetch(&fetch, Some(&loaded)),
            Load::Later => {
                self.loads.begin(id, Purpose::Fetch(fetch));
            }
            Load::NotHeld => self.send_fetch(&fetch, None),
        }
    }

    /// What was asked for is damaged here too.
    pub(super) fn refuse_fetch(&mut self, fetch: &ServeFetch) {
        let nack = Nack {
            code: Code::BlocksDamaged.number(),
            first: fetch.from,
            next: fetch.from,
            promised: self.replica.promise().epoch,
            hint_epoch: Epoch(0),
            hint_first: BlockNo(0),
            limits: CreditLimits::default(),
        };
        self.actions.push_back(Action::Send {
            connection: fetch.connection,
            body: nack.into(),
            parts: Vec::new(),
        });
    }

    /// Answers a fetch with all that was loaded; with no block if nothing was.
    pub(super) fn send_fetch(&mut self, fetch: &ServeFetch, loaded: Option<&Loaded>) {
        let mut body = fetch.head.clone();
        let mut parts = Vec::new();
        for (header, start) in loaded.iter().flat_map(|loaded| &loaded.blocks) {
            let buffer = loaded.expect("its blocks are walked").buffer;
            body.count += 1;
            body.padded_len += header.padded_len() as u32;
            parts.push(Part {
                buffer,
                start: *start,
                len: header.used_len as usize,
            });
        }
        let connection = fetch.connection;
        self.actions.push_back(Action::Send {
            connection,
            body: body.into(),
            parts,
        });
    }
}

/// The headers of the blocks in a payload, or none if one is damaged or the blocks do not end with
/// the payload.
fn headers_of(bytes: &[u8]) -> Option<Vec<BlockHeader>> {
    let mut headers = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let header = block::read_header(&bytes[at..]).ok()?;
        at += header.padded_len();
        headers.push(header);
    }
    (at == bytes.len()).then_some(headers)
}

/// Whether every batch and the padding of every block is sound.
pub(super) fn batches_sound(bytes: &[u8], headers: &[BlockHeader]) -> bool {
    let mut at = 0;
    headers.iter().all(|header| {
        let block = &bytes[at..at + header.padded_len()];
        at += header.padded_len();
        block::check_batches(block, header).is_ok() && block::check_padding(block, header).is_ok()
    })
}

/// The fault `re_encode`: the bytes written are not the bytes that came.
fn spoil_padding(bytes: &mut [u8], headers: &[BlockHeader]) {
    let mut at = 0;
    for header in headers {
        let used = header.used_len as usize;
        if used < header.padded_len() {
            bytes[at + used] ^= 1;
        }
        at += header.padded_len();
    }
}

/// The fault `re_encode_on_catch_up`: the blocks sent are not the blocks that were written.
pub(super) fn make_headers_anew(loaded: &mut Loaded, buffers: &mut dyn Buffers) {
    let bytes = buffers.bytes_mut(loaded.buffer);
    for (header, start) in &mut loaded.blocks {
        header.committed_end = header.block;
        header.header_crc = block::write_header(&mut bytes[*start..], header);
    }
}
