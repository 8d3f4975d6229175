//! Tests of the judgement: each thing that does not hold is named.

use std::process::Command;
use std::thread;

use super::*;

fn good() -> Seen {
    let second = |second| Second {
        second,
        rss: 150_000_000,
        status: if second < 3 {
            "replicating"
        } else {
            "waiting_for_credit"
        }
        .to_owned(),
        lag_records: 50_000 * second,
    };
    Seen {
        rss_at_stop: 120_000_000,
        seconds: (1..=20).map(second).collect(),
        rates: [50_000.0, 41_000.0],
        settled: true,
        proven: true,
    }
}

#[test]
fn a_good_stall_holds() {
    assert_eq!(failures(&good()), Vec::<String>::new());
}

#[test]
fn each_failure_is_named() {
    let fails = |change: fn(&mut Seen), words: &str| {
        let mut seen = good();
        change(&mut seen);
        let failures = failures(&seen);
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].contains(words), "{failures:?}");
    };
    let over = |seen: &mut Seen| {
        seen.seconds[8].rss = seen.rss_at_stop + INITIAL_CREDIT_BYTES + MORE_BYTES + 1;
    };
    fails(over, "after 9 s the leader's memory");
    let late = |seen: &mut Seen| {
        seen.seconds[..10]
            .iter_mut()
            .for_each(|row| row.status = "replicating".to_owned());
    };
    fails(late, "disconnected after 11 s, not within 10 s");
    let never = |seen: &mut Seen| {
        seen.seconds
            .iter_mut()
            .for_each(|row| row.status = "paused".to_owned());
    };
    fails(never, "never");
    fails(|seen| seen.rates[1] = 39_999.0, "39,999 records/s");
    fails(|seen| seen.settled = false, "lacked records");
    fails(|seen| seen.proven = false, "do not hold");
}

#[test]
fn rates_come_from_the_acks_between_two_times() {
    let text = "1000 10 20\n1100 20 40\n2100 520 540\n2200 530 600\n";
    assert_eq!(rate_between(text, 1100, 2150), 1_000.0);
    assert_eq!(rate_between(text, 1101, 2150), 0.0);
    assert_eq!(rate_between(text, 3000, 4000), 0.0);
}

#[test]
fn a_stopped_process_goes_on_when_it_is_let_go() {
    let state = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("runs");
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        state.expect("a state")
    };
    let mut sleeper = Command::new("sleep").arg("60").spawn().expect("it runs");
    let pid = sleeper.id();
    let reaches = |wanted: fn(char) -> bool| {
        let until = Instant::now() + Duration::from_secs(10);
        while !wanted(state(pid)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        wanted(state(pid))
    };
    let stopped = Stopped::stop(pid).expect("stopped");
    let stands = reaches(|state| state == 'T');
    drop(stopped);
    let goes_on = reaches(|state| state != 'T');
    sleeper.kill().expect("killed");
    sleeper.wait().expect("gone");
    assert!(stands && goes_on);
}
