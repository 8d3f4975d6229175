//! A node that is made up: the client's half of the protocol, an offset for each record, and
//! manners.
//!
//! One thread a connection. It remembers every batch that reached it, answered or not, after
//! checking it as a leader would.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use millrace::client::codec;
use millrace::limits::{BATCH_HEADER, FRAME_HEADER};
use millrace::types::{BlockNo, Epoch, LogId, NodeId, Offset, OriginId};
use millrace::wire::batch;
use millrace::wire::body::{AppendOk, Body, Error, MetadataOk, NodeAddress, PROTOCOL, StatusOk};
use millrace::wire::code::Code;
use millrace::wire::frame;

const CLUSTER: OriginId = OriginId(7);

/// How the node behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Acknowledges at once.
    Good,
    /// Refuses every 20th batch.
    RefusesSome,
    /// Breaks the connection at every 50th batch.
    BreaksConnections,
    /// Sleeps 300 ms at its 600th batch.
    StallsOnce,
    /// Answers no append.
    Silent,
}

/// A batch that reached the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub run: u32,
    pub producer: u32,
    pub first: u32,
    pub count: u32,
    pub shard: u16,
    /// The offset it was answered with.
    pub offset: Option<u64>,
}

/// The node, listening until the process ends.
pub struct FakeNode {
    pub address: String,
    inner: Arc<Inner>,
}

struct Inner {
    id: NodeId,
    manner: Manner,
    nodes: Vec<NodeAddress>,
    leaders: Vec<NodeId>,
    batches: AtomicU64,
    logs: Mutex<Vec<u64>>,
    seen: Mutex<Vec<Seen>>,
    /// Shard and unpacked body of the first batches.
    bodies: Mutex<Vec<(u16, Vec<u8>)>>,
}

impl FakeNode {
    pub fn start(shards: usize, manner: Manner) -> FakeNode {
        let listener = listen();
        let nodes = vec![entry(1, &listener)];
        FakeNode::serve(1, manner, nodes, vec![NodeId(1); shards], listener)
    }

    /// Two nodes that lead the shards in turn.
    pub fn pair(shards: u32) -> (FakeNode, FakeNode) {
        let (one, two) = (listen(), listen());
        let nodes = vec![entry(1, &one), entry(2, &two)];
        let leaders: Vec<NodeId> = (0..shards).map(|shard| NodeId(1 + shard % 2)).collect();
        (
            FakeNode::serve(1, Manner::Good, nodes.clone(), leaders.clone(), one),
            FakeNode::serve(2, Manner::Good, nodes, leaders, two),
        )
    }

    fn serve(
        id: u32,
        manner: Manner,
        nodes: Vec<NodeAddress>,
        leaders: Vec<NodeId>,
        listener: TcpListener,
    ) -> FakeNode {
        let inner = Arc::new(Inner {
            id: NodeId(id),
            manner,
            nodes,
            logs: Mutex::new(vec![0; leaders.len()]),
            leaders,
            batches: AtomicU64::new(0),
            seen: Mutex::default(),
            bodies: Mutex::default(),
        });
        let serving = inner.clone();
        let address = listener.local_addr().expect("bound").to_string();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let inner = serving.clone();
                thread::spawn(move || inner.connection(stream));
            }
        });
        FakeNode { address, inner }
    }

    pub fn bodies(&self) -> Vec<(u16, Vec<u8>)> {
        self.inner.bodies.lock().expect("not poisoned").clone()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.inner.seen.lock().expect("not poisoned").clone()
    }
}

