//! Samples of workloads, for runs that have minutes and not hours.

use std::collections::BTreeMap;

use super::workload::Workload;

/// Whether the user asks for all workloads, however long they take: `PRAMFS_EXPLORE=all`.
pub fn asked_for_all() -> bool {
    std::env::var_os("PRAMFS_EXPLORE").is_some_and(|all| all == "all")
}

/// Returns one of each `step` workloads, or all of them if the user asks for that.
///
/// Only the last operation of a workload is crashed. So the workloads with the same last
/// operation on the same lane are a group, and each group of at least `step` is met, each time
/// after other operations. Of smaller groups some are left out; with an odd step, both lanes are
/// met all the same.
pub fn sample(all: Vec<Workload>, step: usize) -> Vec<Workload> {
    match asked_for_all() {
        true => all,
        false => part(all, step),
    }
}

fn part(all: Vec<Workload>, step: usize) -> Vec<Workload> {
    let last = |w: &Workload| w.steps.last().copied().filter(|_| w.steps.len() > 1);
    let mut groups = BTreeMap::new();
    for w in &all {
        groups.insert(last(w), 0);
    }
    for (nth, met) in groups.values_mut().enumerate() {
        *met = nth;
    }
    let mut all = all;
    all.retain(|w| {
        let Some(met) = groups.get_mut(&last(w)) else {
            return false;
        };
        *met += 1;
        (*met - 1) % step == 0
    });
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::crash::operations::ops;
    use crate::crash::workload::sequences;

    #[test]
    fn sample_of_pairs_has_each_last_operation_on_each_lane_after_many_others() {
        let ops = ops();
        let all = sequences(&ops, 2, true, &|op| !op.map && !op.wide);
        let ends = |of: &[Workload]| -> BTreeSet<_> { of.iter().map(|w| w.steps[1]).collect() };
        let starts = |of: &[Workload]| -> BTreeSet<_> { of.iter().map(|w| w.steps[0]).collect() };
        for step in [3, 13, 17, 25] {
            let some = part(all.clone(), step);
            assert!(some.len().abs_diff(all.len() / step) < ends(&all).len());
            assert_eq!(ends(&some), ends(&all), "one in {step}");
            assert_eq!(starts(&some), starts(&all), "one in {step}");
        }
    }

    #[test]
    fn sample_of_single_operations_is_one_of_each_step() {
        let ops = ops();
        let all = sequences(&ops, 1, false, &|_| true);
        let some = part(all.clone(), 2);
        assert_eq!(some.len(), all.len().div_ceil(2));
    }
}
