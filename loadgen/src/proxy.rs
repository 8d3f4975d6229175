//! A proxy between the nodes of one machine: it delays their connections, garbles or cuts them.
//!
//! A connection is recognised by its first frame: one that begins with a Hello is between nodes,
//! and its Hello says which; anything else is a client's and is passed on as it is. What travels is
//! never changed, unless that is asked for. Every direction of a connection is a thread, which is
//! enough for a handful of nodes; what waits for its delay is bounded. `lab/reconnect.rs` and
//! `lab/chaos/net.rs` use it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millrace::limits::{FRAME_BODY, FRAME_HEADER};
use millrace::types::{LogId, NodeId};
use millrace::wire::body::{Body, Channel};
use millrace::wire::frame;

use crate::random::Random;

/// Between two looks at a listening socket.
const LOOK: Duration = Duration::from_millis(5);
/// How long a connect and a first frame may take.
const WAIT: Duration = Duration::from_secs(5);
/// Bytes read at once, and how many of such pieces wait for their delay in one direction.
const PIECE: usize = 64 << 10;
const PIECES: usize = 1024;

/// Where to listen, and whom to reach there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The proxy's own address.
    pub listen: SocketAddr,
    /// The node's.
    pub target: SocketAddr,
}

/// What connections between nodes suffer; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// How late each direction is.
    pub delay: Duration,
    /// Bytes, on average, from one that is changed to the next, in each direction; 0: none is.
    pub flip_every: u64,
}

/// An open data connection between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Names the connection.
    pub id: u64,
    /// Who dialed: the leader.
    pub from: NodeId,
    /// Who was dialed.
    pub to: NodeId,
    /// Whose blocks it carries.
    pub log: LogId,
}

/// A running proxy; dropping it closes everything.
pub struct Proxy {
    shared: Arc<Shared>,
    listeners: Vec<JoinHandle<()>>,
}

struct Shared {
    trouble: Trouble,
    /// Bytes that were changed.
    flips: AtomicU64,
    over: AtomicBool,
    last_id: AtomicU64,
    open: Mutex<BTreeMap<u64, Open>>,
    bytes: AtomicU64,
}

struct Open {
    streams: [TcpStream; 2],
    link: Option<Link>,
    /// The target has answered: the connection is in use.
    answered: Arc<AtomicBool>,
}

impl Proxy {
    /// Listens at all routes; connections between nodes get into this trouble.
    pub fn start(routes: &[Route], trouble: Trouble) -> io::Result<Proxy> {
        let shared = Arc::new(Shared {
            trouble,
            flips: AtomicU64::new(0),
            over: AtomicBool::new(false),
            last_id: AtomicU64::new(0),
            open: Mutex::default(),
            bytes: AtomicU64::new(0),
        });
        let mut listeners = Vec::new();
        for route in routes {
            let named = |error| io::Error::other(format!("{}: {error}", route.listen));
            let listener = TcpListener::bind(route.listen).map_err(named)?;
            listener.set_nonblocking(true)?;
            listeners.push((listener, route.target));
        }
        let listen = |(listener, target): (TcpListener, SocketAddr)| {
            let shared = shared.clone();
            thread::spawn(move || shared.accept(&listener, target))
        };
        let listeners = listeners.into_iter().map(listen).collect();
        Ok(Proxy { shared, listeners })
    }

    /// The data connections between nodes that are in use, oldest first.
    pub fn links(&self) -> Vec<Link> {
        let open = self.shared.open();
        let used = open
            .values()
            .filter(|open| open.answered.load(Ordering::Relaxed));
        used.filter_map(|open| open.link).collect()
    }

    /// Ends a connection on both sides; whether it was there.
    pub fn cut(&self, id: u64) -> bool {
        let open = self.shared.open();
        let found = open.get(&id);
        found.inspect(|open| open.shut()).is_some()
    }

    /// Bytes changed so far.
    pub fn flips(&self) -> u64 {
        self.shared.flips.load(Ordering::Relaxed)
    }

    /// Bytes passed on so far, of nodes and clients, both ways.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.shared.open().values().for_each(Open::shut);
        // Whoever comes next may listen at the same addresses.
        for listener in self.listeners.drain(..) {
            // A panic there has been printed.
            let _ = listener.join();
        }
    }
}