fn number_of(bodies: &[(u16, Vec<u8>)], shard: u16) -> usize {
    bodies.iter().filter(|(of, _)| *of == shard).count()
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

fn entry(id: u32, listener: &TcpListener) -> NodeAddress {
    NodeAddress {
        node: NodeId(id),
        address: listener.local_addr().expect("bound").to_string(),
        cores: 1,
    }
}

impl Inner {
    fn connection(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        loop {
            let mut head = [0; FRAME_HEADER];
            stream.read_exact(&mut head)?;
            let header = frame::read_header(&head).expect("a frame");
            let mut rest = vec![0; header.body_len + header.payload_len];
            stream.read_exact(&mut rest)?;
            let (body, payload) = rest.split_at(header.body_len);
            frame::check(&header, &head, body).expect("a sound frame");
            let body = Body::decode(header.kind, body)
                .expect("known")
                .expect("sound");
            let (answer, text) = match body {
                Body::Metadata(_) => (self.metadata(), Vec::new()),
                Body::Status(_) => (Body::StatusOk(StatusOk {}), self.status()),
                Body::Append(append) => {
                    assert_eq!(append.timeout_ms, 500);
                    match self.append(header.log, payload) {
                        Some(answer) => (answer, Vec::new()),
                        None if self.manner == Manner::Silent => continue,
                        None => return Ok(()),
                    }
                }
                other => panic!("a client sent {}", other.name()),
            };
            let mut bytes = answer.encode(header.correlation, header.log, text.len());
            bytes.extend(text);
            stream.write_all(&bytes)?;
        }
    }

    fn metadata(&self) -> Body {
        Body::MetadataOk(MetadataOk {
            protocol: PROTOCOL,
            node: self.id,
            cluster: CLUSTER,
            default_level: 3,
            max_batch_bytes: 1 << 20,
            max_batch_records: 1 << 18,
            nodes: self.nodes.clone(),
            leaders: self.leaders.clone(),
            epochs: vec![Epoch(1); self.leaders.len()],
            origin: CLUSTER,
            origins: vec![CLUSTER],
            default_read_level: 1,
        })
    }

    fn status(&self) -> Vec<u8> {
        let lag = serde_json::json!({"p50": 3, "p95": 6, "p99": 9});
        let links = [serde_json::json!({"lag": {"records": 0}, "lag_percentiles_us": lag})];
        serde_json::json!({"node": self.id.0, "links": links})
            .to_string()
            .into_bytes()
    }

    /// Takes a batch; none ends the connection or leaves it without an answer.
    fn append(&self, log: LogId, payload: &[u8]) -> Option<Body> {
        let half = batch::check_from_client(payload).expect("a sound batch");
        let body = codec::unpack(&half, &payload[BATCH_HEADER..]).expect("it unpacks");
        let mut bodies = self.bodies.lock().expect("not poisoned");
        if number_of(&bodies, log.shard.0) < 100 {
            bodies.push((log.shard.0, body.into_owned()));
        }
        drop(bodies);
        assert_eq!(log.origin, CLUSTER);
        assert_eq!(self.leaders[usize::from(log.shard.0)], self.id);
        let number = self.batches.fetch_add(1, Ordering::Relaxed) + 1;
        let mut seen = Seen {
            run: (half.producer_id >> 32) as u32,
            producer: half.producer_id as u32,
            first: half.base_sequence,
            count: half.record_count,
            shard: log.shard.0,
            offset: None,
        };
        let answer = match self.manner {
            Manner::RefusesSome if number.is_multiple_of(20) => Some(Body::Error(Error {
                code: Code::Overloaded.number(),
                detail: 0,
                detail_two: 0,
            })),
            Manner::BreaksConnections if number.is_multiple_of(50) => None,
            Manner::Silent => None,
            _ => {
                if self.manner == Manner::StallsOnce && number == 600 {
                    thread::sleep(Duration::from_millis(300));
                }
                let mut logs = self.logs.lock().expect("not poisoned");
                let end = &mut logs[usize::from(log.shard.0)];
                seen.offset = Some(*end);
                *end += u64::from(half.record_count);
                Some(Body::AppendOk(AppendOk {
                    base_offset: Offset(seen.offset.expect("set")),
                    block: BlockNo(number),
                    epoch: Epoch(1),
                }))
            }
        };
        self.seen.lock().expect("not poisoned").push(seen);
        answer
    }
}
