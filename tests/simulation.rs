//! Simulation of whole sets: the real shards, a simulated network, simulated disks, virtual time.
//!
//! Each seed draws its own sizes, speeds and faults, runs a fault phase and must then come to rest;
//! the checkers of `sim/checker.rs` watch every step. `SEED=k` plays one seed again, `SEEDS=n` runs
//! so many, `LINES=n` prints more or less of the trace of a seed that fails. A seed that ever
//! failed becomes a scenario here or in `sim/scenarios.rs`. Read `sim/world.rs` next.

mod sim;

#[path = "sim/checker_red.rs"]
mod checker_red;
#[path = "sim/foreign.rs"]
mod foreign;
#[path = "sim/network_checks.rs"]
mod network_checks;

use sim::long;
use sim::report::Report;
use sim::runs::{Script, complain, run, swarm};
use sim::{
    mesh, scenarios, scenarios_changes, scenarios_damage, scenarios_election, scenarios_loss,
    scenarios_producers, scenarios_script, scenarios_writes,
};

/// Seeds of a default run.
const SEEDS: u64 = 300;
/// Seeds of a default run of meshes: two or three worlds each.
const MESH_SEEDS: u64 = 80;
/// Lines of the trace that a failing seed prints.
const LINES: u64 = 300;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Runs a script with the seeds `0..seeds`, or with `SEED` alone; the sum of the reports.
fn runs(script: Script, name: &str, seeds: u64) -> Report {
    let mut sum = Report::default();
    let seeds = number("SEED").map_or(0..seeds, |seed| seed..seed + 1);
    for (after, seed) in seeds.enumerate() {
        let (result, _) = run(script, seed, 0);
        match result {
            Ok(report) => sum.add(&report),
            Err(verdict) => {
                let lines = number("LINES").unwrap_or(LINES) as usize;
                complain(script, name, (seed, after as u64), lines, &verdict);
                panic!("{name}: seed {seed} failed");
            }
        }
    }
    sum
}

/// S-5, S-20, S-145, H-20, H-22, Q-1
#[test]
fn swarm_of_seeds() {
    let seeds = number("SEEDS").unwrap_or(SEEDS);
    let sum = runs(swarm, "swarm_of_seeds", seeds);
    println!("{seeds} seeds\n{sum}");
    if seeds >= SEEDS && number("SEED").is_none() {
        let missing = sum.missing();
        assert!(missing.is_empty(), "never happened: {missing:?}");
        let kept = [sum.freed, sum.resets, sum.below_start, sum.finds];
        assert!(kept.iter().all(|times| *times > 0), "never happened: {sum}");
    }
}

/// The swarm for as long as it is given, on all cores.
#[test]
#[ignore = "scripts/simulate runs it"]
fn long_swarm() {
    let asked = long::Asked::of_environment();
    if let Err(why) = long::run(&asked) {
        panic!("long_swarm: {why}");
    }
}

/// S-3, S-5, S-20, S-145: meshes of two and three nodes.
#[test]
fn swarm_of_meshes() {
    let seeds = number("SEEDS").unwrap_or(MESH_SEEDS);
    let sum = runs(mesh::swarm, "swarm_of_meshes", seeds);
    println!("{seeds} seeds\n{sum}");
    if seeds >= MESH_SEEDS && number("SEED").is_none() {
        let missing = sum.missing_in_mesh();
        assert!(missing.is_empty(), "never happened: {missing:?}");
        assert!(sum.acked.iter().all(|acked| *acked > 0), "{sum}");
    }
}

/// S-1, S-4, S-18, S-138
#[test]
fn every_side_of_a_partition_takes_appends() {
    runs(mesh::partition, "mesh_partition", 6);
}

/// What a leader of a mesh lost with its disk is copied back from whoever holds it.
///
/// H-10
#[test]
fn a_lost_disk_of_a_mesh_is_copied_back() {
    runs(mesh::lost_disk, "mesh_lost_disk", 6);
}

/// The same seed gives the same trace to the last bit, another seed another one.
#[test]
fn a_run_is_a_function_of_its_seed() {
    let hash = |seed| {
        let (result, trace) = run(swarm, seed, 0);
        assert!(result.is_ok(), "{result:?}");
        let trace = trace.borrow();
        (trace.events(), trace.hash())
    };
    for seed in [1, 2, 3] {
        assert_eq!(hash(seed), hash(seed), "seed {seed}");
    }
    assert_ne!(hash(1), hash(2));
}

