//! What is done to the nodes of a chaos run, one or two things at a time.
//!
//! Kinds are dealt from a shuffled deck, so that each has its turn; targets and times are drawn
//! from the seed. Never is more than a minority of the nodes impaired, counting those that have not
//! caught up again yet, and never is more than one thing done to the network. Whatever is done is
//! undone when its time is over, or by [`Faults::heal`]. Read `net.rs` and `fleet.rs` for how.

use std::io::{self, Write as _};
use std::process::Command;
use std::time::{Duration, Instant};

use super::fleet::Fleet;
use super::net::{Net, Way};
use crate::Failure;
use crate::lab::child::Child;
use crate::lab::{Place, rest};
use crate::proxy::{Proxy, Trouble};
use crate::random::Random;

/// At one time.
const MOST: usize = 2;
const STEP: Duration = Duration::from_millis(50);
/// Between two looks at nodes that are to catch up, and the lag at which they have.
const LOOK: Duration = Duration::from_millis(400);
const CAUGHT_UP_RECORDS: u64 = 4_000;
/// How long one change of leader may take on average when nothing else is done.
const CHANGE: Duration = Duration::from_secs(6);
/// How long a planned change of leader may take.
const PROMOTION: Duration = Duration::from_secs(30);
/// By how much a clock is off, milliseconds.
const CLOCKS_MS: [i64; 8] = [
    -86_400_000,
    -3_600_000,
    -60_000,
    -1_500,
    1_500,
    60_000,
    3_600_000,
    86_400_000,
];

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SIGKILL and, some time later, a start.
    Kill,
    /// The same to the leader of a shard.
    LeaderKill,
    /// SIGSTOP and SIGCONT.
    Pause,
    /// Nothing passes between a node and one or all others.
    Partition,
    /// Nothing passes in one direction.
    OneWay,
    /// Two nodes hear each other late.
    SlowLink,
    /// Bytes between two nodes change on the way.
    Corruption,
    /// Not a byte is free on a node's disk.
    FullDisk,
    /// A node is killed and starts with a clock that is wrong.
    Clock,
    /// `millrace promote`.
    Promotion,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 10] = [
        Kind::Kill,
        Kind::LeaderKill,
        Kind::Pause,
        Kind::Partition,
        Kind::OneWay,
        Kind::SlowLink,
        Kind::Corruption,
        Kind::FullDisk,
        Kind::Clock,
        Kind::Promotion,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Kill => "kill and restart",
            Kind::LeaderKill => "kill of a leader",
            Kind::Pause => "stop and go on",
            Kind::Partition => "partition",
            Kind::OneWay => "one-way partition",
            Kind::SlowLink => "slow link",
            Kind::Corruption => "changed bytes",
            Kind::FullDisk => "full disk",
            Kind::Clock => "wrong clock",
            Kind::Promotion => "planned change",
        }
    }

    /// The shortest and the longest that it lasts, milliseconds.
    fn lasts_ms(self) -> [u64; 2] {
        match self {
            Kind::Kill | Kind::LeaderKill => [1_000, 4_000],
            Kind::Pause => [500, 6_000],
            Kind::Partition | Kind::OneWay => [1_000, 7_000],
            Kind::SlowLink | Kind::Corruption => [2_000, 6_000],
            Kind::FullDisk => [4_000, 8_000],
            Kind::Clock | Kind::Promotion => [0, 1],
        }
    }

    fn is_of_network(self) -> bool {
        matches!(
            self,
            Kind::Partition | Kind::OneWay | Kind::SlowLink | Kind::Corruption
        )
    }

    /// Whether it counts as the failure of a node.
    fn impairs(self) -> bool {
        !matches!(self, Kind::SlowLink | Kind::Promotion)
    }
}

/// Something that was done. Times are since the load began, microseconds.
#[derive(Clone, Debug)]
pub struct Event {
    /// What.
    pub kind: Kind,
    /// To whom, and how.
    pub text: String,
    /// When it began.
    pub from_us: u64,
    /// When it was undone; it may show for a while after.
    pub to_us: u64,
    /// Shards that the node led which was killed.
    pub led: Vec<u16>,
    /// Whether it was undone, and a planned change of leader came about.
    pub is_done: bool,
}

