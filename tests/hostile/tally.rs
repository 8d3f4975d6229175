//! The table: how many cases of each attack met which outcome.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Debug, Default)]
pub struct Tally {
    rows: BTreeMap<(String, String), BTreeMap<String, u64>>,
}

impl Tally {
    pub fn count(&mut self, what: &str, attack: &str, outcome: &str) {
        let row = self.rows.entry((what.to_owned(), attack.to_owned()));
        *row.or_default().entry(outcome.to_owned()).or_default() += 1;
    }

    pub fn add(&mut self, other: Tally) {
        for (row, outcomes) in other.rows {
            let here = self.rows.entry(row).or_default();
            for (outcome, count) in outcomes {
                *here.entry(outcome).or_default() += count;
            }
        }
    }

    pub fn cases(&self) -> u64 {
        self.rows.values().flat_map(|row| row.values()).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<16} {:<26} {:>6}  outcomes",
            "frame", "attack", "cases"
        )?;
        for ((what, attack), outcomes) in &self.rows {
            let sum: u64 = outcomes.values().sum();
            let outcomes: Vec<String> = outcomes
                .iter()
                .map(|(outcome, count)| format!("{outcome} {count}"))
                .collect();
            let outcomes = outcomes.join(", ");
            writeln!(f, "{what:<16} {attack:<26} {sum:>6}  {outcomes}")?;
        }
        writeln!(f, "{} cases", self.cases())
    }
}