#[test]
fn ack_never_passes_verified_end() {
    let name = "stale_suffix_becomes_durable";
    runs(scenarios::stale_suffix_becomes_durable, name, 5);
}

#[test]
fn commit_never_passes_verified_end() {
    runs(scenarios::stale_suffix, "stale_suffix", 10);
}

///
#[test]
fn blank_disk_does_not_vote() {
    let name = "blank_disk_does_not_vote";
    runs(scenarios_loss::blank_disk_does_not_vote, name, 3);
}

///
#[test]
fn blank_leader_copies_first() {
    let name = "blank_leader_copies_first";
    runs(scenarios_loss::blank_leader_copies_first, name, 3);
}

#[test]
fn same_epoch_other_bytes_is_diverged() {
    let name = "same_epoch_other_bytes";
    runs(scenarios_loss::same_epoch_other_bytes, name, 4);
}

#[test]
fn a_run_that_comes_while_a_damaged_end_is_cut_waits() {
    let name = "a_run_comes_while_a_damaged_end_is_cut";
    runs(
        scenarios_damage::a_run_comes_while_a_damaged_end_is_cut,
        name,
        4,
    );
}

#[test]
fn sound_blocks_behind_damage_are_not_given_up() {
    let name = "sound_blocks_behind_damage_stay";
    runs(scenarios_damage::sound_blocks_behind_damage_stay, name, 6);
}

#[test]
fn lower_epochs_are_refused() {
    let name = "lower_epochs_are_refused";
    runs(scenarios_loss::lower_epochs_are_refused, name, 3);
}

#[test]
fn committed_blocks_are_not_cut() {
    let name = "committed_blocks_are_not_cut";
    runs(scenarios_loss::committed_blocks_are_not_cut, name, 4);
}

#[test]
fn cut_waits_for_writes_in_flight() {
    let name = "cut_with_writes_in_flight";
    runs(scenarios::cut_with_writes_in_flight, name, 10);
}

#[test]
fn torn_after_truncation_is_torn() {
    runs(scenarios::power_loss_in_a_cut, "power_loss_in_a_cut", 20);
}

///
#[test]
fn roll_survives_power_loss_before_dir_sync() {
    runs(scenarios::power_of_all_lost, "power_of_all_lost", 20);
}

///
#[test]
fn refused_frames_do_not_leak_credit() {
    runs(scenarios::damaged_payloads, "damaged_payloads", 5);
}

/// D-S8, S-122, Q-18
#[test]
fn hundred_lost_connections_do_not_leak_credit() {
    runs(scenarios::hundred_resets, "hundred_resets", 3);
}

/// S-122, D-S7, D-S8
#[test]
fn a_thousand_lost_connections_leave_equal_books() {
    runs(scenarios::thousand_resets, "thousand_resets", 1);
}

/// S-6, S-10, S-29, S-121, S-158, Q-16
#[test]
fn a_stopped_follower_costs_its_bound_and_catches_up() {
    runs(scenarios::stopped_follower, "stopped_follower", 2);
}

#[test]
fn typed_body_flip_closes_connection() {
    runs(scenarios::typed_body_flip, "typed_body_flip", 5);
}

#[test]
fn fenced_leader_is_powerless() {
    let name = "fenced_leader_is_powerless";
    runs(scenarios_script::fenced_leader_is_powerless, name, 3);
}

#[test]
fn an_epoch_is_promised_to_one_candidate() {
    runs(scenarios_script::one_vote_an_epoch, "one_vote_an_epoch", 3);
}

///
#[test]
fn an_idle_follower_that_restarts_is_taken_up_again() {
    let name = "idle_follower_restarts";
    runs(scenarios::idle_follower_restarts, name, 4);
}

/// S-10, S-98
#[test]
fn a_slow_follower_holds_up_nobody() {
    runs(scenarios::slow_follower, "slow_follower", 2);
}

