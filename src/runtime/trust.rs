//! The exchange of proofs on a connection between nodes: what is sent, what is awaited, in order.
//!
//! What a proof is and who makes it first is drawn in `wire/trust.rs`. Here a frame that is not the
//! next one of that table ends the connection, and so does one with a payload: nothing is read or
//! kept for whoever has proved nothing but the frame at hand, in the read buffer that every
//! connection has. How long it all may take is the connection's `due_by`, which stands from the
//! first byte to the last proof. Read `peer.rs` and `dial.rs` for the two sides.

use super::connection::Connection;
use super::driver::Core;
use super::reader::{ReadError, Reader};
use crate::shard::status::Refused;
use crate::types::LogId;
use crate::wire::body::{Body, Hello, Trusted};
use crate::wire::code::Code;
use crate::wire::trust::{HAS_SECRET, Meeting};
use std::io;

/// Why two nodes do not talk.
pub(super) enum Distrust {
    /// The connection failed.
    Ended(ReadError),
    /// This node refuses the other one.
    Here(Refused),
    /// The other node refuses this one.
    There(Refused),
}

impl From<ReadError> for Distrust {
    fn from(error: ReadError) -> Distrust {
        Distrust::Ended(error)
    }
}

impl From<Code> for Distrust {
    fn from(code: Code) -> Distrust {
        Distrust::Here((code, [0, 0]))
    }
}

/// Whether both nodes have a secret, or neither has one.
pub(super) fn agree(core: &Core, hello: &Hello) -> Result<(), Refused> {
    let here = core.node.secrets.is_some();
    let there = hello.capabilities & HAS_SECRET != 0;
    if here == there {
        Ok(())
    } else {
        Err((Code::SecretMissing, [u64::from(here), u64::from(there)]))
    }
}

/// The next frame, of a node that has proved nothing yet.
pub(super) async fn next(reader: &mut Reader) -> Result<Body, Distrust> {
    let incoming = reader.frame().await?;
    if incoming.header.payload_len > 0 {
        return Err(Code::BadFrame.into());
    }
    match incoming.body {
        Some(Ok(Body::Error(error))) => {
            let numbers = [error.detail, error.detail_two];
            Err(Distrust::There(match Code::from_number(error.code) {
                Some(code) => (code, numbers),
                None => (Code::Unsupported, [u64::from(error.code), 0]),
            }))
        }
        Some(Ok(body)) => Ok(body),
        Some(Err(_)) => Err(Code::BadFrame.into()),
        None => Err(Code::Unsupported.into()),
    }
}

/// The dialing side, whose Hello was answered by `first`; the frame behind the exchange.
pub(super) async fn prove(
    core: &Core,
    connection: &Connection,
    reader: &mut Reader,
    (hello, log): (Hello, LogId),
    first: Body,
) -> Result<Body, Distrust> {
    let missing = |here, there| Err(Distrust::Here((Code::SecretMissing, [here, there])));
    let (secrets, challenge) = match (&core.node.secrets, first) {
        (Some(secrets), Body::Challenge(challenge)) => (secrets, challenge),
        (Some(_), Body::HelloOk(_)) => return missing(1, 0),
        (None, Body::Challenge(_)) => return missing(0, 1),
        (_, other) => return Ok(other),
    };
    let meeting = Meeting {
        hello,
        log,
        accepting_nonce: challenge.nonce,
    };
    let answer = secrets.answer(&meeting, nonce()?);
    connection.send_body(answer.clone(), 0, log);
    let Body::ProofOk(ok) = next(reader).await? else {
        return Err(Code::WrongDirection.into());
    };
    secrets.check_ok(&meeting, &answer, &ok)?;
    next(reader).await
}

/// The accepting side up to its own proof: from then on it waits for [`trusted`].
pub(super) async fn demand(
    core: &Core,
    connection: &Connection,
    reader: &mut Reader,
    (hello, log): (&Hello, LogId),
) -> Result<(), Distrust> {
    let Some(secrets) = &core.node.secrets else {
        return Ok(());
    };
    let meeting = Meeting {
        hello: hello.clone(),
        log,
        accepting_nonce: nonce()?,
    };
    connection.send_body(meeting.challenge(), 0, log);
    let Body::Proof(answer) = next(reader).await? else {
        return Err(Code::WrongDirection.into());
    };
    let ok = secrets.check_answer(&meeting, &answer)?;
    connection.send_body(ok, 0, log);
    Ok(())
}

/// Waits until the dialing node says that it takes this node for what it is.
pub(super) async fn trusted(core: &Core, reader: &mut Reader) -> Result<(), Distrust> {
    if core.node.secrets.is_none() {
        return Ok(());
    }
    match next(reader).await? {
        Body::Trusted(Trusted {}) => Ok(()),
        _ => Err(Code::WrongDirection.into()),
    }
}

/// A number that is used once.
fn nonce() -> Result<[u8; 32], Distrust> {
    let mut bytes = [0; 32];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(ReadError::Io(io::Error::other(error.to_string())).into()),
    }
}