/// How to undo it.
enum Undo {
    Start(u16),
    GoOn(u16),
    Clear(u16),
    Direct([u16; 2], Proxy),
    Free(u16),
    /// The node runs already.
    Started,
    Await(Child),
}

struct Active {
    event: usize,
    kind: Kind,
    impaired: Option<u16>,
    until: Instant,
    undo: Undo,
}

/// What is done, and what was.
pub struct Faults<'a> {
    fleet: &'a mut Fleet,
    net: &'a Net,
    place: &'a Place,
    random: Random,
    start: Instant,
    deck: Vec<Kind>,
    active: Vec<Active>,
    /// Nodes that have not caught up again.
    behind: Vec<u16>,
    looked: Instant,
    /// All that was done.
    pub events: Vec<Event>,
    /// Bytes that were changed between nodes.
    pub flips: u64,
}

impl<'a> Faults<'a> {
    /// Nothing is done yet.
    pub fn new(
        fleet: &'a mut Fleet,
        net: &'a Net,
        place: &'a Place,
        seed: u64,
        start: Instant,
    ) -> Faults<'a> {
        Faults {
            fleet,
            net,
            place,
            random: Random::new(seed),
            start,
            deck: Vec::new(),
            active: Vec::new(),
            behind: Vec::new(),
            looked: start,
            events: Vec::new(),
            flips: 0,
        }
    }

    /// Disturbs for so long.
    pub fn run(&mut self, lasts: Duration) -> Result<(), Failure> {
        let until = Instant::now() + lasts;
        let mut next = Instant::now() + Duration::from_millis(1_500);
        while Instant::now() < until {
            rest(STEP)?;
            self.fleet.fallen()?;
            self.undo_due(false)?;
            self.look()?;
            if Instant::now() >= next && self.active.len() < MOST && self.deal()? {
                next = Instant::now() + Duration::from_millis(self.between([1_200, 5_000]));
            }
        }
        Ok(())
    }

    /// Changes leaders so many times, every tenth time by a kill, one change after the other.
    pub fn change_leaders(&mut self, count: u32) -> Result<(), Failure> {
        let until = Instant::now() + CHANGE * count;
        while self.changes() < count as usize && Instant::now() < until {
            rest(STEP)?;
            self.fleet.fallen()?;
            self.undo_due(false)?;
            self.look()?;
            if self.active.is_empty() && self.behind.is_empty() {
                let kind = match self.events.len() % 10 {
                    9 => Kind::LeaderKill,
                    _ => Kind::Promotion,
                };
                self.begin(kind)?;
            }
        }
        Ok(())
    }

    /// How many leaders were changed.
    fn changes(&self) -> usize {
        self.events.iter().filter(|event| event.is_done).count()
    }

    /// Undoes everything.
    pub fn heal(&mut self) -> Result<(), Failure> {
        self.undo_due(true)
    }

    fn between(&mut self, [least, most]: [u64; 2]) -> u64 {
        least + self.random.below(most - least)
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Nodes that nothing is done to.
    fn well(&self) -> Vec<u16> {
        let impaired = |node: &u16| self.active.iter().any(|one| one.impaired == Some(*node));
        let ids = self.fleet.ids();
        ids.filter(|node| !impaired(node) && !self.behind.contains(node))
            .collect()
    }

    fn has_room(&self) -> bool {
        let nodes = self.fleet.ids().count();
        nodes - self.well().len() < (nodes - 1) / 2
    }

    /// Does the first thing of the deck that may be done now; whether there was one.
    fn deal(&mut self) -> Result<bool, Failure> {
        if self.deck.is_empty() {
            self.deck = Kind::ALL.to_vec();
            let has_clocks = self.fleet.has_clocks();
            self.deck.retain(|kind| has_clocks || *kind != Kind::Clock);
            for last in (1..self.deck.len()).rev() {
                let other = self.random.below(last as u64 + 1) as usize;
                self.deck.swap(last, other);
            }
        }
        for place in 0..self.deck.len() {
            let kind = self.deck[place];
            let taken =
                kind.is_of_network() && self.active.iter().any(|one| one.kind.is_of_network());
            // A leader dies with all others in their places: what comes then is its own doing.
            let alone = kind != Kind::LeaderKill || self.behind.is_empty();
            if !taken && alone && (!kind.impairs() || self.has_room()) && self.begin(kind)? {
                self.deck.remove(place);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn begin(&mut self, kind: Kind) -> Result<bool, Failure> {
        let mut well = self.well();
        let leaders = match kind {
            Kind::LeaderKill | Kind::Promotion => self.leaders(&well),
            _ => Vec::new(),
        };
        let node = if leaders.is_empty() {
            self.random.pick(&well)
        } else {
            self.random.pick(&leaders).1
        };
        if matches!(kind, Kind::LeaderKill | Kind::Promotion) && leaders.is_empty() {
            return Ok(false);
        }
        well.retain(|other| *other != node);
        if well.is_empty() {
            return Ok(false);
        }
        let other = self.random.pick(&well);
        let led: Vec<u16> = match kind {
            Kind::LeaderKill => leaders
                .iter()
                .filter(|one| one.1 == node)
                .map(|one| one.0)
                .collect(),
            _ => Vec::new(),
        };
        let from_us = self.now_us();
        let (mut text, undo) = self.disturb(kind, node, other, &leaders)?;
        if !led.is_empty() {
            text = format!("{text}, which led {led:?}");
        }
        let lasts_ms = self.between(kind.lasts_ms());
        say(&format!(
            "{:>7.1} s  {}: {text}, {lasts_ms} ms",
            from_us as f64 / 1e6,
            kind.name()
        ));
        self.active.push(Active {
            event: self.events.len(),
            kind,
            impaired: kind.impairs().then_some(node),
            until: Instant::now() + Duration::from_millis(lasts_ms),
            undo,
        });
        self.events.push(Event {
            kind,
            text,
            from_us,
            to_us: from_us,
            led,
            is_done: false,
        });
        Ok(true)
    }

    /// Does it.
    fn disturb(
        &mut self,
        kind: Kind,
        node: u16,
        other: u16,
        leaders: &[(u16, u16)],
    ) -> Result<(String, Undo), Failure> {
        let name = format!("node {node}");
        Ok(match kind {
            Kind::Kill | Kind::LeaderKill => {
                self.fleet.kill(node)?;
                (name, Undo::Start(node))
            }
            Kind::Pause => {
                self.fleet.signal(node, libc::SIGSTOP)?;
                (name, Undo::GoOn(node))
            }
            Kind::Partition | Kind::OneWay => self.cut(kind, node, other)?,
            Kind::SlowLink => {
                let ms = self.between([20, 150]);
                let trouble = Trouble {
                    delay: Duration::from_millis(ms),
                    flip_every: 0,
                };
                let proxy = self.net.trouble([node, other], trouble)?;
                (
                    format!("{name} and {other}, {ms} ms"),
                    Undo::Direct([node, other], proxy),
                )
            }
            Kind::Corruption => {
                let trouble = Trouble {
                    delay: Duration::ZERO,
                    flip_every: self.between([20_000, 400_000]),
                };
                let proxy = self.net.trouble([node, other], trouble)?;
                (
                    format!("{name} and {other}"),
                    Undo::Direct([node, other], proxy),
                )
            }
            Kind::FullDisk => {
                self.fleet.fill(node)?;
                (name, Undo::Free(node))
            }
            Kind::Clock => {
                let ms = self.random.pick(&CLOCKS_MS);
                self.fleet.kill(node)?;
                self.fleet.start(node, Some(ms))?;
                (
                    format!("{name}, off by {} s", ms as f64 / 1e3),
                    Undo::Started,
                )
            }
            Kind::Promotion => {
                let shards = leaders.iter().filter(|one| one.1 == node).map(|one| one.0);
                let shards: Vec<u16> = shards.collect();
                let shard = self.random.pick(&shards);
                let child = self.promote(shard, node, other)?;
                (
                    format!("shard {shard} from {name} to {other}"),
                    Undo::Await(child),
                )
            }
        })
    }

    fn cut(&mut self, kind: Kind, node: u16, other: u16) -> Result<(String, Undo), Failure> {
        let all: Vec<u16> = self.fleet.ids().filter(|one| *one != node).collect();
        let is_pair = self.random.below(3) == 0;
        let others = if is_pair { vec![other] } else { all };
        let ways: &[Way] = match kind {
            Kind::Partition => &[Way::Both],
            _ => &[Way::In, Way::Out],
        };
        let way = self.random.pick(ways);
        let clients = !is_pair && self.random.below(2) == 0;
        self.net.cut(node, &others, way, clients)?;
        let with = if clients { " and the clients" } else { "" };
        let text = match way {
            Way::In => format!("node {node} hears nothing of {others:?}{with}"),
            Way::Out => format!("node {node} is not heard by {others:?}{with}"),
            Way::Both => format!("node {node} and {others:?}{with}"),
        };
        Ok((text, Undo::Clear(node)))
    }

    fn promote(&self, shard: u16, from: u16, to: u16) -> Result<Child, Failure> {
        let mut command = Command::new(self.place.bin.join("millrace"));
        command
            .args(["promote", &shard.to_string(), &to.to_string()])
            .args(["--node", &Net::address(from)]);
        let name = format!("promote-{}", self.events.len());
        Child::start(&mut command, &self.place.work, &name, PROMOTION)
    }

    /// Shard and leader, as the nodes named say; a node that does not answer leads nothing.
    fn leaders(&self, nodes: &[u16]) -> Vec<(u16, u16)> {
        let mut leaders = Vec::new();
        for node in nodes {
            let Ok(status) = self.fleet.status(*node) else {
                continue;
            };
            leaders.extend(status.leads().iter().map(|log| (log.1 as u16, *node)));
        }
        leaders
    }

    fn undo_due(&mut self, all: bool) -> Result<(), Failure> {
        let mut place = 0;
        while place < self.active.len() {
            let one = &mut self.active[place];
            let is_due = match &mut one.undo {
                Undo::Await(child) => all || child.has_ended()?,
                _ => all || Instant::now() >= one.until,
            };
            if !is_due {
                place += 1;
                continue;
            }
            let one = self.active.remove(place);
            self.events[one.event].is_done = true;
            self.undo(one.undo, one.event)?;
            self.events[one.event].to_us = self.now_us();
            self.behind.extend(one.impaired);
        }
        Ok(())
    }

    fn undo(&mut self, undo: Undo, event: usize) -> Result<(), Failure> {
        match undo {
            Undo::Start(node) => self.fleet.start(node, None),
            Undo::GoOn(node) => self.fleet.signal(node, libc::SIGCONT),
            Undo::Clear(node) => self.net.clear(node),
            Undo::Direct(pair, proxy) => {
                self.flips += proxy.flips();
                pair.iter().try_for_each(|node| self.net.clear(*node))
            }
            Undo::Free(node) => self.fleet.free(node),
            Undo::Started => Ok(()),
            Undo::Await(child) => {
                let ended = child.wait()?;
                if ended.code != 0 {
                    // The other node may have been killed meanwhile: no failure, and no change.
                    self.events[event].is_done = false;
                    say(&format!("           {}", ended.last_line()));
                }
                Ok(())
            }
        }
    }

    /// Which nodes have caught up.
    fn look(&mut self) -> Result<(), Failure> {
        if self.behind.is_empty() || self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        let mut there = self.well();
        there.extend(&self.behind);
        let mut late = Vec::new();
        for node in &there {
            let Ok(status) = self.fleet.status(*node) else {
                late.push(*node);
                continue;
            };
            // Who is disturbed now is nobody else's delay.
            let links = status.links().into_iter();
            for link in links.filter(|link| there.contains(&(link.peer as u16))) {
                if link.status != "replicating" || link.lag_records > CAUGHT_UP_RECORDS {
                    late.extend([*node, link.peer as u16]);
                }
            }
        }
        self.behind.retain(|node| late.contains(node));
        Ok(())
    }
}

fn say(text: &str) {
    // A closed stderr is no reason to stop.
    let _ = writeln!(io::stderr(), "{text}");
}
