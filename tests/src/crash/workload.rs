//! Workloads: sequences of operations on a small tree, all of them up to a
//! length (the bounded black-box way of CrashMonkey's ACE).

use super::operations::Op;

/// A sequence of operations, each with the lane of the thread that runs it.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Indices into [`ops`](super::operations::ops) with lanes.
    pub steps: Vec<(usize, u32)>,
}

impl Workload {
    /// The workload of a name.
    ///
    /// # Errors
    /// What of the name is no operation.
    pub fn parse(name: &str, ops: &[Op]) -> Result<Workload, String> {
        let step = |text: &str| {
            let (op, lane) = match text.trim().rsplit_once(" [lane ") {
                Some((op, lane)) => (op, lane.trim_end_matches(']').parse()),
                None => (text.trim(), Ok(0)),
            };
            let lane = lane.map_err(|e| format!("the lane in \"{text}\": {e}"))?;
            let found = ops.iter().position(|o| o.name == op);
            let op = found.ok_or_else(|| {
                let names: Vec<_> = ops.iter().map(|o| o.name).collect();
                format!(
                    "there is no operation \"{op}\"; there are:\n{}",
                    names.join("\n")
                )
            })?;
            Ok((op, lane))
        };
        let steps = name.split(';').map(step).collect::<Result<_, String>>()?;
        Ok(Workload { steps })
    }

    /// Its name: what runs, and on which lane.
    pub fn name(&self, ops: &[Op]) -> String {
        let step = |(op, lane): &(usize, u32)| format!("{} [lane {lane}]", ops[*op].name);
        self.steps.iter().map(step).collect::<Vec<_>>().join("; ")
    }
}

/// All sequences of a length of the operations that `pick` chooses; each on one
/// lane, and, if `lanes`, each with every operation on another lane than the
/// one before it.
pub fn sequences(
    ops: &[Op],
    length: usize,
    lanes: bool,
    pick: &dyn Fn(&Op) -> bool,
) -> Vec<Workload> {
    let chosen: Vec<usize> = (0..ops.len()).filter(|i| pick(&ops[*i])).collect();
    let mut all: Vec<Vec<usize>> = vec![vec![]];
    for _ in 0..length {
        all = all
            .iter()
            .flat_map(|s| chosen.iter().map(|op| [&s[..], &[*op]].concat()))
            .collect();
    }
    let mut out = Vec::new();
    let at_end = |s: &&Vec<usize>| s[..length - 1].iter().all(|op| !ops[*op].lossy);
    for s in all.iter().filter(at_end) {
        let on = |alternate: u32| Workload {
            steps: (0u32..)
                .zip(s)
                .map(|(i, op)| (*op, i % 2 * alternate))
                .collect(),
        };
        out.push(on(0));
        if lanes && length > 1 {
            out.push(on(1));
        }
    }
    out
}
