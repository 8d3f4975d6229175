//! Trust between the nodes of a cluster: each proves to the other that it knows their secret.
//!
//! A cluster may have a secret, in a file of each node (`cluster.secret_file`). Every connection
//! between two of its nodes, data and control, then begins with an exchange of proofs, and until it
//! is done neither side takes any other frame:
//!
//! | step | dialing node | accepting node |
//! |---|---|---|
//! | 1 | `Hello`, which says that it has a secret | checks cluster, nodes, cluster facts |
//! | 2 | | `Challenge` with its nonce |
//! | 3 | `Proof` with its own nonce | checks it |
//! | 4 | | `ProofOk` with its own proof, `HelloOk` |
//! | 5 | checks both, `Trusted`, then its frames | takes frames |
//!
//! A proof is HMAC-SHA-256 under the secret over a label of 16 bytes for the side that proves, the
//! frame of the `Hello` as encoded with correlation 0 (so the protocol, the cluster, both nodes,
//! the channel, the log and all else that it says), the dialing node's nonce and the accepting
//! node's, 32 bytes each. A side makes its nonce anew for each connection, so a proof that somebody
//! listened to proves nothing on the next one; the labels differ and the dialing node's id comes
//! first, so a proof sent back to who made it proves nothing either. The dialing node proves first:
//! a stranger who connects never gets anything that was made with the secret. Who refuses says why
//! before it closes; both sides hear it.
//!
//! What this is not: the frames behind it are neither hidden nor sealed, so somebody *on the path*
//! between two nodes may read and change them. That takes TLS. Clients prove nothing.
//!
//! To change the secret without an outage, restart the nodes one after the other, three times:
//! first with `secret_file = [old, new]` each, then with `[new, old]`, then with `new`. A node
//! proves by the first and takes either, so at each moment every node takes what every other one
//! proves by.

use super::body::{Body, Challenge, Hello, Proof, ProofOk};
use super::code::Code;
use crate::limits::{SECRET_BYTES_MAX, SECRET_BYTES_MIN};
use crate::types::LogId;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// Bit of `capabilities` in a Hello: the sender has a secret and wants proofs.
pub const HAS_SECRET: u64 = 1;

/// A number of one side that it uses once, or a proof.
type Bytes = [u8; 32];

/// A secret, ready to prove by. It cannot be shown.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

impl Secret {
    /// A secret of these bytes, all of which count; none unless there are `SECRET_BYTES_MIN` to
    /// `SECRET_BYTES_MAX` of them.
    pub fn new(bytes: &[u8]) -> Option<Secret> {
        let fits = (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len());
        let mac = fits.then(|| Hmac::new_from_slice(bytes));
        mac.map(|mac| Secret(mac.expect("any length is a key")))
    }

    fn over(&self, side: Side, meeting: &Meeting, dialing_nonce: &Bytes) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(side.label());
        mac.update(&Body::from(meeting.hello.clone()).encode(0, meeting.log, 0));
        mac.update(dialing_nonce);
        mac.update(&meeting.accepting_nonce);
        mac
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Dialing,
    Accepting,
}

impl Side {
    /// As long for either, so that nothing behind it can stand in for a part of it.
    fn label(self) -> &'static [u8; 16] {
        match self {
            Side::Dialing => b"millrace dialing",
            Side::Accepting => b"millrace accepts",
        }
    }
}

/// What a proof is about besides the dialing node's nonce: this connection, and no other one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The dialing node's Hello.
    pub hello: Hello,
    /// The log in that frame's header.
    pub log: LogId,
    /// The accepting node's nonce.
    pub accepting_nonce: Bytes,
}

impl Meeting {
    /// The accepting node's question.
    pub fn challenge(&self) -> Challenge {
        Challenge {
            nonce: self.accepting_nonce,
        }
    }
}

/// What a node knows: the secret by which it proves, and while a secret is changed another one that
/// it takes too.
#[derive(Clone, Debug)]
pub struct Secrets {
    /// It proves by this one.
    pub first: Secret,
    /// It takes a proof by this one as well.
    pub second: Option<Secret>,
}

impl Secrets {
    /// The dialing node's answer to a challenge. `nonce`: its own, from the operating system.
    pub fn answer(&self, meeting: &Meeting, nonce: Bytes) -> Proof {
        Proof {
            nonce,
            proof: self.prove(Side::Dialing, meeting, &nonce),
        }
    }

    /// Checks that answer at the accepting node; the proof that this node owes in turn, or
    /// `WrongSecret`.
    pub fn check_answer(&self, meeting: &Meeting, answer: &Proof) -> Result<ProofOk, Code> {
        self.check(Side::Dialing, meeting, &answer.nonce, &answer.proof)?;
        let proof = self.prove(Side::Accepting, meeting, &answer.nonce);
        Ok(ProofOk { proof })
    }

    /// Checks the accepting node's proof at the dialing node, which gave `answer`; if it is none,
    /// `WrongSecret`.
    pub fn check_ok(&self, meeting: &Meeting, answer: &Proof, ok: &ProofOk) -> Result<(), Code> {
        self.check(Side::Accepting, meeting, &answer.nonce, &ok.proof)
    }

    fn prove(&self, side: Side, meeting: &Meeting, nonce: &Bytes) -> Bytes {
        let proof = self.first.over(side, meeting, nonce).finalize();
        proof.into_bytes().into()
    }

    /// Compares in a time that does not tell how much of a proof is right.
    fn check(
        &self,
        side: Side,
        meeting: &Meeting,
        nonce: &Bytes,
        proof: &Bytes,
    ) -> Result<(), Code> {
        let secrets = [Some(&self.first), self.second.as_ref()];
        let fits = |secret: &Secret| {
            let mac = secret.over(side, meeting, nonce);
            mac.verify_slice(proof).is_ok()
        };
        if secrets.into_iter().flatten().any(fits) {
            Ok(())
        } else {
            Err(Code::WrongSecret)
        }
    }
}

#[cfg(test)]
#[path = "trust_tests.rs"]
mod tests;
