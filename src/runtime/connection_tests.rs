//! What a connection keeps for somebody who takes nothing: whole buffers, however little of each it
//! was given to send.

use super::*;
use crate::runtime::buffers::Pool;
use glommio::LocalExecutor;

const BUFFER: usize = 1 << 20;

/// A connection on which nothing is ever sent, of this kind.
fn standing(kind: Kind, test: impl FnOnce(&Connection, &mut Pool)) {
    all_standing([kind], |[connection], pool| test(connection, pool));
}

/// One connection of each of these kinds, on which nothing is ever sent.
fn all_standing<const N: usize>(kinds: [Kind; N], test: impl FnOnce([&Connection; N], &mut Pool)) {
    LocalExecutor::default().run(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut open = Vec::new();
        for kind in kinds {
            let stream = TcpStream::connect(address).await.unwrap();
            let (id, due) = (ConnectionId(open.len() as u64), (Time(0), Rc::default()));
            let connection = Connection::new(id, address, &stream, due);
            connection.kind.set(kind);
            open.push((stream, connection));
        }
        let mut pool = Pool::new(128 << 20);
        test(std::array::from_fn(|index| &open[index].1), &mut pool);
        for (_, connection) in &open {
            connection.drop_queue(&mut pool);
            assert_eq!(connection.held_bytes.get(), 0);
            assert!(!connection.must_take_answers());
        }
        pool.trim();
        pool.trim();
        assert_eq!(pool.allocated(), 0, "every buffer came back");
    });
}

/// Queues a frame with so many parts of ten bytes out of one buffer.
fn send_little(connection: &Connection, pool: &mut Pool, parts: usize) {
    let buffer = pool.take_any(BUFFER).unwrap();
    let part = |index| Part {
        buffer,
        start: 100 * index,
        len: 10,
    };
    let parts = (0..parts).map(part).collect();
    connection.send_parts(vec![1; 32], parts, None, pool);
    pool.release(buffer);
}

///
#[test]
fn a_client_is_read_no_further_while_its_answers_keep_much() {
    standing(Kind::Client, |connection, pool| {
        let most = limits::CONNECTION_ANSWER_BYTES / BUFFER;
        for sent in 0..most {
            assert!(!connection.must_take_answers(), "after {sent} answers");
            assert_eq!(connection.held_bytes.get(), sent * (BUFFER + 32));
            send_little(connection, pool, 1 + sent % 3);
        }
        assert!(connection.must_take_answers());
    });
}

///
#[test]
fn a_peer_that_takes_nothing_is_cut_off_by_what_it_keeps() {
    let kind = Kind::Peer {
        node: NodeId(2),
        channel: Channel::Data,
        dialed: false,
    };
    standing(kind, |connection, pool| {
        let mut sent = 0;
        while !connection.is_dead() {
            assert!(sent * BUFFER <= limits::PEER_QUEUE_BYTES + BUFFER);
            send_little(connection, pool, 1);
            sent += 1;
        }
        assert!(sent * BUFFER >= limits::PEER_QUEUE_BYTES);
    });
}

/// Both sockets are given the very memory that was handed to the disk: nothing is prepared for one
/// follower alone, and nothing is copied.
///
/// H-16, H-17
#[test]
fn two_followers_are_sent_one_buffer() {
    let kinds = [2, 3].map(|node| Kind::Peer {
        node: NodeId(node),
        channel: Channel::Data,
        dialed: false,
    });
    all_standing(kinds, |connections, pool| {
        let buffer = pool.take_any(BUFFER).unwrap();
        let (start, len) = (4096, BUFFER - 4096);
        let allocated = pool.allocated();
        for connection in connections {
            let run = Part { buffer, start, len };
            connection.send_parts(vec![1; 32], vec![run], None, pool);
        }
        pool.release(buffer);
        assert_eq!(pool.allocated(), allocated);
        let written = pool.bytes(buffer)[start..].as_ptr_range();
        for connection in connections {
            let queue = connection.queue.borrow();
            let pieces: Vec<&[u8]> = queue[0].rest(pool).collect();
            assert_eq!(pieces.len(), 2, "its header, and the run");
            assert_eq!(pieces[1].as_ptr_range(), written);
        }
    });
}
