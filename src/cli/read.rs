//! `millrace read`: records of one log, one line each.
//!
//! Reads whole batches, prints the records from the offset asked for on. Without `--to` and
//! `--follow` it ends where the log ends. The node asked is the one given, so that a
//! follower's copy can be read as well as the leader's.

use super::{Failure, node_address};
use clap::{Args, ValueEnum};
use millrace::client::driver::blocking::{Client, ClientError};
use millrace::limits::MAX_BLOCK_BYTES;
use millrace::types::{LogId, Offset, OriginId, ReadLevel, ShardId};
use millrace::wire::batch;
use millrace::wire::code::Code;
use millrace::wire::record::{self, Record};
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

/// How long one question waits for new records.
const WAIT: Duration = Duration::from_secs(1);

/// Arguments of `read`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The node to read from.
    #[arg(long, value_name = "HOST:PORT", value_parser = node_address)]
    node: String,
    /// The shard.
    #[arg(long, default_value_t = 0)]
    shard: u16,
    /// Whose records: the node at which they were appended (mesh); default: those of the node
    /// asked. In a set there is one origin, the cluster.
    #[arg(long)]
    origin: Option<u32>,
    /// First offset.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Offset before which to stop; default: the end of the log now. Without --follow a log that
    /// ends before it is a failure.
    #[arg(long)]
    to: Option<u64>,
    /// Wait for more when the end is reached.
    #[arg(long)]
    follow: bool,
    /// Which records may be returned; default: committed in a set, local in a mesh.
    #[arg(long, value_enum)]
    level: Option<At>,
    /// How a record is printed.
    #[arg(long, value_enum, default_value_t = Format::Raw)]
    format: Format,
    /// How long the node may take to be ready, milliseconds.
    #[arg(long, default_value_t = 10_000)]
    timeout_ms: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum At {
    /// Below the high watermark.
    Committed,
    /// All that the node holds.
    Local,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// The value, then a line end.
    Raw,
    /// An object with offset, timestamp, key, labels and value; a key or value that is no UTF-8
    /// also as key_base64 or value_base64.
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut client = Client::connect(&arguments.node)?;
    refuse_bad_range(arguments, &client)?;
    let at = (client.seed_node(), log_asked_for(arguments, &client)?);
    let level = match arguments.level {
        Some(At::Committed) => ReadLevel::Committed,
        Some(At::Local) => ReadLevel::Local,
        None => {
            let cluster = client.session().cluster().expect("connected");
            let default = ReadLevel::from_number(cluster.default_read_level);
            default.unwrap_or(ReadLevel::Committed)
        }
    };
    let patience = Duration::from_millis(arguments.timeout_ms);
    let mut out = BufWriter::new(io::stdout().lock());
    let mut next = arguments.from;
    while arguments.to.is_none_or(|to| next < to) {
        let wait = if arguments.follow {
            WAIT
        } else {
            Duration::ZERO
        };
        let offset = Offset(next);
        let times = (wait, patience);
        let found = client.read_log(at, offset, level, MAX_BLOCK_BYTES as u32, times);
        match found {
            Ok(Some(found)) if !found.payload.is_empty() => {
                let printed = print(arguments, &mut out, &found.payload, next)?;
                next = printed.max(found.ok.next.0);
            }
            Ok(_) if arguments.follow => {
                out.flush()?;
            }
            Ok(_) => {
                out.flush()?;
                return match arguments.to {
                    None => Ok(ExitCode::SUCCESS),
                    Some(to) => Err(Failure::Failed(format!(
                        "the records that may be read here end at {next}, before --to {to}; \
                         mend: --follow waits for more"
                    ))),
                };
            }
            Err(ClientError::Refused(Code::OutOfRange, [start, end])) => {
                out.flush()?;
                let text = format!("offset {next} is not in the log, which holds {start} to {end}");
                return Err(Failure::Failed(text));
            }
            Err(error) => {
                out.flush()?;
                return Err(error.into());
            }
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The log that the flags name, if the node has one of that origin.
fn log_asked_for(arguments: &Arguments, client: &Client) -> Result<LogId, Failure> {
    let own = client.session().log(ShardId(arguments.shard));
    let origin = arguments.origin.map_or(own.origin, OriginId);
    let known = &client.session().cluster().expect("connected").origins;
    if known.contains(&origin) {
        return Ok(LogId { origin, ..own });
    }
    let known: Vec<String> = known.iter().map(OriginId::to_string).collect();
    Err(Failure::Input(format!(
        "--origin {origin}: must be one of {}; mend: choose another one",
        known.join(", ")
    )))
}

/// Holds the shard and the range against the cluster and each other.
fn refuse_bad_range(arguments: &Arguments, client: &Client) -> Result<(), Failure> {
    let shards = client.session().cluster().expect("connected").leaders.len();
    let (shard, from) = (arguments.shard, arguments.from);
    if usize::from(shard) >= shards {
        let text = format!("--shard {shard}: must be below {shards}; mend: choose another one");
        return Err(Failure::Input(text));
    }
    match arguments.to {
        Some(to) if to < from => Err(Failure::Input(format!(
            "--to {to}: must not be below --from {from}; mend: exchange them"
        ))),
        _ => Ok(()),
    }
}

/// Prints the records of whole batches; the offset behind the last one.
fn print(
    arguments: &Arguments,
    out: &mut impl Write,
    mut payload: &[u8],
    from: u64,
) -> Result<u64, Failure> {
    let damaged = || Failure::Failed("the node sent a batch that does not pass its CRC".to_owned());
    let mut end = from;
    while !payload.is_empty() {
        let prefix = batch::check(payload).map_err(|_| damaged())?;
        let (whole, rest) = payload.split_at(prefix.total_len());
        payload = rest;
        end = prefix.end_offset().0;
        if prefix.record_count == 0 {
            continue;
        }
        if batch::client_half(whole).flags & batch::CODEC_MASK != 0 {
            let offset = prefix.base_offset;
            let text =
                format!("the batch at {offset} is compressed, which this reader cannot open");
            return Err(Failure::Failed(text));
        }
        let body = &whole[millrace::limits::BATCH_HEADER..];
        for (record, offset) in record::read_all(body).zip(prefix.base_offset.0..) {
            let record = record.map_err(|_| damaged())?;
            if offset >= from && arguments.to.is_none_or(|to| offset < to) {
                print_record(arguments.format, out, &record, offset)?;
            }
        }
    }
    Ok(end)
}

fn print_record(
    format: Format,
    out: &mut impl Write,
    record: &Record<'_>,
    offset: u64,
) -> io::Result<()> {
    match format {
        Format::Raw => {
            out.write_all(record.value)?;
            out.write_all(b"\n")
        }
        Format::Json => {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            let labels = record
                .labels()
                .map(|(name, value)| (text(name), text(value).into()));
            let labels: serde_json::Map<String, serde_json::Value> = labels.collect();
            let mut object = serde_json::json!({
                "offset": offset,
                "timestamp": record.timestamp,
                "key": text(record.key),
                "labels": labels,
                "value": text(record.value),
            });
            // Text cannot hold every byte: what is no UTF-8 stands beside it as it is.
            for (name, bytes) in [("key_base64", record.key), ("value_base64", record.value)] {
                if std::str::from_utf8(bytes).is_err() {
                    object[name] = base64(bytes).into();
                }
            }
            writeln!(out, "{object}")
        }
    }
}

/// Base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let known = digit <= three.len();
            let value = (bits >> (18 - 6 * digit)) & 63;
            text.push(if known {
                DIGITS[value as usize] as char
            } else {
                '='
            });
        }
    }
    text
}