impl Open {
    fn shut(&self) {
        for stream in &self.streams {
            // An error means that it has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Shared>, listener: &TcpListener, target: SocketAddr) {
        while !self.over.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    let shared = self.clone();
                    // The end of a connection is an error for whoever reads or writes next, and
                    // nobody's business here.
                    thread::spawn(move || drop(shared.connection(stream, target)));
                }
                Err(_) => thread::sleep(LOOK),
            }
        }
    }

    fn connection(self: &Arc<Shared>, mut near: TcpStream, target: SocketAddr) -> io::Result<()> {
        near.set_nonblocking(false)?;
        near.set_nodelay(true)?;
        near.set_read_timeout(Some(WAIT))?;
        let (first, hello) = first_frame(&mut near)?;
        near.set_read_timeout(None)?;
        let mut far = TcpStream::connect_timeout(&target, WAIT)?;
        far.set_nodelay(true)?;
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let trouble = match hello {
            Some(_) => self.trouble,
            None => Trouble::default(),
        };
        let data = hello.filter(|(hello, _)| hello.channel == Channel::Data);
        let link = data.map(|(hello, log)| Link {
            id,
            from: hello.node,
            to: hello.target,
            log,
        });
        let answered = Arc::new(AtomicBool::new(false));
        let open = Open {
            streams: [near.try_clone()?, far.try_clone()?],
            link,
            answered: answered.clone(),
        };
        self.open().insert(id, open);
        let back = {
            let (shared, far, near) = (self.clone(), far.try_clone()?, near.try_clone()?);
            thread::spawn(move || shared.pass_on(far, near, (trouble, 2 * id), Some(&answered)))
        };
        thread::sleep(trouble.delay);
        if far.write_all(&first).is_ok() {
            self.pass_on(near, far, (trouble, 2 * id + 1), None);
        }
        if let Some(open) = self.open().get(&id) {
            open.shut();
        }
        // A panic there has been printed; the connection is over either way.
        let _ = back.join();
        self.open().remove(&id);
        Ok(())
    }

    /// Passes bytes on until one of the two ends; then both are ended.
    fn pass_on(
        &self,
        from: TcpStream,
        to: TcpStream,
        trouble: (Trouble, u64),
        seen: Option<&AtomicBool>,
    ) {
        let (sender, receiver) = sync_channel(PIECES);
        let ends = [from.try_clone(), to.try_clone()];
        thread::scope(|scope| {
            scope.spawn(move || {
                write_late(to, &receiver);
                // Ends a reader that waits for room.
                drop(receiver);
                ends.iter()
                    .flatten()
                    .for_each(|end| drop(end.shutdown(Shutdown::Both)));
            });
            self.read_on(from, sender, trouble, seen);
        });
    }

    fn read_on(
        &self,
        mut from: TcpStream,
        sender: SyncSender<(Instant, Vec<u8>)>,
        (trouble, seed): (Trouble, u64),
        seen: Option<&AtomicBool>,
    ) {
        let mut piece = vec![0; PIECE];
        let mut random = Random::new(seed);
        let mut left = random.below(2 * trouble.flip_every);
        while let Ok(count @ 1..) = from.read(&mut piece) {
            self.bytes.fetch_add(count as u64, Ordering::Relaxed);
            if let Some(seen) = seen {
                seen.store(true, Ordering::Relaxed);
            }
            if trouble.flip_every > 0 && count as u64 > left {
                piece[left as usize] ^= 1 << random.below(8);
                self.flips.fetch_add(1, Ordering::Relaxed);
                left = count as u64 + random.below(2 * trouble.flip_every);
            }
            left = left.saturating_sub(count as u64);
            let due = Instant::now() + trouble.delay;
            if sender.send((due, piece[..count].to_vec())).is_err() {
                return;
            }
        }
    }
}

fn write_late(mut to: TcpStream, pieces: &Receiver<(Instant, Vec<u8>)>) {
    for (due, piece) in pieces {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            return;
        }
    }
}

type Hello = millrace::wire::body::Hello;
/// The bytes of a first frame, and the Hello with its log if it is one.
type First = (Vec<u8>, Option<(Hello, LogId)>);

/// The first frame up to its payload, and what it says if it is a Hello.
fn first_frame(stream: &mut TcpStream) -> io::Result<First> {
    let mut bytes = vec![0; FRAME_HEADER];
    stream.read_exact(&mut bytes)?;
    let head = bytes.first_chunk::<FRAME_HEADER>().expect("read just now");
    let Ok(header) = frame::read_header(head) else {
        return Ok((bytes, None));
    };
    if header.body_len > FRAME_BODY {
        return Ok((bytes, None));
    }
    bytes.resize(FRAME_HEADER + header.body_len, 0);
    stream.read_exact(&mut bytes[FRAME_HEADER..])?;
    let hello = match Body::decode(header.kind, &bytes[FRAME_HEADER..]) {
        Some(Ok(Body::Hello(hello))) => Some((hello, header.log)),
        _ => None,
    };
    Ok((bytes, hello))
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
