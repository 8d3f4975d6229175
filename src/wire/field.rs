//! How the fields of typed bodies are written and read.
//!
//! Little-endian, without gaps; a text or a list has its length as a u16 before it. Foreign bytes
//! that do not fit their field are a `BodyError`, never a panic, and a length that lies sets
//! nothing aside. Read `body.rs` for the bodies.

use super::body::{BodyError, Channel, CreditLimits, NodeAddress, PauseReason, ReplicaMemory};
use crate::limits::{EPOCH_MAX, POSITION_MAX};
use crate::types::{BlockNo, Epoch, NodeId, Offset, OriginId};

/// A field of a typed body.
pub(super) trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(from: &mut &[u8]) -> Result<Self, BodyError>;
}

macro_rules! integer_fields {
    ($($ty:ty),*) => {$(
        impl Field for $ty {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(from: &mut &[u8]) -> Result<$ty, BodyError> {
                let (head, rest) = from.split_first_chunk().ok_or(BodyError)?;
                *from = rest;
                Ok(<$ty>::from_le_bytes(*head))
            }
        }
    )*};
}
integer_fields!(u8, u16, u32, u64);

macro_rules! newtype_fields {
    ($($ty:ident),*) => {$(
        impl Field for $ty {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn take(from: &mut &[u8]) -> Result<$ty, BodyError> {
                Ok($ty(Field::take(from)?))
            }
        }
    )*};
}
newtype_fields!(NodeId, Offset, OriginId);

macro_rules! bounded_fields {
    ($($ty:ident $most:expr;)*) => {$(
        impl Field for $ty {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn take(from: &mut &[u8]) -> Result<$ty, BodyError> {
                let number = Field::take(from)?;
                if number > $most { Err(BodyError) } else { Ok($ty(number)) }
            }
        }
    )*};
}
// Nodes count with these numbers of their peers. An offset that a client asks for may be any: it
// is compared, and answered `OutOfRange`.
bounded_fields! {
    BlockNo POSITION_MAX;
    Epoch EPOCH_MAX;
}

/// Lengths of texts and lists are u16. The limits of the cluster keep every body below
/// `FRAME_BODY`, so a longer one is a bug here.
fn put_len(len: usize, out: &mut Vec<u8>) {
    let len = u16::try_from(len).expect("bodies are bounded by FRAME_BODY");
    len.put(out);
}

macro_rules! enum_fields {
    ($($ty:ident { $($name:ident = $number:literal),* })*) => {$(
        impl Field for $ty {
            fn put(&self, out: &mut Vec<u8>) {
                let number: u8 = match self { $($ty::$name => $number,)* };
                number.put(out);
            }
            fn take(from: &mut &[u8]) -> Result<$ty, BodyError> {
                match u8::take(from)? { $($number => Ok($ty::$name),)* _ => Err(BodyError) }
            }
        }
    )*};
}
enum_fields! {
    Channel { Data = 1, Control = 2 }
    PauseReason { SlowDisk = 1, HighLoad = 2, Manual = 3 }
    ReplicaMemory { Whole = 0, Lost = 1, Blank = 2 }
}

impl Field for CreditLimits {
    fn put(&self, out: &mut Vec<u8>) {
        self.records.put(out);
        self.bytes.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<CreditLimits, BodyError> {
        Ok(CreditLimits {
            records: Field::take(from)?,
            bytes: Field::take(from)?,
        })
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }
    fn take(from: &mut &[u8]) -> Result<String, BodyError> {
        let len = usize::from(u16::take(from)?);
        let (head, rest) = from.split_at_checked(len).ok_or(BodyError)?;
        *from = rest;
        Ok(core::str::from_utf8(head)
            .map_err(|_| BodyError)?
            .to_owned())
    }
}

impl Field for NodeAddress {
    fn put(&self, out: &mut Vec<u8>) {
        self.node.put(out);
        self.address.put(out);
        self.cores.put(out);
    }
    fn take(from: &mut &[u8]) -> Result<NodeAddress, BodyError> {
        let (node, address) = (Field::take(from)?, Field::take(from)?);
        Ok(NodeAddress {
            node,
            address,
            cores: Field::take(from)?,
        })
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        self.iter().for_each(|item| item.put(out));
    }
    fn take(from: &mut &[u8]) -> Result<Vec<T>, BodyError> {
        let len = usize::from(u16::take(from)?);
        // Grows as items are found, so a length that lies sets nothing aside.
        (0..len).map(|_| T::take(from)).collect()
    }
}

/// A nonce or a proof.
impl Field for [u8; 32] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(from: &mut &[u8]) -> Result<[u8; 32], BodyError> {
        let (head, rest) = from.split_first_chunk().ok_or(BodyError)?;
        *from = rest;
        Ok(*head)
    }
}
