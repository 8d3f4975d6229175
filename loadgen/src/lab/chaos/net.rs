//! The network of a chaos run: a namespace for each node, one more for the switch and the clients.
//!
//! `scripts/chaos` makes and removes the namespaces; here they are disturbed, by rules of nftables
//! in the namespace of the node that they concern. Nodes talk to each other directly. Only while a
//! link is to be slow or to garble what it carries are its connections led through a proxy in the
//! namespace of the switch, which the existing ones are reset for. Read `fleet.rs` next.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::Failure;
use crate::proxy::{Proxy, Route, Trouble};

/// Base port of every node.
pub const PORT: u16 = 7000;
/// Port of every node's HTTP server.
pub const ADMIN: u16 = 8000;
/// Where the clients are.
const CLIENTS: &str = "10.77.0.100";

/// Which packets of a node are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Those that it is sent.
    In,
    /// Those that it sends.
    Out,
    /// Both.
    Both,
}

/// The namespaces.
#[derive(Clone, Debug)]
pub struct Net {
    prefix: String,
}

impl Net {
    /// Those whose names begin with `prefix`.
    pub fn new(prefix: &str) -> Net {
        let prefix = prefix.to_owned();
        Net { prefix }
    }

    /// Address of a node.
    pub fn host(node: u16) -> String {
        format!("10.77.0.{node}")
    }

    /// Where clients and other nodes reach a node.
    pub fn address(node: u16) -> String {
        format!("{}:{PORT}", Net::host(node))
    }

    /// A command that runs in the namespace of a node.
    pub fn command(&self, node: u16, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &format!("{}-{node}", self.prefix)])
            .arg(program);
        command
    }

    /// Loses what travels between a node and the others named, that way; the clients too if they
    /// are to be cut off.
    pub fn cut(&self, node: u16, others: &[u16], way: Way, clients: bool) -> Result<(), Failure> {
        self.rules(node, &cut_rules(others, way, clients))
    }

    /// Leads the connections of two nodes to each other through proxies with this trouble.
    pub fn trouble(&self, pair: [u16; 2], trouble: Trouble) -> Result<Proxy, Failure> {
        let address = |net: u8, node: u16| ([10, 77, net, node as u8], PORT).into();
        let routes = pair.map(|node| Route {
            listen: address(1, node),
            target: address(0, node),
        });
        let proxy = Proxy::start(&routes, trouble).map_err(Failure::failed)?;
        self.rules(pair[0], &detour_rules(pair[1]))?;
        self.rules(pair[1], &detour_rules(pair[0]))?;
        Ok(proxy)
    }

    /// Takes every rule of a node away.
    pub fn clear(&self, node: u16) -> Result<(), Failure> {
        self.rules(node, "")
    }

    fn rules(&self, node: u16, chains: &str) -> Result<(), Failure> {
        // Nothing of before stays, whether there was anything or not; all of it at one moment.
        let mut text = "table ip chaos {\n}\ndelete table ip chaos\n".to_owned();
        if !chains.is_empty() {
            let _ = write!(text, "table ip chaos {{\n{chains}}}\n");
        }
        let mut command = self.command(node, "nft".as_ref());
        command.args(["-f", "-"]).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Failure::failed)?;
        let mut input = child.stdin.take().expect("it is piped");
        input.write_all(text.as_bytes()).map_err(Failure::failed)?;
        drop(input);
        let output = child.wait_with_output().map_err(Failure::failed)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Failure::Failed(format!("nft for node {node}: {said}")))
    }
}

fn cut_rules(others: &[u16], way: Way, clients: bool) -> String {
    let mut hosts: Vec<String> = others.iter().map(|node| Net::host(*node)).collect();
    hosts.extend(clients.then(|| CLIENTS.to_owned()));
    let hosts = hosts.join(", ");
    let mut text = String::new();
    for (own, hook, end) in [(Way::In, "input", "saddr"), (Way::Out, "output", "daddr")] {
        if way == own || way == Way::Both {
            let _ = write!(
                text,
                "chain {hook} {{\ntype filter hook {hook} priority 0\nip {end} {{ {hosts} }} \
                 drop\n}}\n"
            );
        }
    }
    text
}

/// New connections to the other node go to its proxy, and what is open to it is reset.
fn detour_rules(other: u16) -> String {
    let host = Net::host(other);
    format!(
        "chain detour {{\ntype nat hook output priority -100\nip daddr {host} tcp dport {PORT} \
         dnat to 10.77.1.{other}\n}}\nchain output {{\ntype filter hook output priority 0\nip \
         daddr {host} tcp sport != {PORT} reject with tcp reset\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_names_hosts_and_hooks() {
        let both = cut_rules(&[1, 3], Way::Both, true);
        assert!(both.contains("ip saddr { 10.77.0.1, 10.77.0.3, 10.77.0.100 } drop"));
        assert!(both.contains("ip daddr { 10.77.0.1, 10.77.0.3, 10.77.0.100 } drop"));
        let one = cut_rules(&[2], Way::In, false);
        assert!(one.contains("hook input") && !one.contains("hook output"));
    }
}
