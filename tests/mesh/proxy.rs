//! A way between two nodes that a test can cut: a TCP proxy of threads on a free loopback port.
//!
//! While it is cut, open connections are shut down and new ones are closed at once, so that both
//! ends see what a lost network shows them. Its threads end with the test's process; its sockets
//! when it is dropped.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// One direction of dialing: from whoever connects here to `target`.
pub struct Proxy {
    port: u16,
    way: Arc<Way>,
}

struct Way {
    target: String,
    cut: AtomicBool,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Opens a way to `target`, `host:port`.
    pub fn to(target: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let way = Arc::new(Way {
            target: target.to_owned(),
            cut: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let accepting = way.clone();
        thread::spawn(move || accepting.accept(&listener));
        Proxy { port, way }
    }

    /// Where to connect instead of the target.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Nothing goes through any more, or again.
    pub fn cut(&self, cut: bool) {
        self.way.cut.store(cut, Ordering::SeqCst);
        if cut {
            self.way.shut_all();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.way.ended.store(true, Ordering::SeqCst);
        self.cut(true);
        // Wakes the accepting thread, which then lets go of the port.
        let _ = TcpStream::connect(self.address());
    }
}

impl Way {
    fn accept(self: Arc<Way>, listener: &TcpListener) {
        for from in listener.incoming().flatten() {
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            if self.cut.load(Ordering::SeqCst) {
                continue;
            }
            let Ok(to) = TcpStream::connect(&self.target) else {
                continue;
            };
            for stream in [&from, &to] {
                let _ = stream.set_nodelay(true);
                let second = stream.try_clone().expect("a descriptor");
                self.open.lock().expect("sound").push(second);
            }
            // A cut may have come while this connection was made.
            if self.cut.load(Ordering::SeqCst) {
                self.shut_all();
            }
            let back = (
                to.try_clone().expect("a descriptor"),
                from.try_clone().expect("a descriptor"),
            );
            thread::spawn(move || pump(from, to));
            thread::spawn(move || pump(back.0, back.1));
        }
    }

    fn shut_all(&self) {
        for stream in self.open.lock().expect("sound").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