///
#[test]
fn a_retry_is_never_appended_twice() {
    let name = "retries_over_restarts";
    let sum = runs(scenarios_producers::retries_over_restarts, name, 10);
    assert!(sum.retries > 100, "{} batches were sent again", sum.retries);
}

///
#[test]
fn truncation_rolls_back_producers() {
    let name = "cut_producers";
    let sum = runs(scenarios_producers::cut_producers, name, 10);
    assert!(sum.blocks_cut > 0, "nothing was cut");
}

/// What a `local` append was told is read at once, and what is gone is never read on from.
#[test]
fn local_reads_see_the_open_block_and_learn_that_it_is_gone() {
    let name = "lost_open_block";
    let sum = runs(scenarios_producers::lost_open_block, name, 5);
    assert!(sum.truncated_reads > 0, "no reader was told");
}

#[test]
fn a_pool_below_what_may_be_kept_stops_nobody() {
    runs(scenarios::small_pool, "small_pool", 2);
}

/// H-10, Q-12
#[test]
fn a_follower_behind_the_log_start_begins_anew() {
    let name = "behind_log_start";
    let sum = runs(scenarios::behind_log_start, name, 6);
    assert!(sum.resets > 0 && sum.freed > 0, "{sum}");
}

/// S-170
#[cfg(feature = "node")]
#[test]
fn the_preset_latency_shows_a_lower_lag() {
    runs(sim::scenarios_links::latency_preset, "latency_preset", 10);
}

/// the receiver sets the rate of a catch-up, also while it runs.
#[cfg(feature = "node")]
#[test]
fn a_follower_is_brought_up_at_its_own_pace() {
    let name = "paced_catch_up";
    runs(sim::scenarios_links::paced_catch_up, name, 2);
}

/// S-5, Q-1
#[test]
fn a_leader_that_dies_is_replaced_within_three_seconds() {
    runs(scenarios_election::leader_killed, "leader_killed", 12);
}

///
#[test]
fn a_leader_whose_disk_fails_hands_over() {
    runs(
        scenarios_election::leader_disk_fails,
        "leader_disk_fails",
        6,
    );
}

///
#[test]
fn a_leader_that_wakes_too_late_acknowledges_nothing() {
    runs(scenarios_election::old_leader_wakes, "old_leader_wakes", 6);
}

#[test]
fn a_leader_that_one_side_does_not_hear_steps_down() {
    runs(scenarios_election::one_way, "one_way", 6);
}

/// S-1, S-119
#[test]
fn a_leader_without_a_majority_steps_down() {
    runs(scenarios_election::minority_leader, "minority_leader", 6);
}

#[test]
fn split_votes_lead_to_one_leader() {
    let sum = runs(scenarios_election::split_vote, "split_vote", 8);
    assert!(sum.elections[1] > 30, "{:?}", sum.elections);
}

#[test]
fn a_candidate_that_is_behind_is_refused() {
    runs(scenarios_election::candidate_behind, "candidate_behind", 6);
}

#[test]
fn a_hand_over_fails_no_append() {
    let sum = runs(scenarios_election::hand_over, "hand_over", 6);
    assert!(sum.elections[1] > 60, "{:?}", sum.elections);
}

#[test]
fn a_flapping_member_deposes_nobody() {
    runs(scenarios_election::flapping, "flapping", 3);
}

#[test]
fn the_placed_leader_is_given_the_leadership_back() {
    runs(scenarios_election::given_back, "given_back", 6);
}

///
#[test]
fn a_thousand_changes_of_the_leader_stall_nothing() {
    let name = "thousand_changes";
    let sum = runs(scenarios_changes::thousand_changes, name, 1);
    assert!(
        sum.elections[1] >= scenarios_changes::CHANGES,
        "{:?}",
        sum.elections
    );
}

///
#[test]
fn a_retry_over_a_fail_over_is_never_appended_twice() {
    let name = "retries_over_fail_overs";
    let sum = runs(scenarios_changes::retries_over_fail_overs, name, 6);
    assert!(sum.retries > 100, "{} batches were sent again", sum.retries);
    assert!(sum.elections[1] >= 60, "{:?}", sum.elections);
}

///
#[test]
fn a_followers_writes_follow_from_its_blocks() {
    runs(scenarios_writes::follower_writes, "follower_writes", 3);
}
